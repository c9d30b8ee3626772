//! The schedule in simulated time.

use std::time::Duration;

use super::*;

const CRITICAL: MemberId = 1;
const FIRST: MemberId = 2;
const SECOND: MemberId = 3;

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// A schedule with a latency-critical member and two best-effort ones, the second with this share.
fn schedule(slots: usize, share: u32) -> Schedule {
    let mut schedule = Schedule::new(slots);
    schedule.join(CRITICAL, Class::Critical, 1);
    schedule.join(FIRST, Class::BestEffort, 1);
    schedule.join(SECOND, Class::BestEffort, share);
    schedule
}

#[test]
fn latency_critical_work_has_the_slot_of_best_effort_work_at_its_next_offer() {
    let mut schedule = schedule(1, 1);
    assert!(schedule.ask(20, FIRST, us(0)));
    assert!(!schedule.ask(30, SECOND, us(1)));
    assert_eq!(
        schedule.offer(20, us(50)),
        Offered::Keeps,
        "a slice is longer"
    );
    assert!(!schedule.ask(10, CRITICAL, us(60)));
    assert_eq!(schedule.offer(20, us(61)), Offered::Waits(Some(10)));
    assert_eq!(schedule.offer(10, us(5_000)), Offered::Keeps);
    // The one with the smaller lead.
    assert_eq!(schedule.give_back(10, us(5_001)), Some(30));
    assert_eq!(schedule.waiting().collect::<Vec<_>>(), [20]);
}

#[test]
fn best_effort_work_that_starves_has_a_slice() {
    let mut schedule = schedule(1, 1);
    assert!(schedule.ask(10, CRITICAL, us(0)));
    assert!(!schedule.ask(20, FIRST, us(0)));
    assert_eq!(schedule.offer(10, us(49_000)), Offered::Keeps);
    assert_eq!(schedule.offer(10, us(50_000)), Offered::Waits(Some(20)));
    assert_eq!(schedule.offer(20, us(50_900)), Offered::Keeps);
    assert_eq!(schedule.offer(20, us(51_000)), Offered::Waits(Some(10)));
    assert_eq!(schedule.offer(10, us(100_900)), Offered::Keeps);
    assert_eq!(schedule.offer(10, us(101_000)), Offered::Waits(Some(20)));
}

#[test]
fn seats_of_one_member_take_no_slots_from_each_other() {
    let mut schedule = schedule(1, 1);
    assert!(schedule.ask(20, FIRST, us(0)));
    assert!(!schedule.ask(21, FIRST, us(0)));
    assert_eq!(schedule.offer(20, us(10_000)), Offered::Keeps);
    assert_eq!(schedule.give_back(20, us(10_000)), Some(21));
}

#[test]
fn a_member_that_comes_back_has_saved_up_no_time() {
    let mut schedule = schedule(1, 1);
    assert!(schedule.ask(20, FIRST, us(0)));
    assert!(!schedule.ask(30, SECOND, us(1_000_000)));
    assert_eq!(schedule.offer(20, us(1_000_000)), Offered::Waits(Some(30)));
    assert_eq!(schedule.offer(30, us(1_001_000)), Offered::Waits(Some(20)));
    assert_eq!(schedule.offer(20, us(1_001_500)), Offered::Keeps);
    assert_eq!(schedule.offer(20, us(1_002_000)), Offered::Waits(Some(30)));
}

/// Lets members compute without a break for simulated time, each with some seats, whose pieces of work take 50 µs. Returns the time
/// that each has had, in slots.
fn compete(slots: usize, level: Level, members: &[(Class, u32, u64)]) -> Vec<f64> {
    let mut schedule = Schedule::new(slots);
    schedule.limit(level, us(0));
    for (member, (class, share, seats)) in members.iter().enumerate() {
        schedule.join(member as u64, *class, *share);
        for seat in 0..*seats {
            schedule.ask(member as u64 * 100 + seat, member as u64, us(0));
        }
    }
    let mut now = us(0);
    while now < us(2_000_000) {
        now += us(50) / slots as u32;
        // Each in turn, as offers of several threads come.
        let holding: Vec<SeatId> = schedule.holding().collect();
        if holding.is_empty() {
            schedule.fill(now);
            continue;
        }
        let seat = holding[(now.as_micros() as usize * slots / 50) % holding.len()];
        schedule.offer(seat, now);
        schedule.fill(now);
    }
    let part = |member| schedule.part(member as u64, now).taken.as_secs_f64();
    let parts: Vec<f64> = (0..members.len()).map(part).collect();
    parts
        .into_iter()
        .map(|taken| taken / now.as_secs_f64())
        .collect()
}

#[test]
fn members_that_always_have_work_get_time_by_their_shares() {
    use Class::{BestEffort, Critical};
    type Members = [(Class, u32, u64)];
    let cases: &[(usize, &Members, &[f64])] = &[
        (2, &[(BestEffort, 1, 2)], &[2.0]),
        (1, &[(BestEffort, 1, 1); 4], &[0.25; 4]),
        (2, &[(BestEffort, 1, 2); 2], &[1.0; 2]),
        (2, &[(BestEffort, 1, 2); 3], &[0.667; 3]),
        (2, &[(BestEffort, 1, 2), (BestEffort, 3, 2)], &[0.5, 1.5]),
        // A member with one seat has one slot at most.
        (2, &[(BestEffort, 1, 2), (BestEffort, 3, 1)], &[1.0, 1.0]),
        (2, &[(Critical, 1, 1), (BestEffort, 1, 2)], &[1.0, 1.0]),
        // A slice in each 51 ms of one slot.
        (2, &[(Critical, 1, 2), (BestEffort, 1, 2)], &[1.98, 0.02]),
        (
            4,
            &[(Critical, 2, 4), (Critical, 1, 4), (BestEffort, 1, 1)],
            &[2.653, 1.327, 0.02],
        ),
    ];
    for (slots, members, expected) in cases {
        let had = compete(*slots, FULL, members);
        for (had, expected) in had.iter().zip(*expected) {
            assert!((had - expected).abs() < 0.03, "{members:?}: {had}");
        }
    }
}

#[test]
fn best_effort_work_has_the_time_of_its_level() {
    use Class::{BestEffort, Critical};
    for (level, expected) in [
        (0, 0.02),
        (5, 0.1),
        (25, 0.5),
        (50, 1.0),
        (75, 1.5),
        (FULL, 2.0),
    ] {
        let had = compete(2, level, &[(BestEffort, 1, 2)])[0];
        assert!((had - expected).abs() < 0.03, "{level}: {had}");
        // Critical work has the rest.
        let had = compete(2, level, &[(Critical, 1, 1), (BestEffort, 1, 2)]);
        assert!(had[0] > 0.97, "{level}: {had:?}");
        assert!(
            (had[1] - f64::min(expected, 1.0)).abs() < 0.03,
            "{level}: {had:?}"
        );
    }
}

/// Random steps of random members, against the rules that always hold.
#[test]
fn no_slot_is_free_while_a_seat_waits() {
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let slots = random.usize(1..4);
        let mut schedule = Schedule::new(slots);
        let classes: Vec<Class> = (0..random.u64(1..5))
            .map(|member| {
                let class = [Class::Critical, Class::BestEffort][random.usize(..2)];
                schedule.join(member, class, random.u32(1..5));
                class
            })
            .collect();
        // By seat: whether it holds a slot, or waits.
        let mut held = [false; 12];
        let mut waits = [false; 12];
        let mut level = FULL;
        let mut now = us(0);
        for _ in 0..2_000 {
            now += us(random.u64(0..2_000));
            let seat = random.usize(..held.len());
            let id = seat as SeatId;
            let granted = match (held[seat], waits[seat]) {
                (true, _) if random.bool() => {
                    held[seat] = false;
                    schedule.give_back(id, now)
                }
                (true, _) => match schedule.offer(id, now) {
                    Offered::Keeps => None,
                    Offered::Waits(granted) => {
                        (held[seat], waits[seat]) = (false, true);
                        granted
                    }
                },
                (_, true) => None,
                (_, false) => {
                    let member = id % classes.len() as u64;
                    held[seat] = schedule.ask(id, member, now);
                    waits[seat] = !held[seat];
                    None
                }
            };
            let mut granted: Vec<SeatId> = granted.into_iter().collect();
            if random.u32(..20) == 0 {
                level = [0, 10, 50, FULL][random.usize(..4)];
                schedule.limit(level, now);
            }
            granted.extend(schedule.fill(now));
            for next in granted {
                let next = next as usize;
                assert!(waits[next] && !held[next], "seed {seed}");
                (held[next], waits[next]) = (true, false);
            }
            let mut holding: Vec<SeatId> = schedule.holding().collect();
            holding.sort_unstable();
            let expected = (0..12).filter(|seat| held[*seat as usize]);
            assert!(holding.iter().copied().eq(expected), "seed {seed}");
            let of_class = |class| {
                let mut seats = waits.iter().enumerate().filter(|(_, waits)| **waits);
                seats.any(|(seat, _)| classes[seat % classes.len()] == class)
            };
            let wanted = Wanted {
                critical: of_class(Class::Critical),
                best_effort: of_class(Class::BestEffort),
                is_limited: level < FULL,
            };
            assert_eq!(schedule.wanted(), wanted, "seed {seed}");
            let may_have = wanted.critical || (wanted.best_effort && level == FULL);
            assert!(!may_have || holding.len() == slots, "seed {seed}");
        }
    }
}

//! A pool with threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use millstream_pool::{Class, Member, Pool, STALL};

fn pool(slots: usize) -> Arc<Pool> {
    Pool::new(NonZeroUsize::new(slots).unwrap())
}

fn join(pool: &Arc<Pool>, class: Class) -> Arc<Member> {
    pool.join("member", class, NonZeroUsize::MIN)
}

/// Waits until `condition` holds.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Counts the threads inside, and offers between short pieces of work, until `ends`.
fn compute(pool: &Pool, member: &Arc<Member>, ends: &AtomicBool, inside: &AtomicUsize) -> u64 {
    let slots = pool.slots().get();
    let mut seat = member.seat();
    let mut pieces = 0;
    while !ends.load(Ordering::Relaxed) {
        seat.take();
        for _ in 0..100 {
            let others = inside.fetch_add(1, Ordering::SeqCst);
            // The system may leave a thread without a processor until it passes for blocked.
            assert!(others < slots || others < slots + pool.stalls() as usize);
            thread::yield_now();
            inside.fetch_sub(1, Ordering::SeqCst);
            pieces += 1;
            seat.offer();
        }
        seat.give_back();
    }
    pieces
}

#[test]
fn as_many_threads_compute_as_there_are_slots() {
    const SLOTS: usize = 2;
    let pool = pool(SLOTS);
    let (ends, inside) = (AtomicBool::new(false), AtomicUsize::new(0));
    let members: Vec<_> = (0..4).map(|_| join(&pool, Class::BestEffort)).collect();
    thread::scope(|scope| {
        let threads: Vec<_> = members
            .iter()
            .chain(&members)
            .map(|member| scope.spawn(|| compute(&pool, member, &ends, &inside)))
            .collect();
        thread::sleep(Duration::from_millis(300));
        ends.store(true, Ordering::Relaxed);
        for thread in threads {
            assert!(thread.join().unwrap() > 0, "a thread had no slot");
        }
    });
    let view = pool.view();
    assert!(view.iter().all(|it| (it.holding, it.waiting) == (0, 0)));
    assert!(view.iter().all(|it| it.taken > Duration::ZERO));
    drop(members);
    assert!(pool.view().is_empty());
}

#[test]
fn a_blocked_thread_loses_its_slot_and_waits_for_another_one_afterwards() {
    let pool = pool(1);
    let [blocked, other] = [(); 2].map(|()| join(&pool, Class::BestEffort));
    let (release, released) = mpsc::channel::<()>();
    let (ends, is_back) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let (seated, is_seated) = mpsc::channel();
        scope.spawn({
            let is_back = &is_back;
            let blocked = &blocked;
            move || {
                let mut seat = blocked.seat();
                seat.take();
                seated.send(()).unwrap();
                released.recv().unwrap();
                seat.offer();
                is_back.store(true, Ordering::Relaxed);
            }
        });
        is_seated.recv().unwrap();
        let started_at = Instant::now();
        let mut seat = other.seat();
        seat.take();
        assert!(started_at.elapsed() >= STALL);
        release.send(()).unwrap();
        wait_until("it waits", || pool.view()[0].waiting == 1);
        assert!(!is_back.load(Ordering::Relaxed));
        // It goes on when the other one has had a slice.
        while !is_back.load(Ordering::Relaxed) && started_at.elapsed() < Duration::from_secs(60) {
            seat.offer();
        }
        assert!(is_back.load(Ordering::Relaxed));
        ends.store(true, Ordering::Relaxed);
    });
    let view = pool.view();
    assert!(view.iter().all(|it| (it.holding, it.waiting) == (0, 0)));
}

/// The first waiting thread watches for blocked ones. When it gets a slot, another one has to watch.
#[test]
fn threads_that_wait_for_each_other_with_slots_in_hand_go_on() {
    let pool = pool(1);
    let member = join(&pool, Class::BestEffort);
    let barrier = std::sync::Barrier::new(6);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut seat = member.seat();
                for _ in 0..3 {
                    seat.take();
                    barrier.wait();
                    seat.offer();
                }
            });
        }
    });
}

#[test]
fn a_thread_that_panics_gives_its_slot_back() {
    let pool = pool(1);
    let member = join(&pool, Class::Critical);
    let mut seat = member.seat();
    let panicked = thread::spawn(move || {
        seat.take();
        panic!("on purpose");
    });
    panicked.join().unwrap_err();
    let mut seat = member.seat();
    let started_at = Instant::now();
    seat.take();
    assert!(started_at.elapsed() < STALL);
}

#[test]
fn a_free_slot_or_another_member_with_more_than_its_part_is_room() {
    let pool = pool(1);
    let [first, second] = [(); 2].map(|()| join(&pool, Class::BestEffort));
    let critical = join(&pool, Class::Critical);
    assert!(first.has_room() && second.has_room() && critical.has_room());
    let mut seat = first.seat();
    seat.take();
    assert!(!first.has_room());
    assert!(critical.has_room());
    thread::sleep(Duration::from_millis(2));
    // It comes in at the lead of the first.
    let mut waiting = second.seat();
    thread::scope(|scope| {
        scope.spawn(|| waiting.take());
        wait_until("it waits", || pool.view()[1].waiting == 1);
        assert!(!critical.has_room(), "others wait already");
        drop(seat);
    });
}

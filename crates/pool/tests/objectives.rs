//! Objectives of latency beside best-effort threads.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream_pool::{Class, FULL, Objective, Pool, Reason};

/// Waits until `condition` holds.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn level(pool: &Pool) -> u32 {
    pool.decisions().last().map_or(FULL, |last| last.level)
}

#[test]
fn a_request_that_waits_for_long_stops_best_effort_work_until_requests_are_fast_again() {
    let pool = Pool::new(NonZeroUsize::MIN);
    let member = pool.join("analytics", Class::BestEffort, NonZeroUsize::MIN);
    let meter = pool
        .objective("queries", Objective::p99(Duration::from_millis(50)))
        .unwrap();
    let ends = AtomicBool::new(false);
    let taken = || pool.view()[0].taken;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut seat = member.seat();
            seat.take();
            while !ends.load(Ordering::Relaxed) {
                thread::yield_now();
                seat.offer();
            }
        });
        wait_until("analytics has no slot", || taken() > Duration::ZERO);
        let slow = meter.begin().unwrap();
        wait_until("a request waits, and best-effort work goes on", || {
            level(&pool) == 0
        });
        let decisions = pool.decisions();
        assert_eq!(decisions[0].reason, Reason::Waits);
        assert_eq!(pool.report().level, 0);
        let objective = decisions[0].objective.as_deref();
        assert_eq!(objective, Some("queries: p99 within 50ms"));
        assert_eq!(pool.objectives()[0].waiting, 1);
        // A fiftieth of the time is left to it.
        let (before, since) = (taken(), Instant::now());
        thread::sleep(Duration::from_millis(300));
        let share = (taken() - before).as_secs_f64() / since.elapsed().as_secs_f64();
        assert!(share < 0.3, "{share}");
        drop(slow);
        wait_until("it does not come back", || {
            drop(meter.begin().unwrap());
            level(&pool) > 0
        });
        // No request comes any more.
        wait_until("it has not all slots in a silence", || level(&pool) == FULL);
        let [view] = &pool.objectives()[..] else {
            panic!("there is one objective");
        };
        assert!(view.answered > 1 && view.late >= 1, "{view:?}");
        let before = taken();
        wait_until("it has no slot", || taken() > before);
        ends.store(true, Ordering::Relaxed);
    });
    drop(meter);
    assert!(pool.objectives().is_empty());
}

#[test]
fn an_objective_that_cannot_be_held_even_alone_is_named() {
    let pool = Pool::new(NonZeroUsize::MIN);
    let objective = Objective::p99(Duration::from_millis(20));
    let meter = pool.objective("queries", objective).unwrap();
    let view = || pool.objectives().remove(0);
    wait_until("the objective is not named", || {
        let request = meter.begin_at(Instant::now());
        thread::sleep(Duration::from_millis(40));
        drop(request);
        view().missed_alone
    });
    let decisions = pool.decisions();
    let alone = decisions
        .iter()
        .filter(|it| it.reason == Reason::MissedAlone);
    let alone: Vec<_> = alone.collect();
    assert_eq!(alone.len(), 1, "{decisions:?}");
    assert_eq!(alone[0].level, 0);
    let name = alone[0].objective.as_deref();
    assert_eq!(name, Some("queries: p99 within 20ms"));
    wait_until("it is named although it is held", || {
        drop(meter.begin_at(Instant::now()));
        !view().missed_alone
    });
}

#[test]
fn requests_that_would_be_late_are_refused_at_once() {
    let pool = Pool::new(NonZeroUsize::MIN);
    let meter = pool
        .objective("queries", Objective::p99(Duration::from_millis(100)))
        .unwrap();
    // An answer every 10 ms.
    let mut begun: Vec<_> = (0..3).map(|_| meter.begin().unwrap()).collect();
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(10));
        drop(begun.pop());
    }
    let mut admitted = Vec::new();
    let retry_after = loop {
        match meter.begin() {
            Ok(request) => admitted.push(request),
            Err(retry_after) => break retry_after,
        }
    };
    // 9 at this pace; the machine may have been slower, but at least one is let in.
    assert!((1..=9).contains(&admitted.len()), "{}", admitted.len());
    assert!(retry_after > Duration::ZERO);
    assert_eq!(pool.objectives()[0].refused, 1);
    drop(admitted);
    assert!(meter.begin().is_ok());
}

#[test]
fn activations_follow_the_shortest_objective() {
    let pool = Pool::new(NonZeroUsize::MIN);
    let add = |within| {
        let within = Duration::from_micros(within);
        pool.objective("queries", Objective::p99(within)).unwrap()
    };
    assert_eq!(pool.activation_ns(), 50_000);
    let long = add(30_000);
    assert_eq!(pool.activation_ns(), 50_000);
    let middle = add(4_000);
    assert_eq!(pool.activation_ns(), 20_000);
    let short = add(100);
    assert_eq!(pool.activation_ns(), 10_000);
    drop(short);
    // It follows the other ones when their requests come.
    drop(middle.begin());
    wait_until("the objective of 4 ms counts", || {
        pool.activation_ns() == 20_000
    });
    drop((long, middle));
    assert_eq!(pool.activation_ns(), 50_000);
}

/// The thread that looks after objectives would keep the pool, or outlive it.
#[test]
fn a_pool_with_objectives_ends_with_its_owners() {
    let pool = Pool::new(NonZeroUsize::MIN);
    let meter = pool
        .objective("queries", Objective::p99(Duration::from_secs(1)))
        .unwrap();
    let weak = Arc::downgrade(&pool);
    drop(pool);
    assert!(weak.upgrade().is_none());
    drop(meter.begin());
}

#[test]
fn clients_that_cannot_be_refused_are_held_for_as_long_as_a_request_would_be_late() {
    let pool = Pool::new(NonZeroUsize::MIN);
    let objective = Objective::p99(Duration::from_millis(20));
    let meter = pool.objective("produce", objective).unwrap();
    assert_eq!(meter.hold(), None, "there is no pace yet");
    let since = Instant::now();
    thread::sleep(Duration::from_millis(100));
    drop(meter.begin_at(since));
    assert_eq!(meter.hold(), None, "no request waits");
    let waiting = meter.begin_at(Instant::now());
    let hold = meter
        .hold()
        .expect("a request would be answered behind another one");
    assert!(hold > Duration::from_millis(150), "{hold:?}");
    let figures = || {
        let view = &pool.objectives()[0];
        (view.answered, view.late, view.held, view.waiting)
    };
    assert_eq!(figures(), (1, 1, 1, 1));
    // It was no request: it counts neither as answered nor as waiting.
    waiting.take_back();
    assert_eq!(figures(), (1, 1, 1, 0));
    assert_eq!(meter.hold(), None);
}

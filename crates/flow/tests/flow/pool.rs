//! Several flows in one pool.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream_flow::sources::Generator;
use millstream_flow::{Class, Flow, FlowSettings, Pool, Running};

use crate::support::{Collect, Hand, wait_until};

fn pool(slots: usize) -> Arc<Pool> {
    Pool::new(NonZeroUsize::new(slots).unwrap())
}

fn settings(pool: &Arc<Pool>, workers: usize) -> FlowSettings {
    FlowSettings {
        workers: NonZeroUsize::new(workers).unwrap(),
        pool: Arc::clone(pool),
        ..FlowSettings::default()
    }
}

/// A flow that computes without end, with an instance of its work for each worker. Counts its items.
fn busy(name: &str, settings: FlowSettings) -> (Running, Arc<AtomicU64>) {
    let items = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&items);
    let workers = settings.workers.get();
    let flow = Flow::with_settings(name, settings);
    let sink = flow.partial::<u64>("items");
    let sources = (0..workers).map(|_| Generator::new(|number| number));
    flow.sources("numbers", sources)
        .map(move |number| {
            let end = Instant::now() + Duration::from_micros(5);
            while Instant::now() < end {}
            counted.fetch_add(1, Ordering::Relaxed);
            *number
        })
        .fold_local(&sink, |sum, number| *sum = sum.wrapping_add(*number));
    (flow.run().unwrap(), items)
}

/// The times for which the members of a pool have held slots, in the order in which they joined.
fn taken(pool: &Pool) -> Vec<Duration> {
    pool.view().iter().map(|member| member.taken).collect()
}

#[test]
fn flows_join_a_pool_with_their_shares_and_leave_it() {
    let pool = pool(1);
    let of_share = |share| FlowSettings {
        share: NonZeroUsize::new(share).unwrap(),
        ..settings(&pool, 1)
    };
    let (first, _) = busy("first", of_share(1));
    let before = taken(&pool);
    thread::sleep(Duration::from_millis(50));
    let second = busy("second", of_share(3));
    wait_until("the second has no slot", || {
        taken(&pool)[1] > Duration::ZERO
    });
    assert!(taken(&pool)[0] > before[0]);
    let shares: Vec<usize> = pool.view().iter().map(|member| member.share).collect();
    assert_eq!(shares, [1, 3]);
    // A busy machine stops threads with slots in hand, so not each stretch has these shares of time; the tests of the schedule
    // show them.
    wait_until("the larger share never has twice the time", || {
        let before = taken(&pool);
        thread::sleep(Duration::from_millis(100));
        let after = taken(&pool);
        let had = |member: usize| after[member] - before[member];
        had(0) > Duration::ZERO && had(1) >= 2 * had(0)
    });
    // The first one has all of the time again.
    drop(second);
    wait_until("the second has left", || taken(&pool).len() == 1);
    let alone = taken(&pool);
    wait_until("the first goes on", || {
        taken(&pool)[0] - alone[0] > Duration::from_millis(20)
    });
    first.stop();
    first.join().unwrap();
    drop(first);
    wait_until("the first has left", || pool.view().is_empty());
}

#[test]
fn a_latency_critical_flow_has_a_slot_at_once_beside_best_effort_ones() {
    let pool = pool(1);
    let of_share = |share| FlowSettings {
        share: NonZeroUsize::new(share).unwrap(),
        ..settings(&pool, 1)
    };
    // By shares alone the flow of requests would soon wait for seconds.
    let busy = ["first", "second"].map(|name| busy(name, of_share(10_000)));
    let settings = FlowSettings {
        class: Class::Critical,
        ..settings(&pool, 1)
    };
    let requests = Hand::default();
    let flow = Flow::with_settings("requests", settings);
    let (sink, answered) = Collect::new();
    flow.source("requests", requests.clone())
        .boundary("answers")
        .sink("collect", sink);
    let running = flow.run().unwrap();
    let computed = || -> u64 {
        let items = busy.iter().map(|(_, items)| items.load(Ordering::Relaxed));
        items.sum()
    };
    let mut meanwhile: Vec<u64> = (0..100)
        .map(|request| {
            let before = computed();
            requests.give([request]);
            wait_until("there is no answer", || {
                answered.lock().unwrap().len() as u64 > request
            });
            computed() - before
        })
        .collect();
    meanwhile.sort_unstable();
    // Each item of the others takes 5 us, so two of their slices have 400. A busy machine stops them as well, so the items
    // count and not the time; and now and then it stops the flow of requests, so the median counts.
    assert!(meanwhile[50] < 4_000, "{meanwhile:?}");
    let before: Vec<u64> = busy
        .iter()
        .map(|(_, items)| items.load(Ordering::Relaxed))
        .collect();
    for ((_, items), before) in busy.iter().zip(before) {
        wait_until("best-effort work goes on", || {
            items.load(Ordering::Relaxed) > before
        });
    }
    requests.end();
    running.join().unwrap();
}

#[test]
fn code_that_waits_in_one_flow_does_not_hold_up_another() {
    let pool = pool(1);
    let release = Arc::new(AtomicBool::new(false));
    let waits = Arc::clone(&release);
    let blocked = Flow::with_settings("blocked", settings(&pool, 1));
    let (sink, passed) = Collect::new();
    blocked
        .source("numbers", Generator::new(|number| number).limit(10))
        .map(move |number| {
            wait_until("it is released", || waits.load(Ordering::Relaxed));
            *number
        })
        .sink("collect", sink);
    let blocked = blocked.run().unwrap();
    wait_until("it has the slot", || pool.view()[0].holding == 1);
    let flow = Flow::with_settings("other", settings(&pool, 1));
    let (sink, collected) = Collect::new();
    flow.source("numbers", Generator::new(|number| number).limit(1_000))
        .boundary("end")
        .sink("collect", sink);
    flow.run().unwrap().join().unwrap();
    assert_eq!(collected.lock().unwrap().len(), 1_000);
    assert!(pool.stalls() > 0);
    release.store(true, Ordering::Relaxed);
    blocked.join().unwrap();
    assert_eq!(passed.lock().unwrap().len(), 10);
}

/// Each of the flows has an idle worker that wakes up now and then, and none of them keeps a slot.
#[test]
fn flows_without_work_hold_no_slot() {
    let pool = pool(1);
    let hands: Vec<_> = (0..20).map(|_| Hand::default()).collect();
    let flows: Vec<_> = hands
        .iter()
        .enumerate()
        .map(|(number, hand)| {
            let flow = Flow::with_settings(&format!("flow {number}"), settings(&pool, 2));
            let (sink, collected) = Collect::new();
            flow.source("numbers", hand.clone())
                .boundary("end")
                .sink("collect", sink);
            (flow.run().unwrap(), collected)
        })
        .collect();
    let holds_none = || pool.view().iter().all(|it| it.holding + it.waiting == 0);
    for round in 1..=5 {
        wait_until("a flow holds a slot", holds_none);
        for hand in &hands {
            hand.give([round]);
        }
        for (_, collected) in &flows {
            wait_until("an item is missing", || {
                collected.lock().unwrap().len() as u64 == round
            });
        }
    }
    hands.iter().for_each(Hand::end);
    for (running, _) in &flows {
        assert_eq!(running.join().unwrap().lost_wakeups, 0);
    }
}

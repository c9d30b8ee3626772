//! Checkpoints without a set interval: cheap ones are taken often, costly ones rarely, and none of an idle flow.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millstream_exchange::Ranks;
use millstream_flow::{
    CheckpointCounts, Checkpointing, Checkpoints, Flow, FlowSettings, Resume, Running,
};

use crate::support::{Hand, MemoryStore, on_ranks, settings, wait_until};

fn store(takes_ms: [u64; 2]) -> Arc<MemoryStore> {
    Arc::new(MemoryStore {
        takes: takes_ms.map(Duration::from_millis),
        ..MemoryStore::default()
    })
}

/// A flow that counts the items of a source. Items of the last rank go to the first one.
fn start(ranks: &Ranks, store: &Arc<MemoryStore>, source: &Hand) -> Running {
    let checkpoints = Checkpointing {
        store: Arc::clone(store) as Arc<dyn Checkpoints>,
        interval: None,
        resume: Resume::Never,
    };
    let flow = Flow::with_settings(
        "paced",
        FlowSettings {
            ranks: ranks.clone(),
            checkpoints: Some(checkpoints),
            ..settings(2, 64)
        },
    );
    let counts = flow.partial::<u64>("count");
    flow.sources("numbers", [source.clone()])
        .gather("gathered", 0)
        .fold_local(&counts, |count, _| *count += 1);
    flow.run().unwrap()
}

fn counts(running: &Running) -> CheckpointCounts {
    running.checkpoints().unwrap()
}

/// Waits until no checkpoint was taken for a while.
fn wait_until_checkpoints_end(running: &Running) {
    let quiet = Duration::from_millis(200);
    let last = Cell::new((counts(running).kept, Instant::now()));
    wait_until("an end of the checkpoints", || {
        let kept = counts(running).kept;
        if kept != last.get().0 {
            last.set((kept, Instant::now()));
        }
        last.get().1.elapsed() > quiet
    });
}

/// Gives items for a while, a few in each millisecond.
fn give(source: &Hand, time: Duration) {
    let started_at = Instant::now();
    while started_at.elapsed() < time {
        source.give(0..10);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Gives items until a condition holds.
fn give_until(source: &Hand, what: &str, condition: impl Fn() -> bool) {
    wait_until(what, || {
        source.give(0..10);
        condition()
    });
}

#[test]
fn a_cheap_flow_takes_checkpoints_often() {
    let source = Hand::default();
    let running = start(&Ranks::alone(), &store([0, 0]), &source);
    // With an interval of seconds these would take too long to wait for.
    give_until(&source, "many checkpoints", || counts(&running).kept > 20);
    give_until(&source, "a short interval", || {
        counts(&running).interval_seconds < 0.05
    });
    source.end();
    running.join().unwrap();
}

#[test]
fn a_costly_flow_takes_checkpoints_rarely() {
    let source = Hand::default();
    let running = start(&Ranks::alone(), &store([40, 0]), &source);
    give(&source, Duration::from_millis(500));
    let CheckpointCounts {
        kept,
        interval_seconds: interval,
        ..
    } = counts(&running);
    source.end();
    running.join().unwrap();
    assert!(interval >= 0.2, "{kept} every {interval} s");
    // The first one of all, the first one of the run, and those each 200 ms.
    assert!(kept <= 5, "{kept} every {interval} s");
}

#[test]
fn an_idle_flow_takes_no_checkpoint() {
    let source = Hand::default();
    let running = start(&Ranks::alone(), &store([0, 0]), &source);
    wait_until("the first checkpoint of all", || counts(&running).kept == 1);
    wait_until_checkpoints_end(&running);
    assert_eq!(counts(&running).kept, 1);
    for items in 1..4 {
        source.give(0..items);
        let before = counts(&running).kept;
        wait_until("a checkpoint of the items", || {
            counts(&running).kept > before
        });
        wait_until_checkpoints_end(&running);
    }
    source.end();
    running.join().unwrap();
}

#[test]
fn the_slowest_rank_decides_the_interval_of_all() {
    let store = store([0, 40]);
    let found = on_ranks(2, |ranks| {
        let source = Hand::default();
        let running = start(ranks, &store, &source);
        give(&source, Duration::from_millis(600));
        let counts = counts(&running);
        source.end();
        running.join().unwrap();
        (counts.kept, counts.interval_seconds)
    });
    for (kept, interval) in found {
        assert!(interval >= 0.2, "{kept} every {interval} s");
        assert!((2..=6).contains(&kept), "{kept} every {interval} s");
    }
}

#[test]
fn checkpoints_become_rare_while_they_fail() {
    let source = Hand::default();
    let store = store([0, 0]);
    let running = start(&Ranks::alone(), &store, &source);
    store.refuse();
    let interval = || counts(&running).interval_seconds;
    give_until(&source, "a longer interval", || interval() >= 0.3);
    // 10, 20, 40, 80, 160 and 320 ms.
    let failed = counts(&running).failed;
    assert!((5..=7).contains(&failed), "{failed}");
    assert_eq!(counts(&running).error.as_deref(), Some("the disk is full"));
    store.accept();
    give_until(&source, "a short interval", || interval() < 0.05);
    source.end();
    running.join().unwrap();
}

#[test]
fn checkpoints_of_ranks_that_send_each_other_nothing_become_complete_while_one_is_silent() {
    let store = store([0, 0]);
    on_ranks(2, |ranks| {
        let checkpoints = Checkpointing {
            store: Arc::clone(&store) as Arc<dyn Checkpoints>,
            interval: Some(Duration::from_millis(1)),
            resume: Resume::Never,
        };
        let settings = FlowSettings {
            ranks: ranks.clone(),
            checkpoints: Some(checkpoints),
            ..settings(2, 64)
        };
        let flow = Flow::with_settings("apart", settings);
        let counts = flow.partial::<u64>("count");
        let source = Hand::default();
        flow.source("numbers", source.clone())
            .fold_local(&counts, |count, _| *count += 1);
        let running = flow.run().unwrap();
        if ranks.rank() == 1 {
            for _ in 0..20 {
                let before = running.last_complete_checkpoint();
                source.give(0..10);
                wait_until("a complete checkpoint of the items", || {
                    running.last_complete_checkpoint() > before
                });
            }
        }
        ranks.agree(Default::default(), 0).unwrap();
        source.end();
        running.join().unwrap();
    });
}

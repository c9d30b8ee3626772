//! Checkpoints without a set interval: cheap ones are taken often, costly ones rarely, and none of an idle flow.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use millstream_exchange::Ranks;
use millstream_flow::{
    BoxError, CheckpointCounts, Checkpointing, Checkpoints, Flow, FlowSettings, Resume, Running,
    ShardKey,
};

use crate::support::{Hand, on_ranks, settings, wait_until};

/// Holds shards in memory, and takes a while to store them.
#[derive(Default)]
struct SlowStore {
    parts: Mutex<BTreeMap<ShardKey, Vec<u8>>>,
    /// The time to store a shard of each rank.
    takes: [Duration; 2],
    is_full: AtomicBool,
}

impl Checkpoints for SlowStore {
    fn put(&self, key: ShardKey, part: &[u8]) -> Result<(), BoxError> {
        thread::sleep(self.takes[key.rank as usize]);
        if self.is_full.load(Ordering::Relaxed) {
            return Err("the disk is full".into());
        }
        self.parts.lock().unwrap().insert(key, part.to_vec());
        Ok(())
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        let parts = self.parts.lock().unwrap();
        Ok(parts.get(&key).ok_or("it is not there")?.clone())
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        Ok(self.parts.lock().unwrap().keys().copied().collect())
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        self.parts.lock().unwrap().remove(&key);
        Ok(())
    }
}

fn store(takes_ms: [u64; 2]) -> Arc<SlowStore> {
    Arc::new(SlowStore {
        takes: takes_ms.map(Duration::from_millis),
        ..SlowStore::default()
    })
}

/// A flow that counts the items of a source. Items of the last rank go to the first one.
fn start(ranks: &Ranks, store: &Arc<SlowStore>, source: &Hand) -> Running {
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

/// Gives items for a while, a few in each millisecond.
fn give(source: &Hand, time: Duration) {
    let started_at = Instant::now();
    while started_at.elapsed() < time {
        source.give(0..10);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the checkpoints in half a second of a busy flow, and the interval at its end.
fn paced(takes_ms: u64) -> (u64, f64) {
    let source = Hand::default();
    let running = start(&Ranks::alone(), &store([takes_ms, 0]), &source);
    give(&source, Duration::from_millis(500));
    let CheckpointCounts {
        kept,
        interval_seconds,
        ..
    } = counts(&running);
    source.end();
    running.join().unwrap();
    (kept, interval_seconds)
}

#[test]
fn a_cheap_flow_takes_checkpoints_often_and_a_costly_one_rarely() {
    let (often, short) = paced(0);
    // Fifty on an idle machine.
    assert!(often >= 8, "{often} every {short} s");
    let (rarely, long) = paced(40);
    assert!(long >= 0.2, "{rarely} every {long} s");
    // The first one of all, the first one of the run, and those each 200 ms.
    assert!((2..=5).contains(&rarely), "{rarely} every {long} s");
}

#[test]
fn an_idle_flow_takes_no_checkpoint() {
    let source = Hand::default();
    let running = start(&Ranks::alone(), &store([0, 0]), &source);
    thread::sleep(Duration::from_millis(100));
    // The first one of all.
    assert_eq!(counts(&running).kept, 1);
    for items in 1..4 {
        source.give(0..items);
        let before = counts(&running).kept;
        wait_until("a checkpoint of the items", || {
            counts(&running).kept > before
        });
        thread::sleep(Duration::from_millis(50));
        let kept = counts(&running).kept;
        thread::sleep(Duration::from_millis(100));
        assert_eq!(counts(&running).kept, kept);
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
    store.is_full.store(true, Ordering::Relaxed);
    let interval = || counts(&running).interval_seconds;
    let give_until = |what, condition: &dyn Fn() -> bool| {
        wait_until(what, || {
            source.give(0..10);
            condition()
        });
    };
    give_until("a longer interval", &|| interval() >= 0.3);
    // 10, 20, 40, 80, 160 and 320 ms.
    let failed = counts(&running).failed;
    assert!((5..=7).contains(&failed), "{failed}");
    assert_eq!(counts(&running).error.as_deref(), Some("the disk is full"));
    store.is_full.store(false, Ordering::Relaxed);
    give_until("a short interval", &|| interval() < 0.05);
    source.end();
    running.join().unwrap();
}

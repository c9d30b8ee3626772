//! Flows and their checkpoints in a log whose disk is full.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use millstream_connect::{EncodedRecord, LogCheckpoints, StreamSink};
use millstream_flow::{Change, Checkpoints, Running, Sink, SinkStart, Values};
use millstream_log::{Log, StreamConfig};
use millstream_record::{ChunkBuilder, Compression};
use millstream_sim::SimDisk;

use crate::crashes::{KEYS, open, start, wait_until};
use crate::sinks::read;

/// Returns the number of items that were counted.
pub fn sum(counts: &Values<u64, u64>) -> u64 {
    (0..KEYS).filter_map(|key| counts.get(&key)).sum()
}

/// Lets the disk be full for a while: the checkpoints of a flow fail with this error, the flow goes on, and checkpoints
/// are stored again as soon as there is room. Stops the flow, and returns the number of items that it counted.
pub fn outlast_a_full_disk(
    disk: &SimDisk,
    running: &Running,
    counts: &Values<u64, u64>,
    error: &str,
) -> u64 {
    let checkpoints = || running.checkpoints().unwrap();
    wait_until("a checkpoint is stored", || checkpoints().kept > 1);
    disk.set_capacity(0);
    wait_until("checkpoints fail", || checkpoints().failed > 2);
    let found = checkpoints().error.unwrap_or_default();
    assert!(found.contains(error), "{found}");
    let before = sum(counts);
    wait_until("the flow goes on", || {
        assert!(!running.is_finished(), "it has failed");
        sum(counts) > before + 10_000
    });
    disk.set_capacity(u64::MAX);
    let failed_at = checkpoints().last.unwrap().number;
    wait_until("checkpoints are stored again", || {
        checkpoints().last.unwrap().number > failed_at
    });
    running.stop();
    running.join().unwrap();
    sum(counts)
}

fn is_full(log: &Log) -> bool {
    log.stats().disk_full
}

/// Stops taking writes, and makes the log find out.
fn fill(disk: &SimDisk, log: &Log) {
    disk.set_capacity(0);
    let others = log.stream_or_create("others", StreamConfig::default());
    let Ok(partition) = others.and_then(|stream| stream.partition(0)) else {
        return assert!(is_full(log));
    };
    let mut chunk = ChunkBuilder::new(Compression::None);
    wait_until("the log finds the disk full", || {
        chunk
            .push(log.clock().now(), None, Some(&[0; 64 << 10]), &[])
            .unwrap();
        let _ = partition.append(chunk.finish(None).unwrap());
        chunk.clear();
        is_full(log)
    });
}

#[test]
fn a_flow_continues_while_its_checkpoints_do_not_fit_the_disk() {
    for seed in 0..3 {
        let disk = SimDisk::new(seed);
        let log = open(&disk, 1).unwrap();
        let (running, counts) = start(&log, false, u64::MAX).unwrap();
        let counted = outlast_a_full_disk(&disk, &running, &counts, "disk is full");
        drop((running, log));

        let log = open(&disk.kill(), 2).unwrap();
        let limit = counted.next_multiple_of(KEYS) + KEYS;
        let (running, counts) = start(&log, false, limit).unwrap();
        assert!(sum(&counts) >= counted, "the last checkpoint has all");
        running.join().unwrap();
        for key in 0..KEYS {
            assert_eq!(counts.get(&key), Some(limit / KEYS), "key {key}");
        }
    }
}

#[test]
fn a_flow_waits_while_its_results_do_not_fit_the_disk() {
    let disk = SimDisk::new(1);
    let log = open(&disk, 1).unwrap();
    let (running, counts) = start(&log, true, u64::MAX).unwrap();
    wait_until("a checkpoint is stored", || {
        running.checkpoints().unwrap().kept > 1
    });
    disk.set_capacity(0);
    wait_until("the disk is full", || is_full(&log));
    let mut before = u64::MAX;
    wait_until("the flow waits", || {
        assert!(!running.is_finished(), "it has failed");
        thread::sleep(Duration::from_millis(50));
        std::mem::replace(&mut before, sum(&counts)) == before
    });
    disk.set_capacity(u64::MAX);
    let waited_at = sum(&counts);
    wait_until("the flow goes on", || sum(&counts) > waited_at + 10_000);
    running.stop();
    running.join().unwrap();
    let mut results = read(&log.stream("results").unwrap());
    results.sort_unstable();
    assert!(results.into_iter().eq(0..sum(&counts)));
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Flag {
    fn is_set(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

#[test]
fn a_sink_on_a_full_disk_waits_to_write_and_to_commit_results() {
    let disk = SimDisk::new(1);
    let log = open(&disk, 1).unwrap();
    let results = log
        .stream_or_create("results", StreamConfig::default())
        .unwrap();
    let encode = |number: &u64, record: &mut EncodedRecord| {
        record.value.extend(number.to_le_bytes());
    };
    let mut sink = StreamSink::new(&results, encode).unwrap();
    let start = SinkStart {
        flow: "shop",
        sink: "results",
        rank: 0,
        ranks: 1,
        takes_checkpoints: true,
        prepared: None,
    };
    Sink::<u64>::recover(&mut sink, &start).unwrap();
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(Arc::clone(&flag));
    let until_flushed = |sink: &mut dyn Sink<u64>| while !sink.flush(&waker).unwrap() {};
    assert_eq!(sink.push(&[0, 1], &waker).unwrap(), 2);
    until_flushed(&mut sink);
    Sink::<u64>::prepare(&mut sink, 1).unwrap();
    assert_eq!(sink.push(&[2], &waker).unwrap(), 1);
    fill(&disk, &log);
    flag.is_set();
    assert!(!Sink::<u64>::commit(&mut sink, 1, &waker).unwrap());
    assert!(!Sink::<u64>::flush(&mut sink, &waker).unwrap());
    assert_eq!(sink.push(&[3], &waker).unwrap(), 0);
    assert!(!Sink::<u64>::commit(&mut sink, 1, &waker).unwrap());

    disk.set_capacity(u64::MAX);
    wait_until("the sink wakes its worker", || flag.is_set());
    wait_until_committed(&mut sink, 1, &waker);
    until_flushed(&mut sink);
    while sink.push(&[3], &waker).unwrap() == 0 {}
    until_flushed(&mut sink);
    Sink::<u64>::prepare(&mut sink, 2).unwrap();
    wait_until_committed(&mut sink, 2, &waker);
    assert_eq!(read(&results), [0, 1, 2, 3]);
}

fn wait_until_committed(sink: &mut dyn Sink<u64>, checkpoint: u64, waker: &Waker) {
    while !sink.commit(checkpoint, waker).unwrap() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_changelog_on_a_full_disk_fails_writes_and_delays_commits() {
    let disk = SimDisk::new(1);
    let log = open(&disk, 1).unwrap();
    let store = LogCheckpoints::new(&log, "shop");
    let mut changelog = store.changelog("shop", "users").unwrap().unwrap();
    let start = SinkStart {
        flow: "shop",
        sink: "state.users",
        rank: 0,
        ranks: 1,
        takes_checkpoints: true,
        prepared: None,
    };
    changelog.recover(&start).unwrap();
    let changes: Vec<Change> = (0..100)
        .map(|key: u32| Change {
            key: key.to_be_bytes().to_vec(),
            value: Some(b"1".to_vec()),
            checkpoint: 1,
            expires: None,
        })
        .collect();
    let waker = Waker::noop();
    assert_eq!(changelog.push(&changes, waker).unwrap(), changes.len());
    while !changelog.flush(waker).unwrap() {}
    changelog.prepare(1).unwrap();
    fill(&disk, &log);
    let append = |changelog: &mut dyn Sink<Change>| {
        changelog.push(&changes, waker)?;
        changelog.flush(waker)
    };
    let error = append(&mut changelog).unwrap_err().to_string();
    assert!(
        error.starts_with("stream shop.state.users: disk is full"),
        "{error}"
    );
    changelog.give_up();
    assert!(!changelog.commit(1, waker).unwrap());

    disk.set_capacity(u64::MAX);
    wait_until("there is room again", || !is_full(&log));
    while !changelog.commit(1, waker).unwrap() {
        thread::sleep(Duration::from_millis(1));
    }
    let mut keys = 0;
    changelog
        .restore(None, &mut |_, _| {
            keys += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(keys, changes.len());
}

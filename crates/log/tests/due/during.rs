//! Settings that change, and streams that are deleted, while a pass goes on.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use millstream_log::{CLEANUP_POLICY, COMPACTION_LAG_MIN, Log, StreamConfig};

use crate::machine::{MANY, Machine};

/// How long a step of another thread may take.
const TIMEOUT: Duration = Duration::from_secs(60);

fn is_rewritten(path: &Path) -> bool {
    path.to_string_lossy().contains("-0002.")
}

/// Runs a pass up to its `operation`-th operation on a file of a new group. There another thread does `change`, and the
/// pass continues when the change has begun. Returns whether the pass had that many operations.
fn change_during_pass(
    machine: &Machine,
    operation: u64,
    change: impl FnOnce(&Log) + Send + 'static,
    is_begun: impl Fn(&Log) -> bool + Send + Sync + 'static,
) -> bool {
    let (begin, begun) = channel();
    let log = machine.log().clone();
    let other = std::thread::spawn(move || {
        let is_asked = begun.recv().is_ok();
        if is_asked {
            change(&log);
        }
        is_asked
    });
    let (left, log) = (AtomicU64::new(operation), machine.log().clone());
    machine.disk.before_file_operations(move |path, _| {
        if is_rewritten(path) && left.fetch_sub(1, Ordering::Relaxed) == 1 {
            begin.send(()).unwrap();
            wait_until(|| is_begun(&log));
        }
    });
    machine.wait(60_000);
    // The end of the hook is the end of the other thread, if it was not asked.
    machine.disk.before_file_operations(|_, _| ());
    wait_until(|| {
        machine.rest();
        other.is_finished()
    });
    machine.rest();
    other.join().unwrap()
}

fn wait_until(mut is_over: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_over() {
        assert!(started.elapsed() < TIMEOUT, "it does not end");
        std::thread::yield_now();
    }
}

fn filled() -> Machine {
    let machine = Machine::with(&[(COMPACTION_LAG_MIN, "60000")]);
    machine.put("s", 0..MANY, 10);
    machine
}

fn has_rewritten(machine: &Machine) -> bool {
    let files = machine.disk.files();
    files.iter().any(|(path, _)| is_rewritten(path))
}

#[test]
fn a_pass_stops_when_its_stream_is_no_longer_compacted() {
    let (mut stopped, mut done) = (0, 0);
    for operation in 1.. {
        let mut machine = filled();
        let alter = |log: &Log| {
            let delete = |config: &mut StreamConfig| {
                let policy = (CLEANUP_POLICY.to_owned(), "delete".to_owned());
                config.settings.extend([policy]);
            };
            log.alter_stream("s", delete).unwrap();
        };
        let is_altered = |log: &Log| {
            let settings = log.stream("s").unwrap().config().settings;
            settings[CLEANUP_POLICY] == "delete"
        };
        let is_reached = change_during_pass(&machine, operation, alter, is_altered);
        match machine.stored("s") == MANY {
            true => {
                stopped += 1;
                assert!(!has_rewritten(&machine), "operation {operation}");
            }
            false => done += 1,
        }
        let compaction = machine.log().stats().compaction;
        assert_eq!((compaction.failed, compaction.failing_partitions), (0, 0));
        if !is_reached {
            break;
        }
        assert_eq!(compaction.due_partitions, 0);

        machine.set("s", CLEANUP_POLICY, "compact");
        let stored = machine.stored("s");
        assert!(stored < MANY / 2, "operation {operation}");
        machine.restart();
        assert_eq!(machine.stored("s"), stored);
    }
    assert!(
        stopped > 3 && done > 1,
        "{stopped} were stopped, {done} went on"
    );
}

#[test]
fn a_stream_that_is_deleted_during_a_pass_leaves_no_file() {
    let mut reached = 0;
    for operation in 1.. {
        let mut machine = filled();
        let folder = format!("/data/streams/{}/", machine.log().stream("s").unwrap().id());
        let delete = |log: &Log| log.delete_stream("s").unwrap();
        let is_reached =
            change_during_pass(&machine, operation, delete, |log| log.stream("s").is_err());
        if !is_reached {
            break;
        }
        reached += 1;
        let left = machine.disk.files();
        let left: Vec<_> = left
            .iter()
            .filter(|(path, _)| path.starts_with(&folder))
            .collect();
        assert!(left.is_empty(), "operation {operation}: {left:?}");
        let compaction = machine.log().stats().compaction;
        assert_eq!((compaction.failed, compaction.failing_partitions), (0, 0));
        assert_eq!(
            (compaction.due_partitions, compaction.replaced_groups),
            (0, 0)
        );

        machine.create("s", &[]);
        machine.put("s", 0..10, 10);
        machine.restart();
        assert_eq!(machine.stored("s"), 10);
    }
    assert!(reached > 5, "{reached}");
}

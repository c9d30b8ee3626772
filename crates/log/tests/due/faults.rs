//! Compaction of a partition that fails.

use std::cell::RefCell;
use std::fmt::{Debug, Write};
use std::path::Path;

use millstream_base::Offset;
use millstream_log::COMPACTION_LAG_MIN;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::machine::{MANY, Machine};

thread_local! {
    /// The warnings of this thread.
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Collects the warnings of each thread. It is the subscriber of all threads: `tracing` may take a line for one without
/// readers if a thread without a subscriber comes to it first.
#[derive(Debug)]
struct Warnings;

impl Warnings {
    /// Forgets the warnings of this thread so far.
    fn collect() {
        WARNINGS.with_borrow_mut(Vec::clear);
        // Another test may have set it.
        let _ = tracing::subscriber::set_global_default(Warnings);
    }

    /// The number of warnings of this thread with these words.
    fn count(words: &str) -> usize {
        WARNINGS.with_borrow(|all| {
            let found = all.iter().filter(|warning| warning.contains(words));
            found.count()
        })
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        WARNINGS.with_borrow_mut(|all| all.push(text.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        write!(self.0, "{value:?} ").unwrap();
    }
}

#[test]
fn a_partition_that_cannot_be_compacted_blocks_no_other() {
    let machine = Machine::with(&[]);
    machine.create("t", &[]);
    let id = machine.log().stream("s").unwrap().id();
    let is_rewrite = move |path: &Path| {
        let path = path.to_string_lossy();
        path.contains(&format!("streams/{id}/")) && path.contains("-0002.")
    };
    machine.disk.fail_writes(is_rewrite);
    machine.put("s", 0..MANY, 10);
    machine.put("t", 0..MANY, 10);
    let (failed, other) = (machine.stats("s"), machine.stats("t"));
    assert_eq!((failed.passes, failed.failed), (0, 1));
    assert!(failed.fault.is_some());
    assert!(other.passes > 0 && other.fault.is_none());
    assert_eq!(machine.stored("s"), MANY);
    let log = machine.log().stats();
    assert_eq!(
        (log.compaction.failed, log.compaction.failing_partitions),
        (1, 1)
    );
    assert_eq!((log.disk_full, log.faulted_lanes), (false, 0));
    machine.wait(14_000);
    assert_eq!(machine.stats("s").failed, 1, "it is left alone");
    machine.wait(1_000);
    assert_eq!(machine.stats("s").failed, 2);

    machine.disk.fail_writes(|_| false);
    machine.wait(15_000);
    let stats = machine.stats("s");
    assert_eq!((stats.passes, stats.failed, stats.fault), (1, 2, None));
    assert_eq!(machine.log().stats().compaction.failing_partitions, 0);
}

#[test]
fn compaction_on_a_full_disk_changes_no_group_and_is_retried() {
    Warnings::collect();
    let machine = Machine::with(&[(COMPACTION_LAG_MIN, "60000")]);
    machine.put("s", 0..MANY, 10);
    // So only the compaction needs room.
    machine.log().persist();
    machine.rest();
    machine.disk.set_capacity(machine.disk.used_bytes() + 1_000);
    machine.wait(60_000);
    let stats = machine.stats("s");
    assert_eq!((stats.passes, stats.failed), (0, 1));
    let fault = stats.fault.unwrap();
    assert!(fault.contains("space"), "{fault}");
    assert_eq!(machine.stored("s"), MANY);
    let is_rewritten = |path: &Path| path.to_string_lossy().contains("-0002.");
    let files = machine.disk.files();
    assert!(!files.iter().any(|(path, _)| is_rewritten(path)));

    // It is tried again now and then. Producers go on as long as they have room.
    for failed in 2..5 {
        machine.wait(15_000);
        assert_eq!(machine.stats("s").failed, failed);
    }
    let log = machine.log().stats();
    let compaction = log.compaction;
    assert_eq!((compaction.failed, compaction.failing_partitions), (4, 1));
    assert!(!log.disk_full);
    machine.append("s", 0..1, 10, None);
    assert_eq!(machine.stored("s"), MANY + 1);
    assert_eq!(
        Warnings::count("cannot be compacted now"),
        1,
        "it is said once"
    );

    machine.disk.set_capacity(u64::MAX);
    machine.wait(15_000);
    let stats = machine.stats("s");
    assert_eq!((stats.passes, stats.fault), (1, None));
    assert!(machine.stored("s") < MANY / 2);
    assert_eq!(machine.log().stats().compaction.failing_partitions, 0);
}

#[test]
fn records_behind_a_repair_are_compacted_though_a_pass_has_seen_their_offsets() {
    let mut machine = Machine::with(&[]);
    machine.put("s", 0..5 * MANY, 5 * MANY);
    assert!(machine.stats("s").compacted_to > Offset(3 * MANY));
    let id = machine.log().stream("s").unwrap().id();
    machine.log.take().unwrap().close().unwrap();
    let is_group = |path: &Path| {
        path.starts_with(format!("/data/streams/{id}")) && path.extension() == Some("log".as_ref())
    };
    let files = machine.disk.files().into_iter().map(|(path, _)| path);
    let first = files.filter(|path| is_group(path)).min().unwrap();
    machine.disk.flip_bit(first, 8 * 30_000).unwrap();
    machine.open();
    machine.log.take().unwrap().truncate_stream("s").unwrap();

    machine.open();
    machine.rest();
    let left = machine.stored("s");
    assert!((1..MANY).contains(&left), "{left}");
    machine.put("s", 0..MANY, 10);
    assert!(machine.stats("s").passes > 0);
    assert!(machine.stored("s") < left + MANY / 2);
}

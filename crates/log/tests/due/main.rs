//! When keyed streams are compacted in the background.

mod during;
mod faults;
mod joins;
mod machine;

use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_log::{
    CLEANUP_POLICY, COMPACTION_LAG_MAX, COMPACTION_LAG_MIN, CompactionStats, DIRTY_RATIO_MIN,
};
use millstream_record::{ChunkBuilder, Compression};

use self::machine::{MANY, Machine};

#[test]
fn a_partition_is_compacted_when_enough_of_it_is_dirty() {
    let machine = Machine::with(&[(DIRTY_RATIO_MIN, "0.6")]);
    machine.put("s", 0..MANY, 10);
    let first = machine.stats("s");
    assert!(first.passes > 0 && first.bytes_after < first.bytes_before / 2);
    assert!(first.compacted_to > Offset(0) && first.compacted_at.is_some());
    assert!(machine.stored("s") < MANY / 2);

    // Different keys stay, so more and more of the partition is clean.
    machine.put("s", 0..2 * MANY, 10 * MANY);
    let before = machine.stats("s");
    let groups_of = |stats: &CompactionStats| stats.passes - first.passes;
    let passes = groups_of(&before);
    assert!((1..10).contains(&passes), "{passes} passes");
    assert!(before.dirty_ratio() < 0.6);
    machine.wait(3_600_000);
    assert_eq!(machine.stats("s").passes, before.passes, "it is at rest");
    machine.set("s", DIRTY_RATIO_MIN, "0");
    let after = machine.stats("s");
    let is_dirty = before.dirty_bytes > 0;
    assert_eq!(after.passes - before.passes, u64::from(is_dirty));
    assert_eq!((after.dirty_bytes, after.failed, after.fault), (0, 0, None));
    let log = machine.log().stats().compaction;
    assert_eq!((log.passes, log.due_partitions), (after.passes, 0));
    assert_eq!(log.bytes_before, after.bytes_before);
    assert!(log.records_dropped > 0 && log.ended_at.is_some());
}

#[test]
fn a_dirty_record_is_compacted_within_the_maximum_lag() {
    let machine = Machine::with(&[(COMPACTION_LAG_MAX, "10000")]);
    machine.put("s", 0..20, 5);
    machine.wait(9_000);
    assert_eq!((machine.stats("s").passes, machine.stored("s")), (0, 20));
    // The open group is closed for that.
    machine.wait(2_000);
    let stats = machine.stats("s");
    assert_eq!((stats.passes, machine.stored("s")), (1, 5));
    assert_eq!(stats.compacted_to, Offset(20));
    // Nothing is closed or compacted without new records.
    let groups = |machine: &Machine| machine.log().stream("s").unwrap().info().partitions[0].groups;
    let before = groups(&machine);
    for _ in 0..10 {
        machine.wait(10_000);
    }
    assert_eq!((groups(&machine), machine.stats("s").passes), (before, 1));
    machine.put("s", 0..20, 5);
    machine.wait(11_000);
    assert_eq!((machine.stats("s").passes, machine.stored("s")), (2, 5));
}

#[test]
fn records_with_old_timestamps_do_not_close_groups_repeatedly() {
    let machine = Machine::with(&[(COMPACTION_LAG_MAX, "10000")]);
    let partition = machine.log().stream("s").unwrap().partition(0).unwrap();
    for _ in 0..100 {
        let mut builder = ChunkBuilder::new(Compression::None);
        builder
            .push(Timestamp(0), Some(b"key"), Some(b"value"), &[])
            .unwrap();
        partition.append(builder.finish(None).unwrap()).unwrap();
        machine.wait(1_000);
    }
    let passes = machine.stats("s").passes;
    assert!((8..=11).contains(&passes), "{passes} passes in 100 seconds");
}

#[test]
fn records_with_future_timestamps_are_compacted_without_a_minimum_lag() {
    for (lag, is_compacted) in [("0", true), ("1", false)] {
        let machine = Machine::with(&[(CLEANUP_POLICY, "delete"), (COMPACTION_LAG_MIN, lag)]);
        machine.clock.advance(Duration::from_secs(3_600));
        machine.put("s", 0..MANY, 10);
        machine.clock.set(Timestamp(1_000_000));
        machine.set("s", CLEANUP_POLICY, "compact");
        assert_eq!(machine.stored("s") < MANY / 2, is_compacted, "{lag}");
    }
}

#[test]
fn a_record_is_not_compacted_before_the_minimum_lag() {
    let machine = Machine::with(&[(COMPACTION_LAG_MIN, "60000")]);
    machine.put("s", 0..MANY, 10);
    machine.wait(59_000);
    assert_eq!((machine.stats("s").passes, machine.stored("s")), (0, MANY));
    // Then it needs no new record.
    machine.wait(1_000);
    assert_eq!(machine.stats("s").passes, 1);
    assert!(machine.stored("s") < MANY / 2);
}

#[test]
fn expired_tombstones_are_removed_without_new_records() {
    for is_restarted in [false, true] {
        let mut machine = Machine::with(&[(COMPACTION_LAG_MAX, "1000")]);
        machine.put("s", 0..MANY, 10);
        machine.append("s", 0..10, 10, None);
        machine.wait(2_000);
        assert_eq!(machine.stored("s"), 10, "the tombstones");
        machine.wait(90_000);
        if is_restarted {
            machine.restart();
        }
        assert_eq!(machine.stored("s"), 10, "the tombstones");
        machine.wait(20_000);
        assert_eq!(machine.stored("s"), 0);
        let passes = machine.stats("s").passes;
        machine.wait(1_000_000);
        assert_eq!(machine.stats("s").passes, passes, "it is at rest");
    }
}

#[test]
fn a_stream_that_becomes_compacted_has_its_existing_records_compacted() {
    let machine = Machine::with(&[(CLEANUP_POLICY, "delete")]);
    machine.put("s", 0..MANY, 10);
    assert_eq!(machine.stored("s"), MANY);
    machine.set("s", CLEANUP_POLICY, "compact,delete");
    assert!(machine.stored("s") < MANY / 2);
    let passes = machine.stats("s").passes;
    machine.set("s", CLEANUP_POLICY, "delete");
    machine.put("s", 0..MANY, 10);
    let info = machine.log().stream("s").unwrap().info();
    assert_eq!(info.partitions[0].compaction, None);
    let log = machine.log().stats().compaction;
    assert_eq!((log.passes, log.due_partitions), (passes, 0));
}

#[test]
fn a_deleted_stream_is_not_compacted() {
    let machine = Machine::with(&[(COMPACTION_LAG_MIN, "1000")]);
    machine.put("s", 0..MANY, 10);
    machine.log().delete_stream("s").unwrap();
    machine.wait(2_000);
    let log = machine.log().stats().compaction;
    assert_eq!((log.passes, log.failed, log.due_partitions), (0, 0, 0));
}

#[test]
fn a_start_compacts_partitions_that_are_due() {
    let mut machine = Machine::with(&[(COMPACTION_LAG_MIN, "60000")]);
    machine.put("s", 0..MANY, 10);
    machine.log.take().unwrap().close().unwrap();
    machine.clock.advance(Duration::from_secs(60));
    machine.open();
    machine.rest();
    assert!(machine.stats("s").passes > 0 && machine.stored("s") < MANY / 2);
    let compacted_to = machine.stats("s").compacted_to;
    machine.restart();
    let stats = machine.stats("s");
    assert_eq!((stats.passes, stats.compacted_to), (0, compacted_to));
}

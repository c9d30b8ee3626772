//! How many groups a partition has, which a lookup meets, while it grows.

use millstream_base::Offset;
use millstream_log::{DELETE_RETENTION, DIRTY_RATIO_MIN};

use crate::machine::Machine;

/// The number of groups of the stream.
fn groups(machine: &Machine) -> usize {
    machine.log().stream("s").unwrap().info().partitions[0].groups
}

fn get(machine: &Machine, key: u64) -> Option<Offset> {
    let partition = machine.log().stream("s").unwrap().partition(0).unwrap();
    let version = partition.get(format!("{key}").as_bytes()).unwrap();
    version.map(|version| version.offset)
}

/// The most groups while records with these many keys are put in turn.
fn most_groups(machine: &Machine, records: u64, keys: u64) -> usize {
    let step = 100;
    let steps = (0..records / step).map(|n| {
        machine.put("s", n * step..(n + 1) * step, keys);
        groups(machine)
    });
    steps.max().unwrap_or_default()
}

/// Each group takes 64 KiB, about 120 records: without joins, there would be 100 groups.
#[test]
fn a_partition_with_only_new_keys_has_few_groups() {
    let machine = Machine::with(&[]);
    let records = 12_000;
    let most = most_groups(&machine, records, records);
    assert!(most <= 32, "{most} groups");
    let stats = machine.stats("s");
    let stored = records * 500;
    assert!(stats.bytes_after < 2 * stored, "{stats:?} of {stored}");
    assert_eq!(machine.stored("s"), records);
    for key in (0..records).step_by(97) {
        assert_eq!(get(&machine, key), Some(Offset(key)));
    }
    assert_eq!(get(&machine, records), None);
    let before = groups(&machine);
    machine.wait(3_600_000);
    assert_eq!(
        (groups(&machine), machine.stats("s")),
        (before, stats),
        "it is at rest"
    );
}

/// Models a partition with 100 million updates of 1 million keys.
#[test]
fn a_partition_of_updates_has_few_groups() {
    let machine = Machine::with(&[]);
    let most = most_groups(&machine, 12_000, 800);
    assert!(most <= 16, "{most} groups");
    assert!(machine.stored("s") < 2_400);
}

/// A reader that has read an older record must have the time to read the tombstone, too.
#[test]
fn the_delete_retention_of_tombstones_begins_with_a_pass_and_not_with_a_join() {
    let machine = Machine::with(&[(DELETE_RETENTION, "1000000")]);
    machine.put("s", 0..2_400, 6_000);
    machine.set("s", DIRTY_RATIO_MIN, "1");
    machine.append("s", 0..10, 6_000, None);
    let before = machine.stats("s");
    machine.put("s", 2_400..6_000, 6_000);
    let joined = machine.stats("s");
    assert!(
        joined.bytes_before > before.bytes_before,
        "some were joined"
    );
    assert!(
        joined.compacted_to < Offset(2_400),
        "no pass came behind them"
    );
    machine.wait(2_000_000);
    assert_eq!(machine.stored("s"), 6_010);
    machine.set("s", DIRTY_RATIO_MIN, "0");
    assert_eq!(machine.stored("s"), 6_000, "older records are gone");
    machine.wait(999_000);
    assert_eq!(machine.stored("s"), 6_000, "with the tombstones");
    machine.wait(2_000);
    assert_eq!(machine.stored("s"), 5_990);
}

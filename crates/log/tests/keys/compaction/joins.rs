//! Joins of many small groups that no pass has to rewrite.

use fastrand::Rng;
use millstream_log::{FILE_DELETE_DELAY, Subscription};

use super::{check_rest, create, newest, read_on, table};
use crate::append;
use crate::machine::Machine;
use crate::sync;

/// More keys than 16 groups have room for.
const MANY_KEYS: u64 = 6_000;

/// Puts each key once, so nothing is ever dirty enough.
fn filled_once(keys: std::ops::Range<u64>) -> Machine {
    let machine = Machine::new();
    create(&machine, &[(FILE_DELETE_DELAY, "0")]);
    machine.put(keys);
    machine
}

#[test]
fn small_groups_without_a_dead_record_are_joined() {
    let mut machine = filled_once(0..MANY_KEYS);
    let (before, newest) = (table(&machine), newest(&table(&machine)));
    let groups = machine.partition().info().groups;
    assert!(groups > 20, "{groups} groups");
    let partition = machine.partition();
    let mut reader = partition.reader(partition.earliest());
    let part = reader.read(3_000).unwrap().unwrap();
    let read = super::offsets_in(&part.bytes);

    let report = machine.log().compact().unwrap();
    assert_eq!((report.groups_after, report.records_dropped), (1, 0));
    assert_eq!(report.groups_before as usize, groups - 1);
    assert_eq!(partition.info().groups, 2);
    assert_eq!(table(&machine), before);
    check_rest(&read, &read_on(&mut reader), &newest);
    drop((reader, part));
    machine.check(0..MANY_KEYS);
    sync(machine.log());
    machine.restart(|_| ());
    assert_eq!(machine.files("log").len(), 2);
    machine.check(0..MANY_KEYS);
    let again = machine.log().compact().unwrap();
    assert_eq!(again.groups_before, 0, "{again:?}");
}

#[test]
fn a_crash_at_any_operation_leaves_the_small_groups_or_the_joined_one() {
    let mut machine = filled_once(0..MANY_KEYS);
    let (before, newest) = (table(&machine), newest(&table(&machine)));
    machine.restart(|_| ());
    let image = machine.disk.kill();
    let mut rng = Rng::with_seed(1);
    let (mut old, mut new) = (0, 0);
    for operation in 1.. {
        machine.start_from(image.kill());
        // It finds the key files.
        sync(machine.log());
        machine.disk.crash_at(operation);
        let joined = machine.log().compact();
        let is_over = !machine.disk.has_crashed();
        assert!(joined.is_ok() || !is_over);
        let image = machine.disk.crash(&mut rng);
        machine.start_from(image);
        let partition = machine.partition();
        let damage = partition.damage().map(ToString::to_string);
        assert_eq!(damage, None, "operation {operation}");
        assert!(table(&machine) == before, "operation {operation}");
        let mut reader = partition.reader(partition.earliest());
        check_rest(&[], &read_on(&mut reader), &newest);
        let groups = partition.info().groups;
        assert_eq!(machine.files("log").len(), groups, "operation {operation}");
        match groups > 2 {
            true => old += 1,
            false => new += 1,
        }
        append(&partition, &[(Some(b"key 1"), Some(b"again"))]);
        sync(machine.log());
        if is_over {
            break;
        }
    }
    assert!(
        old > 10 && new > 1,
        "{old} crashes before the swap, {new} behind it"
    );
}

#[test]
fn groups_of_shared_groups_and_groups_that_retention_removes_are_not_joined() {
    let machine = filled_once(0..MANY_KEYS);
    let groups = machine.partition().info().groups;
    let policy = |policy: &str| {
        let (name, policy) = (millstream_log::CLEANUP_POLICY.to_owned(), policy.to_owned());
        let set = |config: &mut millstream_log::StreamConfig| {
            config.settings.insert(name, policy);
        };
        machine.log().alter_stream("s", set).unwrap();
    };
    policy("compact,delete");
    assert_eq!(machine.log().compact().unwrap().groups_before, 0);
    policy("compact");
    let stream = machine.log().stream("s").unwrap();
    let subscriber =
        Subscription::of_shared_group(machine.log(), &stream, "app", "one".to_owned()).unwrap();
    assert_eq!(machine.log().compact().unwrap().groups_before, 0);
    assert_eq!(machine.partition().info().groups, groups);
    drop(subscriber);
}

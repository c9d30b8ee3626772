//! Compaction beside crashes, full disks, and files that are damaged, lost or put back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use millstream_base::{Offset, ProducerEpoch, ProducerId};
use millstream_log::{FILE_DELETE_DELAY, InternalStore, LogError, StreamConfig, salvage};
use millstream_record::{Compression, EndMarker, TransactionEnd};
use millstream_sim::{SimDisk, SimRandom};

use super::{ROUNDS, check_rest, create, fill, filled, newest, read_on, table};
use crate::machine::{self, Machine};
use crate::{append, chunk, config, get, small_groups, sync};

#[test]
fn a_start_removes_the_files_of_replaced_groups() {
    let mut machine = filled(&[]);
    let before = table(&machine);
    machine.log().compact().unwrap();
    sync(machine.log());
    let groups = machine.partition().info().groups;
    assert!(machine.files("log").len() > groups, "they stay for a while");
    machine.restart(|_| ());
    assert_eq!(machine.files("log").len(), groups);
    assert_eq!(table(&machine), before);
    fill(&machine, 1..ROUNDS / 2);
    let again = table(&machine);
    let report = machine.log().compact().unwrap();
    assert!(report.groups_before > 1, "{report:?}");
    assert_eq!(table(&machine), again);
    machine.restart(|_| ());
    assert_eq!(table(&machine), again);
}

#[test]
fn a_deleted_group_whose_file_remains_does_not_block_compaction() {
    let mut machine = filled(&[(FILE_DELETE_DELAY, "0")]);
    let to = Offset(333);
    let deletion = (machine.partition(), to);
    // It is noted, and then the process ends before its first group is removed.
    let is_list = |path: &Path| path.to_string_lossy().contains("manifest");
    machine.disk.fail_writes(is_list);
    let deleted = machine.log().delete_before(&[deletion]);
    assert_eq!(deleted[0].clone().unwrap(), to);
    let files = machine.files("log").len();
    machine.start_from(machine.disk.kill());
    sync(machine.log());
    assert_eq!(machine.partition().earliest_offset(), to);
    assert_eq!(machine.files("log").len(), files, "no group is removed yet");
    let before = table(&machine);
    let report = machine.log().compact().unwrap();
    assert!(report.groups_before > 3, "{report:?}");
    assert_eq!(table(&machine), before);
}

fn make_list_anew(disk: &SimDisk) {
    let (disk, random) = (Arc::new(disk.clone()), Arc::new(SimRandom::new(9)));
    let config = config(Path::new("/data"));
    salvage(&config, disk, random, InternalStore::Manifest).unwrap();
}

#[test]
fn a_rebuilt_list_has_the_rewritten_group_and_not_the_replaced_ones() {
    let mut machine = filled(&[]);
    let before = table(&machine);
    let old = machine.files("log").len();
    machine.log().compact().unwrap();
    let groups = machine.partition().info().groups;
    assert_eq!(machine.files("log").len(), old + 1);
    machine.restart(|disk| {
        disk.remove("/data/manifest").unwrap();
        make_list_anew(disk);
    });
    assert_eq!(machine.partition().damage().map(ToString::to_string), None);
    assert_eq!(machine.files("log").len(), groups);
    assert_eq!(table(&machine), before);
}

#[test]
fn files_that_the_list_may_name_stay_until_the_next_start() {
    let (mut old, mut new) = (0, 0);
    for failing_writes in [1, 2] {
        let mut machine = filled(&[(FILE_DELETE_DELAY, "0")]);
        let before = table(&machine);
        let groups = machine.files("log").len();
        // The record is written or not, its sync fails, and no other list can be written.
        let is_list = |path: &Path| path.to_string_lossy().contains("/manifest");
        let writes = AtomicU64::new(0);
        machine.disk.fail_writes(move |path| {
            is_list(path) && writes.fetch_add(1, Ordering::Relaxed) + failing_writes >= 2
        });
        machine.disk.fail_next_sync(is_list);
        assert!(machine.log().compact().is_err());
        assert_eq!(table(&machine), before);
        // Another pass, which fails at its first write.
        let is_rewrite = |path: &Path| path.to_string_lossy().contains("-0002.");
        machine.disk.fail_writes(is_rewrite);
        let error = machine.log().compact().unwrap_err().to_string();
        assert!(error.contains("manifest"), "{error}");
        assert_eq!(table(&machine), before);

        machine.start_from(machine.disk.kill());
        assert_eq!(machine.partition().damage().map(ToString::to_string), None);
        assert_eq!(table(&machine), before);
        let left = machine.partition().info().groups;
        assert_eq!(machine.files("log").len(), left);
        match left < groups {
            true => new += 1,
            false => old += 1,
        }
    }
    assert_eq!((old, new), (1, 1));
}

/// Puts files into the data directory.
fn put_files(disk: &SimDisk, files: &[(PathBuf, Vec<u8>)]) {
    for (path, bytes) in files {
        disk.write_file(path, bytes).unwrap();
    }
}

/// The files of the stream's groups.
fn group_files(machine: &Machine) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = ["log", "index", "keys"].map(|ending| machine.files(ending));
    let paths = paths.into_iter().flatten();
    paths
        .map(|path| (path.clone(), machine.disk.read_file(path).unwrap()))
        .collect()
}

#[test]
fn a_restored_file_of_an_old_generation_is_reported_and_ignored() {
    let mut machine = filled(&[(FILE_DELETE_DELAY, "0")]);
    let before = table(&machine);
    let old = group_files(&machine);
    machine.log().compact().unwrap();
    sync(machine.log());
    let new = group_files(&machine);
    let is_old = |path: &PathBuf| old.iter().any(|(other, _)| other == path);
    let rewritten = new
        .iter()
        .map(|(path, _)| path)
        .find(|path| !is_old(path))
        .unwrap()
        .clone();
    let take = |disk: &SimDisk| {
        for (path, _) in new.iter().filter(|(path, _)| !is_old(path)) {
            disk.remove(path).unwrap();
        }
    };

    // Beside the rewritten group it is a leftover.
    machine.restart(|disk| put_files(disk, &old));
    assert_eq!(machine.partition().damage().map(ToString::to_string), None);
    assert_eq!(table(&machine), before);
    assert_eq!(
        machine.files("log").len(),
        machine.partition().info().groups
    );

    // In its place it does not count, and stays.
    machine.restart(|disk| {
        take(disk);
        put_files(disk, &old);
    });
    let damage = machine.partition().damage().unwrap().to_string();
    let path = rewritten.to_str().unwrap();
    assert!(
        damage.contains(path) && damage.contains("in the list of files, and missing"),
        "{damage}"
    );
    assert!(
        damage.contains("restore it from a copy, or see `millstream repair`"),
        "{damage}"
    );
    assert!(machine.partition().get(b"key 1").is_err());
    let chunk = chunk(&[(Some(b"k"), Some(b"v"))], Compression::None, None);
    assert!(matches!(
        machine.partition().append(&chunk),
        Err(LogError::PartitionFault { .. } | LogError::Corrupted { .. })
    ));
    assert_eq!(
        machine.files("log").len(),
        old.iter()
            .filter(|(path, _)| path.extension().unwrap() == "log")
            .count()
    );

    // The copy ends the damage.
    machine.restart(|disk| put_files(disk, &new));
    assert_eq!(machine.partition().damage().map(ToString::to_string), None);
    assert_eq!(table(&machine), before);

    // Without one, a list that is made anew takes the old generation.
    machine.restart(|disk| {
        take(disk);
        put_files(disk, &old);
        disk.remove("/data/manifest").unwrap();
        make_list_anew(disk);
    });
    assert_eq!(machine.partition().damage().map(ToString::to_string), None);
    assert_eq!(table(&machine), before);
}

#[test]
fn a_damaged_key_file_is_rebuilt_before_its_group_is_compacted() {
    let machine = filled(&[]);
    let before = table(&machine);
    let damaged = machine.files("keys")[1].clone();
    machine.disk.flip_bit(&damaged, 8 * 100).unwrap();
    let report = machine.log().compact().unwrap();
    assert!(report.is_left && report.groups_before == 0, "{report:?}");
    sync(machine.log());
    let report = machine.log().compact().unwrap();
    assert!(!report.is_left && report.groups_before > 3, "{report:?}");
    assert_eq!(table(&machine), before);
}

#[test]
fn a_group_with_a_torn_index_is_compacted_and_keeps_its_producers() {
    for torn in [0, 1, 2] {
        let mut machine = Machine::new();
        let stream = StreamConfig {
            // So each group is rewritten by itself.
            lanes: 2,
            ..small_groups("compact")
        };
        machine.log().create_stream("s", stream).unwrap();
        let sent = chunk(&[(Some(b"k"), Some(b"v"))], Compression::None, Some((1, 0)));
        machine.partition().append(&sent).unwrap();
        let marker = EndMarker {
            producer_id: ProducerId(1),
            producer_epoch: ProducerEpoch(0),
            end: TransactionEnd::Commit,
            coordinator_epoch: 0,
        };
        machine.partition().append_marker(&marker).unwrap();
        fill(&machine, 0..ROUNDS);
        let before = table(&machine);
        machine.restart(|disk| {
            // In its first entry. The last one, which a start reads, is whole.
            let index = &machine::files(disk, "index")[torn];
            disk.flip_bit(index, 8 * 70).unwrap();
        });
        sync(machine.log());
        let report = machine.log().compact().unwrap();
        assert!(report.groups_before > 3, "{report:?}");
        for _ in 0..2 {
            assert_eq!(table(&machine), before);
            let repeated = machine.partition().append(&sent).unwrap();
            assert!(repeated.duplicate && repeated.base_offset == Offset(0));
            machine.restart(|_| ());
        }
    }
}

/// The names of groups' files, by ending.
fn names(machine: &Machine) -> BTreeMap<&'static str, usize> {
    let endings = ["log", "index", "keys", "new"];
    endings
        .map(|ending| (ending, machine.files(ending).len()))
        .into()
}

#[test]
fn a_full_disk_leaves_the_old_groups_and_no_new_file() {
    let machine = filled(&[(FILE_DELETE_DELAY, "0")]);
    let (before, files_before) = (table(&machine), names(&machine));
    let used = machine.disk.used_bytes();
    let mut refused = 0;
    for room in (0..).map(|n| n * 700) {
        machine.disk.set_capacity(used + room);
        match machine.log().compact() {
            Err(LogError::Io { .. }) => {
                refused += 1;
                assert_eq!(names(&machine), files_before, "{room} bytes of room");
                assert_eq!(table(&machine), before);
            }
            compacted => {
                assert!(compacted.unwrap().groups_before > 3);
                break;
            }
        }
    }
    assert!(refused > 5, "{refused}");
    machine.disk.set_capacity(u64::MAX);
    fill(&machine, ROUNDS..ROUNDS + 1);
    assert_eq!(
        machine.files("log").len(),
        machine.partition().info().groups
    );
}

#[test]
fn a_crash_at_any_operation_leaves_the_old_groups_or_the_new_one() {
    let mut machine = filled(&[(FILE_DELETE_DELAY, "0")]);
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
        let compacted = machine.log().compact();
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sync(machine.log())));
        let is_over = !machine.disk.has_crashed();
        assert!(compacted.is_ok() || !is_over);
        let image = machine.disk.crash(&mut rng);
        machine.start_from(image);
        let partition = machine.partition();
        assert_eq!(
            partition.damage().map(ToString::to_string),
            None,
            "operation {operation}"
        );
        assert_eq!(table(&machine), before, "operation {operation}");
        check_rest(
            &[],
            &read_on(&mut partition.reader(partition.earliest())),
            &newest,
        );
        let groups = partition.info().groups;
        assert_eq!(machine.files("log").len(), groups, "operation {operation}");
        match groups > 4 {
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
        old > 10 && new > 2,
        "{old} crashes before the swap, {new} behind it"
    );
}

/// In a stream that is not synced at once, a crash loses the end of a transaction that lookups have seen. Until it is
/// durable, no key file and no compaction may depend on it.
#[test]
fn an_end_of_a_transaction_that_a_crash_loses_changes_no_file() {
    let mut machine = Machine::new();
    create(&machine, &[(FILE_DELETE_DELAY, "0")]);
    let durable = |machine: &Machine| {
        machine.clock.advance(Duration::from_secs(1));
        sync(machine.log());
        let partition = machine.partition();
        assert_eq!(partition.durable_offset(), partition.next_offset());
    };
    append(&machine.partition(), &[(Some(b"k"), Some(b"committed"))]);
    let sent = chunk(
        &[(Some(b"k"), Some(b"open"))],
        Compression::None,
        Some((1, 0)),
    );
    machine.partition().append(&sent).unwrap();
    fill(&machine, 0..ROUNDS);
    durable(&machine);
    let marker = |end| EndMarker {
        producer_id: ProducerId(1),
        producer_epoch: ProducerEpoch(0),
        end,
        coordinator_epoch: 0,
    };
    let value = |machine: &Machine| get(&machine.partition(), b"k").map(|(_, value)| value);
    machine
        .partition()
        .append_marker(&marker(TransactionEnd::Commit))
        .unwrap();
    assert_eq!(value(&machine).as_deref(), Some(&b"open"[..]));
    machine.log().compact().unwrap();
    assert!(machine.partition().durable_offset() < machine.partition().next_offset());

    let killed = machine.disk.kill();
    machine.start_from(killed);
    assert_eq!(value(&machine).as_deref(), Some(&b"committed"[..]));
    machine
        .partition()
        .append_marker(&marker(TransactionEnd::Abort))
        .unwrap();
    durable(&machine);
    assert_eq!(value(&machine).as_deref(), Some(&b"committed"[..]));
    assert!(machine.log().compact().unwrap().groups_before > 0);
    assert_eq!(value(&machine).as_deref(), Some(&b"committed"[..]));
}

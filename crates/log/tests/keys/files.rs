//! Key files beside closed groups: their creation, the reads that they save, and lookups without them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use millstream_base::{ByteSize, Offset, ProducerEpoch, ProducerId, Timestamp};
use millstream_log::{CLEANUP_POLICY, KeyRange, StreamConfig};
use millstream_record::{Compression, EndMarker, TransactionEnd};
use millstream_sim::SimDisk;

use super::machine::{Machine, files, key};
use super::{append, chunk, get, scan, small_groups, sync};

/// Records that fill more than 20 groups.
const RECORDS: u64 = 6_000;

/// The bytes of a group that a look-up reads at once: enough for a chunk of 16 KiB.
const READ_BYTES: u64 = 20 << 10;

/// A machine with these records in a keyed stream.
fn filled() -> Machine {
    let machine = Machine::new();
    machine
        .log()
        .create_stream("s", small_groups("compact"))
        .unwrap();
    machine.put(0..RECORDS);
    machine
}

fn set_policy(machine: &Machine, policy: &str) {
    let set = |config: &mut StreamConfig| {
        let policy = (CLEANUP_POLICY.to_owned(), policy.to_owned());
        config.settings.extend([policy]);
    };
    machine.log().alter_stream("s", set).unwrap();
    sync(machine.log());
}

#[test]
fn a_closed_group_gets_a_key_file_before_any_lookup() {
    let machine = filled();
    let groups = machine.files("log").len();
    assert!(groups > 20, "{groups} groups");
    assert_eq!(machine.files("keys").len(), groups - 1, "one is open");
    assert_eq!(machine.files("new").len(), 0);
    let stats = machine.partition().key_stats();
    assert_eq!(
        (stats.files, stats.files_built),
        (groups as u64 - 1, stats.files)
    );
    assert_eq!((stats.files_rebuilt, stats.bytes), (0, 0));
    assert_eq!(stats.file_bytes, machine.bytes("keys"));
    assert_eq!(stats.files_failed_at, None);
    machine.check(0..RECORDS);
    let stats = machine.partition().key_stats();
    assert_eq!(stats.keys, RECORDS);
}

#[test]
fn a_start_reads_only_records_that_no_key_file_covers() {
    let mut machine = filled();
    machine.restart(|_| ());
    let read = |machine: &Machine| machine.read.swap(0, Ordering::Relaxed);
    read(&machine);
    let partition = machine.partition();
    assert_eq!(get(&partition, b"absent"), None);
    let open_group = machine.disk.read_file(machine.files("log").last().unwrap());
    let open_bytes = open_group.unwrap().len() as u64;
    let first = read(&machine);
    assert!(
        first <= 2 * open_bytes + 1_000,
        "{first} bytes of groups were read, where the open one has {open_bytes}"
    );
    let stats = partition.key_stats();
    let groups = machine.files("log").len() as u64;
    assert_eq!((stats.files, stats.files_built), (groups - 1, 0));
    assert_eq!(stats.file_bytes, machine.bytes("keys"));
    assert_eq!(stats.indexed_to, Offset(RECORDS));

    // Then a key that a group has takes one read, and an absent one takes nothing.
    for n in [0, RECORDS / 2] {
        assert!(get(&partition, &key(n)).is_some());
        let bytes = read(&machine);
        assert!(bytes <= READ_BYTES, "{bytes} bytes of groups were read");
    }
    assert_eq!(get(&partition, b"absent too"), None);
    assert_eq!(read(&machine), 0);
}

#[test]
fn damaged_and_missing_key_files_are_rebuilt() {
    type Damage = fn(&SimDisk, &std::path::Path, u64);
    let flip_first: Damage = |disk, path, _| disk.flip_bit(path, 100).unwrap();
    let flip_block: Damage = |disk, path, _| disk.flip_bit(path, 8 * 1_000).unwrap();
    let flip_footer: Damage = |disk, path, len| disk.flip_bit(path, 8 * (len - 50)).unwrap();
    let flip_list: Damage = |disk, path, len| disk.flip_bit(path, 8 * (len - 110)).unwrap();
    let shorten: Damage = |disk, path, len| disk.truncate(path, len as usize - 1).unwrap();
    let empty: Damage = |disk, path, _| disk.truncate(path, 0).unwrap();
    let remove: Damage = |disk, path, _| disk.remove(path).unwrap();
    let swap: Damage = |disk, path, _| {
        let other = files(disk, "keys").into_iter().next_back().unwrap();
        let other = disk.read_file(other).unwrap();
        disk.write_file(path, &other).unwrap();
    };
    let mut machine = filled();
    let damages = [
        flip_first,
        flip_block,
        flip_footer,
        flip_list,
        shorten,
        empty,
        remove,
        swap,
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        machine.restart(|disk| {
            for path in &files(disk, "keys")[3..6] {
                let len = disk.read_file(path).unwrap().len() as u64;
                damage(disk, path, len);
            }
        });
        machine.check(0..RECORDS);
        let stats = machine.partition().key_stats();
        assert_eq!((stats.files_built, stats.files_rebuilt), (3, 3), "{number}");
        machine.restart(|_| ());
        machine.check(0..RECORDS);
        let stats = machine.partition().key_stats();
        assert_eq!((stats.files_built, stats.files_rebuilt), (0, 0), "{number}");
    }
}

#[test]
fn a_key_file_that_is_damaged_while_in_use_is_rebuilt() {
    let machine = filled();
    machine.check(0..RECORDS);
    let path = machine.files("keys").remove(4);
    machine.disk.flip_bit(&path, 8 * 1_000).unwrap();
    machine.check(0..RECORDS);
    machine.disk.remove(&path).unwrap();
    machine.check(0..RECORDS);
    assert_eq!(machine.partition().key_stats().files_rebuilt, 2);
    assert!(machine.disk.read_file(&path).is_ok());
}

#[test]
fn lookups_work_while_key_files_cannot_be_written() {
    let machine = Machine::new();
    machine.clock.advance(Duration::from_secs(5));
    machine
        .disk
        .fail_writes(|path| path.to_string_lossy().contains(".keys"));
    machine
        .log()
        .create_stream("s", small_groups("compact"))
        .unwrap();
    machine.put(0..RECORDS);
    machine.check(0..RECORDS);
    let (keys, unfinished) = (machine.files("keys"), machine.files("new"));
    assert!(keys.is_empty() && unfinished.is_empty());
    let stats = machine.partition().key_stats();
    assert!(stats.files == 0 && stats.bytes > 0);
    assert_eq!(stats.files_failed_at, Some(Timestamp(5_000)));

    machine.disk.fail_writes(|_| false);
    sync(machine.log());
    assert!(machine.files("keys").is_empty(), "it is tried again later");
    machine.clock.advance(Duration::from_secs(60));
    sync(machine.log());
    let before = stats.bytes;
    machine.put(RECORDS..RECORDS + 20);
    machine.check(0..RECORDS + 20);
    let stats = machine.partition().key_stats();
    assert_eq!(stats.files, machine.files("log").len() as u64 - 1);
    assert!(stats.bytes < before / 4, "{} bytes stay", stats.bytes);
}

#[test]
fn key_files_follow_the_policy_of_their_stream() {
    let mut machine = Machine::new();
    machine
        .log()
        .create_stream("s", small_groups("delete"))
        .unwrap();
    machine.put(0..RECORDS);
    assert!(machine.files("keys").is_empty());

    set_policy(&machine, "compact");
    let files = machine.files("keys").len();
    assert_eq!(files, machine.files("log").len() - 1);
    machine.check(0..RECORDS);
    assert!(machine.partition().key_stats().bytes > 0);

    // The files stay, and the memory is given back.
    set_policy(&machine, "delete");
    assert_eq!(machine.partition().key_stats().bytes, 0);
    assert_eq!(machine.files("keys").len(), files);
    machine.restart(|_| ());
    set_policy(&machine, "compact");
    machine.check(0..RECORDS);
    assert_eq!(machine.partition().key_stats().files_built, 0);
}

#[test]
fn key_files_are_removed_with_their_groups() {
    let machine = filled();
    let beside = |machine: &Machine| {
        let stems = |ending| {
            let files = machine.files(ending).into_iter();
            files
                .map(|path| path.with_extension(""))
                .collect::<Vec<_>>()
        };
        let (keys, mut groups) = (stems("keys"), stems("log"));
        groups.pop();
        assert_eq!(keys, groups);
        keys.len()
    };
    let all = beside(&machine);
    let (partition, middle) = (machine.partition(), RECORDS / 2 + 7);
    let deleted = machine
        .log()
        .delete_before(&[(partition.clone(), Offset(middle))]);
    assert_eq!(deleted[0].clone().unwrap(), Offset(middle));
    let left = beside(&machine);
    assert!(left < all);
    assert_eq!(get(&partition, &key(middle - 1)), None);
    machine.check(middle..RECORDS);
    assert!(partition.key_stats().files <= left as u64);

    let keep = |config: &mut StreamConfig| config.retention = Some(ByteSize(200_000));
    machine.log().alter_stream("s", keep).unwrap();
    set_policy(&machine, "compact,delete");
    assert!(machine.log().apply_retention().unwrap() > 0);
    assert!(beside(&machine) < left);
    machine.check(partition.earliest_offset().0..RECORDS);

    machine.log().delete_stream("s").unwrap();
    assert!(machine.files("keys").is_empty());
}

#[test]
fn unfinished_key_files_and_key_files_without_a_group_are_removed() {
    let mut machine = filled();
    machine.restart(|disk| {
        let path = files(disk, "keys").remove(0);
        let bytes = disk.read_file(&path).unwrap();
        let stem = path.to_str().unwrap();
        let gone = stem.replacen("-00000000", "-00009999", 1);
        for stray in [format!("{stem}.new"), format!("{stem}.7.new"), gone] {
            assert!(stray != stem);
            disk.write_file(stray, &bytes).unwrap();
        }
    });
    sync(machine.log());
    assert_eq!(machine.files("new").len(), 0);
    assert_eq!(machine.files("keys").len(), machine.files("log").len() - 1);
    machine.check(0..RECORDS);
}

#[test]
fn a_key_file_has_only_committed_records_and_waits_for_open_transactions() {
    for end in [TransactionEnd::Commit, TransactionEnd::Abort] {
        let mut machine = Machine::new();
        machine
            .log()
            .create_stream("s", small_groups("compact"))
            .unwrap();
        let partition = machine.partition();
        let old: [super::Record<'_>; 1] = [(Some(b"a"), Some(b"old"))];
        append(&partition, &old);
        let records: [super::Record<'_>; 2] = [(Some(b"a"), Some(b"new")), (Some(b"b"), None)];
        let in_transaction = chunk(&records, Compression::None, Some((5, 0)));
        partition.append(&in_transaction).unwrap();
        machine.put(3..RECORDS);
        assert!(machine.files("keys").is_empty(), "the transaction is open");
        assert_eq!(get(&partition, b"a"), Some((0, b"old".to_vec())));
        assert_eq!(get(&partition, &key(3)), None);

        let marker = EndMarker {
            producer_id: ProducerId(5),
            producer_epoch: ProducerEpoch(0),
            end,
            coordinator_epoch: 0,
        };
        partition.append_marker(&marker).unwrap();
        sync(machine.log());
        assert!(machine.files("keys").len() > 20);
        let expected = match end {
            TransactionEnd::Commit => (1, b"new".to_vec()),
            TransactionEnd::Abort => (0, b"old".to_vec()),
        };
        drop(partition);
        for _ in 0..2 {
            let partition = machine.partition();
            assert_eq!(get(&partition, b"a"), Some(expected.clone()));
            assert_eq!(get(&partition, b"b"), None);
            assert!(get(&partition, &key(3)).is_some());
            let found = scan(&partition, KeyRange::prefix("a"), 10, 1_000);
            assert_eq!(found[0], (b"a".to_vec(), expected.0, expected.1.clone()));
            drop(partition);
            machine.restart(|_| ());
        }
    }
}

#[test]
fn tombstones_hide_the_values_of_older_key_files() {
    let mut machine = filled();
    let partition = machine.partition();
    machine.check(0..RECORDS);
    let deleted: Vec<Vec<u8>> = (0..RECORDS).step_by(3).map(key).collect();
    for keys in deleted.chunks(50) {
        let records: Vec<super::Record<'_>> =
            keys.iter().map(|key| (Some(&key[..]), None)).collect();
        append(&partition, &records);
    }
    sync(machine.log());
    let later = RECORDS + RECORDS / 3;
    let check = |machine: &Machine, end: u64| {
        let partition = machine.partition();
        for n in 0..RECORDS {
            let found = get(&partition, &key(n)).map(|(offset, _)| offset);
            assert_eq!(found, (n % 3 > 0).then_some(n), "{n}");
        }
        for limit in [1_000, 7] {
            let found = scan(&partition, KeyRange::prefix("1"), limit, usize::MAX);
            let stored = (0..RECORDS).filter(|n| n % 3 > 0).chain(later..end);
            let wanted = stored.filter(|n| key(*n).starts_with(b"1"));
            assert_eq!(found.len(), wanted.count());
        }
    };
    check(&machine, later);
    drop(partition);
    machine.restart(|_| ());
    check(&machine, later);
    // With enough behind them, key files have the tombstones.
    machine.put(later..later + 400);
    machine.restart(|_| ());
    check(&machine, later + 400);
}

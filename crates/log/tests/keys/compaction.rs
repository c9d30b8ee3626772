//! Compaction beside readers, deletions, crashes and full disks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use millstream_base::Offset;
use millstream_log::{
    AtLeast, DELETE_RETENTION, FILE_DELETE_DELAY, InternalStore, KeyRange, LogError, Next,
    PartitionReader, Subscription, salvage,
};
use millstream_record::{Chunks, Decompressor};
use millstream_sim::SimRandom;

use super::machine::Machine;
use super::{append, config, scan, small_groups, sync};

/// The keys that are put again and again.
const KEYS: u64 = 40;

/// A round takes about 9 KiB, a group 64 KiB.
const ROUNDS: u64 = 40;

/// A machine whose stream has these records, and these settings.
fn filled(settings: &[(&str, &str)]) -> Machine {
    let machine = Machine::new();
    let mut stream = small_groups("compact");
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    stream.settings.extend(settings.iter().map(owned));
    machine.log().create_stream("s", stream).unwrap();
    fill(&machine, 0..ROUNDS);
    machine
}

/// Puts all keys in each round. A tenth of them get a new value only in the first round.
fn fill(machine: &Machine, rounds: std::ops::Range<u64>) {
    let partition = machine.partition();
    for round in rounds {
        let value = [round as u8; 200];
        let keys: Vec<Vec<u8>> = (0..KEYS)
            .filter(|key| round == 0 || key % 10 > 0)
            .map(|key| format!("key {key}").into_bytes())
            .collect();
        for keys in keys.chunks(5) {
            let records = keys.iter().map(|key| (Some(&key[..]), Some(&value[..])));
            append(&partition, &records.collect::<Vec<_>>());
        }
        sync(machine.log());
    }
    machine.log().persist();
    sync(machine.log());
}

type Table = Vec<(Vec<u8>, u64, Vec<u8>)>;

fn table(machine: &Machine) -> Table {
    scan(&machine.partition(), KeyRange::all(), 1_000, 1 << 20)
}

/// The offsets of the newest record of each key.
fn newest(table: &Table) -> BTreeSet<u64> {
    table.iter().map(|(_, offset, _)| *offset).collect()
}

fn offsets_in(chunks: &[u8]) -> Vec<u64> {
    let mut decompressor = Decompressor::default();
    let mut offsets = Vec::new();
    for chunk in Chunks::new(chunks) {
        let chunk = chunk.unwrap();
        if !chunk.header().attributes.is_control() {
            let records = chunk.records(&mut decompressor).unwrap();
            offsets.extend(records.map(|record| record.unwrap().offset.0));
        }
    }
    offsets
}

fn read_on(reader: &mut PartitionReader) -> Vec<u64> {
    let mut offsets = Vec::new();
    while let Some(chunks) = reader.read(3_000).unwrap() {
        offsets.extend(offsets_in(&chunks.bytes));
    }
    offsets
}

fn check_rest(before: &[u64], rest: &[u64], newest: &BTreeSet<u64>) {
    let from = before.last().map_or(0, |last| last + 1);
    let rest: BTreeSet<u64> = rest.iter().copied().collect();
    let missed: Vec<_> = newest
        .range(from..)
        .filter(|offset| !rest.contains(offset))
        .collect();
    assert!(missed.is_empty(), "{missed:?} behind {from}");
}

fn rises(offsets: &[u64]) -> bool {
    offsets.windows(2).all(|pair| pair[0] < pair[1])
}

#[test]
fn readers_go_on_through_a_swap_and_miss_no_record() {
    let machine = filled(&[(FILE_DELETE_DELAY, "0")]);
    machine.log().evict();
    let (partition, log) = (machine.partition(), machine.log());
    let before = table(&machine);
    let groups = partition.info().groups;
    assert!(groups > 4, "{groups} groups");

    // Readers that stand all over the groups.
    let mut readers = Vec::new();
    let mut feeds = Vec::new();
    for reads in 0..170 {
        let mut reader = partition.reader(partition.earliest());
        let mut feed = Subscription::of_partitions([(partition.clone(), Offset(0))]);
        let (mut by_cursor, mut by_offset) = (Vec::new(), Vec::new());
        for _ in 0..reads {
            if let Some(chunks) = reader.read(3_000).unwrap() {
                by_cursor.extend(offsets_in(&chunks.bytes));
            }
            if let Next::Handed(handed) = feed.next(3_000).unwrap() {
                by_offset.extend(offsets_in(&handed.chunks.bytes));
            }
        }
        readers.push((reader, by_cursor));
        feeds.push((feed, by_offset));
    }
    let files_before = machine.files("log").len();
    let report = log.compact().unwrap();
    assert!(
        report.groups_before > 3 && report.groups_after == 1,
        "{report:?}"
    );
    assert_eq!(report.compacted_to.is_some(), !report.is_left);
    assert!(report.bytes_after < report.bytes_before / 4, "{report:?}");
    sync(log);
    assert_eq!(
        machine.files("log").len(),
        files_before + 1,
        "readers have the old ones"
    );

    let newest = newest(&before);
    let end = partition.next_offset();
    for (reader, before) in &mut readers {
        // A cursor begins the new group again, a reader goes on where it is.
        let mut of_cursor = partition.reader(reader.cursor());
        check_rest(before, &read_on(&mut of_cursor), &newest);
        let rest = read_on(reader);
        check_rest(before, &rest, &newest);
        // The chunk of the new group in which it goes on may begin before.
        let goes_back = rest.windows(2).filter(|pair| pair[0] >= pair[1]);
        assert!(goes_back.count() <= 1);
    }
    for (feed, before) in &mut feeds {
        let mut rest = Vec::new();
        while let Next::Handed(handed) = feed.next(3_000).unwrap() {
            let offsets = offsets_in(&handed.chunks.bytes).into_iter();
            rest.extend(offsets.filter(|offset| *offset >= handed.from.0));
        }
        check_rest(before, &rest, &newest);
        before.extend(rest);
        assert!(rises(before), "each offset comes once");
    }
    for from in 0..end.0 {
        let fetched = partition
            .fetch(Offset(from), end, 1, AtLeast::OneChunk)
            .unwrap();
        let first = Chunks::new(&fetched.pieces[0]).next().unwrap().unwrap();
        let header = *first.header();
        assert!((header.base_offset..header.next_offset()).contains(&Offset(from)));
    }
    assert_eq!(table(&machine), before);

    drop((readers, feeds));
    sync(log);
    assert_eq!(machine.files("log").len(), partition.info().groups);
    assert_eq!(table(&machine), before);
}

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
fn a_list_that_is_made_anew_has_the_rewritten_group_and_none_that_it_replaces() {
    let mut machine = filled(&[]);
    let before = table(&machine);
    let old = machine.files("log").len();
    machine.log().compact().unwrap();
    let groups = machine.partition().info().groups;
    assert_eq!(machine.files("log").len(), old + 1);
    machine.restart(|disk| {
        disk.remove("/data/manifest").unwrap();
        let (disk, random) = (Arc::new(disk.clone()), Arc::new(SimRandom::new(9)));
        let config = config(Path::new("/data"));
        salvage(&config, disk, random, InternalStore::Manifest).unwrap();
    });
    assert_eq!(machine.partition().damage().map(ToString::to_string), None);
    assert_eq!(machine.files("log").len(), groups);
    assert_eq!(table(&machine), before);
}

#[test]
fn deleted_records_stay_deleted_in_a_rewritten_group() {
    let mut machine = filled(&[(FILE_DELETE_DELAY, "0")]);
    for round in 0..3 {
        let partition = machine.partition();
        let to = Offset(partition.earliest_offset().0 + 333);
        let deleted = machine.log().delete_before(&[(partition.clone(), to)]);
        assert_eq!(deleted[0].clone().unwrap(), to);
        let before = table(&machine);
        assert!(newest(&before).iter().all(|offset| *offset >= to.0));
        machine.log().compact().unwrap();
        assert_eq!(partition.earliest_offset(), to);
        assert_eq!(table(&machine), before);
        let mut reader = partition.reader(partition.earliest());
        check_rest(&[to.0 - 1], &read_on(&mut reader), &newest(&before));
        if round == 1 {
            machine.restart(|_| ());
            assert_eq!(machine.partition().earliest_offset(), to);
            assert_eq!(table(&machine), before);
        }
        fill(&machine, ROUNDS..ROUNDS + 8);
    }
}

#[test]
fn tombstones_go_after_their_time() {
    let mut machine = filled(&[(DELETE_RETENTION, "1000"), (FILE_DELETE_DELAY, "0")]);
    let partition = machine.partition();
    append(&partition, &[(Some(b"key 0"), None)]);
    let tombstone = partition.next_offset().0 - 1;
    fill(&machine, 1..ROUNDS);
    let before = table(&machine);
    assert_eq!(before.len() as u64, KEYS - 1);
    let has_tombstone = |machine: &Machine| {
        let partition = machine.partition();
        let found = read_on(&mut partition.reader(partition.earliest()));
        found.contains(&tombstone)
    };
    for is_over in [false, false, true] {
        machine.log().compact().unwrap();
        sync(machine.log());
        assert_eq!(has_tombstone(&machine), !is_over);
        assert_eq!(table(&machine), before);
        if !is_over {
            machine.clock.advance(Duration::from_millis(600));
        }
    }
    machine.restart(|_| ());
    assert_eq!(table(&machine), before);
}

#[test]
fn groups_of_a_shared_group_are_not_joined_and_done_ones_stay_done() {
    let machine = filled(&[(FILE_DELETE_DELAY, "0")]);
    let (log, before) = (machine.log(), table(&machine));
    let stream = log.stream("s").unwrap();
    let subscribe =
        || Subscription::of_shared_group(log, &stream, "app", "one".to_owned()).unwrap();
    let mut seen = Vec::new();
    let mut subscriber = subscribe();
    for _ in 0..70 {
        if let Next::Handed(handed) = subscriber.next(3_000).unwrap() {
            seen.extend(offsets_in(&handed.chunks.bytes));
        }
    }
    subscriber.commit().unwrap();
    sync(log);
    let report = log.compact().unwrap();
    assert!(report.groups_before > 3, "{report:?}");
    assert_eq!(report.groups_before, report.groups_after, "none is joined");
    let committed = seen.len();
    while let Next::Handed(handed) = subscriber.next(3_000).unwrap() {
        seen.extend(offsets_in(&handed.chunks.bytes));
        subscriber.commit().unwrap();
        sync(log);
    }
    let first_group_end = seen[..committed]
        .iter()
        .filter(|offset| **offset < 200)
        .count();
    assert_eq!(first_group_end, 200);
    assert!(
        !seen[committed..].iter().any(|offset| *offset < 200),
        "the first group was done"
    );
    check_rest(&[], &seen, &newest(&before));
    drop(subscriber);
    assert!(
        matches!(subscribe().next(3_000), Ok(Next::Nothing)),
        "all is done"
    );
}

#[test]
fn a_damaged_key_file_is_made_again_before_its_group_is_compacted() {
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

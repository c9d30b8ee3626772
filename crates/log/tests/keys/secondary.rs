//! Indexes of secondary keys: their files, and look-ups beside changes.

use std::sync::atomic::{AtomicBool, Ordering};

use millstream_base::{KeyRange, Timestamp};
use millstream_log::{
    Log, LogError, SECONDARY, SECONDARY_KEY_BYTES_MAX, StreamConfig, StreamPartition,
};
use millstream_record::{Compression, SECONDARY_KEYS_MAX};

use super::machine::{Machine, key};
use super::{Tag, get, small_groups, sync, tagged_chunk_of, try_find};

/// Records that fill more than five groups.
const RECORDS: u64 = 1_500;

/// The secondary keys that records have in turn.
const CITIES: u64 = 7;

fn create(machine: &Machine, names: &str) {
    let mut config = small_groups("compact");
    config
        .settings
        .insert(SECONDARY.to_owned(), names.to_owned());
    machine.log().create_stream("s", config).unwrap();
}

fn set_indexes(machine: &Machine, names: &str) {
    let set = |config: &mut StreamConfig| {
        config
            .settings
            .insert(SECONDARY.to_owned(), names.to_owned());
    };
    machine.log().alter_stream("s", set).unwrap();
}

fn append(partition: &StreamPartition, key: &[u8], value: Option<&[u8]>, tags: Vec<Tag>) {
    let records = [(Some(key), value)];
    let none = (None, false);
    let chunk = tagged_chunk_of(
        &records,
        &[tags],
        Compression::None,
        none,
        Timestamp(5),
        None,
    );
    partition.append(&chunk).unwrap();
}

fn city(n: u64) -> Vec<u8> {
    format!("city {}", n % CITIES).into_bytes()
}

/// Puts numbers, each with a city, and makes the key files of closed groups.
fn put(machine: &Machine, numbers: std::ops::Range<u64>) {
    let partition = machine.partition();
    for n in numbers {
        append(
            &partition,
            &key(n),
            Some(&[n as u8; 200]),
            vec![("city", city(n))],
        );
        if n % 20 == 0 {
            sync(machine.log());
        }
    }
    machine.log().persist();
    sync(machine.log());
}

fn find(partition: &StreamPartition, name: &str, range: &KeyRange) -> Vec<(Vec<u8>, Vec<u8>, u64)> {
    let found = try_find(partition, name, range, 100, 1 << 20).unwrap();
    let found = found.into_iter();
    found
        .map(|(secondary, key, offset, _)| (secondary, key, offset))
        .collect()
}

/// Looks for each city of the numbers that were put, each once.
fn check(machine: &Machine, numbers: std::ops::Range<u64>) {
    let partition = machine.partition();
    let mut all: Vec<_> = numbers.map(|n| (city(n), key(n), n)).collect();
    all.sort_unstable();
    assert_eq!(find(&partition, "city", &KeyRange::all()), all);
    for n in 0..CITIES {
        let of_city: Vec<_> = all
            .iter()
            .filter(|found| found.0 == city(n))
            .cloned()
            .collect();
        assert_eq!(find(&partition, "city", &KeyRange::key(city(n))), of_city);
    }
}

#[test]
fn an_index_can_be_added_to_a_stream_with_data_and_removed() {
    let mut machine = Machine::new();
    create(&machine, "");
    put(&machine, 0..RECORDS);
    let closed = machine.files("log").len() - 1;
    assert!(closed > 5, "{closed} groups");
    let found = machine
        .partition()
        .find_by("city", &KeyRange::all(), None, 1, 1);
    assert!(
        matches!(found, Err(LogError::NoSecondaryIndex { .. })),
        "{found:?}"
    );

    // The first look-up makes the files …
    set_indexes(&machine, "city");
    let index = || machine.partition().secondary_indexes().remove(0);
    assert_eq!(index().groups_left, closed as u64);
    check(&machine, 0..RECORDS);
    assert_eq!(machine.files("by-city").len(), closed);
    assert_eq!((index().groups_left, index().stats.keys), (0, RECORDS));

    // … or the thread that makes key files does.
    set_indexes(&machine, "city,zip");
    sync(machine.log());
    assert_eq!(machine.files("by-zip").len(), closed);
    set_indexes(&machine, "zip");
    sync(machine.log());
    assert_eq!(
        (
            machine.files("by-zip").len(),
            machine.files("by-city").len()
        ),
        (closed, 0)
    );
    assert_eq!(machine.files("keys").len(), closed);

    set_indexes(&machine, "city");
    check(&machine, 0..RECORDS);
    let read = |machine: &Machine| machine.read.swap(0, Ordering::Relaxed);
    machine.restart(|_| ());
    read(&machine);
    let absent = find(&machine.partition(), "city", &KeyRange::key("absent"));
    assert_eq!(absent, []);
    let open_group = machine.disk.read_file(machine.files("log").last().unwrap());
    let open_bytes = open_group.unwrap().len() as u64;
    let first = read(&machine);
    assert!(first <= 2 * open_bytes + 1_000, "{first} bytes were read");
    check(&machine, 0..RECORDS);
    sync(machine.log());
    assert_eq!(machine.files("by-zip").len(), 0, "the start has found them");
}

#[test]
fn index_files_are_rebuilt_and_are_removed_with_their_groups() {
    let mut machine = Machine::new();
    create(&machine, "city");
    put(&machine, 0..RECORDS);
    let files = machine.files("by-city");
    machine.restart(|disk| {
        disk.remove(&files[0]).unwrap();
        disk.flip_bit(&files[1], 8 * 100).unwrap();
        disk.truncate(&files[2], 50).unwrap();
        let stem = files[3].to_str().unwrap();
        let lone = stem.replacen("-00000000", "-00009999", 1);
        assert!(lone != stem);
        disk.write_file(lone, &[1; 100]).unwrap();
        let part = files[3].with_extension("by-city.7.new");
        disk.write_file(part, &[1; 100]).unwrap();
    });
    assert_eq!(machine.files("new").len(), 0);
    assert_eq!(machine.files("by-city").len(), files.len() - 1);
    check(&machine, 0..RECORDS);
    assert_eq!(machine.files("by-city"), files);

    // Compaction leaves one group, whose file is made afterwards.
    put(&machine, 0..0);
    let partition = machine.partition();
    (0..RECORDS).for_each(|n| {
        append(
            &partition,
            &key(n),
            Some(b"v"),
            vec![("city", b"here".to_vec())],
        )
    });
    machine.log().persist();
    sync(machine.log());
    machine.log().compact().unwrap();
    let found = find(&partition, "city", &KeyRange::all());
    assert_eq!(found.len() as u64, RECORDS);
    assert!(found.iter().all(|(city, ..)| city == b"here"));
    sync(machine.log());
    machine.log().delete_stream("s").unwrap();
    let left = machine.disk.files().into_iter();
    let left = left.filter(|(path, _)| path.to_string_lossy().contains("by-city"));
    assert_eq!(left.count(), 0);
}

#[test]
fn secondary_lookups_work_while_index_files_cannot_be_written() {
    let machine = Machine::new();
    create(&machine, "city");
    machine
        .disk
        .fail_writes(|path| path.to_string_lossy().contains(".by-city"));
    put(&machine, 0..RECORDS);
    check(&machine, 0..RECORDS);
    assert_eq!(machine.files("by-city").len(), 0);
    assert_eq!(get(&machine.partition(), &key(7)).unwrap().0, 7);
}

#[test]
fn a_lookup_finds_the_first_of_a_thousand_secondary_keys() {
    let machine = Machine::new();
    create(&machine, "n,long");
    let partition = machine.partition();
    let tags = (0..1_000).map(|n| ("n", format!("{n:04}").into_bytes()));
    append(&partition, b"many", Some(b"v"), tags.collect());
    let long = |more| vec![b'x'; SECONDARY_KEY_BYTES_MAX + more];
    append(
        &partition,
        b"long",
        Some(b"v"),
        vec![("long", long(0)), ("long", long(1))],
    );
    sync(machine.log());
    for _ in 0..2 {
        let found = find(&partition, "n", &KeyRange::all());
        let expected =
            (0..SECONDARY_KEYS_MAX).map(|n| (format!("{n:04}").into_bytes(), b"many".to_vec(), 0));
        assert_eq!(found, expected.collect::<Vec<_>>());
        assert_eq!(
            find(&partition, "long", &KeyRange::all()),
            [(long(0), b"long".to_vec(), 1)]
        );
        for index in partition.secondary_indexes() {
            assert_eq!(index.stats.without_key, 1, "{}", index.name);
        }
        assert_eq!(partition.info().partly_indexed, Some(2));
        // The next time they are in a file.
        put(&machine, 2..600);
    }
    assert_eq!(get(&partition, b"many").unwrap().0, 0, "nothing is lost");
}

#[test]
fn a_lookup_that_finds_only_old_versions_ends() {
    let machine = Machine::new();
    create(&machine, "city");
    let partition = machine.partition();
    for n in 0..3_000_u64 {
        append(
            &partition,
            b"k",
            Some(b"v"),
            vec![("city", format!("{n:05}").into_bytes())],
        );
    }
    sync(machine.log());
    let mut from = None;
    let mut pages = 0;
    loop {
        let page = partition
            .find_by("city", &KeyRange::all(), from.as_ref(), 10, 1 << 20)
            .unwrap();
        pages += 1;
        let Some(next) = page.next else {
            assert_eq!(page.entries[0].secondary, b"02999");
            break;
        };
        assert!(page.entries.is_empty());
        from = Some(next);
    }
    assert_eq!(pages, 3, "some thousand old versions each");
}

/// A key that has a secondary key from beginning to end is found, whatever happens meanwhile.
#[test]
fn a_record_stays_found_by_its_secondary_key_during_overwrites() {
    let machine = Machine::new();
    create(&machine, "city");
    let (log, partition): (&Log, _) = (machine.log(), machine.partition());
    let ends = AtomicBool::new(false);
    let put = |n: u64| {
        append(
            &partition,
            &key(n),
            Some(&[1; 500]),
            vec![("city", b"here".to_vec())],
        );
    };
    (0..20).for_each(put);
    sync(log);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..4_000 {
                put(n % 20);
                while log.step() {}
                match n % 500 {
                    250 => log.persist(),
                    499 => drop(log.compact().unwrap()),
                    _ => {}
                }
            }
            ends.store(true, Ordering::Relaxed);
        });
        while !ends.load(Ordering::Relaxed) {
            let found = find(&partition, "city", &KeyRange::key("here"));
            assert_eq!(found.len(), 20);
        }
    });
}

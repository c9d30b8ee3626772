//! Key files beside a plain map, their bytes, and damage.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::Path;

use millstream_base::{
    DiskFile, GroupId, KeyRange, LaneIndex, Offset, Position, StreamId, StreamletIndex, Timestamp,
};
use millstream_sim::SimDisk;
use parking_lot::Mutex;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::merge::KeyMerge;
use super::read::{KeyFile, key_hash};
use super::sort::KeySorter;
use super::write::{KeyFileWriter, LeftOut};
use super::{Horizons, KeyCounts, KeyFileError, Version};
use crate::ids::{Generation, GroupName, LaneId};
use crate::keys::kind::KeyKind;
use crate::keys::secondary::name::SecondaryName;

/// A file in memory.
#[derive(Default)]
struct MemoryFile(Mutex<Vec<u8>>);

impl DiskFile for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.0.lock();
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        // Short reads, as a real file may return them.
        let count = rest.len().min(buffer.len()).min(3_000);
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut bytes = self.0.lock();
        assert_eq!(bytes.len() as u64, offset, "the writer appends");
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        unreachable!("key files are only appended to")
    }

    fn reserve(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }
}

type Entries = BTreeMap<Vec<u8>, Version>;

const FIRST: u64 = 1_000;
const END: Offset = Offset(FIRST + 1_000_000);

const LEFT_OUT: LeftOut = LeftOut {
    without_key: 7,
    misplaced: 9,
};

const HORIZONS: Horizons = Horizons {
    tombstones: Some(Timestamp(0x0102)),
    markers: None,
    values: None,
    has_endless: false,
};

fn name() -> GroupName {
    GroupName {
        lane: LaneId {
            stream: StreamId(0x11),
            streamlet: StreamletIndex(2),
            lane: LaneIndex(3),
        },
        id: GroupId(0x44),
        first_offset: Offset(FIRST),
        generation: Generation(5),
    }
}

fn write(entries: &Entries) -> MemoryFile {
    let file = MemoryFile::default();
    let mut writer = KeyFileWriter::new(&file, &name(), &KeyKind::Primary);
    for (key, version) in entries {
        writer.add(key, version).unwrap();
    }
    writer.finish(END, LEFT_OUT, HORIZONS).unwrap();
    file
}

fn open(file: &MemoryFile) -> Result<KeyFile, KeyFileError> {
    KeyFile::open(file, &name(), &KeyKind::Primary, END)
}

fn get(key_file: &KeyFile, file: &MemoryFile, key: &[u8]) -> Result<Option<Version>, KeyFileError> {
    match key_file.block_with(key, key_hash(key)) {
        Some(block) => key_file.get(file as &dyn DiskFile, block, key),
        None => Ok(None),
    }
}

/// All entries from a key on.
fn read(file: &MemoryFile, from: &[u8]) -> Result<Vec<(Vec<u8>, Version)>, KeyFileError> {
    let key_file = open(file)?;
    let mut cursor = key_file.cursor(file as &dyn DiskFile, from)?;
    let mut entries = Vec::new();
    while let Some(version) = cursor.version() {
        entries.push((cursor.key().to_vec(), version));
        cursor.advance()?;
    }
    Ok(entries)
}

fn is_damage(error: KeyFileError) -> bool {
    matches!(error, KeyFileError::Damaged { .. })
}

fn version() -> impl Strategy<Value = Version> {
    let flags = (any::<bool>(), any::<bool>());
    (0..1_000_000_u64, any::<u64>(), any::<u32>(), flags).prop_map(
        |(offset, chunk, bytes, (is_tombstone, is_misplaced))| Version {
            offset: Offset(FIRST + offset),
            chunk: Position(chunk),
            bytes,
            is_tombstone,
            is_misplaced,
        },
    )
}

/// Keys with common prefixes, and some that are longer than a block.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => vec(0..3_u8, 0..8),
        3 => vec(any::<u8>(), 0..300),
        1 => (any::<u8>(), 0..9_000_usize).prop_map(|(byte, count)| vec![byte; count]),
    ]
}

/// Keys that are sorted: few or many, and with long prefixes that all of them or some share.
fn key_to_sort() -> impl Strategy<Value = Vec<u8>> {
    let prefix = prop_oneof![
        Just(""),
        Just("a long prefix/"),
        Just("a long prefix/a second one/")
    ];
    let rest = prop_oneof![vec(0..6_u8, 0..2), vec(0..6_u8, 0..4), vec(0..2_u8, 6..12)];
    (prefix, rest).prop_map(|(prefix, rest)| [prefix.as_bytes(), &rest].concat())
}

proptest! {
    #[test]
    fn lookups_in_a_key_file_equal_a_plain_map(
        entries in btree_map(key(), version(), 0..300),
        absent in vec(key(), 0..20),
    ) {
        let file = write(&entries);
        let key_file = open(&file).unwrap();
        for key in entries.keys().chain(&absent) {
            prop_assert_eq!(get(&key_file, &file, key).unwrap(), entries.get(key).copied());
        }
        for from in absent.iter().chain([&Vec::new()]) {
            let expected = entries.range(from.clone()..);
            let expected: Vec<_> = expected.map(|(key, version)| (key.clone(), *version)).collect();
            prop_assert_eq!(read(&file, from).unwrap(), expected);
        }
        let count = |is: fn(&Version) -> bool| entries.values().filter(|version| is(version)).count() as u64;
        let counts = KeyCounts {
            keys: entries.len() as u64,
            tombstones: count(|version| version.is_tombstone),
            without_key: 7,
            misplaced: 9,
            horizons: Some(HORIZONS),
            file_bytes: file.len().unwrap(),
        };
        prop_assert_eq!(KeyFile::read_counts(&file, &name(), &KeyKind::Primary, END).unwrap(), counts);
        let other_end = KeyFile::open(&file, &name(), &KeyKind::Primary, END.plus(1));
        prop_assert!(other_end.is_err_and(is_damage));
        for until in entries.keys().chain(&absent) {
            let range = KeyRange::new(Vec::new(), Some(until.clone()));
            let is_behind = entries.keys().next().is_none_or(|first| until <= first);
            prop_assert_eq!(key_file.is_behind(&range), is_behind);
        }
    }

    #[test]
    fn a_merge_returns_the_newest_record_of_each_key(
        groups in vec(btree_map(vec(0..3_u8, 0..5), version(), 0..60), 0..9),
        from in vec(0..3_u8, 0..3),
    ) {
        // The offsets of a group are greater than the offsets of earlier groups.
        let numbered = groups.into_iter().enumerate().map(|(n, mut group)| {
            for version in group.values_mut() {
                version.offset = version.offset.plus(n as u64 * 1_000_000);
            }
            group
        });
        let groups: Vec<Entries> = numbered.collect();
        let mut expected = Entries::new();
        groups.iter().for_each(|group| expected.extend(group.clone()));
        let expected = expected.split_off(&from);

        let files: Vec<MemoryFile> = groups.iter().map(write).collect();
        let key_files: Vec<KeyFile> = files.iter().map(|file| open(file).unwrap()).collect();
        let cursors = key_files.iter().zip(&files);
        let cursors = cursors.map(|(key_file, file)| key_file.cursor(file as &dyn DiskFile, &from).unwrap());
        let mut merge = KeyMerge::new(cursors.collect());
        let mut merged = Entries::new();
        while let Some(version) = merge.advance().unwrap() {
            prop_assert!(merged.last_key_value().is_none_or(|(last, _)| **last < *merge.key()));
            merged.insert(merge.key().to_vec(), version);
        }
        prop_assert_eq!(merged, expected);
    }

    /// With so little memory, each few keys are a run of their own, and some runs are merged before the end.
    #[test]
    fn sorted_keys_equal_a_plain_map_with_and_without_runs(
        records in prop_oneof![
            vec((key_to_sort(), 0..4_u8), 0..400),
            vec((vec(0..6_u8, 20..21), 0..4_u8), 0..400),
            vec((vec(0..4_u8, 0..2), 0..4_u8), 0..400),
        ],
        bytes_max in prop_oneof![Just(0_usize), 0..4_000_usize, Just(1 << 20)],
    ) {
        let disk = SimDisk::new(0);
        let path = Path::new("/group.keys.new");
        // The leftover of an interrupted attempt.
        disk.write_file(path, &[7; 10_000]).unwrap();
        let mut sorter = KeySorter::new(&disk, path.to_owned(), name(), KeyKind::Primary, END, bytes_max);
        let mut expected = Entries::new();
        let mut left_out = LeftOut::default();
        for (n, (key, kind)) in records.into_iter().enumerate() {
            let version = Version {
                offset: Offset(FIRST + n as u64),
                chunk: Position(10 * n as u64),
                bytes: n as u32,
                is_tombstone: kind == 1,
                is_misplaced: kind == 2,
            };
            if kind == 3 {
                sorter.add_without_key();
                left_out.without_key += 1;
                continue;
            }
            sorter.add(&key, version).unwrap();
            left_out.misplaced += u64::from(version.is_misplaced);
            expected.insert(key, version);
        }
        let counts = sorter.finish().unwrap();
        prop_assert_eq!((counts.without_key, counts.misplaced), (left_out.without_key, left_out.misplaced));
        prop_assert_eq!(counts.keys, expected.len() as u64);
        let file = MemoryFile(Mutex::new(disk.read_file(path).unwrap()));
        prop_assert_eq!(read(&file, &[]).unwrap(), expected.into_iter().collect::<Vec<_>>());
        let left: Vec<_> = disk.files().into_iter().map(|(path, _)| path).collect();
        prop_assert_eq!(left, [path], "runs are removed");
    }

    /// Checksums cover each byte, so damage is an error, and never a wrong answer or a panic.
    #[test]
    fn damaged_and_truncated_key_files_are_reported(
        entries in btree_map(key(), version(), 0..60),
        at: proptest::sample::Index,
        bit in 0..8_u32,
        length: proptest::sample::Index,
    ) {
        let bytes = write(&entries).0.into_inner();
        let mut flipped = bytes.clone();
        let at = at.index(bytes.len());
        flipped[at] ^= 1 << bit;
        let file = MemoryFile(Mutex::new(flipped));
        prop_assert!(read(&file, &[]).is_err_and(is_damage));
        if let Ok(key_file) = open(&file) {
            for (key, version) in &entries {
                match get(&key_file, &file, key) {
                    Ok(found) => prop_assert_eq!(found, Some(*version)),
                    Err(error) => prop_assert!(is_damage(error)),
                }
            }
        }
        let short = bytes[..length.index(bytes.len())].to_vec();
        let file = MemoryFile(Mutex::new(short));
        prop_assert!(read(&file, &[]).is_err_and(is_damage));
    }

    /// With right checksums, so the decoders themselves meet the bytes.
    #[test]
    fn arbitrary_parts_with_right_checksums_never_panic(
        entries in btree_map(key(), version(), 0..20),
        changes in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let bytes = write(&entries).0.into_inner();
        let key_file = open(&MemoryFile(Mutex::new(bytes.clone()))).unwrap();
        for part in key_file.parts() {
            let mut changed = bytes.clone();
            let content = part.start..part.end - 4;
            for (index, byte) in changes.iter().filter(|_| !content.is_empty()) {
                changed[content.start + index.index(content.len())] = *byte;
            }
            let crc = millstream_base::crc32c(&changed[content.clone()]).to_le_bytes();
            changed[content.end..part.end].copy_from_slice(&crc);
            let file = MemoryFile(Mutex::new(changed));
            let _ = read(&file, &[]);
            if let Ok(key_file) = open(&file) {
                entries.keys().for_each(|key| drop(get(&key_file, &file, key)));
            }
        }
    }
}

/// Sorts records with these keys, modulo `keys`, with little memory. Returns the number of runs.
fn sort_repeated(records: u64, keys: u64, bytes_max: usize) -> usize {
    let disk = SimDisk::new(0);
    let path = Path::new("/group.keys.new");
    let mut sorter = KeySorter::new(
        &disk,
        path.to_owned(),
        name(),
        KeyKind::Primary,
        END,
        bytes_max,
    );
    let version = |n: u64| Version {
        offset: Offset(FIRST + n),
        chunk: Position(n),
        bytes: 1,
        is_tombstone: false,
        is_misplaced: false,
    };
    for n in 0..records {
        let key = format!("user/{:06}", n % keys).into_bytes();
        sorter.add(&key, version(n)).unwrap();
    }
    let runs = disk.files().len();
    sorter.finish().unwrap();
    let file = MemoryFile(Mutex::new(disk.read_file(path).unwrap()));
    let newest = |key: u64| {
        let key_bytes = format!("user/{key:06}").into_bytes();
        (key_bytes, version(records - keys + key))
    };
    let expected: Vec<_> = (0..keys).map(newest).collect();
    assert!(read(&file, &[]).unwrap() == expected, "{keys} keys");
    runs
}

#[test]
fn keys_that_are_overwritten_many_times_take_little_memory() {
    assert_eq!(sort_repeated(20_000, 50, 10_000), 0);
    // More keys than are remembered.
    assert_eq!(sort_repeated(60_000, 20_000, 32 << 20), 0);
    assert!(sort_repeated(60_000, 20_000, 1 << 20) > 1);
}

#[test]
fn a_key_file_of_many_blocks_has_several_filters_and_is_searched() {
    let version = |n: u64| Version {
        offset: Offset(FIRST + n),
        chunk: Position(100 * n),
        bytes: 7 * n as u32,
        is_tombstone: n.is_multiple_of(3),
        is_misplaced: n.is_multiple_of(5),
    };
    // Long keys, so that few fill a block.
    let key = |n: u64| format!("{n:08}{}", "x".repeat(500 + n as usize % 50)).into_bytes();
    let entries: Entries = (0..4_000).map(|n| (key(2 * n), version(n))).collect();
    let file = write(&entries);
    let key_file = open(&file).unwrap();
    let read_all = read(&file, &[]).unwrap();
    assert_eq!(read_all, entries.clone().into_iter().collect::<Vec<_>>());
    for n in 0..4_000 {
        assert_eq!(
            get(&key_file, &file, &key(2 * n)).unwrap(),
            Some(version(n))
        );
        assert_eq!(get(&key_file, &file, &key(2 * n + 1)).unwrap(), None);
    }
    let parts = key_file.parts();
    assert!(
        parts.len() > 500,
        "{} blocks, filters and a list",
        parts.len()
    );
}

#[test]
fn a_file_of_another_group_or_of_other_keys_is_refused() {
    let file = write(&Entries::new());
    let name_of = |name| SecondaryName::parse(name).unwrap();
    let kind = KeyKind::Secondary(name_of("city"));
    assert!(KeyFile::open(&file, &name(), &kind, END).is_err());
    let other = GroupName {
        generation: Generation(6),
        ..name()
    };
    let refused = KeyFile::open(&file, &other, &KeyKind::Primary, END).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "damaged at byte 0: its header belongs to another group"
    );
}

#[test]
fn horizons_are_read_and_horizons_of_earlier_programs_are_unknown() {
    let horizons = |file: &MemoryFile| {
        let counts = KeyFile::read_counts(file, &name(), &KeyKind::Primary, END).unwrap();
        counts.horizons
    };
    let file = write(&Entries::new());
    assert_eq!(horizons(&file), Some(HORIZONS));
    let mut bytes = file.0.into_inner();
    let footer = bytes.len() - 96;
    bytes[footer + 56..footer + 72].fill(0);
    let crc = millstream_base::crc32c(&bytes[footer..footer + 84]);
    bytes[footer + 84..footer + 88].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(horizons(&MemoryFile(Mutex::new(bytes))), None);
}

/// The bytes of the format, part by part. Each part is followed by its checksum.
#[test]
fn golden_bytes() {
    let version = |offset, chunk, is_tombstone, is_misplaced| Version {
        offset: Offset(offset),
        chunk: Position(chunk),
        bytes: 200,
        is_tombstone,
        is_misplaced,
    };
    let entries = Entries::from([
        (b"user/1".to_vec(), version(FIRST, 0, false, false)),
        (b"user/2".to_vec(), version(FIRST + 300, 4096, true, true)),
    ]);
    let file = write(&entries).0.into_inner();
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let header = "4d534b4559533031 1100000000000000 4400000000000000 e803000000000000 02000000 03000000 05000000 \
                  00000000000000000000000000000000";
    let block = "00 06 757365722f31 00 00 c801  05 01 32 b309 8020 c801";
    // Computed by another program from the definitions of Parquet and xxHash64.
    let filter = "20000000 00102000 40000000 02004000 08100000 80400000 00001001 10002000 00000a00";
    let list = "06 757365722f31 40";
    let footer = "0200000000000000 0100000000000000 0700000000000000 0900000000000000 5900000000000000 \
                  8100000000000000 28460f0000000000 0201000000000000 ffffffffffffffff 000000000000000000000000";
    let mut expected = String::new();
    for part in [header, block, filter, list, footer] {
        let part = part.replace(' ', "");
        let bytes: Vec<u8> = (0..part.len() / 2)
            .map(|n| u8::from_str_radix(&part[2 * n..2 * n + 2], 16).unwrap())
            .collect();
        let crc = millstream_base::crc32c(&bytes).to_le_bytes();
        expected += &part;
        expected += &hex(&crc);
    }
    expected += &hex(b"MSKEYEND");
    assert_eq!(hex(&file), expected);
}

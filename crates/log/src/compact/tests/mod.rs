//! Rewritten groups beside a plain map of all records.

mod world;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use millstream_base::disk::Access;
use millstream_base::{Disk as _, Offset, Position, ProducerId, Timestamp};
use millstream_record::{Chunks, Decompressor, RewriteRules};
use millstream_sim::SimDisk;

use self::world::{ModelRecord, World};
use super::live::{FILES_MAX, LiveReader, RangeKeys};
use super::rewrite::{ProducerStates, Rewrite, RewriteOutput, Rewritten, producers_at};
use super::runs::{RangeGroup, RunBounds, runs};
use crate::error::{LogError, Result};
use crate::group::Group;
use crate::ids::{Generation, GroupName};
use crate::index::entry::{EntryKind, IndexEntry};
use crate::index::file::Index;
use crate::index::sparse::SparseIndex;
use crate::keys::file::read::KeyFile;
use crate::keys::kind::KeyKind;
use crate::producers::transactions::AbortedTransaction;
use crate::recovery::producers::producers_behind;
use crate::settings::memory::Memory;

const CASES: u64 = 40;

const RULES: RewriteRules = RewriteRules {
    compression: None,
    now: Timestamp(5_000),
    horizon: Timestamp(9_000),
    begins_tombstones: true,
    tombstones_end: Offset(u64::MAX),
    markers_end: Offset(u64::MAX),
};

/// A rewritten group in memory.
#[derive(Default)]
struct MemoryOutput {
    chunks: Vec<u8>,
    entries: Vec<IndexEntry>,
}

impl RewriteOutput for MemoryOutput {
    fn append(&mut self, chunks: &[u8]) -> Result<()> {
        self.chunks.extend_from_slice(chunks);
        Ok(())
    }

    fn add_entry(&mut self, entry: IndexEntry) -> Result<()> {
        assert_eq!(entry.position, Position(self.chunks.len() as u64));
        self.entries.push(entry);
        Ok(())
    }
}

#[test]
fn rewritten_groups_equal_a_plain_map() {
    let mut rewritten = 0;
    for seed in 0..CASES {
        rewritten += check_case(seed);
    }
    assert!(rewritten > CASES, "{rewritten} groups were written");
}

#[test]
fn a_rewrite_stops_at_a_damaged_key_file_or_on_request() {
    let mut world = World::new(1);
    let groups = world.fill();
    assert!(groups.len() > 4);
    let ends = groups
        .iter()
        .map(|group| (group.name(), group.end().unwrap().offset));
    let named: Vec<(GroupName, Offset)> = ends.collect();
    let dir = Arc::clone(&world.log.inner.core.dir);
    let is_unfinished = |path: &Path| path.extension().is_some_and(|ending| ending == "new");
    let unfinished = |disk: &SimDisk| {
        let files = disk.files().into_iter();
        files.filter(|(path, _)| is_unfinished(path)).count()
    };
    let before = unfinished(&world.disk);

    let keys = RangeKeys::open(&dir, &named, FILES_MAX).unwrap();
    let rewrite = Rewrite {
        reads: &world.log.inner.core.reads,
        lane: &world.lane,
        groups: &groups[..2],
        name: groups[0].name(),
        keys_path: Path::new("/keys").to_owned(),
        rules: RULES,
        ended: None,
        producers: [Vec::new(), Vec::new()],
        pace: &|_| Err(LogError::Closed),
    };
    let mut live = LiveReader::new(&keys, Offset(0), Memory::MAX.live_offsets);
    let stopped = rewrite.run(&mut live, &mut MemoryOutput::default());
    assert!(matches!(stopped, Err(LogError::Closed)));

    let damaged = dir.keys_path(&groups[3].name());
    world.disk.flip_bit(&damaged, 8 * 100).unwrap();
    for files_max in [2, FILES_MAX] {
        let opened = RangeKeys::open(&dir, &named, files_max);
        let found =
            opened.and_then(|keys| keys.live(Offset(0), Memory::MAX.live_offsets).map(drop));
        assert_eq!(found.unwrap_err().path, damaged, "{files_max}");
        assert_eq!(
            unfinished(&world.disk),
            before,
            "temporary files are removed"
        );
    }
}

/// Returns how many groups were written.
fn check_case(seed: u64) -> u64 {
    let mut world = World::new(seed);
    let groups = world.fill();
    let Some(first) = groups.first() else {
        return 0;
    };
    let ends: Vec<Offset> = groups
        .iter()
        .map(|group| group.end().unwrap().offset)
        .collect();
    let (start, end) = (first.first_offset.0, ends[ends.len() - 1].0);
    let from = world.lane.earliest_offset().0.max(start);
    let live = world.live(from, end);

    // Step 1: the live records.
    let named: Vec<(GroupName, Offset)> = groups
        .iter()
        .zip(&ends)
        .map(|(group, end)| (group.name(), *end))
        .collect();
    let files_max = [2, 3, FILES_MAX][world.rng.usize(..3)];
    let dir = Arc::clone(&world.log.inner.core.dir);
    let keys = RangeKeys::open(&dir, &named, files_max).unwrap();
    let firsts: Vec<Offset> = groups.iter().map(|group| group.first_offset).collect();
    let counts = keys.count(Offset(from), &firsts).unwrap();
    for (n, count) in counts.iter().enumerate() {
        let of_group: Vec<_> = live.range(firsts[n].0..ends[n].0).collect();
        assert_eq!(count.records, of_group.len() as u64, "group {n}");
        let bytes: u64 = of_group.iter().map(|(_, record)| record.bytes()).sum();
        assert_eq!(count.bytes, bytes, "group {n}");
        let tombstones = of_group.iter().filter(|(_, record)| record.value.is_none());
        assert_eq!(count.tombstones, tombstones.count() as u64, "group {n}");
    }
    let max = [1, 2, 7, 100, Memory::MAX.live_offsets][world.rng.usize(..5)];
    let mut found = Vec::new();
    let mut at = Offset(from);
    while at < Offset(end) {
        let mut part = keys.live(at, max).unwrap();
        assert!(part.until > at);
        let offsets = (at.0..part.until.0).filter(|offset| part.contains(Offset(*offset)));
        let offsets: Vec<u64> = offsets.collect();
        assert!(offsets.len() <= max.max(2));
        found.extend(offsets);
        at = part.until;
    }
    assert_eq!(found, live.keys().copied().collect::<Vec<_>>());

    // Step 2: the runs.
    let ranged = groups.iter().enumerate().map(|(n, group)| RangeGroup {
        first_offset: firsts[n],
        end: ends[n],
        counts: group.key_counts().unwrap(),
        live: counts[n],
        is_rewritten: false,
        has_new_tombstones: counts[n].tombstones > 0,
        has_expired: false,
    });
    let ranged: Vec<RangeGroup> = ranged.collect();
    let mut bounds = RunBounds::new(world.rng.u8(..4) > 0);
    if world.rng.bool() {
        bounds.bytes_max = world.rng.u64(1..200_000);
        bounds.small_bytes = world.rng.u64(..50_000);
    }
    let runs = runs(&ranged, &bounds);

    // Step 3: each run is rewritten.
    let max = [1, 50, 1 << 20][world.rng.usize(..3)];
    let mut reader = LiveReader::new(&keys, Offset(from), max);
    for run in &runs {
        let groups = &groups[run.clone()];
        let Some(behind) = world.lane.group_after(groups[groups.len() - 1].id) else {
            continue;
        };
        check_run(&world, groups, &behind, &live, &mut reader);
    }
    drop(keys);
    let files = world.disk.files().into_iter();
    let unfinished =
        files.filter(|(path, _)| path.extension().is_some_and(|ending| ending == "new"));
    let left: Vec<_> = unfinished.map(|(path, _)| path).collect();
    assert!(left.iter().all(|path| path == &manifest_next()), "{left:?}");
    runs.len() as u64
}

/// Returns the path of a manifest that is being rewritten.
fn manifest_next() -> std::path::PathBuf {
    Path::new("/data/manifest.new").to_owned()
}

fn check_run(
    world: &World,
    groups: &[Arc<Group>],
    behind: &Group,
    live: &BTreeMap<u64, ModelRecord>,
    reader: &mut LiveReader<'_>,
) {
    let core = &world.log.inner.core;
    let (first, last) = (&groups[0], &groups[groups.len() - 1]);
    let last_end = last.end().unwrap();
    let name = GroupName {
        generation: Generation(7),
        ..first.name()
    };
    let keys_path = Path::new("/keys").to_owned();
    let producers =
        [first, behind].map(|group| producers_at(&core.reads, &world.lane, group).unwrap());
    check_producers(world, first, &producers[0]);
    let mut output = MemoryOutput::default();
    let paced = std::cell::Cell::new(0);
    let rewrite = Rewrite {
        reads: &core.reads,
        lane: &world.lane,
        groups,
        name,
        keys_path: keys_path.clone(),
        rules: RULES,
        ended: None,
        producers: producers.clone(),
        pace: &|bytes| {
            paced.set(paced.get() + bytes);
            Ok(())
        },
    };
    let rewritten = rewrite.run(reader, &mut output).unwrap();
    let read: u64 = groups
        .iter()
        .map(|group| group.end().unwrap().position.0)
        .sum();
    assert_eq!(paced.get(), read + output.chunks.len() as u64);

    let (from, to) = (first.first_offset.0, last_end.offset.0);
    let earliest = world.lane.earliest_offset().0;
    let stays = |record: &&ModelRecord| record.key.is_none() || live.contains_key(&record.offset);
    let expected: Vec<ModelRecord> = world
        .committed(from.max(earliest), to)
        .filter(stays)
        .cloned()
        .collect();
    check_chunks(world, &output.chunks, from..to, &expected);
    check_index(world, &output, &rewritten, from..to, &producers);
    assert_eq!(rewritten.end.offset, last_end.offset);
    assert_eq!(rewritten.end.stable, last_end.stable);
    let newest = expected.iter().map(|record| record.timestamp).max();
    assert!(newest.is_none_or(|newest| rewritten.end.max_timestamp.0 >= newest));
    check_keys(world, &output.chunks, &name, &rewritten, &expected);
}

fn check_producers(world: &World, group: &Group, found: &ProducerStates) {
    let before = world.lane.ends_before(group.id);
    if before.is_empty() {
        return;
    }
    let producers = producers_behind(&world.log.inner.core.dir, &before).unwrap();
    let sorted = |states: &mut ProducerStates| states.sort_by_key(|(id, _)| id.0);
    let mut expected: ProducerStates = producers
        .iter()
        .map(|(id, state)| (id, state.clone()))
        .collect();
    let mut found = found.clone();
    sorted(&mut expected);
    sorted(&mut found);
    assert_eq!(found, expected);
}

/// Checks that chunks cover a range of offsets, and have the expected records and all markers.
fn check_chunks(
    world: &World,
    chunks: &[u8],
    range: std::ops::Range<u64>,
    expected: &[ModelRecord],
) {
    let mut decompressor = Decompressor::default();
    let (mut records, mut markers) = (Vec::new(), Vec::new());
    let mut next = range.start;
    for chunk in Chunks::new(chunks) {
        let chunk = chunk.unwrap();
        let header = *chunk.header();
        assert_eq!(header.base_offset.0, next);
        next = header.next_offset().0;
        if header.attributes.is_control() {
            assert_eq!(header.delete_horizon(), Some(Timestamp(9_000)));
            markers.push((header.base_offset.0, header.producer_id.0));
            continue;
        }
        assert_eq!(header.producer_id, ProducerId::NONE);
        assert!(!header.attributes.is_transactional());
        for record in chunk.records(&mut decompressor).unwrap() {
            let record = record.unwrap();
            records.push(ModelRecord {
                offset: record.offset.0,
                timestamp: record.timestamp.0,
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                producer: None,
                is_aborted: false,
            });
        }
    }
    assert_eq!(next, range.end, "the chunks cover all offsets");
    let without_producer = |record: &ModelRecord| ModelRecord {
        producer: None,
        ..record.clone()
    };
    let expected: Vec<ModelRecord> = expected.iter().map(without_producer).collect();
    assert!(
        records == expected,
        "{} of {}",
        records.len(),
        expected.len()
    );
    let all = world
        .markers
        .iter()
        .filter(|(offset, _)| range.contains(offset));
    assert_eq!(markers, all.copied().collect::<Vec<_>>());
}

fn check_index(
    world: &World,
    output: &MemoryOutput,
    rewritten: &Rewritten,
    range: std::ops::Range<u64>,
    producers: &[ProducerStates; 2],
) {
    let MemoryOutput { chunks, entries } = output;
    let [first, within @ .., behind, end] = &entries[..] else {
        panic!("{} entries", entries.len());
    };
    assert_eq!(
        (first.kind, first.position),
        (EntryKind::SegmentStart, Position(0))
    );
    assert_eq!(
        (&first.producers, &behind.producers),
        (&producers[0], &producers[1])
    );
    assert_eq!(
        (end.kind, behind.kind),
        (EntryKind::GroupEnd, EntryKind::Within)
    );
    assert_eq!(end.position, rewritten.end.position);
    assert!(end.aborted.is_empty() && end.producers.is_empty());
    assert!(within.iter().all(|entry| entry.producers.is_empty()));
    for pair in entries.windows(2) {
        let bytes = pair[1].position.0 - pair[0].position.0;
        assert!(bytes < 100_000, "{bytes} bytes between entries");
    }
    let in_run = |aborted: &&AbortedTransaction| range.contains(&aborted.last_offset.0);
    let aborted: Vec<AbortedTransaction> = world.aborted.iter().filter(in_run).copied().collect();
    let listed: Vec<_> = entries
        .iter()
        .flat_map(|entry| entry.aborted.clone())
        .collect();
    assert_eq!(listed, aborted);
    for entry in &entries[..entries.len() - 1] {
        let rest = &chunks[entry.position.0 as usize..];
        if let Some(chunk) = Chunks::new(rest).next() {
            assert_eq!(chunk.unwrap().header().base_offset, entry.offset);
        }
    }
    // Readers find the transactions of each range of offsets.
    let sparse = SparseIndex::of(&Index {
        entries: entries.clone(),
        ..Index::default()
    });
    for from in (range.start..range.end).step_by(17) {
        let to = (from + 60).min(range.end);
        let found = sparse.aborted(Offset(from), Offset(to)).unwrap();
        let is_in = |aborted: &&AbortedTransaction| {
            aborted.last_offset.0 >= from && aborted.first_offset.0 < to
        };
        let expected: Vec<_> = aborted.iter().filter(is_in).copied().collect();
        assert_eq!(found, expected, "{from}..{to}");
    }
}

fn check_keys(
    world: &World,
    chunks: &[u8],
    name: &GroupName,
    rewritten: &Rewritten,
    expected: &[ModelRecord],
) {
    let file = world.disk.open(Path::new("/keys"), Access::Read).unwrap();
    let keys = KeyFile::open(&*file, name, &KeyKind::Primary, rewritten.end.offset).unwrap();
    let mut cursor = keys.cursor(&*file, &[]).unwrap();
    let with_keys = expected.iter().filter(|record| record.key.is_some());
    let by_key: BTreeMap<&[u8], &ModelRecord> = with_keys
        .map(|record| (record.key.as_deref().unwrap(), record))
        .collect();
    for (key, record) in &by_key {
        let version = cursor.version().expect("a key is missing");
        assert_eq!((cursor.key(), version.offset.0), (*key, record.offset));
        assert_eq!(version.is_tombstone, record.value.is_none());
        assert_eq!(u64::from(version.bytes), record.bytes());
        let chunk = Chunks::new(&chunks[version.chunk.0 as usize..]).next();
        let header = *chunk.unwrap().unwrap().header();
        assert!((header.base_offset..header.next_offset()).contains(&version.offset));
        cursor.advance().unwrap();
    }
    assert_eq!(cursor.version(), None);
    assert_eq!(rewritten.keys.keys, by_key.len() as u64);
    let keyless = expected.len() - by_key.len();
    assert_eq!(rewritten.keys.without_key, keyless as u64);
}

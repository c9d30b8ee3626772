//! The manifest on a simulated disk.

mod crashes;
mod damage;
mod failures;
mod state;

use std::path::Path;
use std::sync::Arc;

use millstream_base::{GroupId, LaneIndex, Offset, Position, StreamId, StreamletIndex};
use millstream_sim::{Rng, SimDisk, SimRandom};

use super::read::read;
use super::{Listed, Manifest, Record, RecordCount};
use crate::error::LogError;
use crate::ids::{Generation, GroupName, LaneId};

const PATH: &str = "/manifest";
const SEEDS: u64 = 200;

/// Each lane is of a stream of its own.
fn lane(n: u64) -> LaneId {
    LaneId {
        stream: StreamId(16 + n),
        streamlet: StreamletIndex(0),
        lane: LaneIndex(n as u32),
    }
}

fn group(n: u64, id: u64, generation: u32) -> GroupName {
    GroupName {
        lane: lane(n),
        id: GroupId(id),
        first_offset: Offset(10 * id),
        generation: Generation(generation),
    }
}

/// Records that follow from each other: lanes get groups, some are replaced and removed, and the journal moves on.
fn history(count: usize) -> Vec<Record> {
    let round = |round: u64| {
        let (n, id) = (round % 3, 4 * round);
        let replaced = match round % 2 {
            0 => Record::Replaced {
                by: group(n, id, 1),
                last: GroupId(id + 1),
            },
            _ => Record::First {
                lane: lane(n),
                group: GroupId(id),
                offset: Offset(10 * id),
            },
        };
        [
            Record::JournalFile {
                sequence: round,
                secret: 7,
                end: Position(0),
            },
            Record::Group(group(n, id, 0)),
            Record::Group(group(n, id + 1, 0)),
            replaced,
            Record::Epoch {
                lane: lane(n),
                epoch: round as i32 + 1,
                from: Offset(10 * id),
            },
            Record::JournalReleased { sequence: round },
        ]
    };
    (0..).flat_map(round).take(count).collect()
}

fn list_of(records: &[Record]) -> Listed {
    let mut listed = Listed::default();
    for record in records {
        listed.apply(*record).unwrap();
    }
    listed
}

fn create(disk: &SimDisk) -> Manifest {
    let (random, root) = (Arc::new(SimRandom::new(1)), Path::new("/"));
    Manifest::create(
        Arc::new(disk.clone()),
        random,
        root,
        None,
        Listed::default(),
    )
    .unwrap()
}

/// Makes a manifest, and opens it: faults name a file by the path under which it was opened.
fn create_and_open(seed: u64) -> (SimDisk, Manifest) {
    let disk = SimDisk::new(seed);
    create(&disk);
    let disk = disk.kill();
    let manifest = open(&disk);
    (disk, manifest)
}

fn try_open(disk: &SimDisk) -> Result<Option<Manifest>, LogError> {
    let (random, root) = (Arc::new(SimRandom::new(2)), Path::new("/"));
    Manifest::open(Arc::new(disk.clone()), random, root, None)
}

fn open(disk: &SimDisk) -> Manifest {
    try_open(disk).unwrap().unwrap()
}

fn listed(manifest: &Manifest) -> Listed {
    manifest.look_at(Listed::clone)
}

fn number(disk: &SimDisk) -> u64 {
    read(disk, Path::new(PATH), None)
        .unwrap()
        .unwrap()
        .head
        .number
}

fn append_synced(manifest: &Manifest, records: &[Record]) {
    let appended = manifest.append(records).unwrap();
    manifest.sync_to(appended).unwrap();
}

/// Asserts that a manifest equals the list of the first n records, with n from `from` to `to`. Returns n.
fn assert_prefix(manifest: &Manifest, all: &[Record], from: usize, to: usize) -> usize {
    let found = listed(manifest);
    let count = (from..=to).find(|count| list_of(&all[..*count]) == found);
    count.unwrap_or_else(|| panic!("no list of {from} to {to} records: {found:?}"))
}

#[test]
fn a_manifest_outlasts_kills_and_rewrites() {
    let disk = SimDisk::new(1);
    let manifest = create(&disk);
    let directory = manifest.directory();
    let all = history(50);
    manifest.append(&all[..20]).unwrap();
    assert_eq!(listed(&manifest), list_of(&all[..20]));

    let disk = disk.kill();
    let manifest = open(&disk);
    assert_eq!(listed(&manifest), list_of(&all[..20]));
    assert_eq!(manifest.directory(), directory);
    manifest.rewrite(|_| true).unwrap();
    manifest.append(&all[20..]).unwrap();
    assert_eq!(number(&disk), 2);
    let manifest = open(&disk.kill());
    assert_eq!(listed(&manifest), list_of(&all));
    assert_eq!(manifest.directory(), directory);
}

#[test]
fn a_directory_without_a_manifest_has_none() {
    assert!(try_open(&SimDisk::new(1)).unwrap().is_none());
}

#[test]
fn one_sync_serves_all_records_that_were_appended_before_it() {
    let disk = SimDisk::new(1);
    let manifest = create(&disk);
    let all = history(4);
    let first = manifest.append(&all[..2]).unwrap();
    let second = manifest.append(&all[2..]).unwrap();
    manifest.sync_to(second).unwrap();
    let operations = disk.operations();
    manifest.sync_to(first).unwrap();
    assert_eq!(disk.operations(), operations);
}

#[test]
fn records_of_many_threads_are_durable_when_their_syncs_return() {
    const THREADS: u64 = 8;
    let disk = SimDisk::new(1);
    let manifest = create(&disk);
    std::thread::scope(|threads| {
        for n in 0..THREADS {
            let manifest = &manifest;
            threads.spawn(move || {
                for id in 0..20 {
                    append_synced(manifest, &[Record::Group(group(n, id, 0))]);
                }
            });
        }
    });
    let left = open(&disk.crash(&mut Rng::with_seed(1)));
    assert_eq!(listed(&left), listed(&manifest));
    for n in 0..THREADS {
        let groups = left.look_at(|listed| listed.lane(lane(n)).unwrap().groups(lane(n)).count());
        assert_eq!(groups, 20);
    }
}

#[test]
fn a_manifest_that_has_grown_too_large_is_rewritten() {
    let disk = SimDisk::new(1);
    let manifest = create(&disk);
    let pair = |sequence| {
        let secret = 7;
        [
            Record::JournalFile {
                sequence,
                secret,
                end: Position(0),
            },
            Record::JournalReleased { sequence },
        ]
    };
    let mut appended = RecordCount::default();
    for sequence in 0..20_000 {
        let next = manifest.append(&pair(sequence)).unwrap();
        assert!(appended < next);
        appended = next;
        if sequence % 100 == 0 {
            manifest.sync_to(appended).unwrap();
        }
        assert!(disk.read_file(PATH).unwrap().len() < 2 << 20);
    }
    assert_eq!(number(&disk), 3);
    assert_eq!(listed(&open(&disk.kill())), Listed::default());
}

#[test]
fn a_rewrite_omits_streams_that_do_not_exist() {
    let disk = SimDisk::new(1);
    let manifest = create(&disk);
    let [gone, other] = [0, 1].map(|n| Record::Group(group(n, 1, 0)));
    append_synced(&manifest, &[gone, other]);
    manifest.rewrite(|stream| stream != lane(0).stream).unwrap();
    assert_eq!(listed(&open(&disk.kill())), list_of(&[other]));
}

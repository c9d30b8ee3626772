//! Copies, swaps and removes files: the node starts, no stream serves another's data, and readers get an
//! error for missing data.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::{ByteSize, Disk as _};
use millstream_log::{Durability, FilesAside, InternalStore, Log, LogError, StreamConfig, salvage};
use millstream_sim::{SimRandom, for_each_seed};

use crate::world::{World, config, lane_of, open};

const CASES: u64 = 1_000;

/// Damaged lists of files.
const LIST_CASES: u64 = 300;

const NAMES: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    CopyIndex,
    CopyLog,
    CopyBoth,
    SwapBoth,
    SwapFolders,
    RemoveLog,
    RemoveGroup,
    RemoveFolder,
}

#[test]
fn files_of_other_streams_are_never_served_and_missing_ones_are_reported() {
    for_each_seed(CASES, run);
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    assert!(world.open());
    fill(&mut world);
    match world.rng.bool() {
        true => world.close(),
        false => world.kill(),
    }
    let damages = [
        Damage::CopyIndex,
        Damage::CopyBoth,
        Damage::SwapBoth,
        Damage::RemoveLog,
        Damage::RemoveGroup,
        Damage::RemoveFolder,
        Damage::CopyLog,
        Damage::SwapFolders,
    ];
    let damage = damages[world.rng.usize(..damages.len())];
    if !spoil(&mut world, damage) {
        return;
    }
    // A second start reports the same damage, and changes no other file.
    for _ in 0..3 {
        let log = open(&world.disk, &world.clock).expect("only users' streams are damaged");
        let is_reported = check(&world, &log);
        // The list names files from their first byte on, and each file's head identifies it.
        let must_be_reported = damage != Damage::CopyIndex;
        assert!(
            is_reported || !must_be_reported,
            "{damage:?} is not reported"
        );
        world.log = Some(log);
        match world.rng.bool() {
            true => world.close(),
            false => world.kill(),
        }
    }
}

/// Fills two streams with the same number of chunks of the same sizes, in several groups.
fn fill(world: &mut World) {
    let durabilities = [Durability::Sync, Durability::Written];
    let durability = durabilities[world.rng.usize(..2)];
    for name in NAMES {
        let config = StreamConfig {
            durability,
            group_segments: 1,
            segment: ByteSize(64 << 10),
            ..StreamConfig::default()
        };
        world.create(name, config);
    }
    fill_more(world);
}

fn fill_more(world: &mut World) {
    for _ in 0..world.rng.u32(2..12) {
        let bytes = match world.rng.bool() {
            true => 30_000,
            false => 300,
        };
        for name in NAMES {
            let chunk = world.make_chunk(2, bytes, None);
            let (lane, appended) = world.append(name, 0, chunk).expect("no faults");
            assert!(world.acknowledge(name, &lane, &appended));
        }
        if world.rng.u8(..4) == 0 {
            world.log().persist();
            world.log().step();
        }
    }
}

/// Damages the files; `false` when there is no file for this damage.
fn spoil(world: &mut World, damage: Damage) -> bool {
    let folders = NAMES.map(|name| {
        let id = world.model.streams[name].id;
        PathBuf::from(format!("/data/streams/{id}"))
    });
    let files = |folder: &Path| -> Vec<PathBuf> {
        let all = world.disk.files().into_iter().map(|(path, _)| path);
        all.filter(|path| path.starts_with(folder)).collect()
    };
    let logs: Vec<PathBuf> = files(&folders[0])
        .into_iter()
        .filter(|path| path.extension().is_some_and(|kind| kind == "log"))
        .collect();
    if logs.is_empty() {
        return false;
    }
    let log = logs[world.rng.usize(..logs.len())].clone();
    let other = |path: &Path| folders[1].join(path.file_name().expect("a file"));
    let read = |path: &Path| world.disk.read_file(path);
    let write = |path: &Path, bytes: &[u8]| world.disk.write_file(path, bytes).expect("a folder");
    let swap = |path: &Path| {
        let (Ok(one), Ok(two)) = (read(path), read(&other(path))) else {
            return false;
        };
        write(path, &two);
        write(&other(path), &one);
        true
    };
    let copy = |path: &Path| match read(&other(path)) {
        Ok(bytes) => {
            write(path, &bytes);
            true
        }
        Err(_) => false,
    };
    let index = log.with_extension("index");
    let remove = |path: &Path| world.disk.remove(path).is_ok();
    match damage {
        Damage::CopyIndex => copy(&index),
        Damage::CopyLog => copy(&log),
        Damage::CopyBoth => copy(&index) && copy(&log),
        Damage::SwapBoth => swap(&index) && swap(&log),
        Damage::SwapFolders => files(&folders[0]).iter().all(|path| swap(path)),
        Damage::RemoveLog => remove(&log),
        Damage::RemoveGroup => remove(&index) && remove(&log),
        Damage::RemoveFolder => files(&folders[0]).iter().all(|path| remove(path)),
    }
}

/// Reads all records. Returns whether any damage was reported.
fn check(world: &World, log: &Log) -> bool {
    let mut any_reported = false;
    for name in NAMES {
        let stream = log.stream(name).expect("the catalog is whole");
        for (key, model) in &world.model.streams[name].lanes {
            let lane = lane_of(&stream, *key);
            let fault = lane.info().fault;
            let mut is_reported = fault.is_some();
            let mut reader = lane.reader(lane.earliest());
            let mut expected = 0;
            loop {
                match reader.read(1 << 20) {
                    Ok(Some(read)) => {
                        for chunk in read.chunks() {
                            let chunk = chunk.expect("checked when it was read");
                            let base = chunk.header().base_offset.0;
                            assert_eq!(base, expected, "{name} has a gap");
                            let sent = model.chunks.iter().find(|sent| sent.base == base);
                            let sent = sent.expect("the model has no such chunk");
                            assert!(
                                chunk.bytes()[16..] == sent.bytes[16..],
                                "another's in {name}"
                            );
                            expected = chunk.header().next_offset().0;
                        }
                    }
                    Ok(None) => {
                        let is_whole = expected >= model.acknowledged;
                        assert!(is_whole, "the reader waits at {expected}: {fault:?}");
                        break;
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("/data/streams/"), "{error}");
                        is_reported = true;
                        break;
                    }
                }
            }
            let from = millstream_base::Offset(expected);
            let fetched = lane.fetch(
                from,
                from.plus(1 << 30),
                1 << 20,
                millstream_log::AtLeast::OneChunk,
            );
            let is_whole = expected >= model.acknowledged;
            assert!(is_whole || fetched.is_err(), "a fetch waits at {expected}");
            any_reported |= is_reported;
        }
    }
    any_reported
}

#[test]
fn files_of_another_data_directory_are_reported_and_never_served() {
    // Two nodes that have done the same: their files have the same names.
    let [mut world, mut other] = [1, 2].map(|seed| {
        let mut world = World::new(seed);
        // This gives each run other random numbers.
        for n in 0..seed {
            let folder = format!("/of-{n}");
            world
                .disk
                .create_dir_all(Path::new(&folder))
                .expect("no faults");
        }
        assert!(world.open());
        for name in NAMES {
            world.create(name, StreamConfig::default());
            let chunk = world.make_chunk(1, 300, None);
            let (lane, appended) = world.append(name, 0, chunk).expect("no faults");
            assert!(world.acknowledge(name, &lane, &appended));
        }
        world
    });
    world.close();
    other.close();
    let files = world.disk.files().into_iter().map(|(path, _)| path);
    let is_log = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "log");
    let mut count = 0;
    for path in files.filter(is_log) {
        let Ok(foreign) = other.disk.read_file(&path) else {
            continue;
        };
        let own = world.disk.read_file(&path).expect("it is there");
        for with_index in [false, true] {
            let index = path.with_extension("index");
            let own_index = world.disk.read_file(&index).expect("it is there");
            world.disk.write_file(&path, &foreign).expect("a folder");
            if with_index {
                let foreign = other.disk.read_file(&index).expect("it is there");
                world.disk.write_file(&index, &foreign).expect("a folder");
            }
            match open(&world.disk, &world.clock) {
                Ok(log) => {
                    let places = log.find_damage();
                    let [place] = &places[..] else {
                        panic!("{places:?}");
                    };
                    assert!(place.what.contains(&path.display().to_string()));
                    assert!(
                        place.what.contains("another data directory"),
                        "{}",
                        place.what
                    );
                    let lane = lane_of(&log.stream(&place.stream).expect("it is there"), (0, 0));
                    assert!(lane.info().fault.is_some());
                    assert!(lane.reader(lane.earliest()).read(1 << 20).is_err());
                }
                Err(error) => assert!(matches!(error, LogError::DamagedTable { .. }), "{error}"),
            }
            world.disk = world.disk.kill();
            world.disk.write_file(&path, &own).expect("a folder");
            world.disk.write_file(&index, &own_index).expect("a folder");
            count += 1;
        }
    }
    assert!(count >= 6, "{count}");
    world.finish();
}

#[test]
fn a_repair_makes_damaged_streams_whole_and_retains_the_damaged_files() {
    for_each_seed(CASES, repair);
}

fn repair(seed: u64) {
    let mut world = World::new(seed);
    assert!(world.open());
    fill(&mut world);
    let is_clean = world.rng.bool();
    match is_clean {
        true => world.close(),
        false => world.kill(),
    }
    let folder = PathBuf::from(format!("/data/streams/{}", world.model.streams["a"].id));
    let all = world.disk.files();
    let mut files = all.iter().filter(|(path, len)| {
        path.starts_with(&folder) && path.extension().is_some_and(|kind| kind == "log") && *len > 0
    });
    let count = files.clone().count();
    if count == 0 {
        return;
    }
    let (path, len) = files
        .nth(world.rng.usize(..count))
        .expect("counted")
        .clone();
    match world.rng.u8(..3) {
        0 => world.disk.flip_bit(&path, world.rng.u64(..len * 8)),
        1 => world.disk.truncate(&path, world.rng.usize(..len as usize)),
        _ => world.disk.remove(&path),
    }
    .expect("it exists");

    let log = open(&world.disk, &world.clock).expect("only a user's stream is damaged");
    let places = log.find_damage();
    assert!(places.iter().all(|place| place.stream == "a"), "{places:?}");
    let is_reported = check(&world, &log);
    assert_eq!(is_reported, !places.is_empty(), "{places:?}");
    if places.is_empty() {
        return;
    }
    let is_trimmed = world.rng.bool();
    let taken = match (is_trimmed, world.rng.bool()) {
        (true, _) => log.truncate_stream("a").map(Option::unwrap_or_default),
        (false, true) => log.quarantine_stream("a"),
        (false, false) => {
            let deleted = log.delete_stream("a");
            deleted
                .and_then(|()| log.close())
                .map(|()| FilesAside::default())
        }
    };
    let taken = taken.expect("no faults");
    for file in &taken.files {
        assert!(world.disk.read_file(file).is_ok(), "{}", file.display());
    }
    if world.rng.bool() {
        world.disk = world.disk.kill();
    }
    for round in 0..2 {
        let log = open(&world.disk, &world.clock).expect("it is whole");
        assert!(log.find_damage().is_empty(), "{:?}", log.find_damage());
        assert_eq!(log.stream("a").is_ok(), is_trimmed);
        if let Ok(stream) = log.stream("a") {
            let lane = lane_of(&stream, (0, 0));
            assert_eq!(lane.info().fault, None);
            if round == 0 {
                assert!(lane.durable_offset() <= places[0].offset);
                let chunk = world.make_chunk(1, 100, None);
                let appended = lane.append(&chunk.bytes).expect("it takes writes");
                lane.wait_durable(appended.next_offset).expect("no faults");
            }
            // A reader gets all records, without a gap.
            let mut next = lane.earliest_offset();
            let mut reader = lane.reader(lane.earliest());
            while let Some(read) = reader.read(1 << 20).expect("whole") {
                for chunk in read.chunks() {
                    let chunk = chunk.expect("checked");
                    assert_eq!(chunk.header().base_offset, next);
                    next = chunk.header().next_offset();
                }
            }
            assert_eq!(next, lane.durable_offset());
        }
        // The journal is not retained for the removed groups.
        log.close().expect("no faults");
        let journals = world.disk.files();
        let mut journals = journals.iter().map(|(path, _)| path);
        assert!(!journals.any(|path| path.starts_with("/data/journal")));
        world.disk = world.disk.kill();
    }
}

#[test]
fn a_list_of_files_damaged_or_truncated_after_a_kill_is_reported() {
    // Refused starts, those with damaged partitions, and whole ones.
    let mut outcomes = [0; 3];
    for seed in 0..LIST_CASES {
        let mut world = World::new(seed);
        assert!(world.open());
        fill(&mut world);
        if world.rng.bool() {
            world.kill();
            assert!(world.open());
            fill_more(&mut world);
        }
        world.kill();
        let manifest = Path::new("/data/manifest");
        let bytes = world.disk.read_file(manifest).expect("it exists");
        let last = bytes.iter().rposition(|byte| *byte != 0).expect("a head");
        let records = (last - 4096) / 64 + 1;
        let at = 4096 + 64 * world.rng.usize(..records);
        let is_cut = world.rng.bool();
        match is_cut {
            true => world.disk.truncate(manifest, at + world.rng.usize(..64)),
            false => world
                .disk
                .flip_bit(manifest, 8 * (at as u64) + world.rng.u64(..8 * 64)),
        }
        .expect("it exists");
        let outcome = match open(&world.disk, &world.clock) {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("repair --cut __"), "{text}");
                0
            }
            // It panics where records are missing without a report.
            Ok(log) => usize::from(!check(&world, &log)) + 1,
        };
        outcomes[outcome] += 1;
    }
    assert!(outcomes[0] > 10 && outcomes[2] > 10, "{outcomes:?}");
}

/// An index in the format before: no group in the header, no fingerprints in the marks.
fn in_old_format(index: &[u8]) -> Vec<u8> {
    let mut old = b"MSINDEX2".to_vec();
    let mut rest = &index[64..];
    while let Some((prefix, marks)) = rest.split_at_checked(8) {
        let len = u32::from_le_bytes(prefix[..4].try_into().expect("4 bytes")) as usize;
        let (mark, behind) = marks.split_at(len);
        let mark = [&mark[..41], &mark[53..]].concat();
        old.extend_from_slice(&(mark.len() as u32).to_le_bytes());
        old.extend_from_slice(&millstream_base::crc32c(&mark).to_le_bytes());
        old.extend_from_slice(&mark);
        rest = behind;
    }
    old
}

/// Makes all groups' files ones of format 2, which have no head, with indexes of an older format yet. Returns the indexes.
fn make_old(world: &World) -> Vec<PathBuf> {
    let mut indexes = Vec::new();
    for (path, _) in world.disk.files() {
        let name = path.file_name().and_then(|name| name.to_str());
        let old = name
            .and_then(|name| Some(name.replace(name.split_once("-0001.").map(|_| "-0001.")?, ".")));
        let Some(old) = old else {
            continue;
        };
        let bytes = world.disk.read_file(&path).expect("it is there");
        world.disk.remove(&path).expect("it is there");
        let old = path.with_file_name(old);
        let bytes = match old.extension().is_some_and(|kind| kind == "index") {
            true => {
                indexes.push(old.clone());
                in_old_format(&bytes)
            }
            false => bytes[4096..].to_vec(),
        };
        world.disk.write_file(&old, &bytes).expect("a folder");
    }
    let disk = Arc::new(world.disk.clone());
    let random = Arc::new(SimRandom::new(1));
    salvage(&config(), disk, random, InternalStore::Manifest).expect("no faults");
    indexes
}

#[test]
fn indexes_of_the_previous_format_are_read_and_written_anew() {
    for_each_seed(100, |seed| {
        let mut world = World::new(seed);
        assert!(world.open());
        fill(&mut world);
        world.close();
        let indexes = make_old(&world);
        assert!(!indexes.is_empty());
        for _ in 0..2 {
            assert!(world.open());
            assert!(world.log().find_damage().is_empty());
            for name in NAMES {
                let chunk = world.make_chunk(2, 100, None);
                let (lane, appended) = world.append(name, 0, chunk).expect("no faults");
                assert!(world.acknowledge(name, &lane, &appended));
            }
            assert!(!check(&world, world.log()), "nothing is damaged");
            match world.rng.bool() {
                true => world.close(),
                false => world.kill(),
            }
        }
        assert!(world.open());
        world.close();
        // The last groups took appends, so their indexes have the newest format of a file without a head.
        let is_new = |path: &PathBuf| {
            let bytes = world.disk.read_file(path).expect("it is there");
            bytes.starts_with(b"MSINDEX3")
        };
        assert!(indexes.iter().any(is_new));
    });
}

//! Repairs the log's damaged tables: their undamaged entries stay.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::Disk as _;
use millstream_log::{InternalStore, LogError, StreamConfig};
use millstream_sim::{SimRandom, for_each_seed};

use crate::world::{DIR, World, config, lane_of, open};

const CASES: u64 = 300;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

#[test]
fn salvage_loses_only_the_damaged_stream_of_a_catalog() {
    for_each_seed(CASES, catalog);
}

fn catalog(seed: u64) {
    let mut world = World::new(seed);
    filled(&mut world);
    let path = file_of(&world, "0");
    let len = world.disk.read_file(&path).expect("it exists").len() as u64;
    let bit = world.rng.u64(..len * 8);
    world.disk.flip_bit(&path, bit).expect("it exists");
    // The flip hit bytes that no checksum covers, or an end that looks torn.
    let Err(error) = open(&world.disk, &world.clock) else {
        return;
    };
    assert!(matches!(error, LogError::DamagedTable { .. }), "{error}");
    salvage(&mut world, InternalStore::Catalog);
    for _ in 0..2 {
        let log = open(&world.disk, &world.clock).expect("it is whole");
        let lost = NAMES.iter().filter(|name| log.stream(name).is_err());
        let lost: Vec<&&str> = lost.collect();
        assert!(lost.len() <= 1, "{lost:?} are lost by one bit");
        for name in NAMES.iter().filter(|name| !lost.contains(name)) {
            let stream = log.stream(name).expect("it is there");
            let lane = lane_of(&stream, (0, 0));
            let acknowledged = world.model.streams[*name].lanes[&(0, 0)].acknowledged;
            assert_eq!(lane.durable_offset().0, acknowledged);
        }
        for name in lost {
            let id = world.model.streams[*name].id;
            let moved = format!("/data/aside/lost.000001.{id}-");
            let files = world.disk.files().into_iter();
            let mut paths = files.map(|(path, _)| path.display().to_string());
            assert!(paths.any(|path| path.starts_with(&moved)), "{name}");
        }
        // It takes new streams, and the next start removes nothing.
        let _ = log.create_stream("new", StreamConfig::default());
        log.close().expect("no faults");
    }
}

#[test]
fn salvaged_positions_are_the_last_or_earlier_ones() {
    for_each_seed(CASES, positions);
}

fn positions(seed: u64) {
    let mut world = World::new(seed);
    filled(&mut world);
    let path = file_of(&world, "1");
    match world.rng.u8(..4) {
        0 => world.disk.remove(&path).expect("it exists"),
        _ => {
            let len = world.disk.read_file(&path).expect("it exists").len() as u64;
            let bit = world.rng.u64(..len * 8);
            world.disk.flip_bit(&path, bit).expect("it exists");
        }
    }
    if open(&world.disk, &world.clock).is_err() {
        salvage(&mut world, InternalStore::Positions);
    }
    let log = open(&world.disk, &world.clock).expect("it is whole");
    assert_eq!(log.stream_names().len(), NAMES.len());
}

#[test]
fn a_damaged_journal_loses_one_block_and_serves_later_ones() {
    for_each_seed(CASES, journal);
}

fn journal(seed: u64) {
    let mut world = World::new(seed);
    assert!(world.open());
    for name in NAMES {
        world.create(name, StreamConfig::default());
    }
    for _ in 0..world.rng.u32(5..30) {
        let name = NAMES[world.rng.usize(..NAMES.len())];
        let bytes = world.rng.usize(10..30_000);
        let chunk = world.make_chunk(1, bytes, None);
        let (lane, appended) = world.append(name, 0, chunk).expect("no faults");
        assert!(world.acknowledge(name, &lane, &appended));
    }
    world.kill();
    let files = world.disk.files().into_iter();
    let mut files = files.filter(|(path, _)| path.starts_with("/data/journal"));
    let (path, len) = files.next().expect("an acknowledged record has its file");
    world
        .disk
        .flip_bit(&path, world.rng.u64(..len * 8))
        .expect("it exists");
    let Err(error) = open(&world.disk, &world.clock) else {
        return;
    };
    assert!(
        error.to_string().contains("--cut __journal"),
        "{error} does not say what to do"
    );
    salvage(&mut world, InternalStore::Journal);
    for _ in 0..2 {
        // The lost block may be the catalog's.
        let Ok(log) = open(&world.disk, &world.clock) else {
            return;
        };
        let mut silent = 0;
        for name in NAMES {
            let Ok(stream) = log.stream(name) else {
                silent += 1;
                continue;
            };
            let lane = lane_of(&stream, (0, 0));
            let acknowledged = world.model.streams[name].lanes[&(0, 0)].acknowledged;
            let durable = lane.durable_offset().0;
            assert!(durable <= acknowledged);
            if lane.info().fault.is_none() && durable < acknowledged {
                assert_eq!(durable + 1, acknowledged, "{name}");
                silent += 1;
            }
        }
        assert!(silent <= 1, "one block has a chunk of one stream");
        drop(log);
        world.disk = world.disk.kill();
    }
}

/// Fills streams with data and positions, and closes the log.
fn filled(world: &mut World) {
    assert!(world.open());
    for name in NAMES {
        world.create(name, StreamConfig::default());
        let chunk = world.make_chunk(1, 100, None);
        let (lane, appended) = world.append(name, 0, chunk).expect("no faults");
        assert!(world.acknowledge(name, &lane, &appended));
        world.hand_out(name, 0, "one", 1);
        world.consume(name, "one");
    }
    if world.rng.bool() {
        world.crash();
        assert!(world.open());
    }
    world.close();
    // Some time has passed since the close, so the system has written all files.
    let synced = world.disk.sync_tree(Path::new(DIR));
    synced.expect("no faults");
}

/// Salvages the log. In some runs a crash interrupts the salvage, which then runs again.
fn salvage(world: &mut World, part: InternalStore) {
    let run = |world: &World| {
        let disk = Arc::new(world.disk.clone());
        let random = Arc::new(SimRandom::new(world.disk.operations()));
        millstream_log::salvage(&config(), disk, random, part)
    };
    if world.rng.bool() {
        world.disk.crash_at(world.rng.u64(1..20));
        let _ = run(world);
        world.disk = world.disk.crash(&mut world.rng);
        if open(&world.disk, &world.clock).is_ok() {
            return;
        }
    }
    // A salvage that a crash interrupted may have ended nevertheless.
    let taken = run(world).expect("no faults").unwrap_or_default();
    for file in taken.files {
        assert!(world.disk.read_file(&file).is_ok(), "{}", file.display());
    }
}

/// The last file of one of the log's tables.
fn file_of(world: &World, stream: &str) -> PathBuf {
    let folder = PathBuf::from("/data/streams").join(stream);
    let files = world.disk.files().into_iter().map(|(path, _)| path);
    let mut logs = files.filter(|path| {
        path.starts_with(&folder) && path.extension().is_some_and(|kind| kind == "log")
    });
    logs.next_back().expect("it has a file")
}

//! Regressions of the journal.

use std::ops::Range;
use std::path::{Path, PathBuf};

use millstream_base::{ByteSize, StreamletIndex, Timestamp, crc32c};
use millstream_log::{LogConfig, StreamConfig};
use millstream_record::{ChunkBuilder, Compression};
use millstream_sim::{Operation, OperationKind};

use super::{append, fill_up, keep_old_journal, opened, put_group, small_groups};
use crate::world::{World, config_with_pool, lane_of, open_with};

#[test]
fn a_journal_file_that_cannot_be_created_is_not_used_twice() {
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 60_000, None);
    world.faults.full = true;
    let used: u64 = world.disk.files().iter().map(|(_, len)| len).sum();
    world.disk.set_capacity(used + 300_000);
    for _ in 0..8 {
        let chunk = world.make_chunk(1, 60_000, None);
        if let Some((lane, appended)) = world.append("a", 0, chunk) {
            world.acknowledge("a", &lane, &appended);
        }
    }
    world.disk.set_capacity(u64::MAX);
    while world.log().step() {}
    for _ in 0..20 {
        append(&mut world, "a", 60_000, None);
        world.log().persist();
    }
    world.crash();
    world.finish();
}

#[test]
fn chunks_replayed_before_a_gap_in_the_journal_stay() {
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    world.log().persist();
    append(&mut world, "a", 100, None);
    world.kill();
    let chunk = world.make_chunk(1, 100, None).bytes;
    let behind = put_group(&world, "a", 5, 50, &chunk);
    let log = crate::world::open(&world.disk, &world.clock).expect("it opens");
    let lane = lane_of(&log.stream("a").expect("it is there"), (0, 0));
    assert!(lane.info().fault.is_some());
    let first = behind.with_file_name("0-0-0000000001-00000000000000000000-0001.log");
    let stored = world.disk.read_file(first).expect("it exists");
    let head = 4096;
    assert_eq!(stored.len(), head + 2 * chunk.len());
}

#[test]
fn a_forged_block_of_the_journal_is_refused() {
    let mut world = opened();
    world.create("a", small_groups());
    let path = journals(&world).remove(0);
    let name = path.file_stem().and_then(|name| name.to_str());
    let (sequence, _) = name.and_then(|name| name.split_once('-')).expect("two");
    let sequence: u64 = sequence.parse().expect("a number");
    // A record's value that passes all checks of a block but the secret.
    let mut block = b"MSBK\0\0\0\0".to_vec();
    for number in [sequence, 0, 1_000] {
        block.extend_from_slice(&number.to_le_bytes());
    }
    block.extend_from_slice(&40_u32.to_le_bytes());
    block.extend_from_slice(&0_u32.to_le_bytes());
    let crc = crc32c(&block[8..]);
    block[4..8].copy_from_slice(&crc.to_le_bytes());
    let mut builder = ChunkBuilder::new(Compression::None);
    let pushed = builder.push(Timestamp(0), None, Some(&block), &[]);
    pushed.expect("far below the format's bound");
    let chunk = builder.finish(None).expect("it has a record");
    let stream = world.log().stream("a").expect("it was created");
    let (lane, appended) = stream.append(StreamletIndex(0), chunk).expect("no faults");
    lane.acknowledge(&appended).expect("no faults");

    // Tears the block that holds the chunk, as a loss of power does, which may lose the note of its end, too.
    world.kill();
    world.disk.remove("/data/journal/end").expect("it exists");
    let journal = world.disk.read_file(&path).expect("it exists");
    let find = |bytes: &[u8], from: &[u8]| from.windows(bytes.len()).rposition(|at| at == bytes);
    let made_up = find(&block, &journal).expect("it is stored as it is");
    let torn = find(b"MSBK", &journal[..made_up]).expect("it lies in a block");
    let flipped = world.disk.flip_bit(&path, torn as u64 * 8);
    flipped.expect("it exists");
    assert!(world.open());
}

#[test]
fn chunks_that_a_start_has_shown_survive_the_next_crash() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        assert!(world.open());
        world.create("a", small_groups());
        append(&mut world, "a", 100, None);
        // The start reads the last block from the cache, though it may never have reached the medium.
        let is_journal = |path: &Path| path.starts_with("/data/journal");
        world.disk.fail_next_sync(is_journal);
        world.faults.failing = true;
        let chunk = world.make_chunk(1, 100, None);
        let (lane, appended) = world.append("a", 0, chunk).expect("it is taken in");
        assert!(!world.acknowledge("a", &lane, &appended));
        world.kill();
        // With the disk full, none of it can go to a file.
        let used = world.disk.files().iter().map(|(_, len)| len).sum();
        world.disk.set_capacity(used);
        world.faults.full = true;
        assert!(world.open());
        assert_eq!(world.model.streams["a"].lanes[&(0, 0)].acknowledged, 2);
        world.crash();
        world.finish();
    }
}

#[test]
fn a_start_with_a_pool_too_small_for_the_journal_writes_to_the_files() {
    let mut world = opened();
    world.log = None;
    world.pool = ByteSize(8 << 20);
    assert!(world.open());
    let lanes = 40;
    world.create(
        "a",
        StreamConfig {
            lanes,
            ..small_groups()
        },
    );
    for _ in 0..2 * lanes {
        append(&mut world, "a", 100, None);
    }
    world.kill();
    let used: u64 = world.disk.files().iter().map(|(_, len)| len).sum();
    world.disk.set_capacity(used);
    let error = crate::world::open(&world.disk, &world.clock).expect_err("neither has room");
    let text = error.to_string();
    assert!(
        text.contains("disk is full") && text.contains("set a larger pool"),
        "{text}"
    );
    world.kill();
    world.pool = crate::world::config().pool;
    assert!(world.open());
    world.crash();
    world.finish();
}

#[test]
fn a_flipped_bit_in_replayed_blocks_is_not_a_torn_end() {
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    append(&mut world, "a", 100, None);
    world.crash();
    // This run appends nothing.
    assert!(world.open());
    world.close();
    let path = format!(
        "/data/streams/{}/0-0-0000000001-00000000000000000000-0001.log",
        world.model.streams["a"].id
    );
    let len = world.disk.read_file(&path).expect("it exists").len();
    world
        .disk
        .flip_bit(&path, len as u64 * 8 - 1)
        .expect("it exists");
    let log = crate::world::open(&world.disk, &world.clock).expect("it opens");
    let lane = lane_of(&log.stream("a").expect("it exists"), (0, 0));
    let mut reader = lane.reader(lane.earliest());
    // The reader may get the chunks before the damage first.
    assert!((0..2).any(|_| reader.read(1 << 20).is_err()));
    assert_eq!(lane.info().truncated_bytes, 0);
}

#[test]
fn a_journal_file_without_its_beginning_is_reported() {
    for chunks in [1, 6] {
        let mut world = opened();
        world.create("a", small_groups());
        for _ in 0..chunks {
            append(&mut world, "a", 60_000, None);
        }
        world.kill();
        // Overwrites the header, the first block, and a part of the second.
        let files = journals(&world);
        assert_eq!(files.len(), if chunks == 1 { 1 } else { 2 });
        for path in files {
            let whole = world.disk.read_file(&path).expect("it exists");
            let mut damaged = whole.clone();
            damaged[..4_200].fill(0);
            let written = world.disk.write_file(&path, &damaged);
            written.expect("it exists");
            let error = crate::world::open(&world.disk, &world.clock).expect_err("it is damaged");
            let name = path.display().to_string();
            assert!(error.to_string().contains(&name), "{error}");
            let written = world.disk.write_file(&path, &whole);
            written.expect("it exists");
        }
        world.finish();
    }
}

#[test]
fn the_journal_of_an_older_program_is_refused_and_retained() {
    let mut world = opened();
    world.close();
    let path = "/data/journal/0001000000000000.journal";
    let written = world.disk.write_file(path, b"MSJRNAL1");
    written.expect("the folder exists");
    let error = crate::world::open(&world.disk, &world.clock).expect_err("it is not read");
    let text = error.to_string();
    assert!(
        text.contains(path) && text.contains("older program"),
        "{text}"
    );
    assert!(world.disk.read_file(path).is_ok());
}

#[test]
fn chunks_that_a_start_has_dropped_stay_dropped_after_the_next_crash() {
    for seed in 0..40 {
        let mut world = World::new(seed);
        assert!(world.open());
        for name in ["kept", "a", "b"] {
            world.create(name, small_groups());
            append(&mut world, name, 100, None);
        }
        // Neither the block nor the header of the next file, which refers to it, is durable.
        world.faults.failing = true;
        for name in ["a", "b"] {
            let is_journal = |path: &Path| path.extension().is_some_and(|kind| kind == "journal");
            world.disk.fail_next_sync(is_journal);
            let chunk = world.make_chunk(1, 100, None);
            let (lane, appended) = world.append(name, 0, chunk).expect("it is taken in");
            assert!(!world.acknowledge(name, &lane, &appended));
        }
        assert_eq!(journals(&world).len(), 2);
        world.kill();
        // The files stay, since one of their groups cannot be persisted.
        keep_old_journal(&mut world, "kept");
        append(&mut world, "a", 100, None);
        world.crash();
        world.finish();
    }
}

#[test]
fn the_journal_of_the_previous_run_is_removed_file_by_file() {
    let mut world = opened();
    world.create("a", small_groups());
    for _ in 0..6 {
        append(&mut world, "a", 60_000, None);
    }
    world.kill();
    let files = journals(&world);
    assert!(files.len() > 1);
    world.disk.start_trace();
    assert!(world.open());
    let operations = world.disk.trace();
    let mut before = 0;
    for file in files {
        let is_it = |operation: &Operation| {
            operation.path == file && operation.kind == OperationKind::RemoveFile
        };
        let removed = operations.iter().position(is_it).expect("it is removed");
        assert!(before <= removed);
        let next = &operations[removed + 1];
        assert_eq!(next.path, Path::new("/data/journal"));
        assert_eq!(next.kind, OperationKind::SyncDir);
        before = removed;
    }
}

#[test]
fn a_pool_of_the_previous_size_holds_the_journal() {
    let config = || LogConfig {
        journal: ByteSize(16 << 20),
        journal_file: ByteSize(2 << 20),
        ..config_with_pool(ByteSize(8 << 20))
    };
    let mut world = World::new(0);
    let log = open_with(config(), &world.disk, &world.clock);
    world.log = Some(log.expect("it is founded"));
    world.create("a", StreamConfig::default());
    // Each chunk takes a little more than half of the smallest block.
    for _ in 0..160 {
        append(&mut world, "a", 33_000, None);
    }
    world.kill();
    fill_up(&mut world);
    let log = open_with(config(), &world.disk, &world.clock);
    world.log = Some(log.expect("the pool has room"));
    world.check_all();
    world.kill();
    world.finish();
}

#[test]
fn consecutive_journal_chunks_of_one_lane_may_exceed_the_pool() {
    // Tries each amount of pool that may be in use before the run.
    for before in (0..30).step_by(2) {
        let config = LogConfig {
            journal: ByteSize(16 << 20),
            journal_file: ByteSize(4 << 20),
            ..config_with_pool(ByteSize(32 << 20))
        };
        let mut world = World::new(0);
        let log = open_with(config, &world.disk, &world.clock);
        world.log = Some(log.expect("it is founded"));
        // With a single lane, the log would write to the file instead.
        let lanes = 2;
        world.create(
            "a",
            StreamConfig {
                lanes,
                ..StreamConfig::default()
            },
        );
        let mut append_all = |producer, sequences: Range<i32>| {
            for sequence in sequences {
                let chunk = world.make_chunk(1, 33_000, Some((producer, 0, sequence)));
                world.append("a", 0, chunk).expect("no faults");
            }
            while world.log().sync_step() {}
        };
        // The chunks behind these fill one segment, which makes the longest run.
        append_all(1, 0..26);
        append_all(2, 0..before);
        append_all(1, 26..57);
        world.kill();
        assert!(world.open());
        let lane = lane_of(&world.stream("a"), (0, 1));
        assert_eq!(lane.durable_offset().0, 57);
        world.kill();
        world.finish();
    }
}

#[test]
fn a_missing_file_is_reported_although_the_journal_holds_its_chunks() {
    let mut world = opened();
    world.create("a", small_groups());
    for _ in 0..3 {
        append(&mut world, "a", 60_000, None);
    }
    world.log().persist();
    world.kill();
    let second = |path: &PathBuf| path.to_string_lossy().contains("/0-0-0000000002-");
    let files = world.disk.files().into_iter().map(|(path, _)| path);
    let removed: Vec<(PathBuf, Vec<u8>)> = files
        .filter(second)
        .map(|path| {
            let bytes = world.disk.read_file(&path).expect("it exists");
            world.disk.remove(&path).expect("it exists");
            (path, bytes)
        })
        .collect();
    for _ in 0..2 {
        let log = crate::world::open(&world.disk, &world.clock).expect("it opens");
        let lane = lane_of(&log.stream("a").expect("it is there"), (0, 0));
        let fault = lane.info().fault.expect("a file is missing");
        assert!(fault.contains("/0-0-0000000002-"), "{fault}");
        let mut reader = lane.reader(lane.earliest());
        assert!(reader.read(1 << 20).expect("before it").is_some());
        assert!(reader.read(1 << 20).is_err());
        world.log = Some(log);
        world.kill();
    }
    for (path, bytes) in removed {
        world.disk.write_file(path, &bytes).expect("a folder");
    }
    world.finish();
}

/// The files of the journal, oldest first.
fn journals(world: &World) -> Vec<PathBuf> {
    let mut paths: Vec<_> = world
        .disk
        .files()
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "journal"));
    paths
}

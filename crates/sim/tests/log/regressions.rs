//! What was wrong once, each in a test of its own.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use millstream_base::{ByteSize, Offset, StreamletIndex, Timestamp, crc32c};
use millstream_log::{Durability, LogConfig, LogError, StreamConfig};
use millstream_record::{ChunkBuilder, Compression};
use millstream_sim::{Operation, OperationKind};

use crate::world::{World, config_with_pool, lane_of, open_with};

fn small_groups() -> StreamConfig {
    StreamConfig {
        group_segments: 1,
        segment: ByteSize(64 << 10),
        ..StreamConfig::default()
    }
}

fn append(world: &mut World, name: &str, bytes: usize, producer: Option<(i64, i16, i32)>) {
    let chunk = world.make_chunk(1, bytes, producer);
    let (lane, appended) = world.append(name, 0, chunk).expect("no faults");
    world.acknowledge(name, &lane, &appended);
}

fn opened() -> World {
    let mut world = World::new(0);
    assert!(world.open());
    world
}

#[test]
fn producers_are_known_when_the_index_of_the_last_group_is_lost() {
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 60_000, Some((1, 0, 0)));
    append(&mut world, "a", 60_000, Some((2, 0, 0)));
    world.close();
    let indexes = world.disk.files().into_iter().map(|(path, _)| path);
    for path in indexes.filter(|path| path.extension().is_some_and(|kind| kind == "index")) {
        world.disk.remove(path).expect("it exists");
    }
    assert!(world.open());
    let again = world.model.streams["a"].lanes[&(0, 0)].chunks[0].clone();
    let (_, appended) = world.append("a", 0, again).expect("no faults");
    assert!(appended.duplicate);
}

#[test]
fn a_group_is_done_only_when_its_end_is_durable() {
    let mut world = opened();
    let durability = Durability::Async;
    world.create(
        "a",
        StreamConfig {
            durability,
            ..small_groups()
        },
    );
    append(&mut world, "a", 60_000, None);
    while world.log().step() {}
    world.hand_out("a", 0, "one", 1);
    world.consume("a", "one");
    // Begins the next group, which closes this one, and is not durable.
    append(&mut world, "a", 60_000, None);
    world.consume("a", "one");
    world.crash();
    world.finish();
}

#[test]
fn memory_streams_stay_in_memory_when_idle() {
    let mut world = opened();
    let durability = Durability::Memory;
    world.create(
        "a",
        StreamConfig {
            durability,
            ..small_groups()
        },
    );
    append(&mut world, "a", 100, None);
    world.clock.advance(Duration::from_secs(60));
    world.log().release_idle();
    world.log().evict();
    let id = world.model.streams["a"].id;
    let folder = format!("/data/streams/{id}");
    assert!(
        !world
            .disk
            .files()
            .iter()
            .any(|(path, _)| path.starts_with(&folder))
    );
}

#[test]
fn retention_leaves_a_file_that_says_where_the_lane_goes_on() {
    let mut world = opened();
    let retention = Some(ByteSize(0));
    world.create(
        "a",
        StreamConfig {
            retention,
            ..small_groups()
        },
    );
    append(&mut world, "a", 60_000, None);
    world.log().persist();
    append(&mut world, "a", 100, None);
    world.retain();
    world.crash();
    world.finish();
}

#[test]
fn the_id_of_a_deleted_stream_with_positions_is_not_used_again() {
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    world.hand_out("a", 0, "one", 1);
    world.consume("a", "one");
    world.delete("a");
    // The catalog's change is durable; that of the positions is not.
    world.crash();
    assert!(world.open());
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    world.hand_out("a", 0, "one", 1);
    world.consume("a", "one");
    world.crash();
    world.finish();
}

#[test]
fn a_journal_file_that_could_not_be_begun_is_not_given_out_twice() {
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
fn a_missing_catalog_is_told_and_no_stream_removed() {
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    world.close();
    let before = world.disk.files();
    for (path, _) in before
        .iter()
        .filter(|(path, _)| path.starts_with("/data/streams/0"))
    {
        world.disk.remove(path).expect("it exists");
    }
    let error = crate::world::open(&world.disk, &world.clock).expect_err("it is missing");
    assert!(error.to_string().contains("/data/streams/0"), "{error}");
    let left = world.disk.files();
    assert!(
        left.iter()
            .any(|(path, _)| path.starts_with("/data/streams/16"))
    );
}

/// Puts a group of one chunk behind those of a stream's only lane.
fn put_group(world: &World, name: &str, group: u32, first_offset: u64, chunk: &[u8]) -> PathBuf {
    let id = world.model.streams[name].id;
    let path = PathBuf::from(format!(
        "/data/streams/{id}/0-0-{group:010}-{first_offset:020}.log"
    ));
    let mut bytes = chunk.to_vec();
    // A chunk begins with its base offset, which its checksum does not cover.
    bytes[..8].copy_from_slice(&first_offset.to_be_bytes());
    world.disk.write_file(&path, &bytes).expect("a folder");
    path
}

#[test]
fn many_groups_without_an_index_are_read_once_each() {
    const GROUPS: u32 = 2_000;
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 100, Some((1, 0, 0)));
    world.close();
    let first = world.model.streams["a"].lanes[&(0, 0)].chunks[0].clone();
    let chunk = world.make_chunk(1, 100, None).bytes;
    for group in 1..GROUPS {
        put_group(&world, "a", group + 1, group.into(), &chunk);
    }
    let is_index = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "index");
    let files = world.disk.files().into_iter().map(|(path, _)| path);
    for path in files.filter(is_index) {
        world.disk.remove(path).expect("it exists");
    }
    let (disk, clock) = (world.disk.clone(), world.clock.clone());
    // What recurses through the groups does not fit here.
    let start = std::thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(move || crate::world::open(&disk, &clock))
        .expect("a thread");
    let log = start.join().expect("no panic").expect("it opens");
    let lane = lane_of(&log.stream("a").expect("it is there"), (0, 0));
    assert_eq!(lane.info().fault, None);
    assert_eq!(lane.info().durable.0, u64::from(GROUPS));
    world.log = Some(log);
    let (_, appended) = world.append("a", 0, first).expect("no faults");
    assert!(appended.duplicate);
}

#[test]
fn what_the_journal_gave_a_group_before_a_gap_stays() {
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
    let first = behind.with_file_name("0-0-0000000001-00000000000000000000.log");
    let stored = world.disk.read_file(first).expect("it exists");
    assert_eq!(stored.len(), 2 * chunk.len());
}

#[test]
fn a_group_without_marks_is_written_again_piece_by_piece() {
    const CHUNKS: u64 = 50;
    let mut world = opened();
    world.create("a", StreamConfig::default());
    append(&mut world, "a", 60_000, None);
    world.close();
    let chunk = world.model.streams["a"].lanes[&(0, 0)].chunks[0]
        .bytes
        .clone();
    let path = put_group(&world, "a", 1, 0, &chunk);
    let mut bytes = Vec::new();
    for offset in 0..CHUNKS {
        bytes.extend_from_slice(&offset.to_be_bytes());
        bytes.extend_from_slice(&chunk[8..]);
    }
    world.disk.write_file(&path, &bytes).expect("a folder");
    world
        .disk
        .remove(path.with_extension("index"))
        .expect("it exists");
    world.disk.start_trace();
    let log = crate::world::open(&world.disk, &world.clock).expect("it opens");
    let mut written = 0;
    for operation in world.disk.trace() {
        if let OperationKind::Write { offset, len } = operation.kind
            && operation.path == path
        {
            assert!(offset == written && len < 2 << 20, "{operation}");
            written += len;
        }
    }
    assert_eq!(written, bytes.len() as u64);
    let lane = lane_of(&log.stream("a").expect("it is there"), (0, 0));
    assert_eq!(lane.info().durable.0, CHUNKS);
}

#[test]
fn a_torn_catalog_removes_no_stream() {
    let mut world = opened();
    world.create("first", small_groups());
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    world.log().persist();
    world.kill();
    // The second start finds no journal that would heal the catalog.
    assert!(world.open());
    world.kill();
    flip_last_bit_of_catalog(&world);
    for _ in 0..2 {
        let log = crate::world::open(&world.disk, &world.clock).expect("it opens");
        assert!(log.stream("a").is_err());
        assert!(!lost_file(&world, "a").is_empty());
        drop(log);
    }
}

/// What was kept of the first file of a stream that the catalog has lost.
fn lost_file(world: &World, name: &str) -> Vec<u8> {
    let id = world.model.streams[name].id;
    let path = format!("/data/aside/lost.000001.{id}-0-0-0000000001-00000000000000000000.log");
    world.disk.read_file(path).expect("it was moved there")
}

#[test]
fn an_index_never_outlives_the_group_that_retention_removed() {
    let mut world = opened();
    let retention = Some(ByteSize(0));
    world.create(
        "a",
        StreamConfig {
            retention,
            ..small_groups()
        },
    );
    for _ in 0..3 {
        append(&mut world, "a", 60_000, None);
    }
    world.log().persist();
    world.retain();
    let removed = world.disk.trace().into_iter().filter(|operation| {
        matches!(
            operation.kind,
            OperationKind::RemoveFile | OperationKind::SyncDir
        )
    });
    let removed: Vec<_> = removed.collect();
    let logs = removed.iter().enumerate().filter(|(_, operation)| {
        let kind = operation.path.extension();
        kind.is_some_and(|kind| kind == "log") && operation.kind == OperationKind::RemoveFile
    });
    // Before each file goes, the folder without its index is synced.
    let mut count = 0;
    for (n, operation) in logs {
        let folder = operation.path.parent().expect("it is in one");
        let index = operation.path.with_extension("index");
        let before = removed[..n].iter();
        let is_of_this = |operation: &&Operation| {
            operation.path == index && operation.error.is_none() || operation.path == folder
        };
        let last: Vec<_> = before.filter(is_of_this).rev().take(2).collect();
        assert_eq!(last[0].path, folder);
        assert_eq!(last[1].path, index);
        count += 1;
    }
    assert_eq!(count, 2);

    // So one that is alone tells of a loss.
    world.close();
    let files = world.disk.files().into_iter().map(|(path, _)| path);
    let id = world.model.streams["a"].id;
    let folder = format!("/data/streams/{id}");
    let last = files
        .filter(|path| path.starts_with(&folder))
        .find(|path| path.extension().is_some_and(|kind| kind == "log"));
    world
        .disk
        .remove(last.expect("one is left"))
        .expect("it exists");
    let log = crate::world::open(&world.disk, &world.clock).expect("it opens");
    let lane = lane_of(&log.stream("a").expect("it is there"), (0, 0));
    assert!(lane.info().fault.is_some());
}

#[test]
fn chunks_right_before_a_gap_are_read() {
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    append(&mut world, "a", 100, None);
    world.close();
    let chunk = world.make_chunk(1, 100, None).bytes;
    put_group(&world, "a", 5, 50, &chunk);
    let log = crate::world::open(&world.disk, &world.clock).expect("it opens");
    let lane = lane_of(&log.stream("a").expect("it is there"), (0, 0));
    assert!(lane.info().fault.is_some());
    let mut reader = lane.reader(lane.earliest());
    let mut offsets = Vec::new();
    let mut read_to_gap = || {
        while let Some(read) = reader.read(1 << 20)? {
            let chunks = read.chunks().map(|chunk| chunk.expect("it is whole"));
            offsets.extend(chunks.map(|chunk| chunk.header().base_offset.0));
        }
        Ok::<_, LogError>(())
    };
    let error = read_to_gap().expect_err("nothing is passed over without a word");
    assert!(error.to_string().contains("begins with 50"), "{error}");
    assert_eq!(offsets, [0, 1]);
    let behind = lane.seek_offset(Offset(50)).expect("it is there");
    assert!(lane.reader(behind).read(1 << 20).expect("whole").is_some());
}

#[test]
fn a_block_of_the_journal_that_a_producer_made_up_is_not_believed() {
    let mut world = opened();
    world.create("a", small_groups());
    let path = journals(&world).remove(0);
    let name = path.file_stem().and_then(|name| name.to_str());
    let (sequence, _) = name.and_then(|name| name.split_once('-')).expect("two");
    let sequence: u64 = sequence.parse().expect("a number");
    // All that its checks ask for but the secret, as a record's value.
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

    // The block that holds the chunk is torn.
    world.kill();
    let journal = world.disk.read_file(&path).expect("it exists");
    let find = |bytes: &[u8], from: &[u8]| from.windows(bytes.len()).rposition(|at| at == bytes);
    let made_up = find(&block, &journal).expect("it is stored as it is");
    let torn = find(b"MSBK", &journal[..made_up]).expect("it lies in a block");
    let flipped = world.disk.flip_bit(&path, torn as u64 * 8);
    flipped.expect("it exists");
    assert!(world.open());
}

#[test]
fn a_commit_is_not_reported_failed_when_the_table_cannot_be_written_anew() {
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    let application = world.log().shared_group("a", &"x".repeat(200));
    let application = application.expect("the stream exists");
    let cursors = application.next_groups(StreamletIndex(0), "one", 1);
    let cursor = cursors.expect("the streamlet exists")[0];
    application.commit("one", &cursor).expect("no faults");
    world.log().persist();
    // The folder changes when the table is written anew, and not before.
    let is_table = |path: &Path| path.ends_with("streams/1");
    world.disk.fail_next_sync(is_table);
    let positions = world.log().stream("__positions").expect("always there");
    let mut commits = 0;
    while positions.info().partitions[0].fault.is_none() {
        application.commit("one", &cursor).expect("it is durable");
        commits += 1;
        assert!(commits < 100_000, "it is never written anew");
    }
    world.faults.failing = true;
    world.kill();
    assert!(world.open());
}

#[test]
fn what_a_start_shows_of_the_journal_survives_a_crash() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        assert!(world.open());
        world.create("a", small_groups());
        append(&mut world, "a", 100, None);
        // The last block is read back, though it may never have reached the medium.
        let is_journal = |path: &Path| path.starts_with("/data/journal");
        world.disk.fail_next_sync(is_journal);
        world.faults.failing = true;
        let chunk = world.make_chunk(1, 100, None);
        let (lane, appended) = world.append("a", 0, chunk).expect("it is taken in");
        assert!(!world.acknowledge("a", &lane, &appended));
        world.kill();
        // So nothing of it can go to a file.
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
fn the_name_of_a_file_that_was_begun_on_a_full_disk_survives() {
    let mut world = opened();
    world.create("a", StreamConfig::default());
    world.close();
    assert!(world.open());
    // So much goes straight to the file: its name fits the disk, what comes into it does not.
    let used: u64 = world.disk.files().iter().map(|(_, len)| len).sum();
    world.disk.set_capacity(used + 20);
    world.faults.full = true;
    for _ in 0..3 {
        let chunk = world.make_chunk(1, 100_000, None);
        world.append("a", 0, chunk).expect("it is taken in");
    }
    while world.log().sync_step() {}
    world.kill();
    assert!(world.open());
    append(&mut world, "a", 100, None);
    world.close();
    for seed in 0..20 {
        let mut image = World::new(seed);
        image.disk = world.disk.kill();
        image.model = world.model.clone();
        image.crash();
        image.finish();
    }
}

#[test]
fn the_id_of_a_deleted_stream_that_the_journal_still_holds_is_not_used_again() {
    let mut world = opened();
    world.create("kept", small_groups());
    append(&mut world, "kept", 100, None);
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    world.delete("a");
    world.kill();
    keep_old_journal(&mut world, "kept");
    world.create("b", small_groups());
    append(&mut world, "b", 100, None);
    append(&mut world, "b", 100, None);
    world.kill();
    world.finish();
}

/// Leaves no room on the disk.
fn fill_up(world: &mut World) {
    let used = world.disk.files().iter().map(|(_, len)| len).sum();
    world.disk.set_capacity(used);
    world.faults.full = true;
}

#[test]
fn a_missing_catalog_is_told_when_only_the_journal_holds_a_stream() {
    let mut world = opened();
    world.create("a", small_groups());
    world.close();
    assert!(world.open());
    append(&mut world, "a", 100, None);
    world.kill();
    for (path, _) in world.disk.files() {
        if path.starts_with("/data/streams/0") {
            world.disk.remove(path).expect("it exists");
        }
    }
    let before = world.disk.files();
    let error = crate::world::open(&world.disk, &world.clock).expect_err("it is missing");
    assert!(error.to_string().contains("/data/streams/0"), "{error}");
    assert_eq!(world.disk.files(), before);
}

#[test]
fn a_torn_catalog_removes_nothing_that_only_the_journal_holds() {
    let mut world = opened();
    world.create("first", small_groups());
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    world.log().persist();
    world.kill();
    // The second start finds no journal that would heal the catalog.
    assert!(world.open());
    append(&mut world, "a", 100, None);
    world.kill();
    flip_last_bit_of_catalog(&world);
    let log = crate::world::open(&world.disk, &world.clock).expect("it opens");
    assert!(log.stream("a").is_err());
    let stored = lost_file(&world, "a");
    let chunks = &world.model.streams["a"].lanes[&(0, 0)].chunks;
    let last = &chunks[1].bytes;
    assert_eq!(stored.len(), chunks[0].bytes.len() + last.len());
    // All but the base offset.
    assert!(stored.ends_with(&last[16..]));
}

fn flip_last_bit_of_catalog(world: &World) {
    let files = world.disk.files().into_iter();
    let (catalog, len) = files
        .filter(|(path, _)| path.starts_with("/data/streams/0"))
        .rfind(|(path, _)| path.extension().is_some_and(|kind| kind == "log"))
        .expect("a group of the catalog");
    let flipped = world.disk.flip_bit(catalog, len * 8 - 1);
    flipped.expect("it exists");
}

#[test]
fn a_flipped_bit_of_what_only_a_start_has_read_is_not_taken_for_torn() {
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    append(&mut world, "a", 100, None);
    world.crash();
    // Nothing is appended in this run.
    assert!(world.open());
    world.close();
    let path = format!(
        "/data/streams/{}/0-0-0000000001-00000000000000000000.log",
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
    // What is before the damage may come first.
    assert!((0..2).any(|_| reader.read(1 << 20).is_err()));
    assert_eq!(lane.info().truncated_bytes, 0);
}

#[test]
fn a_lane_whose_folder_could_not_be_synced_takes_nothing_more() {
    // Which sync fails: without an index, without its file; the same of the last one, which is handed over.
    for (by_retention, failing) in [(true, 0), (true, 1), (false, 4), (false, 5)] {
        for seed in 0..10 {
            let mut world = World::new(seed);
            assert!(world.open());
            let retention = by_retention.then_some(ByteSize(0));
            world.create(
                "a",
                StreamConfig {
                    retention,
                    ..small_groups()
                },
            );
            world.create("b", small_groups());
            for _ in 0..3 {
                append(&mut world, "a", 60_000, None);
            }
            world.log().persist();
            let folder = PathBuf::from(format!("/data/streams/{}", world.model.streams["a"].id));
            let syncs = AtomicU32::new(0);
            let is_it = move |path: &Path| {
                path == folder && syncs.fetch_add(1, Ordering::Relaxed) == failing
            };
            world.faults.failing = true;
            if by_retention {
                world.disk.fail_next_sync(is_it);
                world.retain();
                // It is not tried again as if nothing had happened.
                let before = world.disk.files();
                world.retain();
                assert_eq!(world.disk.files(), before);
            } else {
                write_until_full(&mut world, "b");
                world.disk.fail_next_sync(is_it);
                world.delete("a");
                world.disk.set_capacity(u64::MAX);
                while world.log().step() {}
            }
            let lane = lane_of(&world.stream("a"), (0, 0));
            assert!(lane.info().fault.is_some());
            let chunk = world.make_chunk(1, 60_000, None);
            assert!(world.append("a", 0, chunk).is_none());
            world.crash();
            world.finish();
        }
    }
}

fn write_until_full(world: &mut World, name: &str) {
    fill_up(world);
    loop {
        let chunk = world.make_chunk(1, 60_000, None);
        let appended = world.append(name, 0, chunk);
        if !appended.is_some_and(|(lane, appended)| world.acknowledge(name, &lane, &appended)) {
            break;
        }
    }
}

#[test]
fn a_journal_file_that_lost_its_beginning_is_told() {
    for chunks in [1, 6] {
        let mut world = opened();
        world.create("a", small_groups());
        for _ in 0..chunks {
            append(&mut world, "a", 60_000, None);
        }
        world.kill();
        // The header, the first block, and something of the next.
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
fn the_journal_of_an_older_program_is_refused_and_kept() {
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

#[test]
fn producers_are_known_after_a_start_that_had_no_room_for_an_index() {
    let mut world = opened();
    world.create("a", StreamConfig::default());
    append(&mut world, "a", 30_000, Some((1, 0, 0)));
    for sequence in 0..4 {
        append(&mut world, "a", 30_000, Some((2, 0, sequence)));
    }
    world.close();
    // It is never synced, so a crash may take it.
    for (path, _) in world.disk.files() {
        if path.extension().is_some_and(|kind| kind == "index") {
            world.disk.remove(path).expect("it exists");
        }
    }
    fill_up(&mut world);
    assert!(world.open());
    world.disk.set_capacity(u64::MAX);
    while world.log().step() {}
    append(&mut world, "a", 30_000, Some((2, 0, 4)));
    world.close();
    assert!(world.open());
    let again = world.model.streams["a"].lanes[&(0, 0)].chunks[0].clone();
    let (_, appended) = world.append("a", 0, again).expect("no faults");
    assert!(appended.duplicate);
}

#[test]
fn what_a_start_does_not_show_of_the_journal_stays_hidden_after_a_crash() {
    for seed in 0..40 {
        let mut world = World::new(seed);
        assert!(world.open());
        for name in ["kept", "a", "b"] {
            world.create(name, small_groups());
            append(&mut world, name, 100, None);
        }
        // A block that is not durable, and a next file whose header, which says so, is not either.
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
        // They stay, since a group that they hold cannot be persisted.
        keep_old_journal(&mut world, "kept");
        append(&mut world, "a", 100, None);
        world.crash();
        world.finish();
    }
}

#[test]
fn an_old_journal_is_removed_file_by_file() {
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

/// Opens the log so that the old journal stays for this life, since the stream `name` cannot be
/// persisted.
fn keep_old_journal(world: &mut World, name: &str) {
    fill_up(world);
    assert!(world.open());
    world.disk.set_capacity(u64::MAX);
    let folder = format!("/data/streams/{}/", world.model.streams[name].id);
    let is_of_it = move |path: &Path| path.starts_with(&folder);
    world.disk.fail_next_sync(is_of_it);
    world.faults.failing = true;
    while world.log().step() {}
}

#[test]
fn the_stream_that_filled_the_disk_can_be_deleted() {
    let mut world = opened();
    world.create("a", StreamConfig::default());
    world.create("b", small_groups());
    for _ in 0..20 {
        append(&mut world, "a", 60_000, None);
    }
    world.log().persist();
    write_until_full(&mut world, "a");
    let lane = lane_of(&world.stream("a"), (0, 0));
    assert!(lane.durable_offset() < lane.next_offset());
    world.delete("a");
    assert!(!world.model.streams.contains_key("a"));
    append(&mut world, "b", 100, None);
    world.crash();
    world.finish();
}

#[test]
fn what_a_deletion_gave_up_on_a_full_disk_is_not_taken_for_stored() {
    for seed in 0..10 {
        let mut world = World::new(seed);
        assert!(world.open());
        world.create("a", small_groups());
        for sequence in 0..3 {
            append(&mut world, "a", 60_000, Some((1, 0, sequence)));
        }
        // There is no journal file that has room for the note.
        world.close();
        assert!(world.open());
        fill_up(&mut world);
        let mut sequence = 3;
        let (lane, appended, chunk) = loop {
            let chunk = world.make_chunk(1, 60_000, Some((1, 0, sequence)));
            let appended = world.append("a", 0, chunk.clone());
            let (lane, appended) = appended.expect("it is taken in");
            if !world.acknowledge("a", &lane, &appended) {
                break (lane, appended, chunk);
            }
            sequence += 1;
        };
        // Nothing that is removed makes room enough.
        world.disk.set_capacity(0);
        world.delete("a");
        let error = lane.acknowledge(&appended).expect_err("it is given up");
        assert!(error.to_string().contains("emptied"), "{error}");
        world.crash();
        assert!(world.open());
        let (_, appended) = world.append("a", 0, chunk).expect("no faults");
        assert!(!appended.duplicate);
        world.crash();
        world.finish();
    }
}

#[test]
fn an_object_can_be_deleted_on_a_full_disk() {
    let mut world = opened();
    world.put_object("x", vec![1; 2_000_000]);
    world.create("a", small_groups());
    world.log().persist();
    write_until_full(&mut world, "a");
    world.delete_object("x");
    assert!(world.model.objects.is_empty());
    append(&mut world, "a", 100, None);
    world.crash();
    world.finish();
}

#[test]
fn the_pool_of_the_last_run_holds_what_its_journal_does() {
    let config = || LogConfig {
        journal: ByteSize(16 << 20),
        journal_file: ByteSize(2 << 20),
        ..config_with_pool(ByteSize(8 << 20))
    };
    let mut world = World::new(0);
    let log = open_with(config(), &world.disk, &world.clock);
    world.log = Some(log.expect("it is founded"));
    world.create("a", StreamConfig::default());
    // Each takes a little more than half of the smallest block.
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
fn a_run_of_the_journal_may_be_longer_than_the_pool() {
    // However much of the pool is taken before it.
    for before in (0..30).step_by(2) {
        let config = LogConfig {
            journal: ByteSize(16 << 20),
            journal_file: ByteSize(4 << 20),
            ..config_with_pool(ByteSize(32 << 20))
        };
        let mut world = World::new(0);
        let log = open_with(config, &world.disk, &world.clock);
        world.log = Some(log.expect("it is founded"));
        // A lane that is alone would write to its file.
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
        // Behind these there are as many in one segment as make the longest run.
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
fn a_group_whose_file_a_crash_took_is_read_from_the_journal() {
    let mut world = opened();
    world.create("a", small_groups());
    for _ in 0..3 {
        append(&mut world, "a", 60_000, None);
    }
    world.log().persist();
    world.kill();
    let second = |path: &PathBuf| path.to_string_lossy().contains("/0-0-0000000002-");
    let files = world.disk.files().into_iter().map(|(path, _)| path);
    for path in files.filter(second) {
        world.disk.remove(path).expect("it exists");
    }
    assert!(world.open());
    world.crash();
    world.finish();
}

#[test]
fn deleting_the_beginning_of_a_lane_makes_room_on_a_full_disk() {
    let mut world = opened();
    world.create("a", small_groups());
    for _ in 0..20 {
        append(&mut world, "a", 60_000, None);
    }
    world.log().persist();
    let used: u64 = world.disk.files().iter().map(|(_, len)| len).sum();
    world.disk.set_capacity(used);
    world.faults.full = true;
    write_until_full(&mut world, "a");
    assert!(world.log().stats().disk_full);
    world.delete_before("a", &[((0, 0), 15)]);
    assert_eq!(world.model.streams["a"].lanes[&(0, 0)].earliest, 15);
    let left: u64 = world.disk.files().iter().map(|(_, len)| len).sum();
    assert!(left + 600_000 < used, "{left} of {used}");
    world.crash();
    world.finish();
}

#[test]
fn what_was_deleted_within_a_group_is_not_shown_to_those_who_read_by_cursor() {
    let mut world = opened();
    world.create("a", StreamConfig::default());
    for _ in 0..6 {
        append(&mut world, "a", 1_000, None);
    }
    let lane = lane_of(&world.stream("a"), (0, 0));
    let (beginning, third) = (lane.earliest(), lane.seek_offset(Offset(3)));
    let third = third.expect("it is there");
    let mut reader = lane.reader(beginning);
    let mut at_third = lane.reader(third);
    world.delete_before("a", &[((0, 0), 3)]);
    let earliest = |error| match error {
        LogError::CursorRemoved { earliest, .. } => earliest,
        error => panic!("{error}"),
    };
    assert_eq!(earliest(reader.read(1).expect_err("it is deleted")), third);
    let error = world.log().read(&beginning, 1).expect_err("it is deleted");
    assert_eq!(earliest(error), third);
    assert_eq!(lane.earliest(), third);
    for _ in 3..6 {
        assert!(at_third.read(1).expect("it is there").is_some());
    }
    assert!(at_third.read(1).expect("at the end").is_none());
    // At the end of all that is deleted nothing is missed.
    world.delete_before("a", &[((0, 0), 6)]);
    append(&mut world, "a", 1_000, None);
    world.hand_out("a", 0, "one", 9);
    world.consume("a", "one");
    let consumed = &world.model.streams["a"].consumed.done;
    assert_eq!(consumed.len(), 1, "{consumed:?}");
    world.crash();
    world.finish();
}

#[test]
fn what_was_deleted_of_a_stream_that_is_gone_is_not_deleted_of_the_next_one() {
    // The note goes after the stream: some of these crashes keep only the first.
    for crash_after in 1..40 {
        let mut world = opened();
        world.create("a", small_groups());
        append(&mut world, "a", 1_000, None);
        append(&mut world, "a", 1_000, None);
        world.delete_before("a", &[((0, 0), 1)]);
        // So that no journal names the stream.
        world.close();
        assert!(world.open());
        world.disk.crash_at(world.disk.operations() + crash_after);
        world.delete("a");
        world.crash();
        assert!(world.open());
        if world.model.streams.contains_key("a") {
            continue;
        }
        world.create("b", small_groups());
        append(&mut world, "b", 1_000, None);
        world.crash();
        assert!(world.open());
        assert_eq!(world.model.streams["b"].lanes[&(0, 0)].earliest, 0);
    }
}

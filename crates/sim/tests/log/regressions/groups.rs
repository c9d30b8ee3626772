//! Regressions of groups and their indexes.

use std::path::PathBuf;
use std::time::Duration;

use millstream_base::Offset;
use millstream_log::{Durability, LogError, StreamConfig};
use millstream_sim::OperationKind;

use super::{append, list_anew, opened, put_group, small_groups, unretained};
use crate::world::{World, lane_of};

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
fn a_group_is_consumed_only_when_its_end_is_durable() {
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
    // This chunk begins the next group, which closes the first one. It is not durable.
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
fn a_start_reads_each_group_without_an_index_once() {
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
    list_anew(&world);
    let (disk, clock) = (world.disk.clone(), world.clock.clone());
    // A recursion through all groups would overflow this stack.
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
fn a_group_without_index_entries_is_rewritten_piece_by_piece() {
    const CHUNKS: u64 = 50;
    let mut world = opened();
    world.create("a", StreamConfig::default());
    append(&mut world, "a", 60_000, None);
    world.close();
    let chunk = world.model.streams["a"].lanes[&(0, 0)].chunks[0]
        .bytes
        .clone();
    for (path, _) in world.disk.files() {
        if path.to_string_lossy().contains("/16/0-0-") {
            world.disk.remove(path).expect("it exists");
        }
    }
    let path = put_group(&world, "a", 1, 0, &chunk);
    let mut bytes = Vec::new();
    for offset in 0..CHUNKS {
        bytes.extend_from_slice(&offset.to_be_bytes());
        bytes.extend_from_slice(&chunk[8..]);
    }
    world.disk.write_file(&path, &bytes).expect("a folder");
    list_anew(&world);
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
fn chunks_right_before_a_gap_are_read() {
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    append(&mut world, "a", 100, None);
    world.close();
    let chunk = world.make_chunk(1, 100, None).bytes;
    put_group(&world, "a", 5, 50, &chunk);
    list_anew(&world);
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
fn retention_continues_after_a_failed_sync_of_the_list_of_files() {
    for seed in 0..10 {
        let mut world = World::new(seed);
        assert!(world.open());
        world.create("a", unretained());
        for _ in 0..3 {
            append(&mut world, "a", 60_000, None);
        }
        world.log().persist();
        world
            .disk
            .fail_next_sync(|path| path.ends_with("manifest.new") || path.ends_with("manifest"));
        world.faults.failing = true;
        // The list is written anew, to another file.
        world.retain();
        assert_eq!(lane_of(&world.stream("a"), (0, 0)).info().groups, 1);
        append(&mut world, "a", 60_000, None);
        world.crash();
        world.finish();
    }
}

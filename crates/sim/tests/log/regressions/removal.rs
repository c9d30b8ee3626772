//! Regressions of retention and of deletions.

use millstream_base::{Offset, ProducerId, StreamletIndex};
use millstream_log::{LogError, StreamConfig};
use millstream_sim::{Operation, OperationKind};

use super::{append, opened, small_groups, unretained};
use crate::world::{World, lane_of};

#[test]
fn retention_keeps_the_file_that_holds_the_next_offset() {
    let mut world = opened();
    world.create("a", unretained());
    append(&mut world, "a", 60_000, None);
    world.log().persist();
    append(&mut world, "a", 100, None);
    world.retain();
    world.crash();
    world.finish();
}

#[test]
fn retention_takes_groups_out_of_the_list_before_it_removes_their_files() {
    let mut world = opened();
    world.create("a", unretained());
    for _ in 0..3 {
        append(&mut world, "a", 60_000, None);
    }
    world.log().persist();
    let before = world.disk.trace().len();
    world.retain();
    let operations = world.disk.trace().split_off(before);
    let is_list = |operation: &Operation| {
        let name = operation.path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("manifest"))
    };
    let removed = operations
        .iter()
        .filter(|operation| operation.kind == OperationKind::RemoveFile)
        .filter(|operation| operation.path.extension().is_some_and(|kind| kind == "log"));
    assert_eq!(removed.count(), 2);
    let first = operations
        .iter()
        .position(|operation| operation.kind == OperationKind::RemoveFile);
    let before = &operations[..first.expect("counted")];
    assert!(before.iter().any(is_list));
    let last = before.last().expect("the list");
    assert!(is_list(last) && last.kind == OperationKind::Sync, "{last}");

    // So a listed group without its file was lost.
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
fn reads_by_cursor_skip_records_deleted_within_a_group() {
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
    // A reader at the end of the deleted records gets no error.
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
fn deletions_of_a_removed_stream_do_not_apply_to_its_successor() {
    // The log removes the note after the stream, so after some of these crashes only the note is left.
    for crash_after in 1..40 {
        let mut world = opened();
        world.create("a", small_groups());
        append(&mut world, "a", 1_000, None);
        append(&mut world, "a", 1_000, None);
        world.delete_before("a", &[((0, 0), 1)]);
        // A clean end leaves no journal that names the stream.
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

#[test]
fn a_lane_knows_its_producers_after_a_removal_and_a_crash() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        assert!(world.open());
        world.create("a", unretained());
        let sent = world.make_chunk(1, 60_000, Some((1, 0, 0)));
        world.append("a", 0, sent.clone()).expect("no faults");
        for _ in 0..2 {
            append(&mut world, "a", 60_000, None);
        }
        world.log().persist();
        world.retain();
        let lane = world.stream("a").partition(0).expect("it has one");
        assert_eq!(lane.earliest_offset(), Offset(2), "its group is removed");
        world.crash();
        assert!(world.open());
        let lane = world
            .stream("a")
            .partition_for(StreamletIndex(0), ProducerId(1))
            .expect("it has one");
        let repeated = lane.append(&sent.bytes).expect("no faults");
        assert!(repeated.duplicate, "seed {seed}");
        assert_eq!(repeated.base_offset, Offset(0));
    }
}

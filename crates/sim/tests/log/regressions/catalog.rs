//! Regressions of the catalog, and of the other tables of the log.

use std::path::Path;

use millstream_base::StreamletIndex;

use super::{append, keep_old_journal, opened, small_groups};
use crate::world::World;

#[test]
fn a_new_stream_does_not_reuse_the_id_of_a_deleted_stream_with_positions() {
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    world.hand_out("a", 0, "one", 1);
    world.consume("a", "one");
    world.delete("a");
    // The catalog's change is durable; the change of the positions is not.
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
fn a_missing_catalog_is_reported_and_removes_no_stream() {
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

#[test]
fn a_commit_succeeds_although_the_table_cannot_be_compacted() {
    let mut world = opened();
    world.create("a", small_groups());
    append(&mut world, "a", 100, None);
    let application = world.log().shared_group("a", &"x".repeat(200));
    let application = application.expect("the stream exists");
    let cursors = application.next_groups(StreamletIndex(0), "one", 1);
    let cursor = cursors.expect("the streamlet exists")[0];
    application.commit("one", &cursor).expect("no faults");
    world.log().persist();
    // Only a compaction of the table changes the folder.
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
fn a_new_stream_does_not_reuse_the_id_of_a_deleted_stream_in_the_journal() {
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

#[test]
fn a_missing_catalog_is_reported_when_only_the_journal_holds_a_stream() {
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
    // The list gets the end of the journal's file.
    let files = |world: &World| {
        let mut files = world.disk.files();
        files.retain(|(path, _)| !path.ends_with("manifest"));
        files
    };
    let before = files(&world);
    let error = crate::world::open(&world.disk, &world.clock).expect_err("it is missing");
    assert!(error.to_string().contains("/data/streams/0"), "{error}");
    assert_eq!(files(&world), before);
}

#[test]
fn a_torn_catalog_removes_no_stream_of_the_journal() {
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
    let head = 4096;
    assert_eq!(stored.len(), head + chunks[0].bytes.len() + last.len());
    // The files are equal behind the base offset.
    assert!(stored.ends_with(&last[16..]));
}

/// The retained first file of a stream that the catalog has lost.
fn lost_file(world: &World, name: &str) -> Vec<u8> {
    let id = world.model.streams[name].id;
    let path = format!("/data/aside/lost.000001.{id}-0-0-0000000001-00000000000000000000-0001.log");
    world.disk.read_file(path).expect("it was moved there")
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

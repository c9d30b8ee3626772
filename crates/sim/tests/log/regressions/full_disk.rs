//! Regressions on a full disk.

use millstream_base::ByteSize;
use millstream_log::StreamConfig;

use super::{append, fill_up, opened, small_groups, write_until_full};
use crate::world::{World, lane_of};

#[test]
fn a_file_created_on_a_full_disk_keeps_its_name() {
    let mut world = opened();
    world.create("a", StreamConfig::default());
    world.close();
    assert!(world.open());
    // A chunk of this size goes straight to the file. The disk has room for the file's name, not for the chunk.
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
fn producers_are_known_after_a_start_without_room_for_an_index() {
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
fn the_stream_that_filled_the_disk_can_be_deleted() {
    let mut world = World::new(0);
    // In a smaller one the log writes to the files earlier, and refuses the appends.
    world.pool = ByteSize(64 << 20);
    assert!(world.open());
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
fn chunks_dropped_by_a_deletion_on_a_full_disk_are_not_acknowledged() {
    for seed in 0..10 {
        let mut world = World::new(seed);
        assert!(world.open());
        world.create("a", small_groups());
        for sequence in 0..3 {
            append(&mut world, "a", 60_000, Some((1, 0, sequence)));
        }
        // No journal file has room for the note of the deletion.
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
        // Removing the stream's files does not free enough room.
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

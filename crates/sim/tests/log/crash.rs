//! Crashes a few fixed scenarios at every operation, and opens the images that a crash may leave.

use std::time::Duration;

use millstream_base::{ByteSize, ProducerEpoch, ProducerId};
use millstream_log::{Durability, StreamConfig};
use millstream_record::{EndMarker, TransactionEnd};
use millstream_sim::SimDisk;

use crate::world::{World, open};

/// The number of images for each operation of a scenario.
const IMAGES_PER_OPERATION: usize = 3;

type Scenario = fn(&mut World);

const SCENARIOS: [(&str, Scenario); 12] = [
    ("journal commits", journal_commits),
    ("direct commits over several groups", direct_commits),
    ("writes over several groups", writes),
    ("a written stream deleted on a full disk", written_full_disk),
    ("a journal that is released and used again", journal_reuse),
    ("retention", retention),
    ("objects", objects),
    ("an application", application),
    ("streams that come, grow and go", streams),
    ("a stream deleted on a full disk", full_disk),
    ("transactions over several groups", transactions),
    ("deletions from the beginning of lanes", deletions),
];

#[test]
fn a_crash_at_any_operation_loses_nothing_acknowledged() {
    for (name, scenario) in SCENARIOS {
        let operations = operations_of(scenario);
        println!("{name}: {operations} operations");
        for crash_at in 1..=operations {
            let mut world = World::new(crash_at);
            world.disk.crash_at(crash_at);
            if world.open() {
                scenario(&mut world);
            }
            match crash_at % 4 {
                0 => world.kill(),
                _ => world.crash(),
            }
            world.finish();
        }
    }
}

#[test]
fn a_recovery_can_crash_at_any_operation_and_be_repeated() {
    for (name, scenario) in SCENARIOS {
        for crash_at in [operations_of(scenario), operations_of(scenario) / 2] {
            println!("{name}, crashed at {crash_at}");
            for recovery_crash_at in 1.. {
                let mut world = World::new(recovery_crash_at);
                world.disk.crash_at(crash_at);
                if world.open() {
                    scenario(&mut world);
                }
                world.crash();
                world.disk.crash_at(recovery_crash_at);
                let is_over = world.open() && !world.disk.has_crashed();
                world.crash();
                world.finish();
                if is_over {
                    break;
                }
            }
        }
    }
}

#[test]
fn every_crash_image_opens_and_a_second_start_finds_the_same_state() {
    for (name, scenario) in SCENARIOS {
        let mut world = World::new(1);
        world.disk.start_recording();
        assert!(world.open());
        scenario(&mut world);
        for image in world.disk.crash_images(IMAGES_PER_OPERATION, 7) {
            let at = format!("{name} after operation {}", image.operations);
            let stored = |disk: &SimDisk| {
                let log = open(disk, &world.clock).unwrap_or_else(|error| panic!("{at}: {error}"));
                let streams = log.stream_names().into_iter();
                streams
                    .map(|name| {
                        let info = log.stream(&name).expect("listed").info();
                        let lanes = info.partitions.into_iter();
                        let ends: Vec<_> = lanes
                            .map(|lane| {
                                assert_eq!(lane.fault, None, "{at}");
                                (lane.earliest, lane.durable)
                            })
                            .collect();
                        (name, ends)
                    })
                    .collect::<Vec<_>>()
            };
            let first = stored(&image.disk);
            let again = image.disk.crash(&mut world.rng);
            assert_eq!(first, stored(&again), "{at}");
        }
    }
}

fn operations_of(scenario: Scenario) -> u64 {
    let mut world = World::new(0);
    assert!(world.open());
    scenario(&mut world);
    world.disk.operations()
}

fn config() -> StreamConfig {
    StreamConfig {
        group_segments: 1,
        segment: ByteSize(128 << 10),
        ..StreamConfig::default()
    }
}

/// Appends a chunk and waits for it; does nothing if the stream was not created.
fn append(world: &mut World, name: &str, streamlet: u32, bytes: usize, producer: Option<i64>) {
    if !world.model.streams.contains_key(name) || world.disk.has_crashed() {
        return;
    }
    let producer = producer.map(|id| {
        let lanes = world.model.streams[name].lanes.values();
        let last = lanes
            .flat_map(|lane| lane.of_producer(id).next_back())
            .next();
        let next = last.map_or(0, |chunk| {
            let (.., sequence) = chunk.producer.expect("of this one");
            sequence + chunk.count as i32
        });
        (id, 0, next)
    });
    let chunk = world.make_chunk(1, bytes, producer);
    if let Some((lane, appended)) = world.append(name, streamlet, chunk) {
        world.acknowledge(name, &lane, &appended);
    }
}

fn journal_commits(world: &mut World) {
    world.create(
        "a",
        StreamConfig {
            lanes: 2,
            ..config()
        },
    );
    for n in 0..6 {
        append(world, "a", 0, 500, (n % 2 == 0).then_some(1));
    }
}

fn direct_commits(world: &mut World) {
    let durability = Durability::Async;
    world.create(
        "a",
        StreamConfig {
            durability,
            ..config()
        },
    );
    for _ in 0..3 {
        append(world, "a", 0, 10, Some(1));
        for _ in 0..3 {
            append(world, "a", 0, 100_000, Some(2));
        }
        world.log().sync_step();
        world.log().sync_step();
    }
    world.log().persist();
}

/// Two lanes with one virtual log, whose groups end at different times; some of it is synced.
fn writes(world: &mut World) {
    let durability = Durability::Written;
    world.create(
        "a",
        StreamConfig {
            durability,
            lanes: 2,
            ..config()
        },
    );
    for n in 0..12 {
        append(
            world,
            "a",
            0,
            if n % 3 == 0 { 100 } else { 45_000 },
            Some(n % 2),
        );
        if n % 5 == 4 {
            while world.log().step() {}
        }
        if n == 7 {
            world.log().persist();
        }
    }
}

fn written_full_disk(world: &mut World) {
    let durability = Durability::Written;
    world.create(
        "a",
        StreamConfig {
            durability,
            ..config()
        },
    );
    for _ in 0..5 {
        append(world, "a", 0, 45_000, Some(1));
    }
    if world.disk.has_crashed() || !world.model.streams.contains_key("a") {
        return;
    }
    let used = world.disk.files().iter().map(|(_, len)| len).sum();
    world.disk.set_capacity(used);
    world.faults.full = true;
    append(world, "a", 0, 45_000, Some(1));
    if !world.disk.has_crashed() {
        world.delete("a");
    }
}

fn journal_reuse(world: &mut World) {
    world.create(
        "a",
        StreamConfig {
            lanes: 2,
            ..config()
        },
    );
    world.create("b", config());
    for n in 0..12 {
        append(world, "a", 0, 60_000, Some(n % 2));
        append(world, "b", 0, 100, None);
        if n % 5 == 4 {
            world.log().persist();
        }
    }
}

fn retention(world: &mut World) {
    let retention = Some(ByteSize(150_000));
    world.create(
        "a",
        StreamConfig {
            retention,
            ..config()
        },
    );
    for n in 0..6 {
        append(world, "a", 0, 60_000, Some(1));
        if n == 3 {
            world.log().persist();
        }
    }
    if world.model.streams.contains_key("a") && !world.disk.has_crashed() {
        world.retain();
        world.set_retention("a", Some(1_000), None);
        world.clock.advance(Duration::from_secs(10));
        world.retain();
        append(world, "a", 0, 100, Some(1));
    }
}

fn objects(world: &mut World) {
    world.put_object("x", vec![1; 300_000]);
    world.put_object("y", vec![2; 100]);
    world.delete_object("x");
    world.put_object("x", vec![3; 10]);
}

fn application(world: &mut World) {
    world.create(
        "a",
        StreamConfig {
            lanes: 2,
            ..config()
        },
    );
    for _ in 0..4 {
        append(world, "a", 0, 60_000, None);
        if world.model.streams.contains_key("a") && !world.disk.has_crashed() {
            world.hand_out("a", 0, "one", 2);
            world.consume("a", "one");
        }
    }
}

fn streams(world: &mut World) {
    world.create("a", config());
    append(world, "a", 0, 100, Some(1));
    if world.model.streams.contains_key("a") && !world.disk.has_crashed() {
        world.grow("a", 2, 2);
    }
    append(world, "a", 0, 100, Some(1));
    world.log().persist();
    if world.model.streams.contains_key("a") && !world.disk.has_crashed() {
        world.delete("a");
    }
    if !world.disk.has_crashed() {
        world.create("a", config());
    }
    append(world, "a", 0, 100, Some(1));
}

fn transactions(world: &mut World) {
    let retention = Some(ByteSize(250_000));
    world.create(
        "a",
        StreamConfig {
            retention,
            ..config()
        },
    );
    for n in 0..10 {
        if !world.model.streams.contains_key("a") || world.disk.has_crashed() {
            return;
        }
        let id = 11 + n % 2;
        let (epoch, sequence) = world.model.streams["a"].lanes[&(0, 0)].next_of(id);
        let chunk = world.make_chunk_of(2, 40_000, Some((id, epoch, sequence)), true);
        world.append("a", 0, chunk);
        if n % 3 != 0 {
            continue;
        }
        let marker = EndMarker {
            producer_id: ProducerId(id),
            producer_epoch: ProducerEpoch(epoch + i16::from(n == 6)),
            end: match n % 2 {
                0 => TransactionEnd::Abort,
                _ => TransactionEnd::Commit,
            },
            coordinator_epoch: 0,
        };
        if let Some((lane, appended)) = world.append_marker("a", 0, marker) {
            world.acknowledge("a", &lane, &appended);
        }
        if n == 6 && !world.disk.has_crashed() {
            world.log().persist();
            world.retain();
        }
    }
}

fn deletions(world: &mut World) {
    let lanes = 2;
    world.create("a", StreamConfig { lanes, ..config() });
    for n in 0..8 {
        append(world, "a", 0, 60_000, None);
        if !world.model.streams.contains_key("a") || world.disk.has_crashed() {
            return;
        }
        match n {
            // Within the first groups, then over several, then all.
            2 => world.delete_before("a", &[((0, 0), 1)]),
            5 => world.delete_before("a", &[((0, 0), 3), ((0, 1), 2)]),
            6 => world.delete_before("a", &[((0, 0), 4)]),
            _ => {}
        }
    }
    if !world.disk.has_crashed() {
        world.delete("a");
    }
    if !world.disk.has_crashed() {
        world.create("a", config());
    }
    append(world, "a", 0, 100, None);
}

fn full_disk(world: &mut World) {
    for name in ["a", "b"] {
        let lanes = 2;
        world.create(name, StreamConfig { lanes, ..config() });
    }
    for _ in 0..6 {
        append(world, "a", 0, 60_000, None);
    }
    world.log().persist();
    for _ in 0..3 {
        append(world, "a", 0, 60_000, Some(1));
        append(world, "b", 0, 60_000, Some(1));
    }
    if world.disk.has_crashed() {
        return;
    }
    world.kill();
    let used = world.disk.files().iter().map(|(_, len)| len).sum();
    world.disk.set_capacity(used);
    world.faults.full = true;
    if world.open() && world.model.streams.contains_key("a") {
        world.delete("a");
    }
    append(world, "b", 0, 100, Some(1));
}

//! Runs random operations, faults, crashes and restarts.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_base::{ByteSize, ProducerEpoch, ProducerId, StreamletIndex};
use millstream_log::{Durability, StreamConfig};
use millstream_record::{EndMarker, TransactionEnd};
use millstream_sim::for_each_seed;

use crate::world::{World, lane_of};

const CASES: u64 = 10_000;
const LIVES_MAX: u32 = 3;
const STEPS_MAX: u32 = 30;
const NAMES: [&str; 3] = ["a", "b", "c"];
const OBJECTS: [&str; 2] = ["x", "y"];
const CONSUMERS: [&str; 2] = ["one", "two"];

#[test]
fn the_log_equals_a_model_that_never_crashed() {
    for_each_seed(CASES, run);
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..world.rng.u32(1..=LIVES_MAX) {
        let is_founded = !world.model.streams.is_empty();
        if is_founded && world.rng.u8(..4) == 0 {
            world.fill_disk();
        }
        world.pool = ByteSize((1 << 20) << world.rng.u32(..3));
        if world.rng.u8(..4) == 0 {
            world.disk.crash_at(world.rng.u64(1..60));
        }
        if world.rng.u8(..3) == 0 {
            world.damage_key_files();
        }
        if world.open() {
            if !world.disk.has_crashed() && world.rng.bool() {
                world.disk.crash_at(world.rng.u64(1..300));
            }
            for _ in 0..world.rng.u32(1..=STEPS_MAX) {
                step(&mut world);
                if world.disk.has_crashed() {
                    break;
                }
            }
        }
        match world.rng.u8(..4) {
            _ if world.disk.has_crashed() => world.crash(),
            0 => world.kill(),
            1 if world.log.is_some() => world.close(),
            _ => world.crash(),
        }
    }
    world.finish();
}

fn step(world: &mut World) {
    let streams = world.lanes();
    if streams.is_empty() {
        return create(world);
    }
    let (name, key) = streams[world.rng.usize(..streams.len())].clone();
    match world.rng.u8(..100) {
        0..=4 => create(world),
        5..=29 => append(world, &name, key.0),
        30..=39 => transact(world, &name, key.0),
        40..=44 => {
            for _ in 0..3 {
                append_large(world, &name, key.0);
            }
        }
        45..=48 => world.check_lane(&name, key),
        49..=50 => world.check_keys(&name, key),
        51 => world.check_seek(&name, key),
        52 => world.check_transactions(&name, key),
        53..=54 => world.check_fetch(&name, key),
        55..=66 => background(world),
        67..=69 => world.retain(),
        70..=75 => {
            let consumer = CONSUMERS[world.rng.usize(..2)];
            let groups_max = world.rng.usize(1..4);
            world.hand_out(&name, key.0, consumer, groups_max);
            world.consume(&name, consumer);
        }
        76..=79 => {
            let consumer = CONSUMERS[world.rng.usize(..2)];
            match world.rng.u8(..4) {
                0 => world.release(&name, consumer),
                _ => world.consume(&name, consumer),
            }
        }
        80..=83 => object(world),
        84..=85 => {
            let config = world.model.streams[&name].config.clone();
            let streamlets = config.streamlets + world.rng.u32(..2);
            let lanes = config.lanes + world.rng.u32(..2);
            // Keyed streams do not grow, but others become keyed later.
            if world.rng.u8(..4) > 0 {
                world.alter(&name, |config| config.settings.extend([policy("delete")]));
            }
            world.grow(&name, streamlets.min(3), lanes.min(3));
        }
        86..=87 => {
            let age_ms = world.rng.bool().then(|| world.rng.u64(..20_000));
            let bytes = world.rng.bool().then(|| world.rng.u64(..200_000));
            match world.rng.bool() {
                true => world.set_retention(&name, age_ms, bytes),
                false => alter(world, &name),
            }
        }
        88 => world.delete(&name),
        89 => world.delete_some(&name, key),
        90..=93 => world
            .clock
            .advance(Duration::from_secs(world.rng.u64(..15))),
        _ => fault(world),
    }
}

fn create(world: &mut World) {
    let free = |name: &&&str| {
        let known = world.model.streams.get(**name);
        known.is_none_or(|known| known.maybe_deleted)
    };
    let Some(name) = NAMES.iter().find(free) else {
        return;
    };
    let rng = &mut world.rng;
    let config = StreamConfig {
        streamlets: rng.u32(1..3),
        lanes: rng.u32(1..3),
        virtual_logs: rng.u32(1..3),
        durability: match rng.u8(..10) {
            0..=4 => Durability::Sync,
            5..=6 => Durability::Written,
            7..=8 => Durability::Async,
            _ => Durability::Memory,
        },
        group_segments: rng.u32(1..3),
        segment: ByteSize(65_536 << rng.u32(..3)),
        retention: rng.bool().then(|| ByteSize(rng.u64(..200_000))),
        retention_ms: rng.bool().then(|| rng.u64(..20_000)),
        chunk_bytes_max: None,
        settings: BTreeMap::from([policy("compact,delete")]),
    };
    world.create(name, config);
}

fn alter(world: &mut World, name: &str) {
    let rng = &mut world.rng;
    let group_segments = rng.u32(1..3);
    let segment = ByteSize(65_536 << rng.u32(..3));
    let chunk_bytes_max = rng.bool().then(|| ByteSize(rng.u64(1_000..100_000)));
    // A quarter of the streams are not keyed.
    let setting = format!(
        "delete,{}",
        ["compact", "compact", "compact", ""][rng.usize(..4)]
    );
    world.alter(name, |config| {
        config.group_segments = group_segments;
        config.segment = segment;
        config.chunk_bytes_max = chunk_bytes_max;
        let settings = &mut config.settings;
        settings.extend([policy(&setting)]);
    });
}

fn policy(policy: &str) -> (String, String) {
    ("cleanup.policy".to_owned(), policy.to_owned())
}

fn append(world: &mut World, name: &str, streamlet: u32) {
    let bytes = match world.rng.u8(..20) {
        0 => world.rng.usize(1..300_000),
        1..=3 => world.rng.usize(1..60_000),
        _ => world.rng.usize(1..2_000),
    };
    let count = world.rng.u64(1..5);
    let producer = world
        .rng
        .bool()
        .then(|| pick_producer(world, name, streamlet));
    // A retry sends the same chunk again.
    let sent = producer.and_then(|producer| {
        let lanes = world.model.streams[name].lanes.iter();
        let mut chunks = lanes
            .filter(|((n, _), _)| *n == streamlet)
            .flat_map(|(_, lane)| &lane.chunks);
        chunks
            .find(|chunk| chunk.producer == Some(producer))
            .cloned()
    });
    let chunk = match sent {
        Some(chunk) => chunk,
        None => world.make_chunk(count, bytes, producer),
    };
    if let Some((lane, appended)) = world.append(name, streamlet, chunk)
        && world.rng.bool()
    {
        world.acknowledge(name, &lane, &appended);
    }
}

/// Continues or ends the transaction of one of three producers.
fn transact(world: &mut World, name: &str, streamlet: u32) {
    let id = world.rng.i64(11..14);
    let stream = world.stream(name);
    let lane = stream.partition_for(StreamletIndex(streamlet), ProducerId(id));
    let lane = lane.expect("it exists").id().lane.0;
    let model = &world.model.streams[name].lanes[&(streamlet, lane)];
    let (epoch, sequence) = model.next_of(id);
    let appended = if world.rng.u8(..5) < 3 {
        let bytes = match world.rng.u8(..10) {
            0 => world.rng.usize(1..60_000),
            _ => world.rng.usize(1..2_000),
        };
        let count = world.rng.u64(1..5);
        let chunk = world.make_chunk_of(count, bytes, Some((id, epoch, sequence)), true);
        world.append(name, streamlet, chunk)
    } else {
        let marker = EndMarker {
            producer_id: ProducerId(id),
            producer_epoch: ProducerEpoch(epoch + i16::from(world.rng.u8(..4) == 0)),
            end: match world.rng.bool() {
                true => TransactionEnd::Commit,
                false => TransactionEnd::Abort,
            },
            coordinator_epoch: 0,
        };
        world.append_marker(name, streamlet, marker)
    };
    if let Some((lane, appended)) = appended
        && world.rng.bool()
    {
        world.acknowledge(name, &lane, &appended);
    }
}

/// Draws the next sequence of a producer, an earlier one, or a wrong one.
fn pick_producer(world: &mut World, name: &str, streamlet: u32) -> (i64, i16, i32) {
    let id = world.rng.i64(1..4);
    let lanes = world.model.streams[name].lanes.iter();
    let known: Vec<((i64, i16, i32), u64)> = lanes
        .filter(|((n, _), _)| *n == streamlet)
        .flat_map(|(_, lane)| lane.of_producer(id))
        .map(|chunk| (chunk.producer.expect("of this one"), chunk.count))
        .collect();
    let Some(&((_, epoch, sequence), count)) = known.last() else {
        return (id, 0, 0);
    };
    match world.rng.u8(..10) {
        0..=4 => (id, epoch, sequence + count as i32),
        5..=7 => {
            let back = world.rng.usize(..known.len().min(7));
            known[known.len() - 1 - back].0
        }
        8 => (id, epoch + 1, 0),
        _ => match world.rng.bool() {
            true => (id, epoch, sequence + count as i32 + 1),
            false => (id, (epoch - 1).max(0), 0),
        },
    }
}

/// The size of a chunk; several of them make a lane busy enough for a commit of its own.
fn append_large(world: &mut World, name: &str, streamlet: u32) {
    let bytes = world.rng.usize(90_000..200_000);
    let segment = world.model.streams[name].config.segment.as_usize();
    let chunk = world.make_chunk(2, bytes.min(segment - 1_000), None);
    world.append(name, streamlet, chunk);
}

fn background(world: &mut World) {
    let step = world.rng.u8(..6);
    world.note(format!("background {step}"));
    match step {
        0 | 1 => {
            world.log().sync_step();
        }
        2 => {
            world.log().step();
        }
        3 => world.log().persist(),
        4 => world.log().evict(),
        _ => {
            world.clock.advance(Duration::from_secs(11));
            world.log().release_idle();
        }
    }
    // Consumers may have seen all durable records.
    if let Some((name, key)) = world.lanes().first() {
        let durable = lane_of(&world.stream(name), *key).durable_offset().0;
        let stream = world.model.streams.get_mut(name).expect("listed");
        let lane = stream.lanes.get_mut(key).expect("listed");
        lane.acknowledged = lane.acknowledged.max(durable);
    }
}

fn object(world: &mut World) {
    let name = OBJECTS[world.rng.usize(..OBJECTS.len())];
    match world.rng.u8(..4) {
        0 => world.delete_object(name),
        1 => world.check_object(name),
        _ => {
            let bytes = match world.rng.u8(..5) {
                0 => world.rng.usize(..600_000),
                _ => world.rng.usize(..3_000),
            };
            let content = vec![world.rng.u8(..); bytes];
            world.put_object(name, content);
        }
    }
}

fn fault(world: &mut World) {
    const PLACES: [&str; 4] = ["journal", ".log", "streams", ""];
    let fault = world.rng.u8(..6);
    world.note(format!("fault {fault}"));
    match fault {
        0 | 1 => world.fill_disk(),
        2 | 3 => {
            world.disk.set_capacity(u64::MAX);
            while world.log().step() {}
            let is_full = world.log().stats().disk_full;
            assert!(!is_full || world.faults.failing || world.disk.has_crashed());
            world.faults.full = is_full;
        }
        4 => {
            let place = PLACES[world.rng.usize(..PLACES.len())];
            let is_there = move |path: &std::path::Path| path.to_string_lossy().contains(place);
            world.disk.fail_next_sync(is_there);
            world.faults.failing = true;
        }
        _ => {
            let place = PLACES[world.rng.usize(..PLACES.len())];
            let left = std::sync::atomic::AtomicU32::new(world.rng.u32(1..4));
            world.disk.fail_writes(move |path| {
                let matches = path.to_string_lossy().contains(place);
                matches
                    && left
                        .fetch_update(
                            std::sync::atomic::Ordering::Relaxed,
                            std::sync::atomic::Ordering::Relaxed,
                            |left| left.checked_sub(1),
                        )
                        .is_ok()
            });
            world.faults.failing = true;
        }
    }
}

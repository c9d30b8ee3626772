//! Leader epochs: a consumer that has read records which a crash or a repair lost gets an error (KIP-320).

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_base::{ByteSize, Offset};
use millstream_log::{Durability, InternalStore, Log, StreamConfig, StreamPartition, salvage};
use millstream_record::Chunks;
use millstream_sim::{SimRandom, for_each_seed};

use crate::world::{World, open};

const CASES: u64 = 300;

fn config(durability: Durability) -> StreamConfig {
    StreamConfig {
        durability,
        group_segments: 1,
        segment: ByteSize(64 << 10),
        ..StreamConfig::default()
    }
}

fn lane(log: &Log) -> StreamPartition {
    let stream = log.stream("a").expect("it was created");
    stream.partition(0).expect("it has one")
}

fn append(world: &mut World, bytes: usize) -> Offset {
    let chunk = world.make_chunk(1, bytes, None);
    let lane = lane(world.log());
    let appended = lane.append(&chunk.bytes).expect("no faults");
    lane.acknowledge(&appended).expect("no faults");
    appended.next_offset
}

/// The chunks that consumers may read, by the offsets behind them: leader epoch and checksum of each.
fn chunks(lane: &StreamPartition) -> BTreeMap<u64, (i32, u32)> {
    let mut found = BTreeMap::new();
    let mut at = lane.earliest_offset();
    let end = lane.high_watermark();
    while at < end {
        let fetched = lane.fetch(at, end, 1 << 20, millstream_log::AtLeast::OneChunk);
        let fetched = fetched.expect("nothing is damaged");
        let pieces = fetched.pieces.iter();
        for chunk in pieces.flat_map(|piece| Chunks::trusted(piece)) {
            let chunk = chunk.expect("checked");
            let bytes = chunk.bytes();
            let epoch = i32::from_be_bytes(bytes[12..16].try_into().expect("4 bytes"));
            at = chunk.header().next_offset();
            found.insert(at.0, (epoch, millstream_base::crc32c(&bytes[16..])));
        }
    }
    found
}

/// A consumer's position: the offset behind the last record that it has read, and that record's chunk.
#[derive(Debug, Clone, Copy)]
struct Position {
    offset: u64,
    epoch: i32,
    crc: u32,
}

#[test]
fn only_a_consumer_of_lost_records_gets_a_truncation_error() {
    for_each_seed(CASES, |seed| {
        let mut world = World::new(seed);
        let durability = match world.rng.u8(..4) {
            0 => Durability::Sync,
            1 => Durability::Async,
            _ => Durability::Written,
        };
        world.log = Some(open(&world.disk, &world.clock).expect("no faults"));
        let log = world.log();
        let created = log.create_stream("a", config(durability));
        created.expect("no faults");
        append(&mut world, 100);
        let first = lane(world.log());
        first.wait_durable(Offset(1)).expect("no faults");
        let mut positions: Vec<Position> = Vec::new();
        for _ in 0..world.rng.u32(3..9) {
            for _ in 0..world.rng.u32(0..6) {
                let bytes = [50, 5_000, 30_000][world.rng.usize(..3)];
                append(&mut world, bytes);
                if world.rng.u8(..3) == 0 {
                    while world.log().step() {}
                }
            }
            let lane = lane(world.log());
            let epoch = lane.leader_epoch();
            let now = chunks(&lane);
            for (offset, (epoch, crc)) in now {
                assert_eq!(lane.leader_epoch_at(Offset(offset - 1)), epoch);
                positions.push(Position { offset, epoch, crc });
            }
            drop(lane);
            let log = world.log.take().expect("it is open");
            let (is_clean, is_kill) = (world.rng.u8(..4) == 0, world.rng.bool());
            match is_clean {
                true => log.close().expect("no faults"),
                false => {
                    world.disk = match is_kill {
                        true => world.disk.kill(),
                        false => world.disk.crash(&mut world.rng),
                    };
                    drop(log);
                }
            }
            // A start that a crash interrupts.
            if !is_clean && world.rng.u8(..3) == 0 {
                world.disk.crash_at(world.rng.u64(1..20));
                drop(open(&world.disk, &world.clock));
                world.disk = world.disk.crash(&mut world.rng);
            }
            world.log = Some(open(&world.disk, &world.clock).expect("no damage"));
            check(&world, &mut positions);
            let raised = self::lane(world.log()).leader_epoch() - epoch;
            match (durability, is_clean) {
                (Durability::Sync, _) | (_, true) => assert_eq!(raised, 0),
                _ => assert!(raised > 0),
            }
        }
    });
}

/// Asks for each position, as a consumer does, and lets those go on at the end of their epochs that are behind it.
fn check(world: &World, positions: &mut Vec<Position>) {
    let lane = lane(world.log());
    let stored = chunks(&lane);
    positions.retain(|position| {
        let (epoch, end) = lane.epoch_end(position.epoch).expect("a known epoch");
        assert!(epoch <= position.epoch);
        let is_there = stored.get(&position.offset) == Some(&(position.epoch, position.crc));
        let is_told = end.0 < position.offset;
        assert_eq!(is_there, !is_told, "{position:?}: {epoch} ends at {end}");
        is_there
    });
}

#[test]
fn a_consumer_learns_of_lost_records_after_new_ones_took_their_offsets() {
    let mut told = 0;
    for seed in 0..50 {
        let mut world = World::new(seed);
        world.log = Some(open(&world.disk, &world.clock).expect("no faults"));
        let created = world.log().create_stream("a", config(Durability::Written));
        created.expect("no faults");
        for _ in 0..10 {
            append(&mut world, 1_000);
        }
        world.disk = world.disk.crash(&mut world.rng);
        world.log = Some(open(&world.disk, &world.clock).expect("no damage"));
        let left = lane(world.log()).high_watermark();
        for _ in 0..20 {
            append(&mut world, 10);
        }
        let lane = lane(world.log());
        // A lane of which nothing is left is not known to have had anything.
        if left == Offset(0) {
            continue;
        }
        assert_eq!(lane.epoch_end(0), Some((0, left)));
        assert_eq!(lane.epoch_end(1), Some((1, lane.high_watermark())));
        assert_eq!(lane.epoch_end(2), None);
        told += u32::from(left < Offset(10));
    }
    assert!(told > 5, "{told}");
}

#[test]
fn a_repair_raises_the_epoch_where_it_truncates() {
    let mut world = World::new(1);
    world.log = Some(open(&world.disk, &world.clock).expect("no faults"));
    let created = world.log().create_stream("a", config(Durability::Sync));
    created.expect("no faults");
    for _ in 0..4 {
        append(&mut world, 1_000);
    }
    let log = world.log.take().expect("it is open");
    let id = log.stream("a").expect("it was created").id();
    log.close().expect("no faults");
    let path = format!("/data/streams/{id}/0-0-0000000001-00000000000000000000-0001.log");
    world
        .disk
        .flip_bit(&path, 8 * (4096 + 2_500))
        .expect("it exists");
    let log = open(&world.disk, &world.clock).expect("only a user's stream is damaged");
    log.truncate_stream("a").expect("no faults");
    for _ in 0..2 {
        let log = open(&world.disk, &world.clock).expect("it is whole");
        let lane = lane(&log);
        assert_eq!(lane.leader_epoch(), 1);
        assert_eq!(lane.epoch_end(0), Some((0, Offset(2))));
        log.close().expect("no faults");
    }
    // A file that begins then says so.
    world.log = Some(open(&world.disk, &world.clock).expect("it is whole"));
    append(&mut world, 100);
    world.log().persist();
    let lane = lane(world.log());
    assert_eq!(
        chunks(&lane).last_key_value().map(|(_, chunk)| chunk.0),
        Some(1)
    );
}

#[test]
fn a_rebuilt_list_of_files_has_the_epochs_of_the_chunks() {
    for crashes in 1..4 {
        let mut world = World::new(crashes);
        world.log = Some(open(&world.disk, &world.clock).expect("no faults"));
        let created = world.log().create_stream("a", config(Durability::Written));
        created.expect("no faults");
        append(&mut world, 30_000);
        let restart = |world: &mut World| {
            world.disk = world.disk.kill();
            world.log = Some(open(&world.disk, &world.clock).expect("no damage"));
        };
        let mut ends = Vec::new();
        for _ in 0..crashes {
            restart(&mut world);
            // It is in the group before, of which only the head is read.
            ends.push(append(&mut world, 10));
            // It begins a group.
            append(&mut world, 40_000);
        }
        let end = ends.last().expect("one at least").plus(1);
        restart(&mut world);
        // It is in the last group.
        ends.extend([end, append(&mut world, 10)]);
        world.disk = world.disk.kill();
        world.log = None;
        world.disk.remove("/data/manifest").expect("it exists");
        let disk = Arc::new(world.disk.clone());
        let random = Arc::new(SimRandom::new(1));
        salvage(
            &crate::world::config(),
            disk,
            random,
            InternalStore::Manifest,
        )
        .expect("no faults");
        let log = open(&world.disk, &world.clock).expect("it is whole");
        let lane = lane(&log);
        // This start raised it, too.
        assert_eq!(lane.leader_epoch(), crashes as i32 + 2);
        for (epoch, end) in (0..).zip(ends) {
            assert_eq!(lane.epoch_end(epoch), Some((epoch, end)));
        }
    }
}

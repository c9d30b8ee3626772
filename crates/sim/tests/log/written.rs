//! Streams of durability `written`: the log acknowledges a chunk once it is in the file, before the sync.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use millstream_base::{ByteSize, Offset, SystemClock, SystemRandom, Timestamp};
use millstream_log::{
    Appended, Background, Durability, Log, LogConfig, LogError, StreamConfig, StreamPartition,
};
use millstream_record::{ChunkBuilder, Compression};
use millstream_sim::{OperationKind, SimDisk};
use parking_lot::Mutex;
use std::collections::HashMap;

use crate::world::{World, config, lane_of};

/// A step that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Equals `UNSYNCED_BYTES_MAX` of the log.
const UNSYNCED_BYTES_MAX: u64 = 8 << 20;

fn written() -> StreamConfig {
    StreamConfig {
        durability: Durability::Written,
        ..StreamConfig::default()
    }
}

/// Groups with room for one chunk of 45,000 bytes each.
fn small_groups() -> StreamConfig {
    StreamConfig {
        group_segments: 1,
        segment: ByteSize(64 << 10),
        ..written()
    }
}

fn opened(config: StreamConfig) -> World {
    let mut world = World::new(0);
    world.pool = ByteSize(64 << 20);
    assert!(world.open());
    world.create("a", config);
    world
}

/// Appends a chunk, and runs the background work until its acknowledgement.
fn append(world: &mut World, bytes: usize) -> StreamPartition {
    let chunk = world.make_chunk(1, bytes, None);
    let (lane, appended) = world.append("a", 0, chunk).expect("no faults");
    assert!(world.acknowledge("a", &lane, &appended));
    lane
}

#[test]
fn a_kill_loses_no_acknowledged_chunk_even_before_a_sync() {
    let mut world = opened(written());
    for _ in 0..10 {
        let lane = append(&mut world, 1_000);
        assert_eq!(lane.durable_offset(), Offset(0));
    }
    world.kill();
    assert!(world.open());
    let lane = lane_of(&world.stream("a"), (0, 0));
    assert_eq!(lane.durable_offset(), Offset(10));
    // The start has synced it.
    world.crash();
    assert!(world.open());
    let lane = lane_of(&world.stream("a"), (0, 0));
    assert_eq!(lane.durable_offset(), Offset(10));
    world.crash();
    world.finish();
}

#[test]
fn a_loss_of_power_leaves_synced_chunks_and_whole_chunks_behind_them() {
    let mut lost = 0;
    for seed in 0..50 {
        let mut world = World::new(seed);
        assert!(world.open());
        world.create("a", written());
        for _ in 0..5 {
            append(&mut world, 1_000);
        }
        let lane = lane_of(&world.stream("a"), (0, 0));
        lane.wait_durable(Offset(5)).expect("no faults");
        for _ in 0..5 {
            append(&mut world, 20_000);
        }
        assert_eq!(
            (lane.durable_offset(), lane.high_watermark()),
            (Offset(5), Offset(10))
        );
        world.crash();
        // Compares the remaining chunks with the sent ones.
        assert!(world.open());
        let end = lane_of(&world.stream("a"), (0, 0)).durable_offset().0;
        assert!((5..=10).contains(&end), "{end}");
        lost += 10 - end;
        world.crash();
        world.finish();
    }
    assert!(lost > 0, "no cut has cost anything");
}

#[test]
fn unsynced_bytes_stay_below_the_limit_of_a_torn_end() {
    let mut world = opened(written());
    for _ in 0..150 {
        append(&mut world, 150_000);
    }
    let mut unsynced: HashMap<_, u64> = HashMap::new();
    let mut most = 0;
    for operation in world.disk.trace() {
        let is_group = operation.path.extension().is_some_and(|kind| kind == "log");
        match operation.kind {
            OperationKind::Write { len, .. } if is_group => {
                let unsynced = unsynced.entry(operation.path).or_default();
                *unsynced += len;
                most = most.max(*unsynced);
            }
            OperationKind::Sync => drop(unsynced.remove(&operation.path)),
            OperationKind::SyncTree => unsynced.clear(),
            _ => {}
        }
    }
    assert!(most <= UNSYNCED_BYTES_MAX, "{most} bytes");
    assert!(most > UNSYNCED_BYTES_MAX / 2, "{most} bytes");
    world.crash();
    assert!(world.open());
    let end = lane_of(&world.stream("a"), (0, 0)).durable_offset().0;
    assert!(end >= 150 - UNSYNCED_BYTES_MAX / 150_000 - 1, "{end}");
    world.crash();
    world.finish();
}

#[test]
fn a_group_is_synced_whole_before_the_next_one_has_a_byte() {
    let mut world = opened(small_groups());
    world.disk.start_recording();
    for _ in 0..6 {
        append(&mut world, 45_000);
    }
    assert_eq!(lane_of(&world.stream("a"), (0, 0)).info().groups, 6);
    let mut unsynced = None;
    for operation in world.disk.trace() {
        let is_group = operation.path.to_string_lossy().contains("/16/0-0-")
            && operation.path.extension().is_some_and(|kind| kind == "log");
        match operation.kind {
            OperationKind::Create | OperationKind::Write { .. } if is_group => {
                let other = unsynced.replace(operation.path.clone());
                assert!(
                    other.is_none_or(|other| other == operation.path),
                    "{operation}"
                );
            }
            OperationKind::Sync if unsynced.as_ref() == Some(&operation.path) => unsynced = None,
            OperationKind::SyncTree => unsynced = None,
            _ => {}
        }
    }
    for image in world.disk.crash_images(5, 1) {
        let log = crate::world::open(&image.disk, &world.clock).expect("no damage");
        let lanes = log.stream("a").map(|stream| stream.info().partitions);
        for lane in lanes.into_iter().flatten() {
            assert_eq!(lane.fault, None, "after {} operations", image.operations);
        }
    }
}

#[test]
fn a_failed_sync_stops_the_lane_but_loses_no_acknowledged_chunk() {
    let mut world = opened(written());
    for _ in 0..3 {
        append(&mut world, 1_000);
    }
    let is_group = |path: &Path| path.extension().is_some_and(|kind| kind == "log");
    world.disk.fail_next_sync(is_group);
    let lane = lane_of(&world.stream("a"), (0, 0));
    let failed = lane.wait_durable(Offset(3));
    assert!(
        matches!(failed, Err(LogError::PartitionFault { .. })),
        "{failed:?}"
    );
    assert_eq!(lane.durable_offset(), Offset(0));
    let chunk = world.make_chunk(1, 100, None);
    let refused = lane.append(&chunk.bytes);
    assert!(
        matches!(refused, Err(LogError::PartitionFault { .. })),
        "{refused:?}"
    );
    world.kill();
    assert!(world.open());
    let lane = lane_of(&world.stream("a"), (0, 0));
    assert_eq!(lane.durable_offset(), Offset(3));
    world.crash();
    world.finish();
}

#[test]
fn a_failed_write_of_one_lane_does_not_stop_its_virtual_log() {
    let lanes = 3;
    let world = opened(StreamConfig { lanes, ..written() });
    let mut world = world;
    let fails = |path: &Path| path.to_string_lossy().contains("/16/0-1-");
    world.disk.fail_writes(fails);
    let stream = world.stream("a");
    let sent: Vec<_> = (0..lanes)
        .map(|n| {
            let lane = stream.partition(n).expect("it has three");
            let chunk = world.make_chunk(1, 1_000, None);
            let appended = lane.append(&chunk.bytes).expect("it is in memory");
            (lane, appended)
        })
        .collect();
    let answers: Vec<bool> = sent
        .iter()
        .map(|(lane, appended)| lane.acknowledge(appended).is_ok())
        .collect();
    assert_eq!(answers, [true, false, true]);
    let durable = |n: usize| sent[n].0.wait_durable(Offset(1));
    assert!(durable(0).is_ok() && durable(2).is_ok() && durable(1).is_err());
}

#[test]
fn a_full_disk_refuses_chunks_until_there_is_room() {
    let mut world = opened(written());
    append(&mut world, 1_000);
    let used = world.disk.files().iter().map(|(_, len)| len).sum();
    world.disk.set_capacity(used);
    world.faults.full = true;
    let chunk = world.make_chunk(1, 50_000, None);
    let (lane, appended) = world.append("a", 0, chunk).expect("it is in memory");
    let refused = lane.acknowledge(&appended);
    assert!(
        matches!(refused, Err(LogError::DiskFull { .. })),
        "{refused:?}"
    );
    assert_eq!(lane.high_watermark(), Offset(1));
    // The syncer syncs the chunk that is in the file although the disk is full.
    while world.log().step() {}
    assert_eq!(lane.durable_offset(), Offset(1));
    world.disk.set_capacity(u64::MAX);
    while world.log().step() {}
    world.faults.full = false;
    assert!(world.acknowledge("a", &lane, &appended));
    world.crash();
    world.finish();
}

/// Blocks the syncs of groups' files while its lock is taken.
#[derive(Default)]
struct Gate {
    lock: Mutex<()>,
    /// The number of syncs that have reached the gate.
    came: AtomicUsize,
}

fn open_with_threads() -> (Log, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let gate_of_syncs = Arc::clone(&gate);
    let disk = SimDisk::new(0);
    disk.before_file_operations(move |path, kind| {
        if *kind == OperationKind::Sync && path.to_string_lossy().contains("/16/") {
            gate_of_syncs.came.fetch_add(1, Ordering::SeqCst);
            drop(gate_of_syncs.lock.lock());
        }
    });
    let config = LogConfig {
        background: Background::Threads,
        ..config()
    };
    let clock = Arc::new(SystemClock::default());
    let log = Log::open_on(config, Arc::new(disk), clock, Arc::new(SystemRandom));
    (log.expect("no faults"), gate)
}

fn append_one(lane: &StreamPartition) -> Appended {
    let mut builder = ChunkBuilder::new(Compression::None);
    let pushed = builder.push(Timestamp(0), None, Some(b"value"), &[]);
    pushed.expect("far below the format's bound");
    let chunk = builder.finish(None).expect("it has a record");
    lane.append(chunk).expect("no faults")
}

/// Appends a record, and waits for its acknowledgement.
fn send(lane: &StreamPartition) -> Offset {
    let appended = append_one(lane);
    lane.acknowledge(&appended).expect("no faults");
    appended.next_offset
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn producers_get_acknowledgements_while_the_file_is_synced() {
    let (log, gate) = open_with_threads();
    let stream = log.create_stream("a", written()).expect("no faults");
    let lane = stream.partition(0).expect("it has one");
    // The file's name is durable before its first byte.
    lane.wait_durable(send(&lane)).expect("no faults");
    let synced = gate.came.load(Ordering::SeqCst);
    let closed = gate.lock.lock();
    let first = send(&lane);
    let (answered, answers) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| lane.wait_durable(first).expect("no faults"));
        wait_until("the file is synced", || {
            gate.came.load(Ordering::SeqCst) > synced
        });
        scope.spawn(|| answered.send(send(&lane)));
        let second = answers.recv_timeout(TIMEOUT);
        let durable = lane.durable_offset();
        drop(closed);
        assert_eq!(second, Ok(Offset(3)), "no answer during a sync");
        assert_eq!(durable, Offset(1));
    });
    lane.wait_durable(Offset(3)).expect("no faults");
    log.close().expect("no faults");
}

#[test]
fn written_chunks_are_synced_without_a_waiting_producer() {
    let (log, _) = open_with_threads();
    let stream = log.create_stream("a", written()).expect("no faults");
    let lane = stream.partition(0).expect("it has one");
    for _ in 0..3 {
        let end = send(&lane);
        wait_until("it is durable", || lane.durable_offset() >= end);
    }
}

#[test]
fn a_wait_for_durability_does_not_wait_for_the_timer() {
    const ROUNDS: u32 = 20;
    let (log, _) = open_with_threads();
    let stream = log.create_stream("a", written()).expect("no faults");
    let lane = stream.partition(0).expect("it has one");
    let started = Instant::now();
    for round in 0..ROUNDS {
        // The wait also covers chunks that are not written yet.
        let end = match round % 2 {
            0 => send(&lane),
            _ => append_one(&lane).next_offset,
        };
        lane.wait_durable(end).expect("no faults");
    }
    // With the timer, each wait would take a second.
    assert!(started.elapsed() < Duration::from_secs(1) * ROUNDS / 4);
}

//! Subscriptions: the chunks that they hand out, and their wake-ups.

mod committed;
mod filters;
mod lanes;
mod shared_groups;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use millstream_base::{ByteSize, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_log::{
    Background, Handed, Log, LogConfig, Next, Stream, StreamConfig, StreamPartition, Subscription,
};
use millstream_record::{ChunkBuilder, Chunks, Compression, Decompressor, Producer};
use tempfile::{TempDir, tempdir};

fn open(dir: &Path) -> Log {
    Log::open(LogConfig {
        background: Background::Manual,
        ..LogConfig::with_pool(dir, ByteSize(16 << 20))
    })
    .unwrap()
}

/// A stream `s` with groups of 64 KiB.
fn with_stream(lanes: u32) -> (TempDir, Log, Stream) {
    let dir = tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(lanes)).unwrap();
    (dir, log, stream)
}

/// Groups of 64 KiB.
fn small_groups(lanes: u32) -> StreamConfig {
    StreamConfig {
        segment: ByteSize(64 << 10),
        group_segments: 1,
        lanes,
        ..StreamConfig::default()
    }
}

fn chunk(producer: Option<(i64, i32)>, is_transactional: bool, value: &[u8]) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(Compression::None);
    builder.set_transactional(is_transactional);
    builder.push(Timestamp(5), None, Some(value), &[]).unwrap();
    let producer = producer.map(|(id, sequence)| Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(0),
        sequence: Sequence(sequence),
    });
    builder.finish(producer).unwrap().to_vec()
}

fn append(log: &Log, lane: &StreamPartition, value: &[u8]) {
    lane.append(&chunk(None, false, value)).unwrap();
    while log.step() {}
}

/// The values that are there now, by place. Checks that offsets are handed out without gaps.
fn values(subscription: &mut Subscription) -> Vec<(u32, Vec<u8>)> {
    let mut values = Vec::new();
    let mut decompressor = Decompressor::default();
    loop {
        match subscription.next(3_000).unwrap() {
            Next::Handed(handed) => {
                assert!(handed.from < handed.next && handed.next <= handed.end);
                for chunk in Chunks::new(&handed.chunks.bytes) {
                    let chunk = chunk.unwrap();
                    if chunk.header().attributes.is_control() {
                        continue;
                    }
                    for record in chunk.records(&mut decompressor).unwrap() {
                        let record = record.unwrap();
                        if record.offset >= handed.from {
                            assert!(record.offset < handed.next);
                            values.push((handed.place, record.value.unwrap().to_vec()));
                        }
                    }
                }
            }
            Next::Nothing | Next::End => return values,
            Next::Busy => panic!("no other reader uses the disk"),
        }
    }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Appends more than the catch-up memory to a lane, evicts it from the pool, and returns slices that fill the memory.
fn hold_catch_up_memory(log: &Log, lane: &StreamPartition) -> Vec<Handed> {
    for _ in 0..400 {
        append(log, lane, &[0; 60_000]);
    }
    log.persist();
    log.evict();
    let mut reader = Subscription::of_partitions([(lane.clone(), Offset(0))]);
    let mut held = Vec::new();
    while let Next::Handed(handed) = reader.next(1 << 20).unwrap() {
        held.push(handed);
    }
    held
}

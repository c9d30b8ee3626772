//! Reads of data that the pool no longer holds.

mod interruptions;
mod watched_disk;
mod windows;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{ByteSize, SystemClock, SystemRandom, Timestamp};
use millstream_log::{Durability, Log, LogConfig, ReadStart, Stream, StreamConfig};
use millstream_record::{ChunkBuilder, Compression, Decompressor};

use self::watched_disk::{Watch, WatchedDisk};

/// A step of a test fails when it takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);

const CATCH_UP_BYTES: u64 = 16 << 20;

/// The bytes of a chunk's value: with its headers a chunk is not a multiple of a page.
const VALUE_BYTES: usize = 20_000;

fn config(dir: &Path) -> LogConfig {
    LogConfig {
        journal: ByteSize(4 << 20),
        journal_file: ByteSize(1 << 20),
        catch_up: ByteSize(CATCH_UP_BYTES),
        ..LogConfig::with_pool(dir, ByteSize(4 << 20))
    }
}

fn open(config: LogConfig, watch: &Arc<Watch>) -> Log {
    Log::open_on(
        config,
        Arc::new(WatchedDisk(Arc::clone(watch))),
        Arc::new(SystemClock::default()),
        Arc::new(SystemRandom),
    )
    .unwrap()
}

fn chunk(number: usize) -> Vec<u8> {
    let mut value = format!("{number} ").into_bytes();
    value.resize(VALUE_BYTES, b'.');
    let mut builder = ChunkBuilder::new(Compression::None);
    builder.push(Timestamp(0), None, Some(&value), &[]).unwrap();
    builder.finish(None).unwrap().to_vec()
}

fn append(stream: &Stream, numbers: std::ops::Range<usize>) {
    let lanes = stream.partition_count();
    let mut ends = HashMap::new();
    for number in numbers {
        let lane = stream.partition(number as u32 % lanes).unwrap();
        let end = lane.append(&chunk(number)).unwrap().next_offset;
        ends.insert(number as u32 % lanes, end);
    }
    for (lane, end) in ends {
        stream.partition(lane).unwrap().wait_durable(end).unwrap();
    }
}

/// A stream that was closed and opened again, so that memory holds none of it.
struct Old {
    watch: Arc<Watch>,
    log: Log,
    stream: Stream,
    /// Bytes of all chunks.
    bytes: u64,
    dir: tempfile::TempDir,
}

fn old(chunks: usize, lanes: u32, catch_up: u64, dir: tempfile::TempDir) -> Old {
    let stream = StreamConfig {
        lanes,
        durability: Durability::Async,
        ..StreamConfig::default()
    };
    old_stream(chunks, stream, catch_up, dir)
}

/// One lane of this durability.
fn old_of(durability: Durability, chunks: usize) -> Old {
    let stream = StreamConfig {
        lanes: 1,
        durability,
        ..StreamConfig::default()
    };
    old_stream(chunks, stream, CATCH_UP_BYTES, tempfile::tempdir().unwrap())
}

fn old_stream(chunks: usize, stream: StreamConfig, catch_up: u64, dir: tempfile::TempDir) -> Old {
    {
        let log = Log::open(config(dir.path())).unwrap();
        let stream = StreamConfig {
            group_segments: 1,
            ..stream
        };
        append(&log.create_stream("old", stream).unwrap(), 0..chunks);
        log.close().unwrap();
    }
    let watch = Arc::new(Watch::default());
    let config = LogConfig {
        catch_up: ByteSize(catch_up),
        ..config(dir.path())
    };
    let log = open(config, &watch);
    watch.set(|watched| watched.requests.clear());
    Old {
        stream: log.stream("old").unwrap(),
        bytes: (chunks * chunk(0).len()) as u64,
        log,
        watch,
        dir,
    }
}

fn old_lane(chunks: usize) -> Old {
    old(chunks, 1, CATCH_UP_BYTES, tempfile::tempdir().unwrap())
}

/// The numbers of the chunks in a slice.
fn numbers(bytes: &[u8]) -> Vec<usize> {
    let mut decompressor = Decompressor::default();
    let mut numbers = Vec::new();
    for chunk in millstream_record::Chunks::new(bytes) {
        for record in chunk.unwrap().records(&mut decompressor).unwrap() {
            let value = record.unwrap().value.unwrap();
            let number = value.split(|byte| *byte == b' ').next().unwrap();
            numbers.push(std::str::from_utf8(number).unwrap().parse().unwrap());
        }
    }
    numbers
}

fn read_all(stream: &Stream, bytes_max: usize) -> Vec<usize> {
    let mut reader = stream.reader(ReadStart::Earliest);
    let mut all = Vec::new();
    while let Some(read) = reader.read(bytes_max).unwrap() {
        all.extend(numbers(&read.bytes));
    }
    all
}

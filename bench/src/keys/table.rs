//! The keyed stream that is measured in the process.

use std::path::Path;

use anyhow::{Context as _, Result};
use millstream_base::{Offset, Timestamp};
use millstream_log::{
    CLEANUP_POLICY, COMPACT, Durability, Log, LogConfig, StreamConfig, StreamPartition,
};
use millstream_record::{ChunkBuilder, Compression};

use super::data::{check, key, value};

/// About the size of a chunk with many records: a get reads its chunk whole.
pub const CHUNK_BYTES: usize = 16 << 10;

/// How many chunks may be appended before the writer waits for the disk.
const CHUNKS_AT_ONCE: u64 = 512;

pub const STREAM: &str = "table";

/// A log with one keyed stream of one partition.
pub struct Table {
    log: Log,
    pub partition: StreamPartition,
}

impl Table {
    /// Opens the log in a folder; creates the stream if it is not there.
    pub fn open(dir: &Path, durability: Durability) -> Result<Table> {
        Table::with_settings(dir, durability, &[])
    }

    /// The same with further settings of the stream.
    pub fn with_settings(
        dir: &Path,
        durability: Durability,
        settings: &[(&str, &str)],
    ) -> Result<Table> {
        Table::with_config(LogConfig::new(dir.join("log")), durability, settings)
    }

    /// The same with any settings of the log.
    pub fn with_config(
        config: LogConfig,
        durability: Durability,
        settings: &[(&str, &str)],
    ) -> Result<Table> {
        let log = Log::open(config)?;
        let stream = match log.stream(STREAM) {
            Ok(stream) => stream,
            Err(_) => {
                let settings = settings.iter().chain(&[(CLEANUP_POLICY, COMPACT)]);
                let settings = settings.map(|(name, value)| (name.to_string(), value.to_string()));
                let config = StreamConfig {
                    durability,
                    settings: settings.collect(),
                    ..StreamConfig::default()
                };
                log.create_stream(STREAM, config)?
            }
        };
        let partition = stream.partition(0)?;
        Ok(Table { log, partition })
    }

    /// Puts the first version of each of these keys in chunks of usual size, and waits until all are durable.
    pub fn fill(&self, keys: u64) -> Result<()> {
        self.put_all((0..keys).map(|number| (number, 0)))
    }

    /// Does the same with any keys and versions.
    pub fn put_all(&self, puts: impl Iterator<Item = (u64, u64)>) -> Result<()> {
        let mut writer = Writer::new(&self.partition);
        let mut chunks = 0;
        for (number, version) in puts {
            writer.push(number, version)?;
            if writer.bytes() >= CHUNK_BYTES {
                let end = writer.append()?;
                chunks += 1;
                if chunks % CHUNKS_AT_ONCE == 0 {
                    self.partition.wait_durable(end)?;
                }
            }
        }
        if writer.chunk.record_count() > 0 {
            writer.append()?;
        }
        self.partition.wait_durable(self.partition.next_offset())?;
        Ok(())
    }

    pub fn close(self) -> Result<()> {
        let Table { log, partition } = self;
        drop(partition);
        Ok(log.close()?)
    }
}

/// Returns after the newest value of a key was found and checked.
pub fn get(partition: &StreamPartition, number: u64) -> Result<()> {
    let found = partition.get(&key(number))?;
    let found = found.with_context(|| format!("key {number} is absent"))?;
    check(number, &found.value)
}

/// Collects puts in a chunk.
pub struct Writer<'p> {
    partition: &'p StreamPartition,
    chunk: ChunkBuilder,
}

impl Writer<'_> {
    pub fn new(partition: &StreamPartition) -> Writer<'_> {
        Writer {
            partition,
            chunk: ChunkBuilder::new(Compression::None),
        }
    }

    pub fn push(&mut self, number: u64, version: u64) -> Result<()> {
        let (key, value) = (key(number), value(number, version));
        let time = Timestamp(1_700_000_000_000);
        Ok(self.chunk.push(time, Some(&key), Some(&value), &[])?)
    }

    /// The bytes of the open chunk.
    pub fn bytes(&self) -> usize {
        self.chunk.len()
    }

    pub fn records(&self) -> u32 {
        self.chunk.record_count()
    }

    /// Appends the chunk, and returns the offset behind it.
    pub fn append(&mut self) -> Result<Offset> {
        let appended = self.partition.append(self.chunk.finish(None)?)?;
        self.chunk.clear();
        Ok(appended.next_offset)
    }
}

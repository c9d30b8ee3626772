//! Produced data: chunks that are the same in every process, so that no process has to send them to another.

use anyhow::Result;
use bytes::Bytes;
use fastrand::Rng;
use millstream_base::Timestamp;
use millstream_record::{ChunkBuilder, Compression};
use serde::{Deserialize, Serialize};

use super::work::{InPlace, RecordWork, Worker};
use crate::text::Words;

/// The size of a record of the paper's synthetic workloads …
const RECORD_BYTES: usize = 100;

/// … and of one of its texts.
const TEXT_BYTES: usize = 2 << 10;

/// The word in the records that a filter looks for, and how many records have one with it.
const NEEDLE: &str = "needle";
const NEEDLE_EVERY: u32 = 100;

/// The filter that looks for them.
pub fn filter() -> String {
    format!("value contains \"{NEEDLE}\"")
}

/// The bytes of all different chunks, more than caches hold …
const DIFFERENT_BYTES: usize = 4 << 20;

/// … and the bounds of their number.
const CHUNKS_MIN: usize = 4;
const CHUNKS_MAX: usize = 256;

/// The content of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// Records of 100 bytes.
    Small,
    /// Records of 2 KiB of words.
    Text,
}

/// Which chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    pub content: Content,
    /// About the size of a chunk.
    pub chunk_bytes: usize,
}

/// Chunks to send, over and over.
pub struct Chunks {
    pub chunks: Vec<Bytes>,
    pub records_per_chunk: usize,
}

impl Data {
    pub fn chunks(self) -> Result<Chunks> {
        let mut random = Rng::with_seed(1);
        let words = Words::new(&mut random);
        let value_bytes = match self.content {
            Content::Small => RECORD_BYTES,
            Content::Text => TEXT_BYTES,
        };
        let records_per_chunk = (self.chunk_bytes / value_bytes).max(1);
        let count = (DIFFERENT_BYTES / self.chunk_bytes).clamp(CHUNKS_MIN, CHUNKS_MAX);
        let mut record = 0_u32;
        let mut chunk = |_| -> Result<Bytes> {
            let mut builder = ChunkBuilder::new(Compression::None);
            for _ in 0..records_per_chunk {
                let value = match self.content {
                    Content::Small => small(record, &mut random),
                    Content::Text => text(&words, &mut random),
                };
                record += 1;
                builder.push(Timestamp(1_700_000_000_000), None, Some(&value), &[])?;
            }
            Ok(Bytes::copy_from_slice(builder.finish(None)?))
        };
        Ok(Chunks {
            chunks: (0..count).map(&mut chunk).collect::<Result<_>>()?,
            records_per_chunk,
        })
    }
}

fn small(number: u32, random: &mut Rng) -> Vec<u8> {
    let mut value: Vec<u8> = std::iter::repeat_with(|| random.lowercase() as u8)
        .take(RECORD_BYTES)
        .collect();
    if number.is_multiple_of(NEEDLE_EVERY) {
        let at = random.usize(..RECORD_BYTES - NEEDLE.len());
        value[at..at + NEEDLE.len()].copy_from_slice(NEEDLE.as_bytes());
    }
    value
}

fn text(words: &Words, random: &mut Rng) -> Vec<u8> {
    let mut value = Vec::with_capacity(TEXT_BYTES + 64);
    while value.len() < TEXT_BYTES {
        value.extend_from_slice(words.any(random));
        value.push(b' ');
    }
    value.truncate(TEXT_BYTES);
    value
}

impl Chunks {
    /// The chunks, without end.
    pub fn cycle(&self) -> impl Iterator<Item = &Bytes> {
        self.chunks.iter().cycle()
    }

    /// Returns how many chunks hold `records` records.
    pub fn count_of(&self, records: usize) -> usize {
        records.div_ceil(self.records_per_chunk)
    }

    /// Returns how much the work finds in the first `count` chunks of the cycle.
    pub fn found(&self, work: &RecordWork, count: usize) -> Result<u64> {
        let rounds = count / self.chunks.len();
        let rest = count % self.chunks.len();
        let mut found = 0;
        for (index, chunk) in self.chunks.iter().enumerate() {
            let mut worker = Worker::new(work)?;
            worker.take(&InPlace {
                bytes: chunk,
                from: 0,
                partition: 0,
            })?;
            found += worker.found() * (rounds + usize::from(index < rest)) as u64;
        }
        Ok(found)
    }
}

//! The chunks that the benchmarks write.

use anyhow::Result;
use millstream_base::{Timestamp, crc32c};
use millstream_record::{ChunkBuilder, Compression};

/// The size of a record's value.
pub const RECORD_BYTES: usize = 100;

/// The size of a chunk, unless a case has another.
pub const CHUNK_BYTES: usize = 16 << 10;

/// Different chunks, so that a case does not send the same few cache lines again and again.
const CHUNKS: usize = 64;

/// Chunks to append, over and over.
pub struct Chunks {
    chunks: Vec<Vec<u8>>,
    pub records_per_chunk: u32,
}

impl Chunks {
    /// Chunks with as many records as fit into [`CHUNK_BYTES`].
    pub fn of_usual_size() -> Result<Chunks> {
        let per_record = chunk(1000, RECORD_BYTES, 0)?.len() / 1000 + 1;
        Chunks::of_records((CHUNK_BYTES / per_record) as u32, CHUNKS)
    }

    /// Makes `count` chunks of `records_per_chunk` records.
    pub fn of_records(records_per_chunk: u32, count: usize) -> Result<Chunks> {
        let chunks = (0..count).map(|n| chunk(records_per_chunk, RECORD_BYTES, n));
        Ok(Chunks {
            chunks: chunks.collect::<Result<_>>()?,
            records_per_chunk,
        })
    }

    /// `count` chunks of one record, each of `chunk_bytes` but for the width of a varint.
    pub fn of_one_record(chunk_bytes: usize, count: usize) -> Result<Chunks> {
        let around_value = chunk(1, chunk_bytes, 0)?.len() - chunk_bytes;
        let chunks = (0..count).map(|n| chunk(1, chunk_bytes - around_value, n));
        Ok(Chunks {
            chunks: chunks.collect::<Result<_>>()?,
            records_per_chunk: 1,
        })
    }

    /// The chunks, without end.
    pub fn cycle(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().map(Vec::as_slice).cycle()
    }

    /// The size of one chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.chunks[0].len()
    }

    /// Returns how many chunks have `bytes` together; at least one.
    pub fn count_of(&self, bytes: u64) -> usize {
        (bytes as usize / self.chunk_bytes()).max(1)
    }
}

fn chunk(records: u32, value_bytes: usize, seed: usize) -> Result<Vec<u8>> {
    let mut builder = ChunkBuilder::new(Compression::None);
    let mut value = vec![0; value_bytes];
    let mut state = crc32c(&seed.to_le_bytes()) | 1;
    for _ in 0..records {
        for byte in &mut value {
            // A generator by Marsaglia ("Xorshift RNGs"): the values do not matter, their variety
            // does.
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            *byte = state as u8;
        }
        builder.push(Timestamp(1_700_000_000_000), None, Some(&value), &[])?;
    }
    Ok(builder.finish(None)?.to_vec())
}

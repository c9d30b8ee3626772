//! Appends of compressed chunks of other programs, with and without the check of their records.

use std::hint::black_box;

use anyhow::Result;
use fastrand::Rng;
use millstream_base::{ByteSize, Timestamp};
use millstream_log::LogConfig;
use millstream_record::{Chunk, ChunkBuilder, Compression, Decompressor};

use super::append::{OneCore, Ours};
use super::data::RECORD_BYTES;
use crate::measure::{Bench, median, time};
use crate::report::{Better, Case};
use crate::text::Words;

pub const COMPRESSED: &str = "append-compressed";

const CODECS: [(&str, Compression); 4] = [
    ("gzip", Compression::Gzip),
    ("snappy", Compression::Snappy),
    ("lz4", Compression::Lz4),
    ("zstd", Compression::Zstd),
];

/// Of one chunk, before compression.
const RECORDS: usize = 1000;

/// Different chunks, so that a case does not read the same few cache lines again and again.
const CHUNKS: usize = 64;

/// A lane with or without the check.
fn lane(bench: &Bench, check_compressed: bool) -> Result<Ours> {
    let folder = bench.folder(&format!("{COMPRESSED}-{check_compressed}"), 1 << 20)?;
    let config = LogConfig {
        check_compressed,
        ..LogConfig::with_pool(folder.path(), ByteSize(64 << 20))
    };
    Ours::open(folder, config)
}

/// Appends chunks as those of another program.
fn append(Ours { lane, .. }: &Ours, chunks: &[Vec<u8>]) -> Result<()> {
    for chunk in chunks {
        lane.append_foreign(chunk)?;
    }
    Ok(())
}

/// Records of words. By hand: the same appends without the check, and the library's decompression.
pub fn compressed(bench: &Bench) -> Result<Vec<Case>> {
    let _one_core = OneCore::take()?;
    let checked = lane(bench, true)?;
    let unchecked = lane(bench, false)?;
    let mut cases = Vec::new();
    for (codec, compression) in CODECS {
        let chunks = chunks(compression)?;
        let mut decompressor = Decompressor::default();
        let mut decompress = || -> Result<()> {
            for chunk in &chunks {
                black_box(Chunk::parse(chunk)?.records(&mut decompressor)?);
            }
            Ok(())
        };
        let mib = (CHUNKS * RECORDS * RECORD_BYTES) as f64 / f64::from(1 << 20);
        let rounds = bench.rounds(|| {
            let mut turns: [Vec<f64>; 3] = Default::default();
            for turn in 0..bench.size(32, 2) {
                // Each comes first as often as last, since the first one warms the caches.
                for n in 0..3 {
                    let contender = if turn % 2 == 0 { n } else { 2 - n };
                    let took = time(|| match contender {
                        0 => append(&checked, &chunks),
                        1 => append(&unchecked, &chunks),
                        _ => decompress(),
                    })?;
                    turns[contender].push(took.cpu_seconds * 1e3 / mib);
                }
            }
            Ok(turns.map(|turn| median(&turn)))
        })?;
        let [ours, unchecked, decompression] =
            [0, 1, 2].map(|n| rounds.iter().map(|round| round[n]).collect::<Vec<f64>>());
        let by_hand = unchecked.iter().zip(&decompression).map(|(a, b)| a + b);
        let compressed_bytes: usize = chunks.iter().map(Vec::len).sum();
        let name = format!("{COMPRESSED}/{codec}");
        cases.push(
            Case::new(name, "CPU-ms/MiB", Better::Lower, ours)
                .by_hand(by_hand.collect())
                .peer("without the check", median(&unchecked))
                .detail("decompression_ms_per_mib", median(&decompression))
                .detail(
                    "compressed_percent",
                    compressed_bytes as f64 / (CHUNKS * RECORDS * RECORD_BYTES) as f64 * 100.0,
                ),
        );
    }
    Ok(cases)
}

/// Chunks of records of words.
fn chunks(compression: Compression) -> Result<Vec<Vec<u8>>> {
    let mut random = Rng::with_seed(1);
    let words = Words::new(&mut random);
    let mut value = Vec::new();
    let mut chunk = || -> Result<Vec<u8>> {
        let mut builder = ChunkBuilder::new(compression);
        for _ in 0..RECORDS {
            value.clear();
            while value.len() < RECORD_BYTES {
                value.extend_from_slice(words.any(&mut random));
                value.push(b' ');
            }
            builder.push(
                Timestamp(1_700_000_000_000),
                None,
                Some(&value[..RECORD_BYTES]),
                &[],
            )?;
        }
        Ok(builder.finish(None)?.to_vec())
    };
    (0..CHUNKS).map(|_| chunk()).collect()
}

//! How often bytes are written while a table grows, and how many files a lookup meets.

use std::path::Path;

use anyhow::Result;
use fastrand::Rng;
use millstream_log::{
    Background, CLEANUP_POLICY, COMPACT, Durability, FILE_DELETE_DELAY, Log, LogConfig,
    StreamConfig,
};

use super::table::{CHUNK_BYTES, STREAM, Writer};
use crate::measure::Bench;
use crate::report::{Better, Case};

pub const GROWTH: &str = "growth";

/// How many chunks are put before the background's work is done.
const CHUNKS_AT_ONCE: usize = 64;

/// Keys that are put once, and some that are put again and again.
pub fn growth(bench: &Bench) -> Result<Vec<Case>> {
    let keys = bench.size(6_000_000, 1_000_000);
    let new_keys = case(bench, "new-keys", 0..keys)?;
    let (keys, mut rng) = (bench.size(500_000, 100_000), Rng::with_seed(1));
    let updates = case(bench, "updates", (0..8 * keys).map(|_| rng.u64(..keys)))?;
    Ok(vec![new_keys, updates])
}

/// The bytes that were put, and those that were written.
struct Grown {
    put_bytes: u64,
    compacted_bytes: u64,
    groups_max: usize,
}

fn case(bench: &Bench, name: &str, keys: impl Iterator<Item = u64>) -> Result<Case> {
    let folder = bench.folder(GROWTH, 4 << 30)?;
    let grown = grow(folder.path(), keys)?;
    let put = grown.put_bytes as f64;
    let written = put + grown.compacted_bytes as f64;
    let case = Case::new(
        format!("{GROWTH}/{name}"),
        "bytes written per byte",
        Better::Lower,
        vec![written / put],
    );
    Ok(case
        .detail("groups_max", grown.groups_max as f64)
        .detail("put_mib", put / f64::from(1 << 20)))
}

/// Puts keys, and does all work of the background from time to time.
fn grow(dir: &Path, keys: impl Iterator<Item = u64>) -> Result<Grown> {
    let log = Log::open(LogConfig {
        background: Background::Manual,
        ..LogConfig::new(dir.join("log"))
    })?;
    let settings = [(CLEANUP_POLICY, COMPACT), (FILE_DELETE_DELAY, "0")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = StreamConfig {
        durability: Durability::Async,
        settings: settings.into(),
        ..StreamConfig::default()
    };
    let stream = log.create_stream(STREAM, config)?;
    let partition = stream.partition(0)?;
    let mut writer = Writer::new(&partition);
    let (mut put_bytes, mut groups_max, mut chunks) = (0, 0, 0);
    for (key, version) in keys.zip(0..) {
        writer.push(key, version)?;
        if writer.bytes() < CHUNK_BYTES {
            continue;
        }
        put_bytes += writer.bytes() as u64;
        writer.append()?;
        chunks += 1;
        if chunks % CHUNKS_AT_ONCE == 0 {
            while log.sync_step() | log.step() | log.compact_step() {}
            groups_max = groups_max.max(stream.info().partitions[0].groups);
        }
    }
    let compacted_bytes = log.stats().compaction.bytes_after;
    drop(writer);
    drop((partition, stream));
    log.close()?;
    Ok(Grown {
        put_bytes,
        compacted_bytes,
        groups_max,
    })
}

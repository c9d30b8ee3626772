//! Sequential re-read of a stream from disk, beside `cat` of its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use millstream_base::{ByteSize, Offset};
use millstream_log::{Durability, From, Lane, Log, LogConfig, Stream, StreamConfig};

use super::data::Chunks;
use crate::measure::{Bench, Took, cpu_per_million, megabytes_per_second, time};
use crate::report::{Better, Case};

pub const RE_READ: &str = "re-read";

const POOL_BYTES: u64 = 256 << 20;

/// What a reader asks for at once.
const READ_BYTES: usize = 1 << 20;

/// From the page cache, and from the disk itself where this process may drop the cache.
pub fn re_read(bench: &Bench) -> Result<Vec<Case>> {
    let bytes = bench.size(2 << 30, 8 << 20);
    let folder = bench.folder(RE_READ, bytes)?;
    let chunks = Chunks::of_usual_size()?;
    let count = chunks.count_of(bytes);
    {
        let log = open(folder.path())?;
        let stream = log.create_stream("stream", written_soon())?;
        append_round_lanes(&[stream.partition(0)?], &chunks, count)?;
        log.close()?;
    }
    // Opened anew, nothing of it is in the pool.
    let log = open(folder.path())?;
    let stream = log.stream("stream")?;
    let files = group_files(folder.path())?;
    let bytes = (count * chunks.chunk_bytes()) as u64;
    let records = count as u64 * u64::from(chunks.records_per_chunk);

    let mut cases = Vec::new();
    for (name, cache) in [("cached", Cache::Warm), ("from-disk", Cache::Dropped)] {
        if cache == Cache::Dropped && drop_cache(bench).is_err() {
            eprintln!("bench: {RE_READ}/{name} left out: only root may drop the page cache");
            continue;
        }
        let rounds = bench.rounds(|| {
            cache.prepare(bench)?;
            let ours = time(|| expect(read_all(&stream)?, bytes))?;
            cache.prepare(bench)?;
            let limit = time(|| cat(&files))?;
            Ok((ours, limit))
        })?;
        let (ours, limit): (Vec<Took>, Vec<Took>) = rounds.into_iter().unzip();
        let rates = |took: &[Took]| megabytes_per_second(bytes as f64, took);
        cases.push(
            Case::new(
                format!("{RE_READ}/{name}"),
                "MB/s",
                Better::Higher,
                rates(&ours),
            )
            .by_hand(rates(&limit))
            .target(0.8)
            .detail(
                "cpu_s_per_million_records",
                cpu_per_million(records as f64, &ours),
            ),
        );
    }
    Ok(cases)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cache {
    Warm,
    Dropped,
}

impl Cache {
    fn prepare(self, bench: &Bench) -> Result<()> {
        match self {
            Cache::Warm => Ok(()),
            Cache::Dropped => drop_cache(bench),
        }
    }
}

fn drop_cache(bench: &Bench) -> Result<()> {
    bench.settle_disk();
    Ok(fs::write("/proc/sys/vm/drop_caches", "1")?)
}

pub fn open(dir: &Path) -> Result<Log> {
    Ok(Log::open(LogConfig::with_pool(dir, ByteSize(POOL_BYTES)))?)
}

/// A stream whose producers do not wait for the disk.
pub fn written_soon() -> StreamConfig {
    StreamConfig {
        durability: Durability::Async,
        ..StreamConfig::default()
    }
}

/// Appends `count` chunks, each to the next lane, and tells where each lane ends then.
pub fn append_round_lanes(lanes: &[Lane], chunks: &Chunks, count: usize) -> Result<Vec<Offset>> {
    let mut ends = vec![Offset(0); lanes.len()];
    for (chunk, n) in chunks.cycle().zip((0..lanes.len()).cycle()).take(count) {
        ends[n] = lanes[n].append(chunk)?.next_offset;
    }
    Ok(ends)
}

/// Reads a stream from its beginning to its end, and tells how many bytes it has.
pub fn read_all(stream: &Stream) -> Result<u64> {
    let mut reader = stream.reader(From::Earliest);
    let mut bytes = 0;
    while let Some(chunks) = reader.read(READ_BYTES)? {
        bytes += chunks.bytes.len() as u64;
    }
    Ok(bytes)
}

/// That all was read.
pub fn expect(bytes: u64, expected: u64) -> Result<()> {
    ensure!(bytes == expected, "read {bytes} bytes of {expected}");
    Ok(())
}

/// The files of all groups in a data directory.
pub fn group_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![dir.join("streams")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {folder:?}"))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "log") {
                files.push(path);
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// `cat` of files into nothing.
pub fn cat(files: &[PathBuf]) -> Result<()> {
    let status = Command::new("cat")
        .args(files)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .context("cannot start cat")?;
    ensure!(status.success(), "cat failed: {status}");
    Ok(())
}

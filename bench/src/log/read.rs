//! Sequential re-read of a stream from disk, beside a bare read of its files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use millstream_base::disk::PAGE_BYTES;
use millstream_base::{ByteSize, Offset};
use millstream_log::{
    Durability, Log, LogConfig, ReadStart, Stream, StreamConfig, StreamPartition,
};
use rustix::fs::OFlags;

use super::data::Chunks;
use crate::measure::{Bench, Took, cpu_per_million, megabytes_per_second, time};
use crate::report::{Better, Case};

pub const RE_READ: &str = "re-read";

const POOL_BYTES: u64 = 256 << 20;

/// The bytes that a reader asks for at once.
const READ_BYTES: usize = 1 << 20;

/// The bytes that a bare reader reads at once …
const BARE_READ_BYTES: usize = 1 << 20;

/// … and its threads, each with a request in flight.
const BARE_READERS: usize = 8;

/// A stream that was closed and opened again, so that the pool holds nothing of it.
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
    let log = open(folder.path())?;
    let stream = log.stream("stream")?;
    let files = group_files(folder.path())?;
    let bytes = (count * chunks.chunk_bytes()) as u64;
    let records = count as u64 * u64::from(chunks.records_per_chunk);

    bench.settle_disk();
    let turns = bench.turns(2, |contender| match contender {
        0 => time(|| expect(read_all(&stream)?, bytes)),
        _ => time(|| read_bare(&files)),
    })?;
    let rates = |took: &[Took]| megabytes_per_second(bytes as f64, took);
    let cached = {
        cat(&files)?;
        rates(&[time(|| cat(&files))?])[0]
    };
    let case = Case::new(RE_READ, "MB/s", Better::Higher, rates(&turns[0]));
    Ok(vec![
        case.by_hand(rates(&turns[1]))
            .target(0.9)
            .detail("cat_from_the_systems_cache_mb_per_s", cached)
            .detail(
                "cpu_s_per_million_records",
                cpu_per_million(records as f64, &turns[0]),
            ),
    ])
}

/// Reads files as fast as the disk gives them: past the system's cache, with several large requests in
/// flight, into memory that is used again.
pub fn read_bare(files: &[PathBuf]) -> Result<()> {
    let mut requests = Vec::new();
    for path in files {
        let direct = OFlags::DIRECT.bits() as i32;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(direct)
            .open(path);
        let file = Arc::new(file.with_context(|| format!("cannot open {path:?} past the cache"))?);
        let len = file.metadata()?.len();
        let offsets = (0..len).step_by(BARE_READ_BYTES);
        requests.extend(offsets.map(|offset| (Arc::clone(&file), offset, len)));
    }
    let next = AtomicUsize::new(0);
    let reader = || -> Result<()> {
        let mut memory = vec![0; BARE_READ_BYTES + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        let buffer = &mut memory[start..start + BARE_READ_BYTES];
        while let Some((file, offset, len)) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
            let wanted = buffer.len().min((len - offset) as usize);
            let count = file.read_at(buffer, *offset)?;
            ensure!(
                count == wanted,
                "read {count} bytes of {wanted} at {offset}"
            );
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..BARE_READERS).map(|_| scope.spawn(reader)).collect();
        let mut readers = readers.into_iter();
        readers.try_for_each(|reader| reader.join().expect("a reader does not panic"))
    })
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

/// Appends `count` chunks, each to the next lane, and returns the end of each lane.
pub fn append_round_lanes(
    lanes: &[StreamPartition],
    chunks: &Chunks,
    count: usize,
) -> Result<Vec<Offset>> {
    let mut ends = vec![Offset(0); lanes.len()];
    for (chunk, n) in chunks.cycle().zip((0..lanes.len()).cycle()).take(count) {
        ends[n] = lanes[n].append(chunk)?.next_offset;
    }
    Ok(ends)
}

/// Reads a stream from its beginning to its end, and returns how many bytes it has.
pub fn read_all(stream: &Stream) -> Result<u64> {
    let mut reader = stream.reader(ReadStart::Earliest);
    let mut bytes = 0;
    while let Some(chunks) = reader.read(READ_BYTES)? {
        bytes += chunks.bytes.len() as u64;
    }
    Ok(bytes)
}

/// Checks that a reader has read all bytes.
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

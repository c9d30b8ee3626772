//! Data that is many times larger than the pool.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::data::Chunks;
use super::durable::{Reserve, write_plain};
use super::read::{
    append_round_lanes, cat, expect, group_files, open, read_all, read_bare, written_soon,
};
use crate::child::{self, Working, report};
use crate::measure::{Bench, time};
use crate::report::{Better, Case};

pub const TEN_GB: &str = "ten-gb";

/// The most memory that the process may take.
const MEMORY_MIB_MAX: f64 = 512.0;

/// How often all is read again.
const RE_READS: usize = 3;

/// The bytes that a plain program writes at once.
const PLAIN_WRITE_BYTES: usize = 8 << 20;

/// The work of the child process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    dir: PathBuf,
    lanes: u32,
    bytes: u64,
}

impl child::Task for Task {
    const NAME: &'static str = "log/large";

    fn run(self) -> Result<()> {
        report(&run(&self)?)
    }
}

/// The figures of a child.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    ingest_s: f64,
    re_read_s: Vec<f64>,
    /// A bare read of the same files, after each re-read.
    bare_s: Vec<f64>,
    /// The largest resident set that the kernel noted (`VmHWM`).
    peak_mib: f64,
    /// The largest sum of anonymous and shared memory that was seen: without mapped files.
    peak_own_mib: f64,
}

/// 10 GB in and out again with a pool of 256 MiB, by one lane and by a few.
pub fn ten_gb(bench: &Bench) -> Result<Vec<Case>> {
    let bytes = bench.size(10_000_000_000, 16_000_000);
    let mut cases = Vec::new();
    for (name, lanes) in [("one-lane", 1), ("eight-lanes", 8)] {
        // Beside the log's files, the plain file lies there.
        let folder = bench.folder(TEN_GB, 2 * bytes)?;
        bench.settle_disk();
        let task = Task {
            dir: folder.path().join("log"),
            lanes,
            bytes,
        };
        let measured: Measured = Working::start(&task)?.hear()?;
        let files = group_files(&folder.path().join("log"))?;
        let cat = time(|| cat(&files))?;
        folder.empty()?;
        bench.settle_disk();
        let plain = write_plain(
            &folder.path().join("plain"),
            bytes as usize,
            PLAIN_WRITE_BYTES,
            Reserve::No,
        )?;
        let rate = |seconds: &f64| bytes as f64 / 1e6 / seconds;
        let rates = |seconds: &[f64]| seconds.iter().map(rate).collect();
        let memory = Case::new(
            format!("{TEN_GB}/{name}/memory"),
            "MiB",
            Better::Lower,
            vec![measured.peak_mib],
        );
        cases.push(
            memory
                .bound(MEMORY_MIB_MAX)
                .detail("without_mapped_files_mib", measured.peak_own_mib),
        );
        let ingest = Case::new(
            format!("{TEN_GB}/{name}/ingest"),
            "MB/s",
            Better::Higher,
            vec![rate(&measured.ingest_s)],
        );
        cases.push(ingest.by_hand(vec![rate(&plain.seconds)]));
        let re_read = Case::new(
            format!("{TEN_GB}/{name}/re-read"),
            "MB/s",
            Better::Higher,
            rates(&measured.re_read_s),
        );
        cases.push(
            re_read
                .by_hand(rates(&measured.bare_s))
                .target(0.9)
                .detail("cat_through_the_systems_cache_mb_per_s", rate(&cat.seconds)),
        );
    }
    Ok(cases)
}

fn run(task: &Task) -> Result<Measured> {
    let peak_own = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // Where /proc cannot be read, the read of the kernel's own peak below fails, too.
                let own = memory_kib(&["RssAnon:", "RssShmem:"]).unwrap_or(0);
                peak_own.fetch_max(own, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let result = ingest_and_read_again(task);
        done.store(true, Ordering::Relaxed);
        let (ingest_s, re_read_s, bare_s) = result?;
        Ok(Measured {
            ingest_s,
            re_read_s,
            bare_s,
            peak_mib: memory_kib(&["VmHWM:"])? as f64 / 1024.0,
            peak_own_mib: peak_own.load(Ordering::Relaxed) as f64 / 1024.0,
        })
    })
}

fn ingest_and_read_again(task: &Task) -> Result<(f64, Vec<f64>, Vec<f64>)> {
    let log = open(&task.dir)?;
    let config = millstream_log::StreamConfig {
        lanes: task.lanes,
        ..written_soon()
    };
    let stream = log.create_stream("stream", config)?;
    let lanes = (0..task.lanes).map(|n| stream.partition(n));
    let lanes: Vec<_> = lanes.collect::<Result<_, _>>()?;
    let chunks = Chunks::of_usual_size()?;
    let count = chunks.count_of(task.bytes);
    let ingest = time(|| {
        let ends = append_round_lanes(&lanes, &chunks, count)?;
        for (lane, end) in lanes.iter().zip(ends) {
            lane.wait_durable(end)?;
        }
        Ok(())
    })?;
    let bytes = (count * chunks.chunk_bytes()) as u64;
    log.persist();
    let (mut re_read_s, mut bare_s) = (Vec::new(), Vec::new());
    for _ in 0..RE_READS {
        re_read_s.push(time(|| expect(read_all(&stream)?, bytes))?.seconds);
        let files = group_files(&task.dir)?;
        bare_s.push(time(|| read_bare(&files))?.seconds);
    }
    log.close()?;
    Ok((ingest.seconds, re_read_s, bare_s))
}

/// The sum of some lines of this process's status, in KiB.
pub fn memory_kib(names: &[&str]) -> Result<u64> {
    let status =
        fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let values = names.iter().map(|name| {
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
        let value = value.with_context(|| format!("no {name} in /proc/self/status"))?;
        Ok(value.parse::<u64>()?)
    });
    values.sum()
}

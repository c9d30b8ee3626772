//! The cost of an append beside copying and checksumming its bytes, counted in instructions: their number does not
//! depend on the state of the caches, and is the same in each run.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use millstream_base::{ByteSize, crc32c};
use millstream_log::{Durability, Log, LogConfig, StreamConfig};
use serde::{Deserialize, Serialize};

use super::data::Chunks;
use crate::child;
use crate::measure::Bench;
use crate::report::{Better, Case};

pub const INSTRUCTIONS: &str = "append-instructions";

const POOL: ByteSize = ByteSize(64 << 20);

/// The work of the child process: it appends `count` chunks of `records` records, or of one record and as many bytes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    folder: PathBuf,
    records: u32,
    has_one_record: bool,
    count: usize,
    is_by_hand: bool,
}

impl child::Task for Task {
    const NAME: &'static str = "log/instructions";

    fn run(self) -> Result<()> {
        run(&self)
    }
}

/// Chunks of one size, as appended and as copied by hand.
struct Counted {
    ours: f64,
    by_hand: f64,
}

pub fn instructions(bench: &Bench) -> Result<Vec<Case>> {
    let valgrind = Command::new("valgrind").arg("--version").output();
    if !valgrind.is_ok_and(|run| run.status.success()) {
        eprintln!("bench: {INSTRUCTIONS} is left out: there is no valgrind");
        return Ok(Vec::new());
    }
    let mut cases = Vec::new();
    let mut ratios = Vec::new();
    for records in [1, 100, 10_000] {
        let many = count(bench, records, false)?;
        let one = count(bench, records, true)?;
        let beyond = many.ours - many.by_hand;
        let one_beyond = one.ours - one.by_hand;
        ratios.push(beyond / one_beyond);
        let name = format!("{INSTRUCTIONS}/{records}-records");
        cases.push(
            Case::new(name, "instructions/chunk", Better::Lower, vec![many.ours])
                .by_hand(vec![many.by_hand])
                .detail("beyond_by_hand", beyond)
                .detail("with_one_record_beyond_by_hand", one_beyond),
        );
    }
    let highest = ratios.into_iter().fold(f64::MIN, f64::max);
    cases.push(
        Case::new(
            INSTRUCTIONS,
            "records/one record",
            Better::Lower,
            vec![highest],
        )
        .bound(1.3),
    );
    Ok(cases)
}

/// Instructions of one chunk.
fn count(bench: &Bench, records: u32, has_one_record: bool) -> Result<Counted> {
    let count = bench.size(70, 7);
    let run = |is_by_hand| {
        let folder = bench.folder(INSTRUCTIONS, POOL.0)?;
        let task = Task {
            folder: folder.path().to_owned(),
            records,
            has_one_record,
            count,
            is_by_hand,
        };
        anyhow::Ok(run_counted(task)? as f64 / count as f64)
    };
    Ok(Counted {
        ours: run(false)?,
        by_hand: run(true)?,
    })
}

/// Runs a task as a child, and counts its instructions within [`counted`].
fn run_counted(task: Task) -> Result<u64> {
    let out = task.folder.join("callgrind.out");
    let status = millstream_testing::command("valgrind")
        .args(["--quiet", "--tool=callgrind"])
        .arg("--toggle-collect=*instructions::counted*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .args(child::words(&task)?)
        .stdout(Stdio::null())
        .status()
        .context("cannot start valgrind")?;
    ensure!(status.success(), "valgrind ended with {status} (see above)");
    total(&out)
}

/// Reads the total that callgrind counted.
fn total(out: &Path) -> Result<u64> {
    let text = fs::read_to_string(out)?;
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let total = totals.with_context(|| format!("{} has no totals", out.display()))?;
    Ok(total.trim().parse()?)
}

fn run(task: &Task) -> Result<()> {
    let mut chunks = Chunks::of_records(task.records, 1)?;
    if task.has_one_record {
        chunks = Chunks::of_one_record(chunks.chunk_bytes(), 1)?;
    }
    let mut copy = vec![1; chunks.chunk_bytes()];
    let mut by_hand = |chunk: &[u8]| {
        black_box(crc32c(black_box(chunk)));
        copy.copy_from_slice(chunk);
        Ok(())
    };
    let log = Log::open(LogConfig::with_pool(task.folder.join("log"), POOL))?;
    let config = StreamConfig {
        durability: Durability::Memory,
        ..StreamConfig::default()
    };
    let lane = log.create_stream("bench", config)?.partition(0)?;
    let mut ours = |chunk: &[u8]| {
        lane.append(chunk)?;
        Ok(())
    };
    let work: &mut dyn FnMut(&[u8]) -> Result<()> = match task.is_by_hand {
        true => &mut by_hand,
        false => &mut ours,
    };
    for chunk in chunks.cycle().take(task.count) {
        counted(work, chunk)?;
    }
    Ok(())
}

/// The function whose instructions callgrind counts.
#[inline(never)]
fn counted(work: &mut dyn FnMut(&[u8]) -> Result<()>, chunk: &[u8]) -> Result<()> {
    let result = work(chunk);
    // Not a jump at the end, which would not come back here.
    black_box(result)
}

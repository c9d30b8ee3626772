//! Very many streams.

use std::path::PathBuf;

use anyhow::Result;
use millstream_log::{Log, LogConfig, StreamConfig, StreamPartition};
use serde::{Deserialize, Serialize};

use super::data::Chunks;
use super::durable::{Reserve, write_plain};
use super::large::memory_kib;
use crate::child::{self, Working, report};
use crate::measure::{Bench, median, time};
use crate::report::{Better, Case};

pub const TEN_THOUSAND: &str = "ten-thousand-streams";

/// The work of the child process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    dir: PathBuf,
    streams: u32,
}

impl child::Task for Task {
    const NAME: &'static str = "log/streams";

    fn run(self) -> Result<()> {
        report(&run(&self)?)
    }
}

/// The figures of a child.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    create_s: f64,
    write_s: f64,
    cpu_s: f64,
    commits: f64,
    commit_bytes: f64,
    before_mib: f64,
    after_mib: f64,
}

/// Streams are created, one after another, and then written once each, with one chunk of one record.
pub fn ten_thousand(bench: &Bench) -> Result<Vec<Case>> {
    let streams = bench.size(10_000, 100);
    let folder = bench.folder(TEN_THOUSAND, 2 << 30)?;
    let rounds = bench.rounds(|| {
        folder.empty()?;
        bench.settle_disk();
        let task = Task {
            dir: folder.path().join("log"),
            streams,
        };
        let ours: Measured = Working::start(&task)?.hear()?;
        bench.settle_disk();
        // By hand, an entry of the catalog is appended to a file, and synced.
        let by_hand = write_plain(
            &folder.path().join("plain"),
            streams as usize * CATALOG_ENTRY_BYTES,
            CATALOG_ENTRY_BYTES,
            Reserve::No,
        )?;
        Ok((ours, by_hand.seconds))
    })?;
    let (ours, by_hand): (Vec<Measured>, Vec<f64>) = rounds.into_iter().unzip();
    let all = |pick: fn(&Measured) -> f64| ours.iter().map(pick).collect::<Vec<f64>>();
    Ok(vec![
        Case::new(
            format!("{TEN_THOUSAND}/create"),
            "s",
            Better::Lower,
            all(|round| round.create_s),
        )
        .by_hand(by_hand),
        Case::new(
            format!("{TEN_THOUSAND}/write-once"),
            "s",
            Better::Lower,
            all(|round| round.write_s),
        )
        .detail("commits", median(&all(|round| round.commits)))
        .detail(
            "commit_kib",
            median(&all(|round| round.commit_bytes)) / 1024.0,
        )
        .detail("create_and_write_cpu_s", median(&all(|round| round.cpu_s))),
        Case::new(
            format!("{TEN_THOUSAND}/memory"),
            "MiB",
            Better::Lower,
            all(|round| round.after_mib - round.before_mib),
        ),
    ])
}

/// About the size of a stream's entry in the log's catalog.
const CATALOG_ENTRY_BYTES: usize = 400;

fn run(task: &Task) -> Result<Measured> {
    let log = Log::open(LogConfig::new(&task.dir))?;
    let chunks = Chunks::of_records(1, 1)?;
    let before_mib = memory_kib(&["RssAnon:", "RssShmem:"])? as f64 / 1024.0;
    let mut lanes: Vec<StreamPartition> = Vec::with_capacity(task.streams as usize);
    let create = time(|| {
        for n in 0..task.streams {
            let stream = log.create_stream(&format!("stream-{n}"), StreamConfig::default())?;
            lanes.push(stream.partition(0)?);
        }
        Ok(())
    })?;
    let before = log.stats();
    let write = time(|| {
        let mut offsets = Vec::with_capacity(lanes.len());
        for (lane, chunk) in lanes.iter().zip(chunks.cycle()) {
            offsets.push(lane.append(chunk)?.next_offset);
        }
        for (lane, offset) in lanes.iter().zip(offsets) {
            lane.wait_durable(offset)?;
        }
        Ok(())
    })?;
    let after = log.stats();
    let after_mib = memory_kib(&["RssAnon:", "RssShmem:"])? as f64 / 1024.0;
    let commits = (after.journal_blocks - before.journal_blocks) as f64;
    let measured = Measured {
        create_s: create.seconds,
        write_s: write.seconds,
        cpu_s: create.cpu_seconds + write.cpu_seconds,
        commits,
        commit_bytes: (after.journal_bytes - before.journal_bytes) as f64 / commits,
        before_mib,
        after_mib,
    };
    drop(lanes);
    log.close()?;
    Ok(measured)
}

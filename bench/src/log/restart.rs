//! Restart after `kill -9`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use millstream_log::{StreamConfig, StreamPartition};
use serde::{Deserialize, Serialize};

use super::data::Chunks;
use super::read::{append_round_lanes, open, written_soon};
use crate::child::{self, Working, report};
use crate::measure::{Bench, time};
use crate::report::{Better, Case};

pub const RESTART: &str = "restart";

/// The longest time from opening to a durable append.
const READY_S_MAX: f64 = 2.0;

/// The work of the child process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    dir: PathBuf,
    lanes: u32,
    /// After these bytes the child reports to its parent, and goes on.
    bytes: u64,
}

impl child::Task for Task {
    const NAME: &'static str = "log/restart";

    fn run(self) -> Result<()> {
        run(&self)
    }
}

/// 10 GB are stored once; then, in every round, a child that goes on ingesting is killed, and the log
/// opened again.
pub fn restart(bench: &Bench) -> Result<Vec<Case>> {
    let stored_bytes = bench.size(10_000_000_000, 16_000_000);
    // The journal is full of data that is not yet in the groups' files.
    let more_bytes = bench.size(1 << 30, 4 << 20);
    let mut cases = Vec::new();
    for (name, lanes) in [("one-lane", 1), ("hundred-lanes", 100)] {
        let folder = bench.folder(RESTART, stored_bytes + 8 * more_bytes)?;
        let dir = folder.path().join("log");
        let mut bytes = stored_bytes;
        let rounds = bench.rounds(|| {
            let task = Task {
                dir: dir.clone(),
                lanes,
                bytes,
            };
            let mut child = Working::start(&task)?;
            bytes = more_bytes;
            let _stored: u64 = child.hear()?;
            std::thread::sleep(Duration::from_millis(200));
            child.kill()?;
            let mut log = None;
            let opened = time(|| {
                log = Some(open(&dir)?);
                Ok(())
            })?;
            let log = log.expect("opened");
            let ready = time(|| {
                let chunks = Chunks::of_records(1, 1)?;
                let lane = log.stream("stream")?.partition(0)?;
                for chunk in chunks.cycle().take(1) {
                    lane.wait_durable(lane.append(chunk)?.next_offset)?;
                }
                Ok(())
            })?;
            log.close()?;
            Ok((opened.seconds, opened.seconds + ready.seconds))
        })?;
        let (opened, ready): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
        cases.push(
            Case::new(format!("{RESTART}/{name}"), "s", Better::Lower, ready)
                .bound(READY_S_MAX)
                .detail("opened_s", crate::measure::median(&opened)),
        );
    }
    Ok(cases)
}

fn run(task: &Task) -> Result<()> {
    let log = open(&task.dir)?;
    let stream = match log.stream("stream") {
        Ok(stream) => stream,
        Err(_) => log.create_stream(
            "stream",
            StreamConfig {
                lanes: task.lanes,
                ..written_soon()
            },
        )?,
    };
    let lanes = (0..task.lanes).map(|n| stream.partition(n));
    let lanes: Vec<StreamPartition> = lanes.collect::<Result<_, _>>()?;
    let chunks = Chunks::of_usual_size()?;
    append_round_lanes(&lanes, &chunks, chunks.count_of(task.bytes))?;
    report(&task.bytes)?;
    loop {
        append_round_lanes(&lanes, &chunks, lanes.len())?;
    }
}

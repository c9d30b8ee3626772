//! Observes a flow while it runs: progress, metrics and their file.

use std::fs;
use std::ops::Add;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use millstream_base::energy::ENERGY_FOLDER;
use millstream_base::{ByteSize, EnergyMeter};
use millstream_flow::{Latency, Running, StageMetrics, Summary};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::checkpoints::CheckpointWatch;
use super::record::{Moment, Record};
use crate::args::RunArgs;
use crate::console::Progress;
use crate::stop::Stop;
use crate::values::{Kills, LOOK_INTERVAL};

/// Number of intervals over which the progress line averages the rate.
const RATE_INTERVALS: usize = 10;

/// The observations of a flow from its start to its end.
#[derive(Serialize)]
pub struct Observed {
    pub seconds: f64,
    /// Whether the flow was stopped before its input ended.
    pub is_stopped: bool,
    /// CPU time of all threads of the process.
    pub cpu_seconds: f64,
    /// Energy of all processors of the machine, for all processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    pub workers_replaced: u64,
    /// At the end of each interval, in seconds since the start, how fast the input was processed in
    /// it, in MB/s. The last one is shorter.
    throughput: Vec<(f64, f64)>,
    pub latency: Latency,
    pub stages: Vec<StageMetrics>,
}

/// A running flow and the tasks beside it.
pub struct Observer<'a> {
    pub running: &'a Running,
    /// How much of the input has been processed.
    pub bytes: &'a dyn Fn() -> u64,
    /// Bytes before the checkpoint from which the flow resumed.
    pub bytes_before: u64,
    /// How much there is.
    pub input_bytes: u64,
    pub kills: Option<Kills>,
    pub record: Option<Record>,
    pub checkpoints: CheckpointWatch,
    pub stop: &'a Stop,
    pub progress: Progress,
}

/// Creates the file that `--record` names, before anything runs. It must not be one of the `inputs`.
pub fn record(args: &RunArgs, inputs: &[PathBuf]) -> anyhow::Result<Option<Record>> {
    let Some(path) = args.record.as_deref() else {
        return Ok(None);
    };
    // Compares the files, not their names. If one does not exist, no data can be lost.
    let identity = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let identity_of_record = identity(path);
    if identity_of_record.is_some()
        && inputs
            .iter()
            .any(|input| identity(input) == identity_of_record)
    {
        bail!(
            "--record {} would overwrite the file that is to be read; name another",
            path.display()
        );
    }
    Record::create(path).map(Some)
}

impl Observer<'_> {
    /// Waits for the end of the flow. A signal stops it.
    pub fn run(mut self) -> anyhow::Result<Observed> {
        let cpu_before = cpu_time();
        let mut energy = EnergyMeter::start(Path::new(ENERGY_FOLDER));
        let mut joules = None;
        let mut throughput = Throughput {
            bytes: self.bytes_before,
            ..Throughput::default()
        };
        let running = self.running;
        let summary: anyhow::Result<Summary> = thread::scope(|scope| {
            let (done, is_done) = channel::<()>();
            let end = thread::Builder::new()
                .spawn_scoped(scope, move || {
                    let _done = done;
                    running.join()
                })
                .context("cannot start a thread")?;
            let started_at = Instant::now();
            let mut looked = Ok(());
            let mut look_at = started_at + LOOK_INTERVAL;
            let mut kill_at = self.kills.map(|kills| started_at + kills.every);
            loop {
                let wait = look_at.saturating_duration_since(Instant::now());
                if is_done.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                let now = Instant::now();
                while look_at <= now {
                    look_at += LOOK_INTERVAL;
                }
                if self.stop.is_set() {
                    running.stop();
                }
                self.checkpoints.look(running);
                if let (Some(kills), Some(at)) = (self.kills, &mut kill_at)
                    && *at <= now
                {
                    *at += kills.every;
                    running.kill_workers(share_of(running.workers(), kills.percent));
                }
                joules = energy.as_mut().and_then(EnergyMeter::joules);
                if looked.is_ok() {
                    looked = self.look(now - started_at, &mut throughput);
                } else {
                    running.stop();
                }
            }
            let summary = match end.join() {
                Ok(summary) => summary?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            joules = energy.as_mut().and_then(EnergyMeter::joules);
            looked?;
            throughput.end(summary.duration, (self.bytes)());
            if let Some(record) = &mut self.record {
                record.add(&Moment {
                    at: summary.duration,
                    stages: &summary.stages,
                    workers: running.workers(),
                    workers_replaced: summary.workers_replaced,
                    latency: &running.latency(),
                })?;
            }
            Ok(summary)
        });
        self.progress.finish();
        self.checkpoints.end(running);
        let summary = summary?;
        Ok(Observed {
            seconds: summary.duration.as_secs_f64(),
            is_stopped: summary.is_stopped,
            cpu_seconds: (cpu_time() - cpu_before).as_secs_f64(),
            joules,
            workers_replaced: summary.workers_replaced,
            throughput: throughput.intervals,
            latency: running.latency(),
            stages: summary.stages,
        })
    }

    /// Once per interval.
    fn look(&mut self, at: Duration, throughput: &mut Throughput) -> anyhow::Result<()> {
        let bytes = (self.bytes)();
        throughput.add(at, bytes);
        self.progress.show(throughput.progress(self.input_bytes));
        match &mut self.record {
            Some(record) => record.add(&Moment {
                at,
                stages: &self.running.metrics(),
                workers: self.running.workers(),
                workers_replaced: self.running.workers_replaced(),
                latency: &self.running.latency(),
            }),
            None => Ok(()),
        }
    }
}

/// Returns this percentage of the workers, but at least one.
fn share_of(workers: usize, percent: u8) -> usize {
    let share = workers as f64 * f64::from(percent) / 100.0;
    (share.round() as usize).max(1)
}

/// How fast the input is processed.
#[derive(Default)]
struct Throughput {
    /// As in [`Observed`].
    intervals: Vec<(f64, f64)>,
    at: Duration,
    bytes: u64,
}

impl Throughput {
    /// Ends an interval, in which `bytes` were reached.
    fn add(&mut self, at: Duration, bytes: u64) {
        let seconds = (at - self.at).as_secs_f64();
        let rate = (bytes - self.bytes) as f64 / 1e6 / seconds;
        self.intervals
            .push((rounded(at.as_secs_f64()), rounded(rate)));
        self.at = at;
        self.bytes = bytes;
    }

    /// Ends the last interval, which is shorter, unless nothing happened in it.
    fn end(&mut self, at: Duration, bytes: u64) {
        if at > self.at && bytes > self.bytes {
            self.add(at, bytes);
        }
    }

    /// Formats the progress, out of this total number of bytes.
    fn progress(&self, input_bytes: u64) -> String {
        let latest = self.intervals.iter().rev().take(RATE_INTERVALS);
        let count = latest.len().max(1) as f64;
        // The sum of an empty iterator of floats is -0.
        let rate = latest.map(|(_, rate)| rate).fold(0.0, f64::add) / count;
        let left = input_bytes.saturating_sub(self.bytes) as f64 / 1e6;
        let ends = match left / rate {
            seconds if seconds < 1e6 => format!(", {seconds:.0} s left"),
            _ => String::new(),
        };
        let (read, all) = (ByteSize(self.bytes), ByteSize(input_bytes));
        let per_second = ByteSize((rate * 1e6) as u64);
        format!("{read} of {all}, {per_second}/s{ends}")
    }
}

/// Rounds to the resolution that a clock has and a person can read.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// Returns the CPU time of all threads of the process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_workers_is_at_least_one() {
        let shares = [(1, 1), (1, 60), (2, 60), (3, 60), (10, 60), (4, 100)];
        let counts = shares.map(|(workers, percent)| share_of(workers, percent));
        assert_eq!(counts, [1, 1, 1, 2, 6, 4]);
    }

    #[test]
    fn throughput_is_that_of_each_interval() {
        let mut throughput = Throughput::default();
        assert_eq!(throughput.progress(0), "0 B of 0 B, 0 B/s");
        throughput.add(Duration::from_millis(100), 1_000_000);
        throughput.add(Duration::from_millis(300), 5_000_000);
        assert_eq!(throughput.intervals, [(0.1, 10.0), (0.3, 20.0)]);
        throughput.end(Duration::from_millis(400), 5_000_000);
        throughput.end(Duration::from_millis(200), 7_000_000);
        assert_eq!(throughput.intervals.len(), 2);
        let progress = throughput.progress(35_000_000);
        assert!(progress.ends_with(", 14.3 MiB/s, 2 s left"), "{progress}");
        throughput.end(Duration::from_millis(350), 6_000_000);
        assert_eq!(throughput.intervals[2], (0.35, 20.0));
    }
}

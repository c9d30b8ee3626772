//! The metrics of a flow over time, as a file.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use millstream_flow::{Latency, StageMetrics};

/// The first line of the file. Each stage's line repeats the figures of the whole flow.
const HEADER: &str = "seconds,stage,items_in,items_out,readable,room,capacity,throughput,\
                      selectivity,item_ns,activations,blocked,idle,target,priority,busy_seconds,\
                      dead_letters,watermark_ms,watermark_lag_seconds,silent_seconds,lag_records,workers,workers_replaced,latency_p50_us,latency_p90_us,latency_p99_us,\
                      latency_p999_us,latency_max_us";

/// The metrics of a flow at one time.
pub struct Moment<'a> {
    /// Since its start.
    pub at: Duration,
    pub stages: &'a [StageMetrics],
    pub workers: usize,
    pub workers_replaced: u64,
    pub latency: &'a Latency,
}

/// A CSV file with a line for each stage at each time.
pub struct Record {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Record {
    pub fn create(path: &Path) -> anyhow::Result<Record> {
        let cannot_write = || format!("cannot write {}", path.display());
        let mut file = BufWriter::new(File::create(path).with_context(cannot_write)?);
        writeln!(file, "{HEADER}").with_context(cannot_write)?;
        Ok(Record {
            path: path.to_owned(),
            file,
        })
    }

    /// Appends the metrics at one time, and writes them at once, so that other programs can follow the file.
    pub fn add(&mut self, moment: &Moment<'_>) -> anyhow::Result<()> {
        moment
            .stages
            .iter()
            .try_for_each(|stage| self.add_stage(moment, stage))
            .and_then(|()| self.file.flush())
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn add_stage(&mut self, moment: &Moment<'_>, metrics: &StageMetrics) -> io::Result<()> {
        let StageMetrics {
            stage,
            items_in,
            items_out,
            readable,
            throughput,
            selectivity,
            item_ns,
            activations,
            blocked,
            idle,
            target,
            priority,
            busy_seconds,
            dead_letters,
            ..
        } = metrics;
        let Latency {
            p50_us,
            p90_us,
            p99_us,
            p999_us,
            max_us,
            ..
        } = moment.latency;
        let seconds = moment.at.as_secs_f64();
        let workers = moment.workers;
        let replaced = moment.workers_replaced;
        let [p50_us, p90_us, p99_us, p999_us] =
            [p50_us, p90_us, p99_us, p999_us].map(|us| cell(us.map(|us| format!("{us:.1}"))));
        let watermark_ms = cell(metrics.watermark_ms);
        let watermark_lag = cell(metrics.watermark_lag_seconds);
        let silent = cell(metrics.silent_seconds);
        let lag = cell(metrics.lag_records);
        let room = cell(metrics.room);
        let capacity = cell(metrics.capacity);
        writeln!(
            self.file,
            "{seconds:.3},{stage},{items_in},{items_out},{readable},{room},{capacity},\
             {throughput:.1},{selectivity:.4},{item_ns:.1},{activations},{blocked},{idle},\
             {target:.1},{priority:.1},{busy_seconds:.6},{dead_letters},{watermark_ms},{watermark_lag},{silent},{lag},{workers},{replaced},{p50_us},\
             {p90_us},{p99_us},{p999_us},{max_us:.1}"
        )
    }
}

/// Empty where a stage does not have the figure.
fn cell(figure: Option<impl Display>) -> String {
    figure.map_or_else(String::new, |figure| figure.to_string())
}

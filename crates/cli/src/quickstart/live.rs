//! Live figures of a run, for the progress line and for HTTP.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millstream_base::ByteSize;
use millstream_flow::Running;
use millstream_log::{Log, Stream};
use millstream_node::log_metrics;
use millstream_serve::{Metric, MetricKind};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use crate::console::{count_of, grouped};

/// The time over which rates are averaged, approximately.
const RATE_TIME: Duration = Duration::from_secs(1);

/// Number of rates that the page shows.
const RATES_MAX: usize = 60;

/// The fields that `--json` prints for every run: ingested and stored records.
#[derive(Serialize)]
pub struct Ingested {
    pub ingested_records: u64,
    /// Bytes of the records' values.
    pub ingested_bytes: u64,
    /// Including earlier runs.
    pub durable_records: u64,
    pub seconds: f64,
}

/// Durable records that a stream holds now.
pub fn stored_records(stream: &Stream) -> u64 {
    let lanes = stream.info().partitions;
    let stored = lanes.iter().map(|lane| lane.durable.0 - lane.earliest.0);
    stored.sum()
}

/// A run in progress.
pub struct Live {
    pub started_at: Instant,
    /// The stream that the run ingests into.
    stream: Stream,
    /// Added to by the thread that ingests, once per block.
    ingested_records: AtomicU64,
    /// Bytes of the values of these records.
    ingested_bytes: AtomicU64,
    /// The flow that reads the stream.
    flow: Arc<Running>,
    rate: Mutex<Rate>,
}

struct Rate {
    taken_at: Instant,
    records: u64,
    bytes: u64,
    records_per_second: f64,
    bytes_per_second: f64,
    /// The newest last.
    last_records_per_second: VecDeque<f64>,
}

impl Live {
    /// A run that ingests into `stream`, which `flow` reads.
    pub fn new(stream: &Stream, flow: &Arc<Running>) -> Live {
        let now = Instant::now();
        Live {
            started_at: now,
            stream: stream.clone(),
            ingested_records: AtomicU64::new(0),
            ingested_bytes: AtomicU64::new(0),
            flow: Arc::clone(flow),
            rate: Mutex::new(Rate {
                taken_at: now,
                records: 0,
                bytes: 0,
                records_per_second: 0.0,
                bytes_per_second: 0.0,
                last_records_per_second: VecDeque::new(),
            }),
        }
    }

    pub fn ingested(&self, records: u64, bytes: u64) {
        self.ingested_records.fetch_add(records, Ordering::Relaxed);
        self.ingested_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn ingested_records(&self) -> u64 {
        self.ingested_records.load(Ordering::Relaxed)
    }

    pub fn ingested_bytes(&self) -> u64 {
        self.ingested_bytes.load(Ordering::Relaxed)
    }

    /// All durable records that the stream holds, those of earlier runs included.
    pub fn durable_records(&self) -> u64 {
        stored_records(&self.stream)
    }

    /// Returns the totals so far.
    pub fn summary(&self) -> Ingested {
        Ingested {
            ingested_records: self.ingested_records(),
            ingested_bytes: self.ingested_bytes(),
            durable_records: self.durable_records(),
            seconds: self.started_at.elapsed().as_secs_f64(),
        }
    }

    /// How many durable records the flow has not read.
    pub fn lag_records(&self) -> u64 {
        self.flow.lag_records().unwrap_or(0)
    }

    /// The figures that the live page shows for any flow that reads the stream.
    pub fn overview(&self) -> Value {
        let rate = self.rate.lock();
        json!({
            "name": "quickstart",
            "flow": self.flow.name(),
            "uptime_s": self.started_at.elapsed().as_secs_f64(),
            "ingested_records": self.ingested_records(),
            "ingested_bytes": self.ingested_bytes(),
            "durable_records": self.durable_records(),
            "records_per_second": rate.records_per_second,
            "last_records_per_second": rate.last_records_per_second,
            "lag_records": self.lag_records(),
        })
    }

    /// The metrics of the stream and of its log.
    pub fn metrics(&self, log: &Log) -> Vec<Metric> {
        use MetricKind::{Counter, Gauge};
        #[rustfmt::skip]
        let mut metrics = vec![
            Metric::new("ingested_records_total", Counter, self.ingested_records(), "Records taken in by this run."),
            Metric::new("ingested_bytes_total", Counter, self.ingested_bytes(), "Bytes of their values."),
            Metric::new("durable_records", Gauge, self.durable_records(), "Durable records of the stream."),
            Metric::new("lag_records", Gauge, self.lag_records(), "Durable records that the flow has not read."),
        ];
        metrics.extend(log_metrics(log));
        metrics
    }

    /// Measures the rates again if an interval is over, and returns the progress line.
    pub fn tick(&self) -> String {
        let (records, bytes) = (self.ingested_records(), self.ingested_bytes());
        let mut rate = self.rate.lock();
        let seconds = rate.taken_at.elapsed().as_secs_f64();
        if seconds >= RATE_TIME.as_secs_f64() {
            rate.records_per_second = (records - rate.records) as f64 / seconds;
            rate.bytes_per_second = (bytes - rate.bytes) as f64 / seconds;
            (rate.records, rate.bytes) = (records, bytes);
            rate.taken_at = Instant::now();
            if rate.last_records_per_second.len() == RATES_MAX {
                rate.last_records_per_second.pop_front();
            }
            let newest = rate.records_per_second.round();
            rate.last_records_per_second.push_back(newest);
        }
        format!(
            "{}, {} records/s, {}/s, lag {}",
            count_of(records, "record"),
            grouped(rate.records_per_second as u64),
            ByteSize(rate.bytes_per_second as u64),
            grouped(self.lag_records()),
        )
    }
}

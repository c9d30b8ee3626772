//! Measures how many records per second a producer stores, and the latency of each.

use std::io::Write;
use std::time::{Duration, Instant};

use millstream_client::{Delivery, Producer, ProducerConfig, ProducerRecord};
use serde::Serialize;
use tokio::sync::mpsc;

use super::{Latencies, LatencyReport, MEGABYTE, Values};
use crate::args::BenchProduceArgs;
use crate::console::{print, print_json, tell};
use crate::remote::{Remote, explained};
use crate::stop::Stop;
use crate::values::Rate;

/// How often the benchmark prints a progress line.
const WINDOW: Duration = Duration::from_secs(5);

/// Records per block that the sender passes to the counter, and the bound of waiting blocks.
const BLOCK_RECORDS: usize = 64;
const BLOCKS_MAX: usize = 64 << 10;

/// Records that are due are sent this often.
const PACE: Duration = Duration::from_millis(1);

/// Records on their way, and when they were sent.
type Block = Vec<(Delivery, Instant)>;

#[derive(Serialize)]
struct Report {
    records: u64,
    seconds: f64,
    records_per_second: f64,
    mb_per_second: f64,
    latency_ms: LatencyReport,
}

pub fn run(
    args: &BenchProduceArgs,
    remote: &Remote,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    remote.stream(&args.stream)?;
    let config = ProducerConfig {
        linger: args.linger,
        batch_bytes: args.batch_bytes.as_usize(),
        compression: args.compression,
        ..ProducerConfig::default()
    };
    let (report, failed) = remote.runtime().block_on(async {
        let producer = Producer::new(remote.client(), config);
        let (blocks, sent) = mpsc::channel(BLOCKS_MAX);
        let started_at = Instant::now();
        let counting = tokio::spawn(count(sent, args.record_bytes.as_usize(), is_json));
        let failed = send_all(args, &producer, blocks, stop).await.err();
        let flushed = producer.flush().await.map_err(explained).err();
        let (records, latencies) = counting.await??;
        let seconds = started_at.elapsed().as_secs_f64();
        let bytes = records as f64 * args.record_bytes.as_usize() as f64;
        let report = Report {
            records,
            seconds,
            records_per_second: records as f64 / seconds,
            mb_per_second: bytes / MEGABYTE / seconds,
            latency_ms: latencies.report(),
        };
        anyhow::Ok((report, failed.or(flushed)))
    })?;
    match is_json {
        true => print_json(&report)?,
        false => report.print()?,
    }
    failed.map_or(Ok(()), Err)
}

async fn send_all(
    args: &BenchProduceArgs,
    producer: &Producer,
    blocks: mpsc::Sender<Block>,
    stop: &Stop,
) -> anyhow::Result<()> {
    let mut values = Values::new(args.record_bytes.as_usize())?;
    let mut block = Vec::with_capacity(BLOCK_RECORDS);
    let started_at = Instant::now();
    let mut sent = 0;
    while sent < args.records && !stop.is_set() {
        let due = match args.rate {
            Rate::Max => sent + BLOCK_RECORDS as u64,
            Rate::PerSecond(rate) => {
                (started_at.elapsed().as_secs_f64() * rate.get() as f64) as u64
            }
        };
        let due = due.min(args.records);
        while sent < due {
            let record = ProducerRecord {
                topic: &args.stream,
                value: Some(values.next()),
                ..ProducerRecord::default()
            };
            let sent_at = Instant::now();
            let delivery = producer.send(record).await.map_err(explained)?;
            block.push((delivery, sent_at));
            sent += 1;
        }
        if !block.is_empty() {
            let full = std::mem::replace(&mut block, Vec::with_capacity(BLOCK_RECORDS));
            // The counting thread ends early only after an error, which it reports itself.
            let _ = blocks.send(full).await;
        }
        if let Rate::PerSecond(_) = args.rate {
            tokio::time::sleep(PACE).await;
        }
    }
    Ok(())
}

/// Waits for the acknowledgements, in the order of the records, and prints the progress.
async fn count(
    mut sent: mpsc::Receiver<Block>,
    record_bytes: usize,
    is_json: bool,
) -> anyhow::Result<(u64, Latencies)> {
    let mut all = Latencies::new()?;
    let mut window = Latencies::new()?;
    let mut window_at = Instant::now();
    let mut records = 0;
    while let Some(block) = sent.recv().await {
        for (delivery, sent_at) in block {
            // The end of the run reports records that are not stored.
            if delivery.wait().await.is_err() {
                continue;
            }
            let time = sent_at.elapsed();
            all.add(time);
            window.add(time);
            records += 1;
        }
        let seconds = window_at.elapsed().as_secs_f64();
        if seconds >= WINDOW.as_secs_f64() {
            if !is_json {
                tell_window(&window, seconds, record_bytes);
            }
            window = Latencies::new()?;
            window_at = Instant::now();
        }
    }
    Ok((records, all))
}

fn tell_window(window: &Latencies, seconds: f64, record_bytes: usize) {
    let records = window.0.len();
    let per_second = records as f64 / seconds;
    let mb = per_second * record_bytes as f64 / MEGABYTE;
    let LatencyReport { avg, max, .. } = window.report();
    tell(format_args!(
        "{records} records sent, {per_second:.1} records/sec ({mb:.2} MB/sec), {avg:.1} ms avg latency, {max:.1} ms max latency."
    ));
}

impl Report {
    fn print(&self) -> anyhow::Result<()> {
        let LatencyReport {
            avg,
            max,
            p50,
            p95,
            p99,
            p999,
        } = self.latency_ms;
        print(|out| {
            writeln!(
                out,
                "{} records sent, {:.6} records/sec ({:.2} MB/sec), {avg:.2} ms avg latency, {max:.2} ms max latency, \
                 {p50:.0} ms 50th, {p95:.0} ms 95th, {p99:.0} ms 99th, {p999:.0} ms 99.9th.",
                self.records, self.records_per_second, self.mb_per_second
            )
        })
    }
}

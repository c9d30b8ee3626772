//! Measures the latency of a record from a producer to a consumer, one at a time.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::bail;
use millstream_client::{
    Consumer, ConsumerConfig, Producer, ProducerConfig, ProducerRecord, Start, TopicPartition,
};
use tokio::time::timeout;

use super::{Latencies, Values};
use crate::args::BenchLatencyArgs;
use crate::console::{Progress, grouped, print, print_json};
use crate::remote::{Remote, explained};
use crate::stop::Stop;

/// A record that does not arrive within this time is lost.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Records between two progress lines.
const SHOW_EVERY: u64 = 100;

pub fn run(
    args: &BenchLatencyArgs,
    remote: &Remote,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    remote.stream(&args.stream)?;
    let latencies = remote
        .runtime()
        .block_on(measure(args, remote, is_json, stop))?;
    let report = latencies.report();
    if is_json {
        return print_json(&report);
    }
    print(|out| {
        writeln!(out, "Avg latency: {:.4} ms", report.avg)?;
        let (p50, p99, p999) = (report.p50, report.p99, report.p999);
        writeln!(
            out,
            "Percentiles: 50th = {p50:.3}, 99th = {p99:.3}, 99.9th = {p999:.3}"
        )
    })
}

async fn measure(
    args: &BenchLatencyArgs,
    remote: &Remote,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<Latencies> {
    let place = TopicPartition {
        topic: args.stream.as_str().into(),
        partition: 0,
    };
    let places = [(place, Start::Latest)];
    let config = ConsumerConfig {
        delivery: args.delivery.unwrap_or_default().into(),
        ..ConsumerConfig::default()
    };
    let consumer = Consumer::assigned(remote.client(), config, &places).await;
    let mut consumer = consumer.map_err(explained)?;
    let config = ProducerConfig {
        linger: Duration::ZERO,
        ..ProducerConfig::default()
    };
    let producer = Producer::new(remote.client(), config);
    let mut values = Values::new(args.record_bytes.as_usize())?;
    let mut latencies = Latencies::new()?;
    let mut progress = Progress::new(is_json);
    for number in 0..args.records {
        if stop.is_set() {
            break;
        }
        let sent_at = Instant::now();
        let sent = producer.send(ProducerRecord {
            topic: &args.stream,
            partition: Some(0),
            value: Some(values.next()),
            ..ProducerRecord::default()
        });
        sent.await.map_err(explained)?;
        match timeout(WAIT_MAX, consumer.next()).await {
            Ok(fetched) => drop(fetched.map_err(explained)?),
            Err(_) => bail!("record {number} did not come within {WAIT_MAX:?}"),
        }
        let time = sent_at.elapsed();
        latencies.add(time);
        if number.is_multiple_of(SHOW_EVERY) {
            let time_ms = time.as_secs_f64() * 1000.0;
            progress.show(format!("{} records, {time_ms:.3} ms", grouped(number + 1)));
        }
    }
    progress.finish();
    Ok(latencies)
}

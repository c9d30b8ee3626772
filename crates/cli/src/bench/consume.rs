//! Measures how many records per second a consumer reads.

use std::io::Write;
use std::ops::ControlFlow;
use std::time::{Duration, Instant, SystemTime};

use millstream_client::{Consumer, ConsumerConfig, Decompressor, Start, TopicPartition};
use serde::Serialize;
use tokio::time::timeout;

use super::MEGABYTE;
use crate::args::BenchConsumeArgs;
use crate::console::{print, print_json};
use crate::remote::{Remote, explained};
use crate::stop::Stop;

/// The consumer stops if no record arrives within this time.
const WAIT_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Serialize)]
struct Report {
    records: u64,
    bytes: u64,
    seconds: f64,
    records_per_second: f64,
    mb_per_second: f64,
}

pub fn run(
    args: &BenchConsumeArgs,
    remote: &Remote,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    let lanes = remote.stream(&args.stream)?.lanes;
    let places: Vec<(TopicPartition, Start)> = lanes
        .iter()
        .map(|lane| {
            let place = TopicPartition {
                topic: args.stream.as_str().into(),
                partition: i32::try_from(lane.partition).unwrap_or(i32::MAX),
            };
            (place, Start::Earliest)
        })
        .collect();
    let (began, started_at) = (SystemTime::now(), Instant::now());
    let config = ConsumerConfig {
        delivery: args.delivery.unwrap_or_default().into(),
        ..ConsumerConfig::default()
    };
    let consumer = Consumer::assigned(remote.client(), config, &places);
    let mut consumer = remote.wait(consumer)?;
    let (mut records, mut bytes) = (0, 0);
    let mut decompressor = Decompressor::default();
    let mut last_at = started_at;
    while records < args.records && !stop.is_set() && last_at.elapsed() < WAIT_MAX {
        let next = async { timeout(PAUSE, consumer.next()).await };
        let Ok(fetched) = remote.runtime().block_on(next) else {
            continue;
        };
        let read = fetched
            .map_err(explained)?
            .each(&mut decompressor, |record| {
                records += 1;
                let key_bytes = record.key.map_or(0, <[u8]>::len);
                bytes += (key_bytes + record.value.map_or(0, <[u8]>::len)) as u64;
                match records < args.records {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            });
        read.map_err(explained)?;
        last_at = Instant::now();
    }
    let seconds = last_at.duration_since(started_at).as_secs_f64().max(1e-6);
    let report = Report {
        records,
        bytes,
        seconds,
        records_per_second: records as f64 / seconds,
        mb_per_second: bytes as f64 / MEGABYTE / seconds,
    };
    match is_json {
        true => print_json(&report),
        false => report.print(began),
    }
}

impl Report {
    fn print(&self, began: SystemTime) -> anyhow::Result<()> {
        let time = |time| {
            let text = humantime::format_rfc3339_millis(time).to_string();
            text.replace('T', " ").replace('.', ":").replace('Z', "")
        };
        let end = time(began + Duration::from_secs_f64(self.seconds));
        let (mb, records) = (self.bytes as f64 / MEGABYTE, self.records);
        let (mb_sec, records_sec) = (self.mb_per_second, self.records_per_second);
        // Without a group there is no rebalance, so all of the time is spent fetching.
        let fetch_ms = self.seconds * 1000.0;
        print(|out| {
            writeln!(
                out,
                "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, \
                 rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
            )?;
            writeln!(
                out,
                "{}, {end}, {mb:.4}, {mb_sec:.4}, {records}, {records_sec:.4}, 0, {fetch_ms:.0}, {mb_sec:.4}, {records_sec:.4}",
                time(began)
            )
        })
    }
}

//! `millstream bench …`: measures a server from a client. Prints the figures in the form of Kafka's own tools
//! (`kafka-producer-perf-test` and its siblings), so that they are easy to compare.

mod consume;
mod latency;
mod produce;

use std::time::Duration;

use hdrhistogram::Histogram;
use millstream_base::{Random, SystemRandom};
use serde::Serialize;

use crate::args::BenchCommand;
use crate::remote::Remote;
use crate::settings::Settings;
use crate::stop::Stop;
use crate::usage::WrongUsage;

/// Bytes in a megabyte, as Kafka's tools count them.
const MEGABYTE: f64 = (1 << 20) as f64;

/// Length of the random text from which records are cut.
const LETTERS_BYTES: usize = 1 << 20;

pub fn run(
    command: BenchCommand,
    settings: &Settings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    if settings.is_local() {
        return Err(WrongUsage::error(
            "bench measures a server, not a data directory: name the server with --server",
        ));
    }
    let remote = Remote::new(settings)?;
    match command {
        BenchCommand::Produce(args) => produce::run(&args, &remote, is_json, stop),
        BenchCommand::Consume(args) => consume::run(&args, &remote, is_json, stop),
        BenchCommand::Latency(args) => latency::run(&args, &remote, is_json, stop),
    }
}

/// Times, in microseconds.
struct Latencies(Histogram<u64>);

/// The latencies that `--json` prints, in milliseconds.
#[derive(Serialize)]
struct LatencyReport {
    avg: f64,
    max: f64,
    p50: f64,
    p95: f64,
    p99: f64,
    p999: f64,
}

impl Latencies {
    fn new() -> anyhow::Result<Latencies> {
        Ok(Latencies(Histogram::new(3)?))
    }

    fn add(&mut self, time: Duration) {
        self.0 += u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    }

    fn report(&self) -> LatencyReport {
        let ms = |micros: f64| micros / 1000.0;
        let at = |quantile| ms(self.0.value_at_quantile(quantile) as f64);
        LatencyReport {
            avg: ms(self.0.mean()),
            max: ms(self.0.max() as f64),
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
        }
    }
}

/// Values of one size, of random letters.
struct Values {
    letters: Vec<u8>,
    at: usize,
    bytes: usize,
}

impl Values {
    fn new(bytes: usize) -> anyhow::Result<Values> {
        let mut letters = vec![0; LETTERS_BYTES + bytes];
        SystemRandom.fill(&mut letters)?;
        for letter in &mut letters {
            *letter = b'A' + *letter % 26;
        }
        Ok(Values {
            letters,
            at: 0,
            bytes,
        })
    }

    fn next(&mut self) -> &[u8] {
        self.at = (self.at + self.bytes) % LETTERS_BYTES;
        &self.letters[self.at..self.at + self.bytes]
    }
}

//! The broker beside Apache Kafka: the same clients, the same bytes, in turn.

mod connection;
mod contender;
mod cost;
mod fetcher;
mod latency;
mod load;
mod rdkafka;
mod resources;
mod sink;
mod throughput;
mod tools;

use anyhow::Result;

pub use self::connection::{
    Connection, check_produced, chunk, frame, produce_frame, produce_request, text,
};
pub use self::contender::our_command;
use crate::benchmark::Benchmark;
use crate::engine::build_peers;
use crate::measure::Bench;
use crate::report::Case;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "broker",
    measures: "The server under producers and consumers: throughput, latency, cost and resources, beside Kafka and a bare connection.",
    cases: &[
        (cost::COST, cost),
        (throughput::THROUGHPUT, throughput::throughput),
        (tools::TOOLS, tools::tools),
        (latency::LATENCY, latency::latency),
        (resources::RESOURCES, resources::resources),
    ],
};

/// The first case, so what all of them need is built with it.
fn cost(bench: &Bench) -> Result<Vec<Case>> {
    if !bench.is_quick() {
        build_peers();
    }
    cost::cost(bench)
}

/// What a record's value has.
const RECORD_BYTES: usize = 100;

/// When a producer is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// When the records are in the broker's memory.
    Async,
    /// When the broker has handed them to the system, which is Kafka's default.
    Written,
    /// When the records are on disk.
    Fdatasync,
}

impl Durability {
    fn name(self) -> &'static str {
        match self {
            Durability::Async => "async",
            Durability::Written => "written",
            Durability::Fdatasync => "fdatasync",
        }
    }
}

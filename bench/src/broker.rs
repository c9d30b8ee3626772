//! The broker beside Apache Kafka: the same clients, the same bytes, in turn.

mod contender;
mod cost;
mod durability;
mod latency;
mod load;
mod rdkafka;
mod resources;
mod sink;
mod throughput;
mod tools;

use anyhow::Result;

use crate::benchmark::Benchmark;
use crate::measure::Bench;
use crate::project::build_peers;
use crate::report::Case;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "broker",
    measures: "Measures the server under producers and consumers (throughput, latency, cost and resources) against Kafka and a bare connection.",
    cases: &[
        (cost::COST, cost),
        (throughput::THROUGHPUT, throughput::throughput),
        (tools::TOOLS, tools::tools),
        (latency::LATENCY, latency::latency),
        (resources::RESOURCES, resources::resources),
    ],
};

/// The first case; it also builds the programs that all cases need.
fn cost(bench: &Bench) -> Result<Vec<Case>> {
    if !bench.is_quick() {
        build_peers(["kafka", "librdkafka"]);
    }
    cost::cost(bench)
}

//! Requests that are answered from the state of flows while the flows work.

mod clients;
mod freshness;
mod hazelcast;
mod host;
mod point_reads;
mod pushed;
mod readers;
mod recommend;

use crate::benchmark::Benchmark;
use crate::child::Entry;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "serving",
    measures: "Measures answers from the state of flows over HTTP: a recommender beside analytics (alone, under the operating system's scheduler, and under ours), reads of one key under updates beside Valkey, how fresh answers are beside Hazelcast, and how soon changes reach many readers.",
    cases: &[
        (recommend::RECOMMEND, recommend::recommend),
        (point_reads::POINT_READS, point_reads::point_reads),
        (freshness::FRESHNESS, freshness::freshness),
        (pushed::PUSHED, pushed::pushed),
    ],
};

/// The work of child processes.
pub const TASKS: [Entry; 5] = [
    Entry::of::<clients::Clients>(),
    Entry::of::<point_reads::Host>(),
    Entry::of::<host::Host>(),
    Entry::of::<host::Analytics>(),
    Entry::of::<readers::Readers>(),
];

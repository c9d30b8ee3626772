//! State of flows in the log: counts by key with a checkpoint every second, and a join that has no state but the log.

mod cost;
mod counting;
mod edits;
mod elements;
mod flink;
mod key_join;
mod path;
mod recovery;
mod scarce;
mod throughput;

use crate::benchmark::Benchmark;
use crate::child::Entry;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "state",
    measures: "Measures flows that count by key and keep their state in the log, with a checkpoint every second, against the same flows without checkpoints, loops by hand, and Flink with RocksDB. Also a join of keyed streams.",
    cases: &[
        (path::PATH, path::path),
        (throughput::THROUGHPUT, throughput::throughput),
        (elements::ELEMENTS, elements::elements),
        (cost::COST, cost::cost),
        (recovery::RECOVERY, recovery::recovery),
        (scarce::SCARCE, scarce::scarce),
        (scarce::LARGE, scarce::large),
        (key_join::KEY_JOIN, key_join::key_join),
    ],
};

/// The work of child processes.
pub const TASKS: [Entry; 4] = [
    Entry::of::<recovery::Run>(),
    Entry::of::<recovery::Resumed>(),
    Entry::of::<scarce::Count>(),
    Entry::of::<key_join::FanOut>(),
];

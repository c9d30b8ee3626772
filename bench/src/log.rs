//! The log of one node.

mod append;
mod child;
mod data;
mod durable;
mod instructions;
mod large;
mod read;
mod restart;
mod streams;

pub use self::child::run as run_child;
use crate::benchmark::Benchmark;

/// The first word of a command line that asks this program to be a child of a benchmark.
pub const CHILD: &str = "child-of-log";

pub const BENCHMARK: Benchmark = Benchmark {
    name: "log",
    cases: &[
        (append::MEMORY, append::memory),
        (append::COST, append::cost),
        (instructions::INSTRUCTIONS, instructions::instructions),
        (durable::ONE_LANE, durable::one_lane),
        (durable::THOUSAND_LANES, durable::thousand_lanes),
        (durable::VIRTUAL_LOGS, durable::virtual_logs),
        (read::RE_READ, read::re_read),
        (large::TEN_GB, large::ten_gb),
        (restart::RESTART, restart::restart),
        (streams::TEN_THOUSAND, streams::ten_thousand),
    ],
};

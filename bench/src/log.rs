//! The log of one node.

mod append;
mod compressed;
mod data;
mod durable;
mod instructions;
mod large;
mod read;
mod restart;
mod streams;

use crate::benchmark::Benchmark;
use crate::child::Entry;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "log",
    measures: "Measures one broker's storage (appends, durable appends, reads, memory and restart) against the same bytes copied, checksummed, written and read by hand.",
    cases: &[
        (append::MEMORY, append::memory),
        (append::COST, append::cost),
        (instructions::INSTRUCTIONS, instructions::instructions),
        (compressed::COMPRESSED, compressed::compressed),
        (durable::ONE_LANE, durable::one_lane),
        (durable::THOUSAND_LANES, durable::thousand_lanes),
        (durable::VIRTUAL_LOGS, durable::virtual_logs),
        (read::RE_READ, read::re_read),
        (large::TEN_GB, large::ten_gb),
        (restart::RESTART, restart::restart),
        (streams::TEN_THOUSAND, streams::ten_thousand),
    ],
};

/// The work of child processes.
pub const TASKS: [Entry; 4] = [
    Entry::of::<large::Task>(),
    Entry::of::<restart::Task>(),
    Entry::of::<streams::Task>(),
    Entry::of::<instructions::Task>(),
];

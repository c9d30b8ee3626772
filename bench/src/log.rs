//! The log of one node.

mod append;
mod data;
mod durable;
mod instructions;
mod large;
mod read;
mod restart;
mod streams;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::benchmark::Benchmark;
use crate::child::say;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "log",
    measures: "The storage of one broker: appends, durable appends, reading again, memory and restart, beside the same bytes copied, checksummed, written and read by hand.",
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

/// What a child does.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    IngestAndReadAgain(large::Task),
    IngestUntilKilled(restart::Task),
    CreateStreams(streams::Task),
    CountInstructions(instructions::Task),
}

/// The child's part.
pub fn run_child(task: Task) -> Result<()> {
    match task {
        Task::IngestAndReadAgain(task) => say(&large::run(&task)?),
        Task::IngestUntilKilled(task) => restart::run(&task),
        Task::CreateStreams(task) => say(&streams::run(&task)?),
        Task::CountInstructions(task) => instructions::run(&task),
    }
}

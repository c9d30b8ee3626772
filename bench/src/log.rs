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

use anyhow::{Context as _, Result};

pub use self::child::run as run_child;
use crate::measure::Bench;
use crate::report::Case;

pub const NAME: &str = "log";

/// The first word of a command line that asks this program to be a child of a benchmark.
pub const CHILD: &str = "child-of-log";

type Run = fn(&Bench) -> Result<Vec<Case>>;

/// All cases, in the order in which they run.
pub const CASES: [(&str, Run); 10] = [
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
];

/// Runs all cases, or one.
pub fn run(bench: &Bench, only: Option<&str>) -> Result<Vec<Case>> {
    let mut results = Vec::new();
    for (name, run) in CASES {
        if only.is_none_or(|only| only == name) {
            eprintln!("bench: {NAME} {name} …");
            results.extend(run(bench).with_context(|| format!("case {name}"))?);
        }
    }
    Ok(results)
}

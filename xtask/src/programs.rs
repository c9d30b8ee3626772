//! Runs test programs side by side, each with a time limit.
//!
//! `cargo test` runs one program after the other and waits for each without a limit. Most tests wait more than they
//! compute, so several programs at once take less time. A program that exceeds its limit ends, with all processes that
//! it has started, and the tests that were running are named. A program that leaves processes behind fails.

mod built;
mod limits;
mod process;
mod report;

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use self::process::Running;
use self::report::Totals;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Programs at once for each processor.
const PROGRAMS_PER_CPU: usize = 2;

/// Runs all test programs that cargo names in `messages`, a file with the output of
/// `cargo test --no-run --message-format=json`. Their output goes to files beside it.
///
/// # Errors
/// When a file cannot be read or written, or a program cannot be started.
pub fn run(messages: &Path) -> anyhow::Result<ExitCode> {
    let mut programs = built::programs(messages)?;
    ensure!(
        !programs.is_empty(),
        "{messages:?} names no test program; write it with `cargo test --no-run --message-format=json`"
    );
    // The longest ones start first, so that none of them runs alone at the end.
    programs.sort_by_key(|program| program.limit);
    let folder = messages.with_extension("output");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {folder:?}"))?;

    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let mut running: Vec<Running> = Vec::new();
    let mut totals = Totals::default();
    while !programs.is_empty() || !running.is_empty() {
        while running.len() < cpus * PROGRAMS_PER_CPU
            && let Some(program) = programs.pop()
        {
            running.push(Running::start(program, &folder)?);
        }
        let mut index = 0;
        while index < running.len() {
            match running[index].poll()? {
                Some(outcome) => totals.add(&running.swap_remove(index), &outcome),
                None => index += 1,
            }
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(totals.print())
}

//! Workers that die.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use millstream_logparser::Staging;

use super::text::Text;
use super::{WORKERS, ours};
use crate::measure::{Bench, Took, cpu_median, median, time};
use crate::report::{Better, Case};

pub const KILLS: &str = "kills";

/// Which part of the workers is killed, and how often.
const KILLED_PART: f64 = 0.6;

/// The same run with kills and without.
pub fn kills(bench: &Bench) -> Result<Vec<Case>> {
    let text = bench.text()?;
    let every = Duration::from_millis(bench.size(4000, 5));
    // Long enough for three kills.
    let passes = ours::passes_in(text, bench.size(14.0, 0.1))?;
    let mut rounds = Vec::new();
    for round in 0..bench.size(3, 1) {
        let killed = || run(text, passes, Some(every));
        let spared = || run(text, passes, None);
        // Each comes first as often as last, but for one.
        rounds.push(match round % 2 {
            0 => (killed()?, spared()?),
            _ => {
                let spared = spared()?;
                (killed()?, spared)
            }
        });
    }
    let (killed, spared): (Vec<_>, Vec<_>) = rounds.into_iter().unzip();
    let (killed, replaced): (Vec<Took>, Vec<f64>) = killed.into_iter().unzip();
    let (spared, _): (Vec<Took>, Vec<f64>) = spared.into_iter().unzip();
    let seconds = |took: &[Took]| took.iter().map(|took| took.seconds).collect();
    Ok(vec![
        Case::new(KILLS, "s", Better::Lower, seconds(&killed))
            .by_hand(seconds(&spared))
            // A cost of under 5 %.
            .target(1.0 / 1.05)
            .detail("workers_replaced", median(&replaced))
            .detail("cpu_s", cpu_median(&killed))
            .detail("without_kills_cpu_s", cpu_median(&spared)),
    ])
}

/// Runs the separate stages over the text, counts right, and tells how many workers were replaced.
fn run(text: &Text, passes: usize, kill_every: Option<Duration>) -> Result<(Took, f64)> {
    let mut replaced = 0;
    let took = time(|| {
        let parser = ours::start(
            text.paths(passes),
            Staging::Separate,
            ours::settings(WORKERS),
        )?;
        let running = parser.running();
        thread::scope(|scope| {
            let (done, is_done) = channel::<()>();
            if let Some(every) = kill_every {
                scope.spawn(move || {
                    while is_done.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                        let count = running.workers() as f64 * KILLED_PART;
                        running.kill_workers((count.round() as usize).max(1));
                    }
                });
            }
            let summary = running.join();
            drop(done);
            replaced = summary?.workers_replaced;
            anyhow::Ok(())
        })?;
        text.check(ours::counted(&parser), passes)
    })?;
    ensure!(
        replaced > 0 || kill_every.is_none(),
        "no worker was killed in {:.2} s",
        took.seconds
    );
    Ok((took, replaced as f64))
}

//! Workers that die.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use millstream_flow::FlowSettings;
use millstream_logparser::Staging;

use super::ours;
use crate::measure::{
    Bench, ROUNDS, Took, cpu_median, ended, energy_median, energy_suffix, median, rounds_of, time,
};
use crate::report::{Better, Case};
use crate::text::Text;

pub const KILLS: &str = "kills";

/// Which part of the workers is killed, and how often (Ordo, section 4.5).
const KILLED_PART: f64 = 0.6;

/// Workers for each core: enough that 60 % of them are more than one.
const WORKERS_PER_CORE: usize = 4;

/// How the flow treats workers that die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Others take their places.
    Replaced,
    /// They stay dead: the last one ends the flow.
    Dead,
    /// None is killed.
    Spared,
}

const WAYS: [Way; 3] = [Way::Replaced, Way::Dead, Way::Spared];

/// A run, and the fate of its workers.
struct Ran {
    took: Took,
    /// When the first were killed.
    workers: f64,
    died: f64,
    replaced: f64,
}

/// The same run with kills, restoring the dead or not, and without.
pub fn kills(bench: &Bench) -> Result<Vec<Case>> {
    let text = bench.text()?;
    let every = Duration::from_millis(bench.size(4000, 5));
    // Long enough for two kills.
    let passes = ours::passes_in(text, bench.size(10.0, 0.1))?;
    let rounds = rounds_of(bench.size(ROUNDS, 1), WAYS.len(), |way| {
        run(text, passes, every, WAYS[way])
    })?;
    let took = |way: usize| {
        rounds[way]
            .iter()
            .map(|ran| ran.took)
            .collect::<Vec<Took>>()
    };
    let seconds = |way: usize| {
        took(way)
            .iter()
            .map(|took| took.seconds)
            .collect::<Vec<_>>()
    };
    let middle = |way: usize, pick: fn(&Ran) -> f64| {
        median(&rounds[way].iter().map(pick).collect::<Vec<f64>>())
    };
    let (replaced, dead, spared) = (0, 1, 2);
    let with_workers = |case: Case, way: usize| {
        case.detail("workers_at_the_first_kill", middle(way, |ran| ran.workers))
            .detail("workers_died", middle(way, |ran| ran.died))
            .detail("workers_replaced", middle(way, |ran| ran.replaced))
            .detail("cpu_s", cpu_median(&took(way)))
            .detail(
                &format!("energy_{}", energy_suffix()),
                energy_median(&took(way)),
            )
            .detail("without_kills_cpu_s", cpu_median(&took(spared)))
    };
    let case = Case::new(KILLS, "s", Better::Lower, seconds(replaced))
        .by_hand(seconds(spared))
        // A cost of under 5 %.
        .target(1.0 / 1.05)
        .peer("the dead left dead", median(&seconds(dead)));
    let left_dead = Case::new(
        format!("{KILLS}/left-dead"),
        "s",
        Better::Lower,
        seconds(dead),
    );
    Ok(vec![
        with_workers(case, replaced),
        with_workers(left_dead.by_hand(seconds(spared)), dead),
    ])
}

/// Runs the separate stages over the text, and counts right.
fn run(text: &Text, passes: usize, every: Duration, way: Way) -> Result<Ran> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let settings = FlowSettings {
        replaces_workers: way != Way::Dead,
        ..ours::settings(cores * WORKERS_PER_CORE)
    };
    let (mut workers, mut died, mut replaced) = (0, 0, 0);
    let took = time(|| {
        let parser = ours::start(text.paths(passes), Staging::Separate, settings)?;
        let running = parser.running();
        thread::scope(|scope| {
            let (done, is_done) = channel::<()>();
            let killer = (way != Way::Spared).then(|| {
                scope.spawn(move || {
                    let mut first = 0;
                    while is_done.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                        let count = running.workers();
                        first = if first == 0 { count } else { first };
                        running
                            .kill_workers(((count as f64 * KILLED_PART).round() as usize).max(1));
                    }
                    first
                })
            });
            let summary = ended(running);
            drop(done);
            if let Some(killer) = killer {
                let first = killer.join();
                workers = first.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
            let summary = summary?;
            (died, replaced) = (summary.workers_died, summary.workers_replaced);
            anyhow::Ok(())
        })?;
        text.check(ours::counted(&parser), passes)
    })?;
    ensure!(
        died > 0 || way == Way::Spared,
        "no worker was killed in {:.2} s",
        took.seconds
    );
    Ok(Ran {
        took,
        workers: workers as f64,
        died: died as f64,
        replaced: replaced as f64,
    })
}

//! Random runs: clients that come, go and crash, a log that loses records that are not durable,
//! markers that fail; and named invariants that are checked after every event.

use std::env;

use fastrand::Rng;

use crate::simulation::{Seen, Simulation};

/// The number of runs, unless `MILLSTREAM_CASES` sets another. Their seeds begin with 0; `MILLSTREAM_SEED` names one.
const CASES: u64 = 200;
const EVENTS: usize = 1500;

#[test]
fn transactions_are_atomic_under_faults() {
    let variable = |name| env::var(name).ok().map(|value| value.parse().unwrap());
    let mut seen = Seen::default();
    if let Some(seed) = variable("MILLSTREAM_SEED") {
        return run(&mut Rng::with_seed(seed), &mut seen);
    }
    for seed in 0..variable("MILLSTREAM_CASES").unwrap_or(CASES) {
        let seed = PrintedSeed(seed);
        run(&mut Rng::with_seed(seed.0), &mut seen);
    }
    // If the runs are rich enough, none of this is rare.
    seen.assert_all();
}

fn run(rng: &mut Rng, seen: &mut Seen) {
    let mut simulation = Simulation::new(rng, seen);
    for _ in 0..EVENTS {
        simulation.step();
    }
    simulation.finish();
}

/// Prints the seed of a failing case.
struct PrintedSeed(u64);

impl Drop for PrintedSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with MILLSTREAM_SEED={}", self.0);
        }
    }
}

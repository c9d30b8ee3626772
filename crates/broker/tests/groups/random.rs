//! Random runs: their number, and their seeds.

use std::env;

use fastrand::Rng;

/// The number of runs of each kind, unless `MILLSTREAM_CASES` sets it.
const CASES: u64 = 150;

/// Runs cases with seeds from 0, or the one that `MILLSTREAM_SEED` names.
pub fn run(case: impl Fn(&mut Rng)) {
    let variable = |name| env::var(name).ok().map(|value| value.parse().unwrap());
    if let Some(seed) = variable("MILLSTREAM_SEED") {
        return run_one(seed, &case);
    }
    for seed in 0..variable("MILLSTREAM_CASES").unwrap_or(CASES) {
        run_one(seed, &case);
    }
}

fn run_one(seed: u64, case: &impl Fn(&mut Rng)) {
    let _seed = PrintedSeed(seed);
    // Numbers that the case draws without `Rng`.
    fastrand::seed(seed);
    case(&mut Rng::with_seed(seed));
}

/// Prints the seed of a case that fails.
struct PrintedSeed(u64);

impl Drop for PrintedSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with MILLSTREAM_SEED={}", self.0);
        }
    }
}

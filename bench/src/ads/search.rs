//! The search for the sustainable throughput ("AIR", section 5.2): the highest rate at which results come as soon as at
//! a low rate, all of them, and events are made as fast as they are due.

use anyhow::{Result, ensure};

use millstream_ads::benchmark::Probe;

/// The low rate, as a part of what was made without a rate.
const LOW: f64 = 0.2;

/// The first rate behind it.
const HIGH: f64 = 0.85;

/// By how much a rate is raised that could be sustained; each time by twice as many such steps, until one cannot.
const RAISE: f64 = 1.1;
const RAISE_MAX: f64 = 2.0;

/// How many low rates are tried, each half of the one before, where they cannot be sustained.
const LOWER_MAX: usize = 4;

/// Latencies have jumped when they are so many times those at the low rate, and so much more in milliseconds: turns of
/// who gets a core are no jump.
const JUMP: f64 = 3.0;
const JUMP_MS: f64 = 200.0;

/// How closely the rate is found, and in how many runs at most.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    /// The lowest rate that cannot be sustained is at most so many times the highest that can.
    pub precision: f64,
    /// Runs with a rate.
    pub probes_max: usize,
}

/// What was found.
#[derive(Debug, Clone)]
pub struct Sustained {
    /// Without a rate.
    pub unlimited: Probe,
    /// The run with the highest rate that was sustained.
    pub best: Probe,
    /// All runs with a rate, in order, and whether each was sustained.
    pub probes: Vec<(Probe, bool)>,
}

impl Search {
    /// Looks for the rate by running with different ones; 0 runs without one.
    ///
    /// # Errors
    /// When a run fails, or no rate can be sustained.
    pub fn run(&self, mut probe: impl FnMut(u64) -> Result<Probe>) -> Result<Sustained> {
        let unlimited = probe(0)?;
        let mut probes = Vec::new();
        let low = self.low(unlimited.achieved, &mut probe, &mut probes)?;
        let is_sustained = |probe: &Probe| {
            let bound_ms = (low.latency.mean * JUMP).max(low.latency.mean + JUMP_MS);
            is_complete(probe) && probe.latency.mean <= bound_ms
        };
        let mut best = low;
        let mut too_high = f64::INFINITY;
        let mut next = unlimited.achieved * HIGH;
        let mut raise = RAISE;
        while probes.len() < self.probes_max && too_high > best.rate as f64 * self.precision {
            let tried = probe(next as u64)?;
            let sustained = is_sustained(&tried);
            probes.push((tried, sustained));
            match sustained {
                true => best = tried,
                false => too_high = tried.rate as f64,
            }
            let rate = best.rate as f64;
            next = match too_high.is_finite() {
                true => (rate + too_high) / 2.0,
                false => rate * raise,
            };
            raise = (raise * raise).min(RAISE_MAX);
        }
        Ok(Sustained {
            unlimited,
            best,
            probes,
        })
    }

    /// A run at a low rate, with whose latency others are compared.
    fn low(
        &self,
        achieved: f64,
        probe: &mut impl FnMut(u64) -> Result<Probe>,
        probes: &mut Vec<(Probe, bool)>,
    ) -> Result<Probe> {
        let mut rate = achieved * LOW;
        loop {
            let low = probe(rate as u64)?;
            let sustained = is_complete(&low);
            probes.push((low, sustained));
            if sustained {
                return Ok(low);
            }
            ensure!(
                probes.len() < LOWER_MAX,
                "even {} events/s are not sustained: {} results are missing or wrong, {:.0} events/s were made",
                low.rate,
                low.missing,
                low.achieved
            );
            rate /= 2.0;
        }
    }
}

/// All results came, from all events.
fn is_complete(probe: &Probe) -> bool {
    probe.missing == 0 && probe.is_on_time && probe.latency.mean.is_finite()
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_ads::benchmark::Latency;

    const SEARCH: Search = Search {
        precision: 1.05,
        probes_max: 12,
    };

    /// How a contender shows that it has more to do than it can.
    #[derive(Debug, Clone, Copy)]
    enum Fails {
        Later,
        Behind,
        Dropping,
    }

    fn fake(capacity: f64, unlimited: f64, fails: Fails) -> impl FnMut(u64) -> Result<Probe> {
        move |rate| {
            let asked = match rate {
                0 => unlimited,
                rate => rate as f64,
            };
            let is_over = asked > capacity;
            let mean = match (is_over, fails) {
                (true, Fails::Later) => 900.0,
                _ => 10.0 + 100.0 * (asked / capacity).min(1.0),
            };
            Ok(Probe {
                rate,
                achieved: asked,
                is_on_time: !(is_over && matches!(fails, Fails::Behind)),
                missing: if is_over && matches!(fails, Fails::Dropping) {
                    7
                } else {
                    0
                },
                latency: Latency {
                    mean,
                    p50: mean,
                    p99: mean,
                },
            })
        }
    }

    #[test]
    fn the_capacity_of_a_contender_is_found_however_it_fails() {
        for fails in [Fails::Later, Fails::Behind, Fails::Dropping] {
            for unlimited in [0.1e6, 0.8e6, 1e6, 1.1e6, 1.9e6, 4.4e6] {
                let found = SEARCH.run(fake(1e6, unlimited, fails)).unwrap();
                let rate = found.best.rate as f64;
                assert!(
                    (0.94e6..=1e6).contains(&rate),
                    "{fails:?}, {unlimited}: {rate}"
                );
                assert!(found.probes.len() <= SEARCH.probes_max);
            }
        }
    }

    #[test]
    fn few_runs_come_near() {
        let search = Search {
            precision: 1.05,
            probes_max: 5,
        };
        let found = search.run(fake(1e6, 1.05e6, Fails::Behind)).unwrap();
        assert!((0.88e6..=1e6).contains(&(found.best.rate as f64)));
        assert!(found.probes.len() <= 5);
    }

    #[test]
    fn who_sustains_nothing_is_told() {
        let error = SEARCH.run(fake(1.0, 1e6, Fails::Dropping)).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("7 results are missing or wrong"), "{error}");
    }
}

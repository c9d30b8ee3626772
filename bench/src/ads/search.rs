//! The search for the sustainable throughput ("AIR", section 5.2): the highest rate at which results come as soon as at
//! a low rate, all of them, and events are made as fast as they are due.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use millstream_ads::benchmark::Probe;

/// The low rate, as a part of the events that were made without a rate.
const LOW: f64 = 0.2;

/// The first rate behind it.
const HIGH: f64 = 0.85;

/// The first step by which a rate is raised or lowered; each further step in the same direction is the square of the one
/// before, up to a bound, until rates on both sides of the searched one are known.
const STEP: f64 = 1.1;
const STEP_MAX: f64 = 2.0;

/// How many low rates are tried, each half of the one before, where they cannot be sustained.
const LOWER_MAX: usize = 4;

/// Latencies have jumped when they exceed those at the low rate by this factor, and by these milliseconds: a thread
/// that waits for a core is no jump.
const JUMP: f64 = 3.0;
const JUMP_MS: f64 = 200.0;

/// How closely the rate is found, and when a search that does not come so close ends.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    /// The search ends when the lowest unsustained rate is at most this many times the highest sustained one.
    pub precision: f64,
    /// Runs with a rate in one search.
    pub runs_max: usize,
    /// No run begins later.
    pub until: Instant,
}

/// One run of a contender.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub probe: Probe,
    /// For a million events: joules, or where the machine does not count them CPU-seconds.
    pub energy_per_million: f64,
}

/// The runs that others are compared with.
#[derive(Debug, Clone)]
pub struct Base {
    /// Without a rate.
    pub unlimited: Run,
    /// At a low rate, which was sustained.
    pub low: Run,
    /// All runs at low rates, and whether each was sustained.
    pub runs: Vec<(Run, bool)>,
}

/// The result of one search.
#[derive(Debug, Clone)]
pub struct Sustained {
    /// The run with the highest rate that was sustained.
    pub best: Run,
    /// The lowest rate that was not.
    pub too_high: Option<u64>,
    /// All runs in order, and whether each was sustained.
    pub runs: Vec<(Run, bool)>,
}

impl Sustained {
    pub fn rate(&self) -> f64 {
        self.best.probe.rate as f64
    }

    /// How far the lowest rate that was not sustained lies above the highest that was, as a part of the latter; infinite
    /// if no rate was too high.
    pub fn resolution(&self) -> f64 {
        let above = |rate| rate as f64 / self.rate() - 1.0;
        self.too_high.map_or(f64::INFINITY, above)
    }
}

impl Base {
    /// Runs at a low rate, a fraction of the throughput of the run without a rate.
    ///
    /// # Errors
    /// When a run fails, or no low rate is sustained.
    pub fn find(unlimited: Run, mut run: impl FnMut(u64) -> Result<Run>) -> Result<Base> {
        let mut runs = Vec::new();
        let mut rate = unlimited.probe.achieved * LOW;
        loop {
            let low = run(rate as u64)?;
            let sustained = is_complete(&low.probe);
            runs.push((low, sustained));
            if sustained {
                return Ok(Base {
                    unlimited,
                    low,
                    runs,
                });
            }
            let probe = low.probe;
            ensure!(
                runs.len() < LOWER_MAX,
                "even {} events/s are not sustained: {} results are missing or wrong, {:.0} events/s were made",
                probe.rate,
                probe.missing,
                probe.achieved
            );
            rate /= 2.0;
        }
    }

    /// The first rate of the first search.
    pub fn first_rate(&self) -> f64 {
        self.unlimited.probe.achieved * HIGH
    }

    fn is_sustained(&self, probe: &Probe) -> bool {
        let low_ms = self.low.probe.latency.mean;
        let bound_ms = (low_ms * JUMP).max(low_ms + JUMP_MS);
        is_complete(probe) && probe.latency.mean <= bound_ms
    }
}

impl Search {
    /// Looks for the rate from `first` on, where the first step is `step`. Ends when it is as close as asked for, or at
    /// the bounds of the search: then the resolution of the result is how close it is.
    ///
    /// # Errors
    /// When a run fails, or no rate was sustained and there is no `low` one that was.
    fn run(
        &self,
        base: &Base,
        first: f64,
        step: f64,
        low: Option<Run>,
        mut run: impl FnMut(u64) -> Result<Run>,
    ) -> Result<Sustained> {
        let mut runs = Vec::new();
        let mut best: Option<Run> = None;
        let mut too_high: Option<u64> = None;
        let (mut next, mut step) = (first, step);
        while runs.len() < self.runs_max && (runs.is_empty() || Instant::now() < self.until) {
            let tried = run(next as u64)?;
            let sustained = base.is_sustained(&tried.probe);
            runs.push((tried, sustained));
            match sustained {
                true => best = Some(tried),
                false => too_high = Some(tried.probe.rate),
            }
            let sustained_rate = best.map(|best| best.probe.rate as f64);
            next = match (sustained_rate, too_high.map(|rate| rate as f64)) {
                (Some(rate), Some(high)) if high <= rate * self.precision => break,
                (Some(rate), Some(high)) => (rate + high) / 2.0,
                (Some(rate), None) => rate * step,
                (None, Some(high)) => high / step,
                (None, None) => unreachable!("a run was sustained or not"),
            };
            step = (step * step).clamp(STEP, STEP_MAX);
        }
        let best = best.or(low).with_context(|| {
            let lowest = too_high.unwrap_or(0) as f64 / 1e6;
            format!(
                "none of {} rates down to {lowest:.3} M events/s was sustained",
                runs.len()
            )
        })?;
        Ok(Sustained {
            best,
            too_high,
            runs,
        })
    }

    /// The first search of a contender. One that ends before any rate was sustained gives the low rate, which was.
    ///
    /// # Errors
    /// When a run fails.
    pub fn first(&self, base: &Base, run: impl FnMut(u64) -> Result<Run>) -> Result<Sustained> {
        self.run(base, base.first_rate(), STEP, Some(base.low), run)
    }

    /// Another search, from the result of an earlier one: two runs are enough where nothing has changed.
    ///
    /// # Errors
    /// When a run fails, or no rate was sustained.
    pub fn again(
        &self,
        base: &Base,
        before: f64,
        run: impl FnMut(u64) -> Result<Run>,
    ) -> Result<Sustained> {
        // Half a percent less, so that rounding does not make the step too long.
        self.run(base, before, self.precision - 0.005, None, run)
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
    use std::time::Duration;

    fn search() -> Search {
        Search {
            precision: 1.05,
            runs_max: 14,
            until: Instant::now() + Duration::from_secs(3600),
        }
    }

    /// How a contender shows that it has more to do than it can.
    #[derive(Debug, Clone, Copy)]
    enum Fails {
        Later,
        Behind,
        Dropping,
    }

    /// The runs that others are compared with, the one without a rate among them.
    fn base_of(mut run: impl FnMut(u64) -> Result<Run>) -> Result<Base> {
        let unlimited = run(0)?;
        Base::find(unlimited, run)
    }

    fn fake(capacity: f64, unlimited: f64, fails: Fails) -> impl FnMut(u64) -> Result<Run> {
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
            let probe = Probe {
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
            };
            Ok(Run {
                probe,
                energy_per_million: 1.0,
            })
        }
    }

    /// Without a rate the contender makes anything from a tenth of its capacity to four times as much: Spark's micro-batches
    /// made half, and six runs ended before they were near.
    #[test]
    fn the_search_finds_the_capacity_for_each_kind_of_failure() {
        for fails in [Fails::Later, Fails::Behind, Fails::Dropping] {
            for unlimited in [0.1e6, 0.5e6, 0.8e6, 1e6, 1.1e6, 1.9e6, 4.4e6] {
                let mut run = fake(1e6, unlimited, fails);
                let base = base_of(&mut run).unwrap();
                let found = search().first(&base, &mut run).unwrap();
                assert!(
                    (0.94e6..=1e6).contains(&found.rate()) && found.resolution() <= 0.05,
                    "{fails:?}, {unlimited}: {found:?}"
                );
            }
        }
    }

    #[test]
    fn a_second_search_takes_two_runs_and_follows_a_change() {
        let mut run = fake(1e6, 1.1e6, Fails::Behind);
        let base = base_of(&mut run).unwrap();
        let first = search().first(&base, &mut run).unwrap();
        let second = search().again(&base, first.rate(), &mut run).unwrap();
        assert!(second.runs.len() <= 3, "{second:?}");
        assert!(second.resolution() <= 0.05);
        for capacity in [0.3e6, 0.9e6, 1.1e6, 3e6] {
            let run = fake(capacity, 1.1e6, Fails::Behind);
            let found = search().again(&base, first.rate(), run).unwrap();
            let rates = 0.94 * capacity..=capacity;
            assert!(rates.contains(&found.rate()), "{capacity}: {found:?}");
        }
    }

    #[test]
    fn a_search_that_ends_early_reports_its_bounds() {
        let mut run = fake(1e6, 1.05e6, Fails::Behind);
        let base = base_of(&mut run).unwrap();
        let search = Search {
            runs_max: 2,
            ..search()
        };
        let found = search.first(&base, &mut run).unwrap();
        assert_eq!(found.runs.len(), 2);
        assert!(found.resolution() > 0.05, "{found:?}");
        // Nothing was too high.
        let found = search.again(&base, 1e3, &mut run).unwrap();
        assert!(found.resolution().is_infinite());
        let no_time = Search {
            until: Instant::now(),
            ..search
        };
        assert_eq!(no_time.first(&base, &mut run).unwrap().runs.len(), 1);
        // The only rate that there was time for was too high: the low one was not.
        let mut run = fake(1e6, 2e6, Fails::Behind);
        let base = base_of(&mut run).unwrap();
        let found = no_time.first(&base, &mut run).unwrap();
        assert_eq!(found.rate(), base.low.probe.rate as f64);
        assert!(found.resolution() > 3.0, "{found:?}");
    }

    #[test]
    fn a_contender_that_sustains_no_rate_is_reported() {
        let error = base_of(fake(1.0, 1e6, Fails::Dropping)).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("7 results are missing or wrong"), "{error}");
        let base = base_of(fake(1e6, 1e6, Fails::Dropping)).unwrap();
        let error = search().again(&base, 1e6, fake(1.0, 1e6, Fails::Later));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("none of 14 rates"), "{error}");
    }
}

//! The time from one checkpoint to the next: fixed, or adapted to the cost of checkpoints.
//!
//! The cost of a checkpoint is the time that it takes from the flow and from its writer, on the slowest rank: the pause of
//! the sources, until all items have arrived and the state is saved, and the time to store the shard and the changes. The
//! time to store the record of the checkpoint is added. So with [`COST_FACTOR`] a checkpoint takes at most a sixth of the
//! time.
//!
//! The interval follows a higher cost at once, and a lower one in steps: a slow checkpoint is felt for a few of the next
//! ones, and costs that vary up to twofold change the interval little. A cost that grows with the interval, since more
//! keys change in it, makes the interval rise or fall towards its end in one direction, so it does not oscillate.

use std::time::Duration;

/// The shortest interval that adapts, except where the store asks for a longer one.
pub const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The longest interval that adapts.
const INTERVAL_MAX: Duration = Duration::from_secs(10);

/// The interval is at least this many times the cost of the last checkpoint, up to [`INTERVAL_MAX`].
const COST_FACTOR: u32 = 5;

/// The most that the interval falls by in one step, as a divisor; a failure makes it longer by as much.
const STEP: u32 = 2;

/// Decides the interval of checkpoints, on rank 0.
#[derive(Debug)]
pub struct Pace {
    is_fixed: bool,
    min: Duration,
    max: Duration,
    interval: Duration,
}

impl Pace {
    /// Without a setting the interval adapts, from `min` on.
    pub fn new(setting: Option<Duration>, min: Duration) -> Pace {
        Pace {
            is_fixed: setting.is_some(),
            min,
            max: INTERVAL_MAX.max(min),
            interval: setting.unwrap_or(min),
        }
    }

    /// The time from one checkpoint to the next.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// A checkpoint of this cost is complete.
    pub fn completed(&mut self, cost: Duration) {
        let wanted = cost.saturating_mul(COST_FACTOR);
        self.set(wanted.max(self.interval / STEP));
    }

    /// A checkpoint was given up, or is still not complete when the next one is stored.
    pub fn failed(&mut self) {
        self.set(self.interval.saturating_mul(STEP));
    }

    fn set(&mut self, interval: Duration) {
        if !self.is_fixed {
            self.interval = interval.clamp(self.min, self.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The cost of a complete checkpoint in milliseconds, or a failure.
    type Outcome = Option<u64>;

    /// The intervals behind each checkpoint, in milliseconds.
    fn intervals(outcomes: &[Outcome]) -> Vec<u64> {
        let mut pace = Pace::new(None, INTERVAL_MIN);
        let mut next = |outcome: &Outcome| {
            match outcome {
                Some(cost) => pace.completed(ms(*cost)),
                None => pace.failed(),
            }
            pace.interval().as_millis() as u64
        };
        outcomes.iter().map(&mut next).collect()
    }

    #[test]
    fn the_interval_follows_the_costs_of_checkpoints() {
        let cheap = [Some(1); 3];
        assert_eq!(intervals(&cheap), [10; 3]);
        // Bursts.
        let bursts = [
            Some(1),
            Some(20),
            Some(20),
            Some(1),
            Some(1),
            Some(1),
            Some(20),
        ];
        assert_eq!(intervals(&bursts), [10, 100, 100, 50, 25, 12, 100]);
        // A single slow one is forgotten within twenty seconds.
        let single = [&[Some(1), Some(3_000)][..], &[Some(1); 12][..]].concat();
        let found = intervals(&single);
        assert_eq!(found[..4], [10, 10_000, 5_000, 2_500]);
        assert_eq!(found.last(), Some(&10));
        assert!(found.iter().sum::<u64>() < 20_500);
        // Growth, up to the bound.
        let growth = [2, 4, 8, 500, 1_999, 2_000, 60_000].map(Some);
        assert_eq!(
            intervals(&growth),
            [10, 20, 40, 2_500, 9_995, 10_000, 10_000]
        );
    }

    #[test]
    fn failures_make_the_interval_longer_until_checkpoints_are_complete_again() {
        let failures = [&[None; 12][..], &[Some(1); 11][..]].concat();
        let found = intervals(&failures);
        assert_eq!(found[..5], [20, 40, 80, 160, 320]);
        assert_eq!(found[9..12], [10_000; 3]);
        assert_eq!(found[12..15], [5_000, 2_500, 1_250]);
        assert_eq!(found.last(), Some(&10));
    }

    #[test]
    fn the_interval_is_at_least_five_times_the_last_cost_within_its_bounds() {
        let mut pace = Pace::new(None, SECOND);
        let mut dice = 1_u64;
        for _ in 0..10_000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let cost = ms((dice >> 33) % 3_000);
            match dice >> 61 {
                0 => pace.failed(),
                _ => {
                    pace.completed(cost);
                    assert!(pace.interval() >= (cost * 5).min(INTERVAL_MAX));
                }
            }
            assert!((SECOND..=INTERVAL_MAX).contains(&pace.interval()));
        }
    }

    /// A checkpoint costs a constant, and a share of the time since the one before, for the keys that changed in it.
    #[test]
    fn a_cost_that_grows_with_the_interval_does_not_make_it_oscillate() {
        for (share, first) in [
            (0.05, ms(10)),
            (0.15, ms(10)),
            (0.15, 9 * SECOND),
            (0.5, ms(10)),
        ] {
            let mut pace = Pace::new(None, INTERVAL_MIN);
            pace.set(first);
            let mut all = vec![first];
            for _ in 0..60 {
                let cost = ms(4) + pace.interval().mul_f64(share);
                pace.completed(cost);
                all.push(pace.interval());
            }
            assert!(
                all.is_sorted() || all.iter().rev().is_sorted(),
                "{share} {all:?}"
            );
            let last = all[59..].iter().map(Duration::as_secs_f64);
            let expected = match share < 0.2 {
                true => 0.02 / (1.0 - 5.0 * share),
                false => 10.0,
            };
            for found in last {
                assert!((found / expected - 1.0).abs() < 0.01, "{share} {found}");
            }
        }
    }

    #[test]
    fn a_fixed_interval_stays() {
        let mut pace = Pace::new(Some(ms(3)), SECOND);
        pace.completed(SECOND);
        pace.failed();
        assert_eq!(pace.interval(), ms(3));
    }
}

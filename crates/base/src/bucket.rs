//! A token bucket: an amount that fills at a rate, up to the amount of a fixed time of rest.

use std::time::Duration;

/// A token bucket. Times are monotonic.
#[derive(Debug)]
pub struct Bucket {
    /// The amount left; negative in debt.
    level: f64,
    /// The time that `level` is for.
    at: Duration,
    per_second: f64,
    /// The bucket holds the amount that comes in this time.
    burst: Duration,
}

impl Bucket {
    /// Returns a full bucket.
    pub fn new(per_second: f64, burst: Duration, now: Duration) -> Bucket {
        Bucket {
            level: per_second * burst.as_secs_f64(),
            at: now,
            per_second,
            burst,
        }
    }

    /// Sets the rate from now on.
    pub fn set_rate(&mut self, per_second: f64) {
        self.per_second = per_second;
    }

    /// Adds the amount that has come until now.
    pub fn refill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.level = (self.level + passed * self.per_second).min(self.level_max());
        self.at = now;
    }

    /// Takes an amount, even if less is left.
    pub fn take(&mut self, amount: f64) {
        self.level -= amount;
    }

    /// Returns how long it takes until at least `amount` is left.
    pub fn time_until(&self, amount: f64) -> Duration {
        let seconds = ((amount - self.level) / self.per_second).max(0.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Whether it has all that it can hold.
    pub fn is_full(&self) -> bool {
        self.level >= self.level_max()
    }

    fn level_max(&self) -> f64 {
        self.per_second * self.burst.as_secs_f64()
    }
}

//! Objectives of latency, and the measurement of how they stand.

use std::fmt;
use std::mem;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

/// A half of the requests that the percentile is taken of lasts this long.
const HALF: Duration = Duration::from_millis(500);

/// A half has at least this many requests, so that a percentile means something.
const HALF_REQUESTS: u64 = 100;

/// The longest latency; longer ones count as this.
const LATENCY_MAX_US: u64 = 3_600_000_000;

/// An objective: this percentage of requests is answered within this time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Objective {
    /// The percentile, above 0 and below 100.
    pub percentile: f64,
    /// The time; in JSON `within_seconds`.
    #[serde(rename = "within_seconds", serialize_with = "seconds")]
    pub within: Duration,
}

impl Objective {
    /// Creates an objective: 99 % of requests within `within`.
    ///
    /// # Panics
    /// If `within` is 0.
    pub fn p99(within: Duration) -> Objective {
        assert!(!within.is_zero(), "an objective has a time above 0");
        Objective {
            percentile: 99.0,
            within,
        }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{} within {:?}", self.percentile, self.within)
    }
}

/// Writes a time as seconds.
pub fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// The latencies of the last requests: those of two halves, of which the younger one is being filled.
pub struct Latencies {
    older: Histogram<u64>,
    younger: Histogram<u64>,
    /// Both together, while a percentile is looked up.
    both: Histogram<u64>,
    younger_since: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram =
            || Histogram::new_with_max(LATENCY_MAX_US, 2).expect("the bounds are right");
        Latencies {
            older: histogram(),
            younger: histogram(),
            both: histogram(),
            younger_since: Duration::ZERO,
        }
    }
}

impl Latencies {
    /// Notes the latency of a request that was answered at `now`.
    pub fn record(&mut self, latency: Duration, now: Duration) {
        self.turn(now);
        let us = latency.as_micros().min(u128::from(LATENCY_MAX_US)) as u64;
        self.younger.saturating_record(us);
    }

    /// Returns the latency at a percentile of the last requests; `None` without any.
    pub fn at(&mut self, percentile: f64, now: Duration) -> Option<Duration> {
        self.turn(now);
        self.both.reset();
        for half in [&self.older, &self.younger] {
            self.both.add(half).expect("the bounds are the same");
        }
        let us = self.both.value_at_percentile(percentile);
        (!self.both.is_empty()).then(|| Duration::from_micros(us))
    }

    /// Forgets all latencies: from now on they are others.
    pub fn clear(&mut self, now: Duration) {
        self.older.reset();
        self.younger.reset();
        self.younger_since = now;
    }

    fn turn(&mut self, now: Duration) {
        let since = now.saturating_sub(self.younger_since);
        // Requests that are few and old say nothing about the present.
        let is_over = since >= HALF && self.younger.len() >= HALF_REQUESTS;
        if is_over || since >= 4 * HALF {
            mem::swap(&mut self.older, &mut self.younger);
            self.younger.reset();
            self.younger_since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_percentile_is_that_of_the_last_requests() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.at(99.0, ms(0)), None);
        let mut record = |latency, from: u64, count: u64| {
            for number in 0..count {
                latencies.record(ms(latency), ms(from + number));
            }
            latencies.at(99.0, ms(from + count)).unwrap().as_millis()
        };
        assert_eq!(record(10, 0, 600), 10);
        // One in a hundred is slow: only the slowest of these counts.
        assert!(record(500, 600, 20) > 490);
        // Two halves later it is forgotten.
        assert_eq!(record(10, 620, 1_200), 10);
        // After a silence old requests count no more.
        assert_eq!(latencies.at(99.0, ms(60_000)).unwrap().as_millis(), 10);
        assert_eq!(latencies.at(99.0, ms(63_000)), None);
    }
}

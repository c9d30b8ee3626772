//! A clock that tests advance by hand.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Clock, Timestamp};
use parking_lot::Mutex;

/// A simulated clock. A clone shows the same time.
#[derive(Debug, Clone)]
pub struct SimClock {
    time: Arc<Mutex<Time>>,
}

#[derive(Debug)]
struct Time {
    /// The wall-clock time at monotonic time 0, in milliseconds since 1970-01-01 UTC.
    epoch: i64,
    monotonic: Duration,
}

impl Time {
    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.monotonic.as_millis()).unwrap_or(i64::MAX)
    }
}

impl SimClock {
    /// Creates a clock that shows `now`; its monotonic time is 0.
    pub fn new(now: Timestamp) -> Self {
        let time = Time {
            epoch: now.0,
            monotonic: Duration::ZERO,
        };
        SimClock {
            time: Arc::new(Mutex::new(time)),
        }
    }

    /// Moves both times forward.
    pub fn advance(&self, by: Duration) {
        let mut time = self.time.lock();
        time.monotonic = time.monotonic.saturating_add(by);
    }

    /// Makes the wall clock jump to `now`; monotonic time stays.
    pub fn set(&self, now: Timestamp) {
        let mut time = self.time.lock();
        time.epoch = now.0.saturating_sub(time.elapsed_ms());
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let time = self.time.lock();
        Timestamp(time.epoch.saturating_add(time.elapsed_ms()))
    }

    fn monotonic(&self) -> Duration {
        self.time.lock().monotonic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_jumps_and_monotonic_time_does_not() {
        let clock = SimClock::new(Timestamp(1_000));
        let same = clock.clone();
        clock.advance(Duration::from_micros(2_600));
        clock.advance(Duration::from_micros(400));
        assert_eq!(same.now(), Timestamp(1_003));
        clock.set(Timestamp(-5));
        clock.advance(Duration::from_secs(1));
        assert_eq!(same.now(), Timestamp(995));
        assert_eq!(same.monotonic(), Duration::from_millis(1_003));
    }
}

//! The trait for time, and the system's clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Timestamp;

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time: milliseconds since 1970-01-01 UTC. May jump in either direction.
    fn now(&self) -> Timestamp;

    /// Time since some fixed moment; never goes back.
    fn monotonic(&self) -> Duration;
}

/// The operating system's clock.
#[derive(Debug)]
pub struct SystemClock {
    started_at: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock {
            started_at: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.started_at.elapsed()
    }
}

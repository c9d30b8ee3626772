//! A clock for tests.

use std::time::Duration;

use millstream_base::{Clock, Timestamp};

/// A clock that stands still.
pub struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp(0)
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

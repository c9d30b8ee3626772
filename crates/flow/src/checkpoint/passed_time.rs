//! The time of a state element that all ranks have passed: by it, its changelog drops changes that have ended.

use std::sync::atomic::{AtomicI64, Ordering};

/// The least time of an element over all ranks at the last complete checkpoint, in milliseconds. No rank that resumes needs
/// changes that end by then. Raised by the decisions, read by the thread that writes the next checkpoint.
pub struct PassedTime(AtomicI64);

/// No checkpoint is complete at which the element had a time on all ranks.
const NONE: i64 = i64::MIN;

impl Default for PassedTime {
    fn default() -> Self {
        PassedTime(AtomicI64::new(NONE))
    }
}

impl PassedTime {
    pub fn raise(&self, time: i64) {
        self.0.fetch_max(time, Ordering::Relaxed);
    }

    pub fn get(&self) -> Option<i64> {
        let time = self.0.load(Ordering::Relaxed);
        (time != NONE).then_some(time)
    }
}

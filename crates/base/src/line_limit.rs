//! Bounds the number of log lines about events that clients can cause at will.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Allows a number of lines in each interval, and counts the lines that it suppresses.
///
/// ```
/// use std::time::Duration;
/// use millstream_base::LineLimit;
///
/// let limit = LineLimit::new(1, Duration::from_secs(10));
/// let at = Duration::from_secs;
/// assert_eq!(limit.take(at(1)), Some(0));
/// assert_eq!(limit.take(at(2)), None);
/// assert_eq!(limit.take(at(3)), None);
/// // The next line states the number of those left out before it.
/// assert_eq!(limit.take(at(11)), Some(2));
/// ```
#[derive(Debug)]
pub struct LineLimit {
    lines_max: u32,
    every: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The time of this interval's first line.
    began: Option<Duration>,
    /// Lines of this interval, at most `lines_max`.
    written: u32,
    /// Suppressed lines that no caller has reported yet.
    left_out: u64,
}

impl LineLimit {
    /// Creates a limit of `lines_max` lines in each interval of `every`.
    pub fn new(lines_max: u32, every: Duration) -> LineLimit {
        LineLimit {
            lines_max,
            every,
            state: Mutex::default(),
        }
    }

    /// Asks to write a line. Returns the number of suppressed lines to report with it, or `None` if the caller must
    /// suppress this line, too.
    pub fn take(&self, now: Duration) -> Option<u64> {
        let mut state = self.lock();
        if !self.is_within(&state, now) {
            state.began = Some(now);
            state.written = 0;
        }
        if state.written >= self.lines_max {
            state.left_out += 1;
            return None;
        }
        state.written += 1;
        Some(std::mem::take(&mut state.left_out))
    }

    /// Adds lines that the caller suppressed by itself.
    pub fn leave_out(&self, lines: u64) {
        self.lock().left_out += lines;
    }

    /// Takes the number of suppressed lines to report once their interval is over; 0 before.
    pub fn take_left_out(&self, now: Duration) -> u64 {
        let mut state = self.lock();
        match self.is_within(&state, now) {
            true => 0,
            false => std::mem::take(&mut state.left_out),
        }
    }

    fn is_within(&self, state: &State, now: Duration) -> bool {
        let passed = state.began.map(|began| now.saturating_sub(began));
        passed.is_some_and(|passed| passed < self.every)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_limit_reports_the_number_of_suppressed_lines_once() {
        let limit = LineLimit::new(2, Duration::from_secs(10));
        let at = Duration::from_secs;
        assert_eq!(limit.take_left_out(at(1)), 0);
        let taken: Vec<_> = (0..5).map(|_| limit.take(at(1))).collect();
        assert_eq!(taken, [Some(0), Some(0), None, None, None]);
        assert_eq!(limit.take_left_out(at(10)), 0);
        assert_eq!(limit.take_left_out(at(11)), 3);
        assert_eq!(limit.take_left_out(at(12)), 0);
        assert_eq!(limit.take(at(13)), Some(0));
    }
}

//! Bounds how many lines are written about events that others can bring about at will.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Lets a number of lines through in each stretch of time, and counts those that it leaves out.
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
/// // The next line says how many were left out before it.
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
    /// When the first line of this stretch was written.
    began: Option<Duration>,
    /// Lines of this stretch, at most `lines_max`.
    written: u32,
    /// Lines that were left out and that no line has told of.
    left_out: u64,
}

impl LineLimit {
    /// Maximum number of lines in each interval.
    pub fn new(lines_max: u32, every: Duration) -> LineLimit {
        LineLimit {
            lines_max,
            every,
            state: Mutex::default(),
        }
    }

    /// Takes room for a line; returns how many were left out since one said so, or `None` if this one is to be left out.
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

    /// Counts lines that their writer left out by itself.
    pub fn leave_out(&self, lines: u64) {
        self.lock().left_out += lines;
    }

    /// Takes the number of lines that were left out and that no line has told of, when their stretch of time is over; else 0.
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
        // No code that holds it can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_out_lines_are_told_once() {
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

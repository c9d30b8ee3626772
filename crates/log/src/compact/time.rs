//! The time by which compaction drops records.

use std::time::Duration;

use millstream_base::{Clock, Timestamp};
use parking_lot::Mutex;

/// How long the wall clock must be ahead, without another jump, until compaction follows it: time to set a wrong clock right.
const TRUSTED_AFTER: Duration = Duration::from_secs(60 * 60);

/// The most milliseconds that the wall clock may gain on the monotonic one between two looks without a jump.
const GAIN_MAX_MS: i64 = 60_000;

/// The most milliseconds that may be between the last pass of an earlier run and a start, without a jump.
const STOPPED_MAX_MS: i64 = 24 * 60 * 60 * 1000;

/// A wall clock whose jumps ahead count only after [an hour](TRUSTED_AFTER): records that compaction drops by a wrong clock
/// would not come back with the right one. It follows jumps back at once, since then compaction drops less.
#[derive(Debug)]
pub struct SteadyTime(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The time at the monotonic time `at`.
    time: Timestamp,
    at: Duration,
    /// `None` while the wall clock is not ahead.
    ahead: Option<Ahead>,
}

#[derive(Debug, Clone, Copy)]
struct Ahead {
    /// The monotonic time of the last jump.
    since: Duration,
    by_ms: i64,
}

impl SteadyTime {
    /// Begins with the time of the wall clock, unless this is far behind `last`, when an earlier run has compacted.
    pub fn new(clock: &dyn Clock, last: Option<Timestamp>) -> SteadyTime {
        let (wall, at) = (clock.now(), clock.monotonic());
        let last = last.filter(|last| wall.0.saturating_sub(last.0) > STOPPED_MAX_MS);
        SteadyTime(Mutex::new(State {
            time: last.unwrap_or(wall),
            at,
            ahead: None,
        }))
    }

    /// Returns the time.
    pub fn now(&self, clock: &dyn Clock) -> Timestamp {
        let (wall, monotonic) = (clock.now(), clock.monotonic());
        let mut state = self.0.lock();
        let elapsed = monotonic.saturating_sub(state.at).as_millis();
        let elapsed_ms = i64::try_from(elapsed).unwrap_or(i64::MAX);
        let steady = Timestamp(state.time.0.saturating_add(elapsed_ms));
        let by_ms = wall.0.saturating_sub(steady.0);
        let is_trusted = match state.ahead {
            _ if by_ms <= GAIN_MAX_MS => true,
            Some(ahead) if by_ms <= ahead.by_ms.saturating_add(GAIN_MAX_MS) => {
                monotonic.saturating_sub(ahead.since) >= TRUSTED_AFTER
            }
            _ => {
                state.ahead = Some(Ahead {
                    since: monotonic,
                    by_ms,
                });
                false
            }
        };
        if !is_trusted {
            return steady;
        }
        *state = State {
            time: wall,
            at: monotonic,
            ahead: None,
        };
        wall
    }
}

#[cfg(test)]
mod tests {
    use millstream_sim::SimClock;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const HOUR_MS: i64 = 3_600_000;
    const YEAR_MS: i64 = 365 * 24 * HOUR_MS;

    #[test]
    fn a_clock_that_jumps_ahead_is_believed_after_an_hour_and_one_that_jumps_back_at_once() {
        let clock = SimClock::new(Timestamp(YEAR_MS));
        let time = SteadyTime::new(&clock, None);
        let now = || time.now(&clock).0;
        clock.advance(HOUR);
        assert_eq!(now(), YEAR_MS + HOUR_MS);
        clock.set(Timestamp(2 * YEAR_MS));
        assert_eq!(now(), YEAR_MS + HOUR_MS);
        clock.advance(HOUR - Duration::from_secs(1));
        assert_eq!(now(), YEAR_MS + 2 * HOUR_MS - 1_000);
        // A second jump begins the hour anew.
        clock.set(Timestamp(3 * YEAR_MS));
        assert_eq!(now(), YEAR_MS + 2 * HOUR_MS - 1_000);
        clock.advance(HOUR - Duration::from_secs(1));
        assert_eq!(now(), YEAR_MS + 3 * HOUR_MS - 2_000);
        clock.advance(Duration::from_secs(1));
        assert_eq!(now(), 3 * YEAR_MS + HOUR_MS);
        clock.set(Timestamp(5));
        assert_eq!(now(), 5);
    }

    #[test]
    fn a_clock_corrected_within_the_hour_has_no_lasting_effect() {
        let clock = SimClock::new(Timestamp(0));
        let time = SteadyTime::new(&clock, None);
        for _ in 0..5 {
            clock.set(Timestamp(YEAR_MS));
            assert!(time.now(&clock).0 < 5 * HOUR_MS);
            clock.advance(HOUR / 2);
            let right = Timestamp(clock.monotonic().as_millis() as i64);
            assert_eq!(time.now(&clock), right);
            clock.set(right);
            assert_eq!(time.now(&clock), right);
        }
    }

    #[test]
    fn a_start_continues_from_the_last_passs_time_if_the_clock_is_far_ahead() {
        for (stopped_ms, is_trusted) in [(HOUR_MS, true), (-YEAR_MS, true), (YEAR_MS, false)] {
            let wall = Timestamp(2 * YEAR_MS);
            let clock = SimClock::new(wall);
            let last = Timestamp(wall.0 - stopped_ms);
            let time = SteadyTime::new(&clock, Some(last));
            assert_eq!(time.now(&clock), if is_trusted { wall } else { last });
            clock.advance(HOUR);
            assert_eq!(time.now(&clock).0, wall.0 + HOUR_MS);
        }
    }
}

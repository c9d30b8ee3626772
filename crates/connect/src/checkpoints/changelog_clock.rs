//! The clock of a changelog: the event time that the ends of its changes are compared with. The flow raises it, and
//! compaction drops the changes that have ended by it.

use std::time::{Duration, Instant};

use millstream_base::Timestamp;
use millstream_flow::BoxError;
use millstream_log::{KEYED_CLOCK_MIN, KeyedClock};

use super::changelog::{Encode, encode, encode_for_ever};

/// The shortest time between two raises of a clock: each one is a durable change of the stream's settings.
const RAISE_EVERY: Duration = Duration::from_secs(10);

/// When a run raises the clock of its changelog.
#[derive(Debug)]
pub struct ChangelogClock {
    /// Whether the stream has a clock of its own.
    is_there: bool,
    /// The time of the last raise by this run.
    raised_at: Option<Instant>,
    /// Whether the last raise has failed.
    has_failed: bool,
}

impl ChangelogClock {
    /// Creates it for a stream that has a clock of its own, or could not be given one.
    pub fn of(stream: &str, given: Result<(), BoxError>) -> ChangelogClock {
        if let Err(error) = &given {
            tracing::warn!(stream, %error, "the setting millstream.keyed.clock of the changelog cannot be set, so compaction drops none of its changes that have ended");
        }
        ChangelogClock {
            is_there: given.is_ok(),
            raised_at: None,
            has_failed: false,
        }
    }

    /// Returns how changes are encoded. The wall clock has nothing to do with the times of events: by it, changes could have
    /// ended that a run still needs. So without a clock of its own, the stream keeps all changes for ever.
    pub fn encode(&self) -> Encode {
        match self.is_there {
            true => encode,
            false => encode_for_ever,
        }
    }

    /// Raises the clock by `raise`, unless it was raised a moment ago. A failure is logged once, and the next call tries
    /// again: it costs room on the disk, and nothing else.
    pub fn raise(&mut self, stream: &str, raise: impl FnOnce() -> Result<(), BoxError>) {
        let is_due = self.raised_at.is_none_or(|at| at.elapsed() >= RAISE_EVERY);
        if !self.is_there || !is_due {
            return;
        }
        match raise() {
            Ok(()) => {
                self.raised_at = Some(Instant::now());
                self.has_failed = false;
            }
            Err(error) => {
                if !self.has_failed {
                    tracing::warn!(stream, %error, "the setting millstream.keyed.clock of the changelog cannot be raised; it is tried again with each checkpoint, and compaction drops no further changes that have ended");
                }
                self.has_failed = true;
            }
        }
    }
}

/// Returns the time that a stream's setting says; `None` if it follows the wall clock.
pub fn time_of(setting: Option<&str>) -> Option<Timestamp> {
    match setting?.parse() {
        Ok(KeyedClock::At(time)) => Some(time),
        _ => None,
    }
}

/// Returns the time to set so that changes up to an event time end; `None` if the setting says as much already. Another rank
/// may have raised it.
pub fn raised(setting: Option<&str>, time: i64) -> Option<Timestamp> {
    let time = Timestamp(time).max(KEYED_CLOCK_MIN);
    let is_behind = time_of(setting).is_none_or(|known| known < time);
    is_behind.then_some(time)
}

/// Returns the time to set in a changelog that a flow begins anew; `None` if the setting says it already. Event time begins
/// anew, too, so the changes to come may end before the time of an earlier run.
pub fn lowered(setting: Option<&str>) -> Option<Timestamp> {
    (time_of(setting) != Some(KEYED_CLOCK_MIN)).then_some(KEYED_CLOCK_MIN)
}

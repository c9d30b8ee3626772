//! The settings of a source's watermarks.

use std::time::Duration;

/// How a source emits watermarks: see [`Operators::watermarks`](crate::Operators::watermarks).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    pub(crate) disorder_max_ms: i64,
    pub(crate) idle_after: Duration,
    pub(crate) ahead_max: Option<Duration>,
    pub(crate) goes_by_clock_when_idle: bool,
    pub(crate) skew_max: Option<Duration>,
}

/// The default silence after which later stages do not wait for a source.
pub const IDLE_AFTER: Duration = Duration::from_secs(30);

/// The default for how far a source may be ahead of others: several times as long as a source may be silent before it
/// is idle, so that no source whose times follow the clock is held for another's silence.
const SKEW_MAX: Duration = Duration::from_secs(120);

/// The default for how far an item's time may lie ahead of the clock.
const AHEAD_MAX: Duration = Duration::from_secs(24 * 60 * 60);

impl Watermarks {
    /// Items of a source are out of order by at most `disorder_max`: one whose time lies further behind the latest so
    /// far may be late.
    pub fn bounded(disorder_max: Duration) -> Watermarks {
        Watermarks {
            disorder_max_ms: millis(disorder_max),
            idle_after: IDLE_AFTER,
            ahead_max: Some(AHEAD_MAX),
            goes_by_clock_when_idle: false,
            skew_max: Some(SKEW_MAX),
        }
    }

    /// A source that gives nothing for `idle_after` is idle: it does not hold back event time where others go on; 30
    /// s by default. By itself an idle source moves no watermark beyond that of its items, so that no item is late
    /// that it gives after a stall; but see [`by_clock_when_idle`](Watermarks::by_clock_when_idle).
    pub fn idle_after(self, idle_after: Duration) -> Watermarks {
        Watermarks { idle_after, ..self }
    }

    /// While a source is idle its watermark advances by the clock, so that windows close without further items; off
    /// by default. Items of an idle source that come afterwards are late if the clock has passed them: this is for
    /// sources that are silent when there is nothing, and not when they cannot be read.
    pub fn by_clock_when_idle(self) -> Watermarks {
        Watermarks {
            goes_by_clock_when_idle: true,
            ..self
        }
    }

    /// A source whose event time is further ahead of that of another one which leads to the same windows, on any
    /// rank, is not read until the other has caught up, is idle, or has ended: its items would only wait in open
    /// windows. So is a partition that is further ahead of another of its source. Two minutes by default, `None` for
    /// a source that is never held, nor its partitions. A source or partition that has given nothing yet is taken to
    /// be where the first of all began.
    pub fn skew_max(self, skew_max: Option<Duration>) -> Watermarks {
        Watermarks { skew_max, ..self }
    }

    /// An item whose time is further ahead of the clock becomes a dead letter, lest it make all others
    /// late; a day by default, `None` for any time.
    pub fn ahead_max(self, ahead_max: Option<Duration>) -> Watermarks {
        Watermarks { ahead_max, ..self }
    }
}

/// Milliseconds of a duration, at most `i64::MAX`.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

//! The settings of a source's watermarks.

use std::time::Duration;

/// The way in which a source emits watermarks: see [`Operators::watermarks`](crate::Operators::watermarks).
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

/// The default bound on the distance of a source from slower ones. It is several times [`IDLE_AFTER`], so that a source
/// whose times follow the clock is never held for another's silence.
const SKEW_MAX: Duration = Duration::from_secs(120);

/// The default bound on the distance of an item's time ahead of the clock.
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

    /// Sets the silence after which a source is idle; 30 s by default. An idle source does not hold back event time while
    /// other sources continue. Its own watermark does not pass its items, so no item that it gives after a stall is
    /// late, unless [`by_clock_when_idle`](Watermarks::by_clock_when_idle) is set.
    pub fn idle_after(self, idle_after: Duration) -> Watermarks {
        Watermarks { idle_after, ..self }
    }

    /// Lets the watermark of an idle source advance by the clock, so that windows close without further items; off by
    /// default. Items that the source gives afterwards are late if the clock has passed them. So set it only for
    /// sources that are silent because there is nothing, and not because they cannot be read.
    pub fn by_clock_when_idle(self) -> Watermarks {
        Watermarks {
            goes_by_clock_when_idle: true,
            ..self
        }
    }

    /// Sets the distance in event time by which a source may be ahead of another that leads to the same windows, on any
    /// rank; two minutes by default. The flow does not read a source beyond it until the other has caught up, is idle,
    /// or has ended, since the items would only wait in open windows. The same bound holds between the partitions of
    /// the source. With `None` neither is held. A source or partition without items so far counts as being at the time
    /// of the earliest item of all.
    pub fn skew_max(self, skew_max: Option<Duration>) -> Watermarks {
        Watermarks { skew_max, ..self }
    }

    /// Sets how far an item's time may lie ahead of the clock; a day by default, `None` for any distance. An item beyond it
    /// becomes a dead letter, since it would make all others late.
    pub fn ahead_max(self, ahead_max: Option<Duration>) -> Watermarks {
        Watermarks { ahead_max, ..self }
    }
}

/// Milliseconds of a duration, at most `i64::MAX`.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

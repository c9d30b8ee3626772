//! The kinds of windows, and the arithmetic of their panes.

use std::fmt;
use std::ops::Range;

use millstream_base::Timestamp;
use serde::{Deserialize, Serialize};

use super::grid::{Grid, Lateness, SlidingGrid, clamp, greatest_common_divisor};

/// The windows in which the items of a key are collected.
///
/// Windows of equal size are aligned to 1970-01-01 UTC, also those before it. A window holds its
/// start and not its end, except that a window which would reach past the last moment an `i64` can
/// name ends with it and holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(Kind, i64)", into = "(Kind, i64)")]
pub struct Windows {
    pub(super) kind: Kind,
    pub(super) lateness: Lateness,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Tumbling { size_ms: i64 },
    Sliding { size_ms: i64, slide_ms: i64 },
    Session { gap_ms: i64 },
    Global(Trigger),
}

/// Windows of the wall clock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ClockWindows {
    /// Tumbling or sliding ones.
    Grid(SlidingGrid),
    Session {
        gap_ms: i64,
    },
}

/// When a global window gives a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    pub(super) when: When,
    pub(super) purges: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum When {
    Events(u64),
    EveryMs(i64),
}

impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Tumbling { size_ms } => write!(f, "windows of {size_ms} ms")?,
            Kind::Sliding { size_ms, slide_ms } => {
                write!(f, "windows of {size_ms} ms every {slide_ms} ms")?;
            }
            Kind::Session { gap_ms } => write!(f, "sessions with gaps of {gap_ms} ms")?,
            Kind::Global(Trigger { when, purges }) => {
                match when {
                    When::Events(count) => write!(f, "a global window every {count} items")?,
                    When::EveryMs(ms) => write!(f, "a global window every {ms} ms")?,
                }
                if purges {
                    write!(f, ", emptied each time")?;
                }
            }
        }
        match i64::from(self.lateness) {
            0 => Ok(()),
            ms => write!(f, ", for items up to {ms} ms late"),
        }
    }
}

impl Trigger {
    /// Whenever `count` more items of a key have come; at the end of bounded input also for fewer.
    pub fn every_events(count: u64) -> Self {
        Self {
            when: When::Events(count),
            purges: false,
        }
    }

    /// Whenever event time passes a multiple of `period_ms`: for the keys that have had items since
    /// the last time.
    pub fn every_ms(period_ms: i64) -> Self {
        Self {
            when: When::EveryMs(period_ms),
            purges: false,
        }
    }

    /// Each result starts afresh. Without this, a result is of everything there has been.
    pub fn purging(self) -> Self {
        Self {
            purges: true,
            ..self
        }
    }
}

impl Windows {
    /// Windows of `size_ms`, one after another.
    ///
    /// # Panics
    /// If `size_ms` is less than 1.
    pub fn tumbling(size_ms: i64) -> Self {
        Self::checked(Kind::Tumbling { size_ms })
    }

    /// Windows of `size_ms`, one every `slide_ms`: an item is in `size_ms / slide_ms` of them.
    ///
    /// # Panics
    /// If one of them is less than 1, or `slide_ms` is more than `size_ms`.
    pub fn sliding(size_ms: i64, slide_ms: i64) -> Self {
        Self::checked(Kind::Sliding { size_ms, slide_ms })
    }

    /// Items of a key that are less than `gap_ms` apart are in one window, which ends `gap_ms`
    /// after the last of them.
    ///
    /// # Panics
    /// If `gap_ms` is less than 1.
    pub fn session(gap_ms: i64) -> Self {
        Self::checked(Kind::Session { gap_ms })
    }

    /// A single window for all time, which emits a result whenever `trigger` fires.
    ///
    /// # Panics
    /// If the trigger's count or period is less than 1.
    pub fn global(trigger: Trigger) -> Self {
        Self::checked(Kind::Global(trigger))
    }

    /// Takes late items for `lateness_ms` after a window's end; 0 by default. The result is given at the end all the
    /// same, and again, [updated](super::WindowResult::is_update), when late items have changed it. A window's state
    /// is retained for that much longer. A global window is never over, so that this changes nothing there.
    ///
    /// # Panics
    /// If `lateness_ms` is less than 0.
    pub fn allowed_lateness(self, lateness_ms: i64) -> Self {
        let windows = Self::try_from((self.kind, lateness_ms));
        windows.unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    /// The time after the end of a window during which its result may come again, updated.
    pub(crate) fn updates_for_ms(&self) -> i64 {
        let lateness = i64::from(self.lateness);
        match self.kind {
            Kind::Tumbling { .. } | Kind::Sliding { .. } => lateness,
            // A session that ended may be joined while the one of the item alone would not be over.
            Kind::Session { gap_ms } => lateness.saturating_add(gap_ms),
            Kind::Global(_) => 0,
        }
    }

    /// Returns the same windows of the wall clock, or why there are none.
    pub(crate) fn of_clock(&self) -> Result<ClockWindows, &'static str> {
        if i64::from(self.lateness) > 0 {
            return Err("no item is late by the wall clock; leave the allowed lateness out");
        }
        match (self.kind, self.sliding_grid()) {
            (_, Some(grid)) => Ok(ClockWindows::Grid(grid)),
            (Kind::Session { gap_ms }, None) => Ok(ClockWindows::Session { gap_ms }),
            _ => Err("a global window does not end by the wall clock"),
        }
    }

    fn checked(kind: Kind) -> Self {
        Self::try_from((kind, 0)).unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    /// Returns the stretch of time over which items of a key may be added up first: a tumbling window, the part of
    /// sliding windows between two of their edges, the session of an item that is alone, the time between two results
    /// of a global window.
    pub fn pane_of(&self, time: Timestamp) -> Range<Timestamp> {
        let (start, end) = match (self.kind, self.grid()) {
            (_, Some(grid)) => {
                let index = grid.index(time.0);
                (grid.start(index), grid.end(index))
            }
            (Kind::Session { gap_ms }, None) => (time.0, time.0.saturating_add(gap_ms)),
            (_, None) => (i64::MIN, i64::MAX),
        };
        Timestamp(start)..Timestamp(end)
    }

    /// Whether an item comes too late that is found when its source's watermark is `watermark`: all of
    /// its windows ended by then, and the allowed lateness after them is over. With sessions that is the
    /// session that it would be in alone. An item that is not late counts in the windows that
    /// are still open for it. In a global window nothing is late: an item that comes after its source's
    /// watermark counts there as one of that moment; only when the watermark is the end of time is
    /// there no result left for it.
    pub fn is_late(&self, time: Timestamp, watermark: Timestamp) -> bool {
        self.is_late_for_rest(time, 0, watermark)
    }

    /// The same of an item that does not count in the first `skipped` of its windows.
    pub(super) fn is_late_for_rest(
        &self,
        Timestamp(time): Timestamp,
        skipped: u64,
        Timestamp(watermark): Timestamp,
    ) -> bool {
        let closed = self.lateness.closed_by(watermark);
        match (self.kind, self.sliding_grid()) {
            (_, Some(grid)) => {
                let pane = grid.panes.index(time);
                grid.windows_after(pane, skipped, closed).is_none()
            }
            (Kind::Global(trigger), None) => {
                matches!(trigger.when, When::EveryMs(_)) && watermark == i64::MAX
            }
            (Kind::Session { gap_ms }, _) => time.saturating_add(gap_ms) <= closed,
            (Kind::Tumbling { .. } | Kind::Sliding { .. }, None) => false,
        }
    }

    /// Returns the watermark from which on an item of this time is late. In a global window it is the end of time.
    pub(crate) fn late_from(&self, Timestamp(time): Timestamp) -> Timestamp {
        let end = match (self.kind, self.sliding_grid()) {
            (_, Some(grid)) => {
                let last = grid.last_window_of(grid.panes.index(time));
                clamp(grid.end(last))
            }
            (Kind::Session { gap_ms }, None) => time.saturating_add(gap_ms),
            _ => i64::MAX,
        };
        Timestamp(self.lateness.after(end))
    }

    /// Whether a watermark of `to` releases and closes nothing that one of `from` has not.
    pub(crate) fn are_same(&self, from: Timestamp, to: Timestamp) -> bool {
        let closed = |time: Timestamp| Timestamp(self.lateness.closed_by(time.0));
        let is_same = |from, to| self.pane_of(from) == self.pane_of(to);
        is_same(from, to) && is_same(closed(from), closed(to))
    }

    /// The size of tumbling or sliding windows, and how far apart they start, in milliseconds.
    pub(crate) fn size_and_slide_ms(&self) -> Option<(i64, i64)> {
        match self.kind {
            Kind::Tumbling { size_ms } => Some((size_ms, size_ms)),
            Kind::Sliding { size_ms, slide_ms } => Some((size_ms, slide_ms)),
            Kind::Session { .. } | Kind::Global(_) => None,
        }
    }

    /// Tumbling and sliding windows.
    pub(super) fn sliding_grid(&self) -> Option<SlidingGrid> {
        let (size_ms, slide_ms) = self.size_and_slide_ms()?;
        Some(SlidingGrid::new(size_ms, slide_ms))
    }

    /// The panes, where they are of equal size.
    fn grid(&self) -> Option<Grid> {
        let pane_ms = match self.kind {
            Kind::Tumbling { size_ms } => size_ms,
            Kind::Sliding { size_ms, slide_ms } => greatest_common_divisor(size_ms, slide_ms),
            Kind::Global(trigger) => match trigger.when {
                When::EveryMs(period_ms) => period_ms,
                When::Events(_) => return None,
            },
            Kind::Session { .. } => return None,
        };
        Some(Grid { pane_ms })
    }
}

impl TryFrom<(Kind, i64)> for Windows {
    type Error = &'static str;

    fn try_from((kind, lateness_ms): (Kind, i64)) -> Result<Self, Self::Error> {
        let lateness = Lateness::try_from(lateness_ms)?;
        let windows = Self { kind, lateness };
        match kind {
            Kind::Tumbling { size_ms } if size_ms < 1 => Err("a window lasts at least 1 ms"),
            Kind::Sliding { size_ms, slide_ms } if size_ms < 1 || slide_ms < 1 => {
                Err("a window and its slide last at least 1 ms")
            }
            Kind::Sliding { size_ms, slide_ms } if slide_ms > size_ms => {
                Err("the slide of windows is at most their size, or items would be left out")
            }
            Kind::Session { gap_ms } if gap_ms < 1 => Err("the gap of sessions is at least 1 ms"),
            Kind::Global(trigger) => match trigger.when {
                When::Events(0) => Err("a trigger counts to at least 1"),
                When::EveryMs(..1) => Err("the period of a trigger is at least 1 ms"),
                _ => Ok(windows),
            },
            _ => Ok(windows),
        }
    }
}

impl From<Windows> for (Kind, i64) {
    fn from(windows: Windows) -> Self {
        (windows.kind, windows.lateness.into())
    }
}

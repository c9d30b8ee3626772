//! Which windows there are, and the arithmetic of their panes.

use std::ops::Range;

use millstream_base::Timestamp;
use serde::{Deserialize, Serialize};

/// Which windows the items of a key are collected in.
///
/// Windows of equal size are aligned to 1970-01-01 UTC, also those before it. A window holds its
/// start and not its end, except that a window which would reach past the last moment an `i64` can
/// name ends with it and holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Kind", into = "Kind")]
pub struct Windows {
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Tumbling { size_ms: i64 },
    Sliding { size_ms: i64, slide_ms: i64 },
    Session { gap_ms: i64 },
    Global(Trigger),
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

    /// One window for all time, which gives a result whenever `trigger` says so.
    ///
    /// # Panics
    /// If the trigger's count or period is less than 1.
    pub fn global(trigger: Trigger) -> Self {
        Self::checked(Kind::Global(trigger))
    }

    fn checked(kind: Kind) -> Self {
        Self::try_from(kind).unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    /// The stretch of time over which items of a key may be added up before anything else is
    /// known: a tumbling window, the part of sliding windows between two of their edges, the
    /// session of an item that is alone, the time between two results of a global window.
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

    /// Whether an item comes too late that is found when its source's watermark is `watermark`:
    /// in tumbling and sliding windows if its pane has ended, in sessions if it lies before the
    /// watermark (it could join a session that was released), in a global window never. An item
    /// that comes after its source's watermark counts there as one of that moment; only when the
    /// watermark is the end of time is there no result left for it.
    pub fn is_late(&self, time: Timestamp, watermark: Timestamp) -> bool {
        match self.kind {
            Kind::Session { .. } => is_passed(time.0, watermark.0),
            Kind::Global(trigger) => {
                matches!(trigger.when, When::EveryMs(_)) && watermark.0 == i64::MAX
            }
            Kind::Tumbling { .. } | Kind::Sliding { .. } => self.pane_of(time).end <= watermark,
        }
    }

    /// The size of tumbling or sliding windows, and how far apart they start, in milliseconds.
    pub(crate) fn size_and_slide_ms(&self) -> Option<(i64, i64)> {
        match self.kind {
            Kind::Tumbling { size_ms } => Some((size_ms, size_ms)),
            Kind::Sliding { size_ms, slide_ms } => Some((size_ms, slide_ms)),
            Kind::Session { .. } | Kind::Global(_) => None,
        }
    }

    /// The panes, where they are of equal size.
    pub(super) fn grid(&self) -> Option<Grid> {
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

impl TryFrom<Kind> for Windows {
    type Error = &'static str;

    fn try_from(kind: Kind) -> Result<Self, Self::Error> {
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
                _ => Ok(Self { kind }),
            },
            _ => Ok(Self { kind }),
        }
    }
}

impl From<Windows> for Kind {
    fn from(windows: Windows) -> Self {
        windows.kind
    }
}

pub(super) fn greatest_common_divisor(mut a: i64, mut b: i64) -> i64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Panes of equal size, by number: pane 0 starts at 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub(super) struct Grid {
    /// At least 1.
    pub pane_ms: i64,
}

impl TryFrom<i64> for Grid {
    type Error = &'static str;

    fn try_from(pane_ms: i64) -> Result<Self, Self::Error> {
        match pane_ms {
            ..1 => Err("a pane lasts at least 1 ms"),
            _ => Ok(Self { pane_ms }),
        }
    }
}

impl From<Grid> for i64 {
    fn from(grid: Grid) -> Self {
        grid.pane_ms
    }
}

impl Grid {
    pub fn index(self, time: i64) -> i64 {
        time.div_euclid(self.pane_ms)
    }

    pub fn start(self, index: i64) -> i64 {
        clamp(i128::from(index) * i128::from(self.pane_ms))
    }

    pub fn end(self, index: i64) -> i64 {
        clamp((i128::from(index) + 1) * i128::from(self.pane_ms))
    }
}

/// Whether `watermark` has passed the moment `time`: that of `i64::MAX` is the end of time.
pub(super) fn is_passed(time: i64, watermark: i64) -> bool {
    time < watermark || watermark == i64::MAX
}

/// A time that `i64` cannot name is the first or the last one that it can.
pub(super) fn clamp(time: i128) -> i64 {
    time.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

//! Panes and windows by number, and the end of windows.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::spec::{Kind, Windows};

/// Panes of equal size, by number: pane 0 starts at 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub(crate) struct Grid {
    /// At least 1.
    pub pane_ms: i64,
}

/// Windows of equal size. Window `n` starts at `n * slide_ms`. No window starts more than a slide before
/// the first moment that an `i64` can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(i64, i64)", into = "(i64, i64)")]
pub(crate) struct SlidingGrid {
    size_ms: i64,
    /// Both are multiples of a pane.
    slide_ms: i64,
    pub panes: Grid,
}

/// The time after its end during which a window takes late items, in milliseconds; at least 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub(super) struct Lateness(i64);

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

impl SlidingGrid {
    pub fn new(size_ms: i64, slide_ms: i64) -> Self {
        let pane_ms = greatest_common_divisor(size_ms, slide_ms);
        Self {
            size_ms,
            slide_ms,
            panes: Grid { pane_ms },
        }
    }

    pub fn start(self, window: i64) -> i128 {
        i128::from(window) * i128::from(self.slide_ms)
    }

    pub fn end(self, window: i64) -> i128 {
        self.start(window) + i128::from(self.size_ms)
    }

    /// Number of the pane that a window starts with.
    pub fn first_pane(self, window: i128) -> i128 {
        window * i128::from(self.slide_ms) / i128::from(self.panes.pane_ms)
    }

    pub fn first_window_of(self, pane: i64) -> i64 {
        let pane_end = (i128::from(pane) + 1) * i128::from(self.panes.pane_ms);
        // Rounded up.
        let slide = i128::from(self.slide_ms);
        let window = (pane_end - i128::from(self.size_ms) + slide - 1).div_euclid(slide);
        clamp(window).max(i64::MIN.div_euclid(self.slide_ms))
    }

    pub fn last_window_of(self, pane: i64) -> i64 {
        clamp(
            (i128::from(pane) * i128::from(self.panes.pane_ms))
                .div_euclid(i128::from(self.slide_ms)),
        )
        .max(i64::MIN.div_euclid(self.slide_ms))
    }

    /// The first window that ends after `time`. After the end of time there is none.
    pub fn first_after(self, time: i64) -> i64 {
        match time {
            i64::MAX => i64::MAX,
            _ => self.first_window_of(self.panes.index(time)),
        }
    }

    /// The windows of a pane that end after `closed`, but for the first `skipped` of all; `None` if there
    /// are none.
    pub fn windows_after(
        self,
        pane: i64,
        skipped: u64,
        closed: i64,
    ) -> Option<RangeInclusive<i64>> {
        let last = self.last_window_of(pane);
        let first = self.first_window_of(pane).saturating_add_unsigned(skipped);
        let windows = first.max(self.first_after(closed))..=last;
        (clamp(self.end(last)) > closed && !windows.is_empty()).then_some(windows)
    }
}

impl Lateness {
    /// Returns the time by which windows that have ended take no more items once the watermark is at `watermark`.
    pub fn closed_by(self, watermark: i64) -> i64 {
        match watermark {
            i64::MAX => i64::MAX,
            _ => watermark.saturating_sub(self.0),
        }
    }

    /// The time at which a window that ends at `end` takes no more items.
    pub fn after(self, end: i64) -> i64 {
        end.saturating_add(self.0)
    }
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

impl TryFrom<(i64, i64)> for SlidingGrid {
    type Error = &'static str;

    fn try_from((size_ms, slide_ms): (i64, i64)) -> Result<Self, Self::Error> {
        Windows::try_from((Kind::Sliding { size_ms, slide_ms }, 0))?;
        Ok(Self::new(size_ms, slide_ms))
    }
}

impl From<SlidingGrid> for (i64, i64) {
    fn from(grid: SlidingGrid) -> Self {
        (grid.size_ms, grid.slide_ms)
    }
}

impl TryFrom<i64> for Lateness {
    type Error = &'static str;

    fn try_from(lateness_ms: i64) -> Result<Self, Self::Error> {
        match lateness_ms {
            ..0 => Err("the allowed lateness is at least 0 ms"),
            _ => Ok(Self(lateness_ms)),
        }
    }
}

impl From<Lateness> for i64 {
    fn from(lateness: Lateness) -> Self {
        lateness.0
    }
}

pub(super) fn greatest_common_divisor(mut a: i64, mut b: i64) -> i64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Whether `watermark` has passed the moment `time`; the watermark `i64::MAX` has passed all times.
pub(super) fn is_passed(time: i64, watermark: i64) -> bool {
    time < watermark || watermark == i64::MAX
}

/// A time that `i64` cannot name is the first or the last one that it can.
pub(crate) fn clamp(time: i128) -> i64 {
    time.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

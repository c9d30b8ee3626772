//! Sliding windows out of panes.

use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::map::Map;
use super::pending::{Pending, PendingPane};
use super::released::{Released, Window, WindowResult};
use super::spec::{Grid, Kind, Windows, clamp, greatest_common_divisor};
use super::two_stacks::TwoStacks;

/// Window `n` starts at `n * slide_ms`. No window starts more than a slide before the first moment
/// that an `i64` can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(i64, i64)", into = "(i64, i64)")]
pub(super) struct SlidingGrid {
    size_ms: i64,
    /// Both are multiples of a pane.
    slide_ms: i64,
    pub panes: Grid,
}

impl TryFrom<(i64, i64)> for SlidingGrid {
    type Error = &'static str;

    fn try_from((size_ms, slide_ms): (i64, i64)) -> Result<Self, Self::Error> {
        Windows::try_from(Kind::Sliding { size_ms, slide_ms })?;
        Ok(Self::new(size_ms, slide_ms))
    }
}

impl From<SlidingGrid> for (i64, i64) {
    fn from(grid: SlidingGrid) -> Self {
        (grid.size_ms, grid.slide_ms)
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

    /// All windows before it end by `watermark`.
    fn first_unreleased(self, watermark: i64) -> i64 {
        self.first_window_of(self.panes.index(watermark))
    }

    fn last_window_of(self, pane: i64) -> i64 {
        clamp(
            (i128::from(pane) * i128::from(self.panes.pane_ms))
                .div_euclid(i128::from(self.slide_ms)),
        )
        .max(i64::MIN.div_euclid(self.slide_ms))
    }

    fn window<S>(self, window: i64, cell: Cell<S>) -> Window<S> {
        Window {
            start: clamp(self.start(window)),
            end: clamp(self.end(window)),
            cell,
        }
    }
}

/// The keys of sliding windows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) struct Sliding<K, S> {
    grid: SlidingGrid,
    /// Panes that no released window has reached.
    pending: Pending<K, S>,
    /// The panes that are in the next window; no key is there without one.
    active: Map<K, TwoStacks<S>>,
    /// The next window to be released, if there are active keys.
    next: i64,
    /// How many of the active keys, in the order of the map, were looked at for it. A map that was restored is in another
    /// order: all are looked at again, and `released_to` tells which of them are done.
    #[serde(skip)]
    looked_at: usize,
}

impl<K: Hash + Eq + Clone, S: Clone> Sliding<K, S> {
    pub fn new(size_ms: i64, slide_ms: i64) -> Self {
        Self {
            grid: SlidingGrid::new(size_ms, slide_ms),
            pending: Pending::default(),
            active: Map::default(),
            next: i64::MIN,
            looked_at: 0,
        }
    }

    /// What is known of the pane of `time`, which has not ended.
    pub fn pane(&mut self, time: i64) -> &mut PendingPane<K, S> {
        self.pending.pane(self.grid.panes.index(time))
    }

    /// Releases the windows that end by `watermark`. Windows without items are not looked at.
    pub fn advance<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        watermark: i64,
        released: &mut Released<K, S>,
        room: &mut usize,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) {
        let grid = self.grid;
        while *room > 0 {
            if self.active.is_empty() {
                let Some(pane) = self.pending.first() else {
                    return;
                };
                self.next = grid.first_window_of(pane);
            }
            if clamp(grid.end(self.next)) > watermark {
                return;
            }
            self.activate(aggregate, room);
            if !self.give_next(aggregate, released, room, out) {
                return;
            }
            self.end_next(watermark);
        }
    }

    /// Brings the panes of the next window in.
    fn activate<A: Combine<State = S>>(&mut self, aggregate: &A, room: &mut usize) {
        let grid = self.grid;
        let end = grid.end(self.next);
        let is_in = |pane| (i128::from(pane) + 1) * i128::from(grid.panes.pane_ms) <= end;
        let active = &mut self.active;
        self.pending.take_if(is_in, room, &mut |pane, key, cell| {
            active.entry(key).or_default().push(aggregate, pane, cell);
        });
    }

    /// Gives the results of the next window; `false` when there is no more `room`. Everything of it is active then.
    fn give_next<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        released: &mut Released<K, S>,
        room: &mut usize,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) -> bool {
        let (grid, window) = (self.grid, self.next);
        let first_kept = grid.first_pane(i128::from(window) + 1);
        for (key, stacks) in self.active.iter_mut().skip(self.looked_at) {
            if *room == 0 {
                return false;
            }
            self.looked_at += 1;
            if stacks.released_to > window {
                continue;
            }
            *room -= 1;
            if let Some(cell) = stacks.total(aggregate) {
                released.give(aggregate, key.clone(), grid.window(window, cell), out);
            }
            stacks.evict_before(aggregate, first_kept);
            stacks.released_to = window.saturating_add(1);
        }
        *room > 0
    }

    /// The next window is released.
    fn end_next(&mut self, watermark: i64) {
        self.looked_at = 0;
        self.active.retain(|_, stacks| !stacks.is_empty());
        self.active.trim();
        self.next = self.next.saturating_add(1);
        let released_to = self.active.values().map(|stacks| stacks.released_to);
        if let Some(first) = released_to.min() {
            // Later than the next one only where all keys are of a partition that was ahead: see `absorb`.
            let first_pending = self.first_pending();
            let first_unreleased = self.grid.first_unreleased(watermark);
            let first = first.min(first_pending).min(first_unreleased);
            self.next = self.next.max(first);
        }
    }

    /// The first window that has a pending pane; the last there can be if there is none.
    fn first_pending(&self) -> i64 {
        (self.pending.first()).map_or(i64::MAX, |pane| self.grid.first_window_of(pane))
    }

    pub fn newest<A: Combine<State = S>>(&self, aggregate: &A, key: &K) -> Option<Window<S>> {
        let grid = self.grid;
        let active = self.active.get(key);
        let pending = self.pending.newest_first(key).next();
        let newest = match pending {
            Some((pane, _)) => pane,
            None => active?.newest()?,
        };
        let window = grid.last_window_of(newest);
        let first = grid.first_pane(i128::from(window));
        let mut total = Cell::empty(aggregate);
        for (_, cell) in
            (self.pending.newest_first(key)).take_while(|(pane, _)| i128::from(*pane) >= first)
        {
            total.merge(aggregate, cell);
        }
        if let Some(older) = active.and_then(|stacks| stacks.total_since(aggregate, first)) {
            total.merge(aggregate, &older);
        }
        Some(grid.window(window, total))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.active.keys().chain(self.pending.keys())
    }

    /// How many panes there are, and items in them.
    pub fn size(&self) -> (usize, u64) {
        let (mut panes, mut events) = (0, 0_u64);
        for cell in self.pending.cells() {
            panes += 1;
            events = events.saturating_add(cell.events);
        }
        for stacks in self.active.values() {
            panes += stacks.len();
            events = events.saturating_add(stacks.events());
        }
        (panes, events)
    }

    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        self.looked_at = 0;
        Self {
            grid: self.grid,
            pending: self.pending.split_off(moves),
            active: self.active.split_off(moves),
            next: self.next,
            looked_at: 0,
        }
    }

    /// What has released more than the other does not release it again. `watermark` is the lesser
    /// one of both.
    pub fn absorb(&mut self, mut other: Self, watermark: i64) {
        for part in [&mut *self, &mut other] {
            for stacks in part.active.values_mut() {
                stacks.released_to = stacks.released_to.max(part.next);
            }
        }
        self.next = self.grid.first_unreleased(watermark);
        self.looked_at = 0;
        self.pending.absorb(other.pending);
        self.active.absorb(other.active);
    }
}

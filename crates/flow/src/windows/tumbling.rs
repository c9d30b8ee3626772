//! Tumbling windows: each is one pane.

use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::entry::{Entry, EntryId, Window};
use super::grid::{Grid, Lateness};
use super::journal::Journal;
use super::kept::Kept;
use super::pending::{OpenPane, PaneCell, Pending};
use super::released::{Released, WindowResult};
use super::size::TableSize;

/// The keys of tumbling windows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) struct Tumbling<K, S> {
    grid: Grid,
    lateness: Lateness,
    pub pending: Pending<K, S>,
    pub kept: Kept<K, S>,
}

impl<K: Hash + Eq + Clone, S: Clone> Tumbling<K, S> {
    pub fn new(grid: Grid, lateness: Lateness) -> Self {
        Self {
            grid,
            lateness,
            pending: Pending::default(),
            kept: Kept::default(),
        }
    }

    /// The window of `time` is not closed: if its result for `key` was given, `change` changes the retained one; else
    /// returns the partial result of the window.
    pub fn place<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        key: &K,
        time: i64,
        watermark: i64,
        journal: &mut Journal<K, S>,
        change: impl FnOnce(&mut Cell<S>),
    ) -> Option<OpenPane<'_, K, S>> {
        let pane = self.grid.index(time);
        let is_over = self.grid.end(pane) <= watermark && !self.pending.holds(pane, key);
        if is_over || self.kept.holds(pane, key) {
            change(self.kept.change(aggregate, pane, key, journal));
            return None;
        }
        Some(OpenPane::whole(pane, self.pending.pane(pane)))
    }

    pub fn advance<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        watermark: i64,
        journal: &mut Journal<K, S>,
        released: &mut Released<K, S>,
        room: &mut usize,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) {
        let (grid, closed) = (self.grid, self.lateness.closed_by(watermark));
        let times = |pane, cell| window(grid, pane, cell);
        let is_due = |pane| grid.end(pane) <= watermark;
        while *room > 0 {
            let next = self.pending.first().filter(|pane| is_due(*pane));
            let is_first = |pane| is_due(pane) && next.is_none_or(|next| pane <= next);
            (self.kept).give_changed(is_first, times, journal, room, |key, changed| {
                released.give_late(aggregate, key, changed, out);
            });
            let Some(next) = next else {
                break;
            };
            let (is_closed, kept) = (grid.end(next) <= closed, &mut self.kept);
            let is_next = |pane| pane == next;
            (self.pending).take_if(is_next, room, &mut |pane, key, taken| {
                let PaneCell { cell, mark, .. } = taken;
                journal.ends(
                    mark,
                    || EntryId::whole_pane(pane, key.clone()),
                    || Entry::Cell(cell.clone()),
                );
                if !is_closed {
                    kept.keep(pane, &key, cell.clone(), journal);
                }
                released.give(aggregate, key, window(grid, pane, cell), out);
            });
        }
        if *room > 0 {
            self.kept.forget(|pane| grid.end(pane) <= closed, journal);
        }
    }

    pub fn note_all(&mut self, journal: &mut Journal<K, S>) {
        self.pending.note_all(journal);
        self.kept.note_all(journal);
    }

    /// Returns the time by which no run needs the window of a pane.
    pub fn end(&self, pane: i64) -> i64 {
        self.grid.end(pane)
    }

    /// The same for a window that is retained for late items.
    pub fn kept_end(&self, window: i64) -> i64 {
        self.lateness.after(self.grid.end(window))
    }

    pub fn newest(&self, key: &K) -> Option<Window<S>> {
        let open = self.pending.newest_first(key).next();
        let (pane, cell) = open.or_else(|| self.kept.newest(key))?;
        Some(window(self.grid, pane, cell.clone()))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.pending.keys().chain(self.kept.keys())
    }

    /// Returns the entries and their memory, without that which keys and states own elsewhere.
    pub fn memory(&self) -> TableSize {
        [self.pending.memory(), self.kept.memory()]
            .into_iter()
            .sum()
    }

    /// Returns how many windows are retained for late items, once for each key.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Returns the number of windows, once for each key, and of items in them.
    pub fn size(&self) -> (usize, u64) {
        (self.pending.cells()).fold((0, 0_u64), |(windows, events), cell| {
            (windows + 1, events.saturating_add(cell.events()))
        })
    }

    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        Self {
            grid: self.grid,
            lateness: self.lateness,
            pending: self.pending.split_off(moves),
            kept: self.kept.split_off(moves),
        }
    }

    pub fn absorb(&mut self, other: Self) {
        self.pending.absorb(other.pending);
        self.kept.absorb(other.kept);
    }
}

fn window<S>(grid: Grid, pane: i64, cell: Cell<S>) -> Window<S> {
    Window {
        start: grid.start(pane),
        end: grid.end(pane),
        cell,
        is_update: false,
        mark: 0,
    }
}

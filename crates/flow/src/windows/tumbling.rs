//! Tumbling windows: each is one pane.

use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::pending::{Pending, PendingPane};
use super::released::{Released, Window, WindowResult};
use super::spec::Grid;

/// The keys of tumbling windows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) struct Tumbling<K, S> {
    grid: Grid,
    pending: Pending<K, S>,
}

impl<K: Hash + Eq + Clone, S: Clone> Tumbling<K, S> {
    pub fn new(grid: Grid) -> Self {
        Self {
            grid,
            pending: Pending::default(),
        }
    }

    /// What is known of the window of `time`, which has not ended.
    pub fn pane(&mut self, time: i64) -> &mut PendingPane<K, S> {
        self.pending.pane(self.grid.index(time))
    }

    pub fn advance<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        watermark: i64,
        released: &mut Released<K, S>,
        room: &mut usize,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) {
        let grid = self.grid;
        let is_due = |pane| grid.end(pane) <= watermark;
        self.pending.take_if(is_due, room, &mut |pane, key, cell| {
            released.give(aggregate, key, window(grid, pane, cell), out);
        });
    }

    pub fn newest(&self, key: &K) -> Option<Window<S>> {
        let (pane, cell) = self.pending.newest_first(key).next()?;
        Some(window(self.grid, pane, cell.clone()))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.pending.keys()
    }

    /// How many windows there are, once for each key, and items in them.
    pub fn size(&self) -> (usize, u64) {
        (self.pending.cells()).fold((0, 0_u64), |(windows, events), cell| {
            (windows + 1, events.saturating_add(cell.events))
        })
    }

    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        Self {
            grid: self.grid,
            pending: self.pending.split_off(moves),
        }
    }

    pub fn absorb(&mut self, other: Self) {
        self.pending.absorb(other.pending);
    }
}

fn window<S>(grid: Grid, pane: i64, cell: Cell<S>) -> Window<S> {
    Window {
        start: grid.start(pane),
        end: grid.end(pane),
        cell,
    }
}

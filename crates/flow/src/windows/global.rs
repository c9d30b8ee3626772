//! The global window, which gives results when its trigger fires.

use std::collections::VecDeque;
use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::grid::Grid;
use super::map::Map;
use super::pending::{Pending, PendingPane};
use super::released::{Released, Window, WindowResult};

/// A result is of everything up to a moment.
fn window_to<S>(end: i64, cell: Cell<S>) -> Window<S> {
    Window {
        start: i64::MIN,
        end,
        cell,
        is_update: false,
    }
}

/// Keys whose results are given by event time.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) struct Timed<K, S> {
    grid: Grid,
    purges: bool,
    /// The items since the last results.
    pending: Pending<K, S>,
    /// The items of earlier results; none if these purge.
    running: Map<K, Cell<S>>,
}

impl<K: Hash + Eq + Clone, S: Clone> Timed<K, S> {
    pub fn new(grid: Grid, purges: bool) -> Self {
        Self {
            grid,
            purges,
            pending: Pending::default(),
            running: Map::default(),
        }
    }

    /// Returns the partial result of the period that `time` is in, which has not ended.
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
        self.pending
            .take_if(is_due, room, &mut |pane, key, mut cell| {
                if !self.purges {
                    let running = self.running.get_or_make(&key, || Cell::empty(aggregate));
                    running.merge(aggregate, &cell);
                    cell = running.clone();
                }
                let window = window_to(grid.end(pane), cell);
                released.give(aggregate, key, window, out);
            });
    }

    pub fn newest<A: Combine<State = S>>(&self, aggregate: &A, key: &K) -> Option<Window<S>> {
        let (newest, cell) = self.pending.newest_first(key).next()?;
        let mut total = cell.clone();
        if !self.purges {
            let earlier = self.pending.newest_first(key).skip(1).map(|(_, cell)| cell);
            for cell in earlier.chain(self.running.get(key)) {
                total.merge(aggregate, cell);
            }
        }
        Some(window_to(self.grid.end(newest), total))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.running.keys().chain(self.pending.keys())
    }

    /// Returns the number of results that will certainly be emitted, and the number of items that no result has purged.
    pub fn size(&self) -> (usize, u64) {
        let running = self.running.values().map(|cell| cell.events());
        (self.pending.cells()).fold((0, running.sum()), |(open, events): (usize, u64), cell| {
            (open + 1, events.saturating_add(cell.events()))
        })
    }

    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        Self {
            grid: self.grid,
            purges: self.purges,
            pending: self.pending.split_off(moves),
            running: self.running.split_off(moves),
        }
    }

    pub fn absorb(&mut self, other: Self) {
        self.pending.absorb(other.pending);
        self.running.absorb(other.running);
    }
}

/// Keys whose results are given by the number of their items.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) struct Counted<K, S> {
    count: u64,
    purges: bool,
    running: Map<K, Running<S>>,
    /// Results that wait to be given, in order.
    due: VecDeque<(K, Cell<S>)>,
    /// The items since the last results are due as well.
    is_closing: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Running<S> {
    cell: Cell<S>,
    /// Items since the last result.
    since: u64,
}

impl<K: Hash + Eq + Clone, S: Clone> Counted<K, S> {
    pub fn new(count: u64, purges: bool) -> Self {
        Self {
            count,
            purges,
            running: Map::default(),
            due: VecDeque::new(),
            is_closing: false,
        }
    }

    /// Counts in the `events` items that `add` adds to the state of `key`.
    pub fn add<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        key: &K,
        events: u64,
        add: impl FnOnce(&mut Cell<S>),
    ) {
        let running = self.running.get_or_make(key, || Running {
            cell: Cell::empty(aggregate),
            since: 0,
        });
        add(&mut running.cell);
        running.since = running.since.saturating_add(events);
        if running.since < self.count {
            return;
        }
        if !self.purges {
            running.since = 0;
            self.due.push_back((key.clone(), running.cell.clone()));
        } else if let Some((key, purged)) = self.running.remove_entry(key) {
            self.due.push_back((key, purged.cell));
        }
    }

    pub fn advance<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        _: i64,
        released: &mut Released<K, S>,
        room: &mut usize,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) {
        let mut give = |key, cell| {
            *room -= 1;
            released.give(aggregate, key, window_to(i64::MAX, cell), out);
            *room > 0
        };
        while let Some((key, cell)) = self.due.pop_front() {
            if !give(key, cell) {
                return;
            }
        }
        if !self.is_closing {
            return;
        }
        // The items that were given are gone, or there are none since.
        if self.purges {
            let rest = self.running.extract_if(|_, _| true);
            for (key, Running { cell, .. }) in rest {
                if !give(key, cell) {
                    return;
                }
            }
        } else {
            for (key, running) in self.running.iter_mut().filter(|(_, key)| key.since > 0) {
                running.since = 0;
                if !give(key.clone(), running.cell.clone()) {
                    return;
                }
            }
        }
        self.is_closing = false;
    }

    /// No more items will come: those since the last results are due as well.
    pub fn close(&mut self) {
        self.is_closing = true;
    }

    pub fn newest(&self, key: &K) -> Option<Window<S>> {
        let running = self.running.get(key)?;
        Some(window_to(i64::MAX, running.cell.clone()))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.running.keys()
    }

    /// Returns the number of results that will certainly be emitted, and the number of items that no result has purged.
    pub fn size(&self) -> (usize, u64) {
        let due = self.due.iter().filter(|_| self.purges);
        let due = due.map(|(_, cell)| cell.events());
        let running = self.running.values().map(|running| running.cell.events());
        let open = self.due.len() + self.running.values().filter(|key| key.since > 0).count();
        (open, due.chain(running).fold(0, u64::saturating_add))
    }

    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        let due = std::mem::take(&mut self.due).into_iter();
        let (moved, kept): (Vec<_>, Vec<_>) = due.partition(|(key, _)| moves(key));
        self.due = kept.into();
        Self {
            count: self.count,
            purges: self.purges,
            running: self.running.split_off(moves),
            due: moved.into(),
            is_closing: self.is_closing,
        }
    }

    pub fn absorb(&mut self, other: Self) {
        self.running.absorb(other.running);
        self.due.extend(other.due);
        self.is_closing |= other.is_closing;
    }
}

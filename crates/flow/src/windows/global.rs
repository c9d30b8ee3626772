//! The global window, whose results are given when a trigger says so.

use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::map::Map;
use super::pending::{Pending, PendingPane};
use super::released::{Released, Window, WindowResult};
use super::spec::Grid;

/// A result is of everything up to a moment.
fn window_to<S>(end: i64, cell: Cell<S>) -> Window<S> {
    Window {
        start: i64::MIN,
        end,
        cell,
    }
}

/// Keys whose results are given by event time.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) struct Timed<K, S> {
    grid: Grid,
    purges: bool,
    /// What came since the last results.
    pending: Pending<K, S>,
    /// What was in results; nothing if these purge.
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

    /// What is known of the period that `time` is in, which has not ended.
    pub fn pane(&mut self, time: i64) -> &mut PendingPane<K, S> {
        self.pending.pane(self.grid.index(time))
    }

    pub fn advance<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        watermark: i64,
        released: &mut Released<K, S>,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) {
        let grid = self.grid;
        while let Some((pane, cells)) =
            (self.pending).pop_first_if(|pane| grid.end(pane) <= watermark)
        {
            for (key, mut cell) in cells {
                if !self.purges {
                    let running = self.running.get_or_make(&key, || Cell::empty(aggregate));
                    running.merge(aggregate, &cell);
                    cell = running.clone();
                }
                let window = window_to(grid.end(pane), cell);
                released.give(aggregate, key, window, out);
            }
        }
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

    /// How many results are to come as far as is known, and items that no result purged.
    pub fn size(&self) -> (usize, u64) {
        let running = self.running.values().map(|cell| cell.events);
        (self.pending.cells()).fold((0, running.sum()), |(open, events): (usize, u64), cell| {
            (open + 1, events.saturating_add(cell.events))
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
    due: Vec<(K, Cell<S>)>,
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
            due: Vec::new(),
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
            self.due.push((key.clone(), running.cell.clone()));
        } else if let Some((key, purged)) = self.running.remove_entry(key) {
            self.due.push((key, purged.cell));
        }
    }

    pub fn advance<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        _: i64,
        released: &mut Released<K, S>,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) {
        for (key, cell) in self.due.drain(..) {
            released.give(aggregate, key, window_to(i64::MAX, cell), out);
        }
    }

    /// No more items will come: what there is since the last results is due as well.
    pub fn close(&mut self) {
        let purges = self.purges;
        let due = &mut self.due;
        self.running.retain(|key, running| {
            if running.since > 0 {
                running.since = 0;
                due.push((key.clone(), running.cell.clone()));
            }
            !purges
        });
    }

    pub fn newest(&self, key: &K) -> Option<Window<S>> {
        let running = self.running.get(key)?;
        Some(window_to(i64::MAX, running.cell.clone()))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.running.keys()
    }

    /// How many results are to come as far as is known, and items that no result purged.
    pub fn size(&self) -> (usize, u64) {
        let due = if self.purges {
            self.due.as_slice()
        } else {
            &[]
        };
        let due = due.iter().map(|(_, cell)| cell.events);
        let running = self.running.values().map(|running| running.cell.events);
        let open = self.due.len() + self.running.values().filter(|key| key.since > 0).count();
        (open, due.chain(running).fold(0, u64::saturating_add))
    }

    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        Self {
            count: self.count,
            purges: self.purges,
            running: self.running.split_off(moves),
            due: self.due.extract_if(.., |(key, _)| moves(key)).collect(),
        }
    }

    pub fn absorb(&mut self, other: Self) {
        self.running.absorb(other.running);
        self.due.extend(other.due);
    }
}

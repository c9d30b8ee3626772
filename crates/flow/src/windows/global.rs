//! The global window, which gives results when its trigger fires.

use std::collections::VecDeque;
use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::entry::{Entry, EntryId, Running, Window};
use super::grid::Grid;
use super::journal::Journal;
use super::map::Map;
use super::pending::{OpenPane, PaneCell, Pending};
use super::released::{Released, WindowResult};
use super::size::TableSize;

/// A result is of everything up to a moment.
fn window_to<S>(end: i64, cell: Cell<S>) -> Window<S> {
    Window {
        start: i64::MIN,
        end,
        cell,
        is_update: false,
        mark: 0,
    }
}

/// Keys whose results are given by event time.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) struct Timed<K, S> {
    grid: Grid,
    purges: bool,
    /// The items since the last results.
    pub pending: Pending<K, S>,
    /// The items of earlier results; none if these purge.
    running: Map<K, PaneCell<S>>,
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
    pub fn pane(&mut self, time: i64) -> OpenPane<'_, K, S> {
        let pane = self.grid.index(time);
        OpenPane::whole(pane, self.pending.pane(pane))
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
        let grid = self.grid;
        let is_due = |pane| grid.end(pane) <= watermark;
        self.pending.take_if(is_due, room, &mut |pane, key, taken| {
            let PaneCell { mut cell, mark, .. } = taken;
            journal.ends(
                mark,
                || EntryId::whole_pane(pane, key.clone()),
                || Entry::Cell(cell.clone()),
            );
            if !self.purges {
                let mut is_new = false;
                let running = self.running.get_or_make(&key, || {
                    is_new = true;
                    PaneCell::new(Cell::empty(aggregate), 0)
                });
                let sum = &mut running.cell;
                journal.changes(
                    &mut running.mark,
                    || EntryId::Key { key: key.clone() },
                    || (!is_new).then(|| Entry::Cell(sum.clone())),
                );
                sum.merge(aggregate, &cell);
                cell = sum.clone();
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
            let running = self.running.get(key).map(|running| &running.cell);
            for cell in earlier.chain(running) {
                total.merge(aggregate, cell);
            }
        }
        Some(window_to(self.grid.end(newest), total))
    }

    /// Returns the time by which no run needs a pane.
    pub fn end(&self, pane: i64) -> i64 {
        self.grid.end(pane)
    }

    pub fn running(&self, key: &K) -> Option<&Cell<S>> {
        self.running.get(key).map(|running| &running.cell)
    }

    pub fn restore_running(&mut self, key: K, cell: Option<Cell<S>>) {
        match cell {
            Some(cell) => drop(self.running.insert(key, PaneCell::new(cell, 0))),
            None => drop(self.running.remove(&key)),
        }
    }

    /// Notes that everything has changed.
    pub fn note_all(&mut self, journal: &mut Journal<K, S>) {
        self.pending.note_all(journal);
        for (key, running) in self.running.iter_mut() {
            let PaneCell { cell, mark, .. } = running;
            let former = || Some(Entry::Cell(cell.clone()));
            journal.changes(mark, || EntryId::Key { key: key.clone() }, former);
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.running.keys().chain(self.pending.keys())
    }

    pub fn memory(&self) -> TableSize {
        let running = TableSize::of(&*self.running);
        [self.pending.memory(), running].into_iter().sum()
    }

    /// Returns the number of results that will certainly be emitted, and the number of items that no result has purged.
    pub fn size(&self) -> (usize, u64) {
        let running = self.running.values().map(|running| running.cell.events());
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

impl<S: Clone> Running<S> {
    fn changes<K: Hash + Eq + Clone>(
        &mut self,
        key: &K,
        is_new: bool,
        journal: &mut Journal<K, S>,
    ) {
        let Self { cell, since, mark } = self;
        let former = || {
            (!is_new).then(|| {
                Entry::Running(Running {
                    cell: cell.clone(),
                    since: *since,
                    mark: 0,
                })
            })
        };
        journal.changes(mark, || EntryId::Key { key: key.clone() }, former);
    }
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
        journal: &mut Journal<K, S>,
        add: impl FnOnce(&mut Cell<S>),
    ) {
        let mut is_new = false;
        let running = self.running.get_or_make(key, || {
            is_new = true;
            Running {
                cell: Cell::empty(aggregate),
                since: 0,
                mark: 0,
            }
        });
        running.changes(key, is_new, journal);
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
        journal: &mut Journal<K, S>,
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
            for (key, running) in rest {
                let id = || EntryId::Key { key: key.clone() };
                journal.removes(running.mark, id, || Entry::Running(running.clone()));
                if !give(key, running.cell) {
                    return;
                }
            }
        } else {
            for (key, running) in self.running.iter_mut().filter(|(_, key)| key.since > 0) {
                running.changes(key, false, journal);
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

    pub fn running(&self, key: &K) -> Option<&Running<S>> {
        self.running.get(key)
    }

    pub fn restore_running(&mut self, key: K, running: Option<Running<S>>) {
        match running {
            Some(running) => drop(self.running.insert(key, running)),
            None => drop(self.running.remove(&key)),
        }
    }

    /// Notes that everything has changed.
    pub fn note_all(&mut self, journal: &mut Journal<K, S>) {
        for (key, running) in self.running.iter_mut() {
            running.changes(key, false, journal);
        }
    }

    pub fn newest(&self, key: &K) -> Option<Window<S>> {
        let running = self.running.get(key)?;
        Some(window_to(i64::MAX, running.cell.clone()))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.running.keys()
    }

    pub fn memory(&self) -> TableSize {
        let due = TableSize::of_list::<(K, Cell<S>)>(self.due.len(), self.due.capacity());
        [TableSize::of(&*self.running), due].into_iter().sum()
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

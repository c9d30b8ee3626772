//! Sliding windows out of panes.

use std::hash::Hash;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::entry::{Entry, EntryId, Window};
use super::grid::{Lateness, SlidingGrid, clamp};
use super::journal::Journal;
use super::kept::Kept;
use super::map::Map;
use super::pending::{OpenPane, PaneCell, Pending};
use super::released::{Released, WindowResult};
use super::size::TableSize;
use super::two_stacks::TwoStacks;

/// The keys of sliding windows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) struct Sliding<K, S> {
    grid: SlidingGrid,
    lateness: Lateness,
    /// Panes by the first of their windows that counts them, which is yet to be released, and by their
    /// number. A pane stands at several windows when items of it came too late for the first ones.
    pub pending: Pending<K, S, (i64, i64)>,
    /// The panes that are in the next window; no key is there without one.
    active: Map<K, TwoStacks<S>>,
    /// The next window to be released: all before it were, with all of their keys.
    next: i64,
    /// The number of active keys, in the order of the map, that were visited for this window. A restored map has another
    /// order: all keys are visited again, and `released_to` shows the finished ones.
    #[serde(skip)]
    looked_at: usize,
    pub kept: Kept<K, S>,
    /// Keys of a partition that was ahead have released windows before this one: see `absorb`.
    ahead_to: i64,
    /// Entries that become active once all are restored, since until then a newer one of the same name may follow. Beside
    /// each is the next window of its key.
    #[serde(skip)]
    restoring: HashMap<EntryId<K>, (Cell<S>, i64)>,
}

impl<K: Hash + Eq + Clone, S: Clone> Sliding<K, S> {
    pub fn new(grid: SlidingGrid, lateness: Lateness) -> Self {
        Self {
            grid,
            lateness,
            pending: Pending::default(),
            active: Map::default(),
            next: i64::MIN,
            looked_at: 0,
            kept: Kept::default(),
            ahead_to: i64::MIN,
            restoring: HashMap::default(),
        }
    }

    /// For items of `key` in the pane of `time`, which count in its windows that are not closed, except for the first
    /// `skipped` of all: `change` changes each window that was released by `watermark`. Returns the partial result of
    /// the pane for the others, if there are any.
    pub fn place<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        key: &K,
        (time, skipped): (i64, u64),
        watermark: i64,
        journal: &mut Journal<K, S>,
        mut change: impl FnMut(&mut Cell<S>),
    ) -> Option<OpenPane<'_, K, S>> {
        let grid = self.grid;
        let pane = grid.panes.index(time);
        let closed = self.lateness.closed_by(watermark);
        let (first, last) = grid.windows_after(pane, skipped, closed)?.into_inner();
        // The windows from `next` on may have been released in part.
        let unreleased = first
            .max(grid.first_after(watermark).min(self.next))
            .max(self.ahead_to(key, first));
        for window in first..unreleased.min(last.saturating_add(1)) {
            change(self.kept.change(aggregate, window, key, journal));
        }
        // A partition that was ahead had released them: see `absorb`.
        for window in self.kept.windows_of(key, unreleased..=last) {
            change(self.kept.change(aggregate, window, key, journal));
        }
        (unreleased <= last).then(|| {
            let cells = self.pending.pane((unreleased, pane));
            OpenPane::fragment(pane, unreleased, cells)
        })
    }

    /// The first window that `key` has not released, where it is of a partition that was ahead; `first` is one that is of
    /// interest.
    fn ahead_to(&self, key: &K, first: i64) -> i64 {
        if first >= self.ahead_to {
            return i64::MIN;
        }
        let stacks = self.active.get(key);
        stacks.map_or(i64::MIN, |stacks| stacks.released_to)
    }

    /// Releases the windows that end by `watermark`. Windows without items are skipped.
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
        let times = |window, cell| grid.window(window, cell);
        while *room > 0 {
            let next = match (self.active.is_empty(), self.pending.first()) {
                (false, _) => self.next,
                (true, Some((first, _))) => self.next.max(first),
                (true, None) => break,
            };
            if clamp(grid.end(next)) > watermark {
                break;
            }
            self.next = next;
            let is_first = |window| window <= next;
            (self.kept).give_changed(is_first, times, journal, room, |key, changed| {
                released.give_late(aggregate, key, changed, out);
            });
            self.activate(aggregate, journal, room);
            if !self.give_next(aggregate, closed, journal, released, room, out) {
                return;
            }
            self.end_next(watermark);
        }
        if *room == 0 {
            return;
        }
        self.next = self.next.max(grid.first_after(watermark));
        let is_due = |window| clamp(grid.end(window)) <= watermark;
        (self.kept).give_changed(is_due, times, journal, room, |key, changed| {
            released.give_late(aggregate, key, changed, out);
        });
        if *room > 0 {
            (self.kept).forget(|window| clamp(grid.end(window)) <= closed, journal);
        }
    }

    /// Adds the panes of the next window.
    fn activate<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        journal: &mut Journal<K, S>,
        room: &mut usize,
    ) {
        let next = self.next;
        let (active, looked_at) = (&mut self.active, &mut self.looked_at);
        let is_in = |(first, _)| first <= next;
        self.pending
            .take_if(is_in, room, &mut |(first, pane), key, taken| {
                let PaneCell {
                    cell,
                    mark,
                    fragment,
                } = taken;
                let id = || EntryId::Pane {
                    pane,
                    first,
                    fragment,
                    key: key.clone(),
                };
                journal.freezes(aggregate, mark, id, &cell);
                let stacks = active.entry(key).or_default();
                stacks.insert(aggregate, pane, cell);
                // The map may be in another order.
                *looked_at = 0;
            });
    }

    /// Gives the results of the next window; `false` when there is no more `room`. Everything of it is active then.
    fn give_next<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        closed: i64,
        journal: &mut Journal<K, S>,
        released: &mut Released<K, S>,
        room: &mut usize,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) -> bool {
        let (grid, window, kept) = (self.grid, self.next, &mut self.kept);
        let is_closed = clamp(grid.end(window)) <= closed;
        let was_ahead = kept.holds_any(window);
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
            let is_held = was_ahead && kept.holds(window, key);
            if let Some(cell) = stacks.total(aggregate).filter(|_| !is_held) {
                if !is_closed {
                    kept.keep(window, key, cell.clone(), journal);
                }
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
            let first_pending = self.pending.first().map_or(i64::MAX, |(first, _)| first);
            let first_unreleased = self.grid.first_after(watermark);
            let first = first.min(first_pending).min(first_unreleased);
            self.next = self.next.max(first);
        }
    }

    /// Returns the time by which no run needs a pane.
    pub fn end(&self, pane: i64) -> i64 {
        clamp(self.grid.end(self.grid.last_window_of(pane)))
    }

    /// The same for a window that is retained for late items.
    pub fn kept_end(&self, window: i64) -> i64 {
        self.lateness.after(clamp(self.grid.end(window)))
    }

    /// Continues at this watermark; before panes are restored.
    pub fn resume(&mut self, watermark: i64) {
        self.next = self.next_after(watermark);
    }

    /// Returns the next window of keys whose windows were released up to a watermark.
    fn next_after(&self, watermark: i64) -> i64 {
        match watermark {
            i64::MIN => i64::MIN,
            _ => self.grid.first_after(watermark),
        }
    }

    /// Restores a pane, which windows from `first` on count, or that it is not there. The windows of its key were released
    /// up to `watermark`.
    pub fn restore_pane(
        &mut self,
        (first, pane, fragment): (i64, i64, u32),
        key: K,
        cell: Option<Cell<S>>,
        watermark: i64,
    ) {
        let next = self.next_after(watermark);
        if first >= next {
            match cell {
                Some(cell) => {
                    let there = PaneCell::new(cell, fragment);
                    self.pending.pane((first, pane)).insert(key, there);
                }
                None => self.pending.remove((first, pane), &key),
            }
            return;
        }
        let id = EntryId::Pane {
            pane,
            first,
            fragment,
            key,
        };
        match cell {
            Some(cell) => self.restoring.insert(id, (cell, next)),
            None => self.restoring.remove(&id),
        };
    }

    /// All entries are restored. Keys of a partition that was behind have windows that are due; those that were ahead do not
    /// release them again.
    pub fn restored<A: Combine<State = S>>(&mut self, aggregate: &A) {
        for (id, (cell, next)) in std::mem::take(&mut self.restoring) {
            if let EntryId::Pane { pane, key, .. } = id {
                let stacks = self.active.entry(key).or_default();
                stacks.insert(aggregate, pane, cell);
                stacks.released_to = stacks.released_to.max(next);
            }
        }
        for stacks in self.active.values() {
            self.next = self.next.min(stacks.released_to);
        }
        if let Some((first, _)) = self.pending.first() {
            self.next = self.next.min(first);
        }
    }

    /// Restores the panes of a key from a run that noted no changes of them, or that it has none. The windows of the key were
    /// released up to `watermark`.
    pub fn restore_panes<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        key: K,
        panes: Option<TwoStacks<S>>,
        watermark: i64,
    ) {
        let next = self.next_after(watermark);
        let mut panes = panes.unwrap_or_default();
        panes.evict_before(aggregate, self.grid.first_pane(next.into()));
        if panes.is_empty() {
            self.active.remove(&key);
        } else {
            panes.released_to = panes.released_to.max(next);
            self.active.insert(key, panes);
        }
    }

    /// Returns the time by which no run needs any of the panes.
    pub fn panes_end(&self, panes: &TwoStacks<S>) -> i64 {
        panes.newest().map_or(i64::MIN, |newest| self.end(newest))
    }

    /// Notes that everything has changed, in a run that has noted no changes before.
    pub fn note_all(&mut self, journal: &mut Journal<K, S>) {
        for ((first, pane), key, there) in self.pending.iter_mut() {
            let PaneCell {
                cell,
                mark,
                fragment,
            } = there;
            let id = || EntryId::Pane {
                pane,
                first,
                fragment: *fragment,
                key: key.clone(),
            };
            journal.changes(mark, id, || Some(Entry::Cell(cell.clone())));
        }
        for (key, panes) in self.active.iter() {
            let id = EntryId::Key { key: key.clone() };
            journal.note_frozen(id, Entry::Panes(panes.clone()));
        }
        self.kept.note_all(journal);
    }

    pub fn newest<A: Combine<State = S>>(&self, aggregate: &A, key: &K) -> Option<Window<S>> {
        let grid = self.grid;
        let active = self.active.get(key);
        let pending = || {
            let panes = self.pending.newest_first(key);
            panes.map(|((_, pane), cell)| (pane, cell))
        };
        let newest_pending = pending().map(|(pane, _)| pane).max();
        let newest = newest_pending.max(active.and_then(TwoStacks::newest));
        let Some(newest) = newest else {
            let (window, cell) = self.kept.newest(key)?;
            return Some(grid.window(window, cell.clone()));
        };
        let window = grid.last_window_of(newest);
        let first = grid.first_pane(i128::from(window));
        let mut total = Cell::empty(aggregate);
        for (_, cell) in pending().filter(|(pane, _)| i128::from(*pane) >= first) {
            total.merge(aggregate, cell);
        }
        if let Some(older) = active.and_then(|stacks| stacks.total_since(aggregate, first)) {
            total.merge(aggregate, &older);
        }
        Some(grid.window(window, total))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        let open = self.active.keys().chain(self.pending.keys());
        open.chain(self.kept.keys())
    }

    /// Returns the entries and their memory, without that which keys and states own elsewhere.
    pub fn memory(&self) -> TableSize {
        let mut active = TableSize::of(&*self.active);
        active.add_owned(self.active.values().map(TwoStacks::memory_bytes));
        [self.pending.memory(), active, self.kept.memory()]
            .into_iter()
            .sum()
    }

    /// Returns how many windows are retained for late items, once for each key.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Returns the number of panes, and of items in them.
    pub fn size(&self) -> (usize, u64) {
        let (mut panes, mut events) = (0, 0_u64);
        for cell in self.pending.cells() {
            panes += 1;
            events = events.saturating_add(cell.events());
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
            lateness: self.lateness,
            pending: self.pending.split_off(moves),
            active: self.active.split_off(moves),
            next: self.next,
            looked_at: 0,
            kept: self.kept.split_off(moves),
            ahead_to: self.ahead_to,
            restoring: HashMap::default(),
        }
    }

    /// Windows that one of both has released are not released again. `watermark` is the lesser one of both.
    pub fn absorb(&mut self, mut other: Self, watermark: i64) {
        for part in [&mut *self, &mut other] {
            for stacks in part.active.values_mut() {
                stacks.released_to = stacks.released_to.max(part.next);
            }
        }
        self.ahead_to = (self.ahead_to.max(other.ahead_to)).max(self.next.max(other.next));
        self.next = self.grid.first_after(watermark);
        self.looked_at = 0;
        self.pending.absorb(other.pending);
        self.active.absorb(other.active);
        self.kept.absorb(other.kept);
    }
}

impl SlidingGrid {
    fn window<S>(self, window: i64, cell: Cell<S>) -> Window<S> {
        Window {
            start: clamp(self.start(window)),
            end: clamp(self.end(window)),
            cell,
            is_update: false,
            mark: 0,
        }
    }
}

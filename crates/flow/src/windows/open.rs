//! The windows of any kind that are not released yet.

use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::aggregate::{Aggregate, Combine};
use super::cell::Cell;
use super::entry::{Entry, EntryId, Window};
use super::global::{Counted, Timed};
use super::grid::{Grid, SlidingGrid};
use super::journal::Journal;
use super::pending::PaneCell;
use super::released::{Released, WindowResult};
use super::sessions::Sessions;
use super::size::TableSize;
use super::sliding::Sliding;
use super::spec::{Kind, When, Windows};
use super::tumbling::Tumbling;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) enum Open<K, S> {
    Tumbling(Tumbling<K, S>),
    Sliding(Sliding<K, S>),
    Sessions(Sessions<K, S>),
    Timed(Timed<K, S>),
    Counted(Counted<K, S>),
}

/// Does the same with each kind.
macro_rules! each {
    ($open:expr, $kind:ident => $do:expr) => {
        match $open {
            Open::Tumbling($kind) => $do,
            Open::Sliding($kind) => $do,
            Open::Sessions($kind) => $do,
            Open::Timed($kind) => $do,
            Open::Counted($kind) => $do,
        }
    };
}

impl<K: Hash + Eq + Clone, S: Clone> Open<K, S> {
    pub fn new(windows: Windows) -> Self {
        let lateness = windows.lateness;
        match windows.kind {
            Kind::Tumbling { size_ms } => {
                let grid = Grid { pane_ms: size_ms };
                Open::Tumbling(Tumbling::new(grid, lateness))
            }
            Kind::Sliding { size_ms, slide_ms } => {
                let grid = SlidingGrid::new(size_ms, slide_ms);
                Open::Sliding(Sliding::new(grid, lateness))
            }
            Kind::Session { gap_ms } => Open::Sessions(Sessions::new(gap_ms, lateness)),
            Kind::Global(trigger) => match trigger.when {
                When::Events(count) => Open::Counted(Counted::new(count, trigger.purges)),
                When::EveryMs(period_ms) => {
                    Open::Timed(Timed::new(Grid { pane_ms: period_ms }, trigger.purges))
                }
            },
        }
    }

    /// Adds the partial result of items from `first` to `cell.time_max`, in time, which do not count in the first
    /// `skipped` windows of their pane.
    pub fn merge<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        key: K,
        (first, skipped): (i64, u64),
        watermark: i64,
        journal: &mut Journal<K, S>,
        cell: Cell<S>,
    ) {
        let change = |kept: &mut Cell<S>| kept.merge(aggregate, &cell);
        let pane = match self {
            Open::Sessions(sessions) => {
                let times = (first.min(cell.time_max), cell.time_max);
                return change(sessions.cell(aggregate, &key, times, journal));
            }
            Open::Counted(counted) => {
                return counted.add(aggregate, &key, cell.events(), journal, change);
            }
            Open::Tumbling(tumbling) => {
                tumbling.place(aggregate, &key, first, watermark, journal, change)
            }
            Open::Sliding(sliding) => {
                let at = (first, skipped);
                sliding.place(aggregate, &key, at, watermark, journal, change)
            }
            Open::Timed(timed) => Some(timed.pane(first.max(watermark))),
        };
        if let Some(pane) = pane {
            change(pane.cell(aggregate, &key, journal));
        }
    }

    /// Adds an item, in time.
    pub fn add<T: ?Sized, A: Aggregate<T, State = S>>(
        &mut self,
        aggregate: &A,
        key: &K,
        time: i64,
        watermark: i64,
        journal: &mut Journal<K, S>,
        item: &T,
    ) {
        let change = |cell: &mut Cell<S>| cell.add(aggregate, time, item);
        let pane = match self {
            Open::Sessions(sessions) => {
                return change(sessions.cell(aggregate, key, (time, time), journal));
            }
            Open::Counted(counted) => return counted.add(aggregate, key, 1, journal, change),
            Open::Tumbling(tumbling) => {
                tumbling.place(aggregate, key, time, watermark, journal, change)
            }
            Open::Sliding(sliding) => {
                sliding.place(aggregate, key, (time, 0), watermark, journal, change)
            }
            Open::Timed(timed) => Some(timed.pane(time.max(watermark))),
        };
        if let Some(pane) = pane {
            change(pane.cell(aggregate, key, journal));
        }
    }

    /// Releases the windows that end by `watermark`, until there is no more `room`, which every result takes from.
    pub fn advance<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        watermark: i64,
        journal: &mut Journal<K, S>,
        released: &mut Released<K, S>,
        room: &mut usize,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) {
        each!(self, open => open.advance(aggregate, watermark, journal, released, room, out));
    }

    /// Returns the content of an entry, if it is there.
    pub fn entry(&self, id: &EntryId<K>) -> Option<Entry<S>> {
        let cell = |there: &PaneCell<S>| Entry::Cell(there.cell.clone());
        match (self, id) {
            (Open::Tumbling(open), EntryId::Pane { pane, key, .. }) => {
                open.pending.get(*pane, key).map(cell)
            }
            (
                Open::Sliding(open),
                EntryId::Pane {
                    pane, first, key, ..
                },
            ) => open.pending.get((*first, *pane), key).map(cell),
            (Open::Timed(open), EntryId::Pane { pane, key, .. }) => {
                open.pending.get(*pane, key).map(cell)
            }
            (Open::Tumbling(Tumbling { kept, .. }), EntryId::Kept { window, key })
            | (Open::Sliding(Sliding { kept, .. }), EntryId::Kept { window, key }) => {
                kept.get(*window, key).cloned().map(Entry::Kept)
            }
            (Open::Sessions(open), EntryId::Key { key }) => {
                open.get(key).cloned().map(Entry::Sessions)
            }
            (Open::Timed(open), EntryId::Key { key }) => {
                open.running(key).cloned().map(Entry::Cell)
            }
            (Open::Counted(open), EntryId::Key { key }) => {
                open.running(key).cloned().map(Entry::Running)
            }
            _ => None,
        }
    }

    /// Returns the watermark from which on no run needs an entry; `None` if it is needed until it changes.
    pub fn end(&self, id: &EntryId<K>, entry: &Entry<S>) -> Option<i64> {
        match (self, id, entry) {
            (Open::Tumbling(open), EntryId::Pane { pane, .. }, _) => Some(open.end(*pane)),
            (Open::Sliding(open), EntryId::Pane { pane, .. }, _) => Some(open.end(*pane)),
            (Open::Timed(open), EntryId::Pane { pane, .. }, _) => Some(open.end(*pane)),
            (Open::Tumbling(open), EntryId::Kept { window, .. }, _) => Some(open.kept_end(*window)),
            (Open::Sliding(open), EntryId::Kept { window, .. }, _) => Some(open.kept_end(*window)),
            (Open::Sliding(open), _, Entry::Panes(panes)) => Some(open.panes_end(panes)),
            (Open::Sessions(open), _, Entry::Sessions(sessions)) => Some(open.end(sessions)),
            _ => None,
        }
    }

    /// Whether an entry that is not there any more was removed by the watermark, which has passed the end of all of its
    /// versions.
    pub fn ends_by_time(&self, id: &EntryId<K>) -> bool {
        match id {
            EntryId::Pane { .. } | EntryId::Kept { .. } => true,
            EntryId::Key { .. } => !matches!(self, Open::Counted(_)),
            EntryId::Released { .. } => false,
        }
    }

    /// Continues at this watermark; before anything is restored.
    pub fn resume(&mut self, watermark: i64) {
        if let Open::Sliding(open) = self {
            open.resume(watermark);
        }
    }

    /// All entries are restored.
    pub fn restored<A: Combine<State = S>>(&mut self, aggregate: &A) {
        if let Open::Sliding(open) = self {
            open.restored(aggregate);
        }
    }

    /// Restores an entry, or that it is not there; the windows of its key were released up to `watermark`. Returns `false`
    /// if these windows have no such entries.
    pub fn restore<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        id: EntryId<K>,
        entry: Option<Entry<S>>,
        watermark: i64,
    ) -> bool {
        match (self, id, entry) {
            (Open::Tumbling(open), EntryId::Pane { pane, key, .. }, entry) => {
                return open.pending.restore(pane, key, entry);
            }
            (Open::Timed(open), EntryId::Pane { pane, key, .. }, entry) => {
                return open.pending.restore(pane, key, entry);
            }
            (
                Open::Sliding(open),
                EntryId::Pane {
                    pane,
                    first,
                    fragment,
                    key,
                },
                entry,
            ) => {
                let cell = match entry {
                    Some(Entry::Cell(cell)) => Some(cell),
                    Some(_) => return false,
                    None => None,
                };
                open.restore_pane((first, pane, fragment), key, cell, watermark);
            }
            (Open::Sliding(open), EntryId::Key { key }, entry) => {
                let panes = match entry {
                    Some(Entry::Panes(panes)) => Some(panes),
                    Some(_) => return false,
                    None => None,
                };
                open.restore_panes(aggregate, key, panes, watermark);
            }
            (Open::Tumbling(Tumbling { kept, .. }), EntryId::Kept { window, key }, entry)
            | (Open::Sliding(Sliding { kept, .. }), EntryId::Kept { window, key }, entry) => {
                match entry {
                    Some(Entry::Kept(entry)) => kept.restore(window, key, entry),
                    Some(_) => return false,
                    None => kept.remove(window, &key),
                }
            }
            (Open::Sessions(open), EntryId::Key { key }, Some(Entry::Sessions(sessions))) => {
                open.restore(key, Some(sessions));
            }
            (Open::Sessions(open), EntryId::Key { key }, None) => open.restore(key, None),
            (Open::Timed(open), EntryId::Key { key }, Some(Entry::Cell(cell))) => {
                open.restore_running(key, Some(cell));
            }
            (Open::Timed(open), EntryId::Key { key }, None) => open.restore_running(key, None),
            (Open::Counted(open), EntryId::Key { key }, Some(Entry::Running(running))) => {
                open.restore_running(key, Some(running));
            }
            (Open::Counted(open), EntryId::Key { key }, None) => open.restore_running(key, None),
            _ => return false,
        }
        true
    }

    /// Notes that everything has changed, in a run that has noted no changes before.
    pub fn note_all(&mut self, journal: &mut Journal<K, S>) {
        each!(self, open => open.note_all(journal));
    }

    /// No more items will come.
    pub fn close(&mut self) {
        if let Open::Counted(counted) = self {
            counted.close();
        }
    }

    pub fn newest<A: Combine<State = S>>(&self, aggregate: &A, key: &K) -> Option<Window<S>> {
        match self {
            Open::Tumbling(tumbling) => tumbling.newest(key),
            Open::Sliding(sliding) => sliding.newest(aggregate, key),
            Open::Sessions(sessions) => sessions.newest(key),
            Open::Timed(timed) => timed.newest(aggregate, key),
            Open::Counted(counted) => counted.newest(key),
        }
    }

    /// A key may come more than once.
    pub fn keys(&self) -> Box<dyn Iterator<Item = &K> + '_> {
        each!(self, open => Box::new(open.keys()))
    }

    /// Returns how many windows were released and are retained for late items, once for each key.
    pub fn kept(&self) -> usize {
        match self {
            Open::Tumbling(tumbling) => tumbling.kept(),
            Open::Sliding(sliding) => sliding.kept(),
            Open::Sessions(sessions) => sessions.kept(),
            Open::Timed(_) | Open::Counted(_) => 0,
        }
    }

    /// Returns the entries and their memory, without that which keys and states own elsewhere.
    pub fn memory(&self) -> TableSize {
        each!(self, open => open.memory())
    }

    /// Returns the number of windows, once for each key, and of items in them.
    pub fn size(&self) -> (usize, u64) {
        each!(self, open => open.size())
    }

    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        match self {
            Open::Tumbling(open) => Open::Tumbling(open.split_off(moves)),
            Open::Sliding(open) => Open::Sliding(open.split_off(moves)),
            Open::Sessions(open) => Open::Sessions(open.split_off(moves)),
            Open::Timed(open) => Open::Timed(open.split_off(moves)),
            Open::Counted(open) => Open::Counted(open.split_off(moves)),
        }
    }

    /// `watermark` is the lesser one of both.
    ///
    /// # Panics
    /// If a key is in both, or the windows are different ones.
    pub fn absorb(&mut self, other: Self, watermark: i64) {
        match (self, other) {
            (Open::Tumbling(open), Open::Tumbling(other)) => open.absorb(other),
            (Open::Sliding(open), Open::Sliding(other)) => open.absorb(other, watermark),
            (Open::Sessions(open), Open::Sessions(other)) => open.absorb(other),
            (Open::Timed(open), Open::Timed(other)) => open.absorb(other),
            (Open::Counted(open), Open::Counted(other)) => open.absorb(other),
            _ => panic!("only stores of the same windows can become one"),
        }
    }
}

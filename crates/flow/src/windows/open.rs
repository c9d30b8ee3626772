//! The windows of any kind that are not released yet.

use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::aggregate::{Aggregate, Combine};
use super::cell::Cell;
use super::global::{Counted, Timed};
use super::grid::{Grid, SlidingGrid};
use super::pending::PendingPane;
use super::released::{Released, Window, WindowResult};
use super::sessions::Sessions;
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
        cell: Cell<S>,
    ) {
        let change = |kept: &mut Cell<S>| kept.merge(aggregate, &cell);
        let pane = match self {
            Open::Sessions(sessions) => {
                let times = (first.min(cell.time_max), cell.time_max);
                return change(sessions.cell(aggregate, &key, times));
            }
            Open::Counted(counted) => return counted.add(aggregate, &key, cell.events(), change),
            Open::Tumbling(tumbling) => tumbling.place(aggregate, &key, first, watermark, change),
            Open::Sliding(sliding) => {
                sliding.place(aggregate, &key, (first, skipped), watermark, change)
            }
            Open::Timed(timed) => Some(timed.pane(first.max(watermark))),
        };
        if let Some(pane) = pane {
            merge(pane, aggregate, key, cell);
        }
    }

    /// Adds an item, in time.
    pub fn add<T: ?Sized, A: Aggregate<T, State = S>>(
        &mut self,
        aggregate: &A,
        key: &K,
        time: i64,
        watermark: i64,
        item: &T,
    ) {
        let change = |cell: &mut Cell<S>| cell.add(aggregate, time, item);
        let pane = match self {
            Open::Sessions(sessions) => {
                return change(sessions.cell(aggregate, key, (time, time)));
            }
            Open::Counted(counted) => return counted.add(aggregate, key, 1, change),
            Open::Tumbling(tumbling) => tumbling.place(aggregate, key, time, watermark, change),
            Open::Sliding(sliding) => sliding.place(aggregate, key, (time, 0), watermark, change),
            Open::Timed(timed) => Some(timed.pane(time.max(watermark))),
        };
        if let Some(pane) = pane {
            change(pane.get_or_make(key, || Cell::empty(aggregate)));
        }
    }

    /// Releases the windows that end by `watermark`, until there is no more `room`, which every result takes from.
    pub fn advance<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        watermark: i64,
        released: &mut Released<K, S>,
        room: &mut usize,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) {
        each!(self, open => open.advance(aggregate, watermark, released, room, out));
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

fn merge<K: Hash + Eq + Clone, S, A: Combine<State = S>>(
    pane: &mut PendingPane<K, S>,
    aggregate: &A,
    key: K,
    cell: Cell<S>,
) {
    match pane.get_mut(&key) {
        Some(sum) => sum.merge(aggregate, &cell),
        None => {
            pane.insert(key, cell);
        }
    }
}

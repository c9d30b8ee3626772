//! The windows that are yet to be released, whichever they are.

use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::aggregate::{Aggregate, Combine};
use super::cell::Cell;
use super::global::{Counted, Timed};
use super::pending::PendingPane;
use super::released::{Released, Window, WindowResult};
use super::sessions::Sessions;
use super::sliding::Sliding;
use super::spec::{Grid, Kind, When, Windows};
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
        match windows.kind {
            Kind::Tumbling { size_ms } => Open::Tumbling(Tumbling::new(Grid { pane_ms: size_ms })),
            Kind::Sliding { size_ms, slide_ms } => Open::Sliding(Sliding::new(size_ms, slide_ms)),
            Kind::Session { gap_ms } => Open::Sessions(Sessions::new(gap_ms)),
            Kind::Global(trigger) => match trigger.when {
                When::Events(count) => Open::Counted(Counted::new(count, trigger.purges)),
                When::EveryMs(period_ms) => {
                    Open::Timed(Timed::new(Grid { pane_ms: period_ms }, trigger.purges))
                }
            },
        }
    }

    /// Adds what is known of items from `first` to `cell.time_max`, in time.
    pub fn merge<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        key: K,
        first: i64,
        watermark: i64,
        cell: Cell<S>,
    ) {
        match self {
            Open::Sessions(sessions) => sessions
                .cell(aggregate, &key, (first.min(cell.time_max), cell.time_max))
                .merge(aggregate, &cell),
            Open::Counted(counted) => {
                let events = cell.events;
                counted.add(aggregate, &key, events, |sum| sum.merge(aggregate, &cell));
            }
            Open::Tumbling(tumbling) => merge(tumbling.pane(first), aggregate, key, cell),
            Open::Sliding(sliding) => merge(sliding.pane(first), aggregate, key, cell),
            Open::Timed(timed) => merge(timed.pane(first.max(watermark)), aggregate, key, cell),
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
        let pane = match self {
            Open::Sessions(sessions) => {
                let cell = sessions.cell(aggregate, key, (time, time));
                return cell.add(aggregate, time, item);
            }
            Open::Counted(counted) => {
                return counted.add(aggregate, key, 1, |sum| sum.add(aggregate, time, item));
            }
            Open::Tumbling(tumbling) => tumbling.pane(time),
            Open::Sliding(sliding) => sliding.pane(time),
            Open::Timed(timed) => timed.pane(time.max(watermark)),
        };
        pane.get_or_make(key, || Cell::empty(aggregate))
            .add(aggregate, time, item);
    }

    /// Releases what ends by `watermark`, until there is no more `room`, which every result takes from.
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

    /// How many windows there are, once for each key, and items in them.
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

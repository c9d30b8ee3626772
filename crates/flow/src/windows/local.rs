//! Adds items up where they arise, before they go to the key's owner.

use std::hash::Hash;

use millstream_base::Timestamp;
use serde::{Deserialize, Serialize};

use super::aggregate::Aggregate;
use super::cell::Cell;
use super::grid::{Lateness, SlidingGrid};
use super::local_items::LocalItems;
use super::local_panes::PaneTables;
use super::local_sessions::SessionTable;
use super::spec::{Kind, When, Windows};

/// The outcome of adding an item, or a [`Partial`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Arrival {
    /// It is counted in.
    OnTime,
    /// The time it belongs to is over: it was left out.
    Late,
}

/// The partial result of some of a key's items in one pane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partial<K, S> {
    /// The key.
    pub key: K,
    /// Start of the pane; with sessions, and with global windows that count their items, the time of
    /// the first item.
    pub pane: Timestamp,
    /// How many of the pane's windows, the first ones, do not count the items, which came too late for
    /// them.
    pub skipped_windows: u64,
    /// The state of the aggregate.
    pub state: S,
    /// The number of items.
    pub events: u64,
    /// Their largest event time.
    pub time_max: Timestamp,
}

impl<K, S> Partial<K, S> {
    pub(super) fn new(key: K, pane: i64, skipped_windows: u64, cell: Cell<S>) -> Self {
        Self {
            key,
            pane: Timestamp(pane),
            skipped_windows,
            events: cell.events(),
            state: cell.state,
            time_max: Timestamp(cell.time_max),
        }
    }
}

/// Partial results of the items of one source or one instance of a stage, by pane and key. The items
/// of a global window that counts them are not added up: each is a partial result of its own.
///
/// Before a watermark is passed on, [`flush`](Self::flush) must have given the partial results that it closes: their
/// receiver takes them for late otherwise.
///
/// Memory: one entry of key and state for each of [`len`](Self::len), a table for each pane that
/// has items and a few empty ones for the next; a few of them have up to 128 KiB of places for keys that are
/// small numbers. Nothing here sets a bound: flush when `len` is as
/// large as there is room for.
///
/// ```
/// use millstream_base::Timestamp;
/// use millstream_flow::windows::{Arrival, Count, LocalPanes, Windows};
///
/// let mut panes = LocalPanes::new(Windows::tumbling(10_000));
/// let none = Timestamp(i64::MIN);
/// for time in [1_000, 9_999, 10_000] {
///     assert_eq!(panes.add(&Count, "a", Timestamp(time), none, &()), Arrival::OnTime);
/// }
/// let mut given = Vec::new();
/// panes.flush(Timestamp(10_000), &mut |partial| given.push(partial));
/// assert_eq!((given[0].pane, given[0].events), (Timestamp(0), 2));
/// assert_eq!(panes.len(), 1);
/// ```
#[derive(Debug)]
pub struct LocalPanes<K, S> {
    held: Held<K, S>,
}

#[derive(Debug)]
enum Held<K, S> {
    Panes(PaneTables<K, S>),
    /// An item that comes after the watermark counts as one of that moment.
    Timed(PaneTables<K, S>),
    Sessions(SessionTable<K, S>),
    Items(LocalItems<K, S>),
}

impl<K: Hash + Eq + Clone + 'static, S> LocalPanes<K, S> {
    /// Holds nothing yet.
    pub fn new(windows: Windows) -> Self {
        let lateness = windows.lateness;
        let aligned = |size_ms, slide_ms| {
            let grid = SlidingGrid::new(size_ms, slide_ms);
            Held::Panes(PaneTables::new(grid, lateness))
        };
        let held = match windows.kind {
            Kind::Tumbling { size_ms } => aligned(size_ms, size_ms),
            Kind::Sliding { size_ms, slide_ms } => aligned(size_ms, slide_ms),
            Kind::Session { gap_ms } => Held::Sessions(SessionTable::new(gap_ms, lateness)),
            Kind::Global(trigger) => match trigger.when {
                When::Events(_) => Held::Items(LocalItems::default()),
                When::EveryMs(period_ms) => {
                    let grid = SlidingGrid::new(period_ms, period_ms);
                    Held::Timed(PaneTables::new(grid, Lateness::default()))
                }
            },
        };
        Self { held }
    }

    /// Adds an item. `watermark` is its source's watermark when it was read; it is late if [`Windows::is_late`] holds.
    #[inline(always)]
    pub fn add<T, A>(
        &mut self,
        aggregate: &A,
        key: K,
        time: Timestamp,
        watermark: Timestamp,
        item: &T,
    ) -> Arrival
    where
        T: ?Sized,
        A: Aggregate<T, State = S>,
    {
        match &mut self.held {
            Held::Panes(tables) => tables.add(aggregate, key, (time.0, time.0), watermark.0, item),
            _ => self.add_otherwise(aggregate, key, time, watermark, item),
        }
    }

    /// The same where panes are not found by the times of items alone; outside of the loop over items, which stays
    /// short.
    #[inline(never)]
    fn add_otherwise<T, A>(
        &mut self,
        aggregate: &A,
        key: K,
        time: Timestamp,
        watermark: Timestamp,
        item: &T,
    ) -> Arrival
    where
        T: ?Sized,
        A: Aggregate<T, State = S>,
    {
        match &mut self.held {
            Held::Panes(tables) => tables.add(aggregate, key, (time.0, time.0), watermark.0, item),
            Held::Timed(tables) => {
                let counts_at = time.0.max(watermark.0);
                tables.add(aggregate, key, (time.0, counts_at), watermark.0, item)
            }
            Held::Sessions(table) => table.add(aggregate, &key, time.0, watermark.0, item),
            Held::Items(items) => items.add(aggregate, key, time.0, item),
        }
    }

    /// Gives the partial results that must go before `watermark` is passed on, and retains the rest: panes that end
    /// with it, sessions that begin before it, items of windows that count them. Its cost is proportional to the results;
    /// with sessions, if there is one to give, it also visits every key.
    pub fn flush(&mut self, watermark: Timestamp, out: &mut impl FnMut(Partial<K, S>)) {
        self.flush_some(watermark, usize::MAX, out);
    }

    /// Gives some of the partial results that [`flush`](Self::flush) would give, and returns whether those were all:
    /// up to `max` of panes, in the order in which a [`WindowStore`](super::WindowStore) has them in memory. Sessions
    /// and items are given all at once.
    pub fn flush_some(
        &mut self,
        watermark: Timestamp,
        max: usize,
        out: &mut impl FnMut(Partial<K, S>),
    ) -> bool {
        match &mut self.held {
            Held::Panes(tables) | Held::Timed(tables) => {
                return tables.flush(watermark.0, max, out);
            }
            Held::Sessions(table) => table.flush(watermark.0, out),
            Held::Items(items) => items.flush(out),
        }
        true
    }

    /// Returns the most partial results to hold: as many as fit into `bytes`, if holding many pays. A flush visits all
    /// sessions, and counted items are never aggregated, so their number is `few`.
    pub fn max_within(&self, bytes: usize, few: usize) -> usize {
        match self.held {
            Held::Panes(_) | Held::Timed(_) => (bytes / size_of::<(K, Cell<S>)>().max(1)).max(few),
            Held::Sessions(_) | Held::Items(_) => few,
        }
    }

    /// Gives everything.
    pub fn flush_all(&mut self, out: &mut impl FnMut(Partial<K, S>)) {
        self.flush(Timestamp(i64::MAX), out);
    }

    /// Returns the number of partial results.
    pub fn len(&self) -> usize {
        match &self.held {
            Held::Panes(tables) | Held::Timed(tables) => tables.len(),
            Held::Sessions(table) => table.len(),
            Held::Items(items) => items.len(),
        }
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

//! The store of a partition's windows, in which all items of a key come together.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use hashbrown::HashSet;
use millstream_base::Timestamp;
use millstream_base::key::encode_key;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::aggregate::{Aggregate, Combine};
use super::cell::Cell;
use super::entry::{Entry, EntryId};
use super::journal::{EntryChange, Journal};
use super::local::{Arrival, Partial};
use super::open::Open;
use super::released::{Released, ReleasedCursor, WindowResult};
use super::size::{SAMPLE_MAX, TableSize, owned_bytes};
use super::spec::Windows;
use crate::error::BoxError;

/// The totals of a store: `open_events + closed_events` is every item that came on time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowTotals {
    /// Windows that have items and are yet to be released, once for each of their keys; of sliding windows the panes
    /// that are retained.
    pub open_windows: u64,
    /// Items in windows that are not released yet; items of a global window that does not purge
    /// stay for ever.
    pub open_events: u64,
    /// Windows that were released and are retained for late items, once for each of their keys.
    pub kept_windows: u64,
    /// Results given, updates among them.
    pub closed_windows: u64,
    /// Items all of whose windows have been released.
    pub closed_events: u64,
    /// Items that came when the time they belong to was over, and were left out.
    pub late_events: u64,
}

impl std::ops::AddAssign for WindowTotals {
    fn add_assign(&mut self, other: Self) {
        for (sum, value) in [
            (&mut self.open_windows, other.open_windows),
            (&mut self.open_events, other.open_events),
            (&mut self.kept_windows, other.kept_windows),
            (&mut self.closed_windows, other.closed_windows),
            (&mut self.closed_events, other.closed_events),
            (&mut self.late_events, other.late_events),
        ] {
            *sum = sum.saturating_add(value);
        }
    }
}

/// The windows of the keys that one partition owns. A window is released when the watermark reaches its end, and
/// forgotten except for the results that [`newest`](Self::newest) returns.
///
/// A store serializes to a snapshot. To resume with another number of partitions, [`split_off`](Self::split_off) and
/// [`absorb`](Self::absorb) the restored ones.
///
/// Memory: an entry (key, state and some 32 bytes, in a hash table that is at most 8 times as
/// large as its content) for each key
/// - tumbling: in each window that has not been released;
/// - sliding: in each pane that has not ended, and in each that a window yet to be released
///   contains; the key once more while it has these panes;
/// - session: in each session, up to a gap after its end;
/// - global: once for good, unless the trigger purges; by event time also for each period that
///   has not ended;
///
/// in each released window for as long as it takes [late items](Windows::allowed_lateness), and for each key up to
/// the number that [`new`](Self::new) got to remember. The number of keys and windows has no bound here: it depends on the
/// times and keys of the items.
///
/// ```
/// use millstream_base::Timestamp;
/// use millstream_flow::windows::{Arrival, Count, WindowStore, Windows};
///
/// let mut store = WindowStore::new(Windows::sliding(10_000, 5_000), 100);
/// for time in [1_000, 6_000, 7_000] {
///     assert_eq!(store.add(&Count, &"a", Timestamp(time), &()), Arrival::OnTime);
/// }
/// let mut counts = Vec::new();
/// store.advance(&Count, Timestamp(10_000), &mut |result| {
///     counts.push((result.start.0, result.end.0, result.value));
/// });
/// assert_eq!(counts, [(-5_000, 5_000, 1), (0, 10_000, 3)]);
/// // Of its windows one is over.
/// assert_eq!(store.add(&Count, &"a", Timestamp(8_000), &()), Arrival::OnTime);
/// assert_eq!(store.add(&Count, &"a", Timestamp(4_000), &()), Arrival::Late);
/// store.close_all(&Count, &mut |result| counts.push((result.start.0, result.end.0, result.value)));
/// assert_eq!(counts[2..], [(5_000, 15_000, 3)]);
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub struct WindowStore<K, S> {
    windows: Windows,
    /// Windows that end by then have been released, or are due.
    watermark: i64,
    open: Open<K, S>,
    released: Released<K, S>,
    /// Items that came on time.
    taken_events: u64,
    late_events: u64,
    #[serde(skip, default)]
    journal: Journal<K, S>,
}

/// The part of a store beside its entries, at a checkpoint.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct StoreHead {
    pub watermark: i64,
    taken_events: u64,
    late_events: u64,
    closed_windows: u64,
    /// The checkpoint.
    checkpoint: u64,
}

impl StoreHead {
    /// Adds that of another partition of the same windows. The watermark is the lesser one of both.
    pub fn absorb(&mut self, other: StoreHead) {
        self.watermark = self.watermark.min(other.watermark);
        self.taken_events = self.taken_events.saturating_add(other.taken_events);
        self.late_events = self.late_events.saturating_add(other.late_events);
        self.closed_windows = self.closed_windows.saturating_add(other.closed_windows);
    }
}

/// The place of a writer in the changes before a cut; it begins at the default.
#[derive(Debug, Default)]
pub(crate) struct StoreCursor {
    looked_at: usize,
    released: ReleasedCursor,
}

/// A change for a changelog.
pub(crate) struct StoreChange<K, S> {
    id: EntryId<K>,
    content: Option<Entry<S>>,
    /// The watermark from which on no run needs the change.
    pub end: Option<i64>,
}

impl<K: Serialize, S: Serialize> StoreChange<K, S> {
    /// Returns the encoded name and content of the entry; no content to delete it.
    pub fn encode(&self) -> Result<(Vec<u8>, Option<Vec<u8>>), BoxError> {
        let mut name = Vec::new();
        encode_key(&self.id, &mut name)?;
        let content = self.content.as_ref().map(postcard::to_stdvec);
        Ok((name, content.transpose()?))
    }
}

impl<K: Hash + Eq + Clone, S: Clone> WindowStore<K, S> {
    /// Makes an empty store. The last released window of up to `remembered_keys` keys is retained for
    /// [`newest`](Self::newest): those whose windows were released last, at least half as many.
    pub fn new(windows: Windows, remembered_keys: usize) -> Self {
        Self {
            windows,
            watermark: i64::MIN,
            open: Open::new(windows),
            released: Released::new(remembered_keys),
            taken_events: 0,
            late_events: 0,
            journal: Journal::default(),
        }
    }

    /// The windows it was made for.
    pub fn windows(&self) -> Windows {
        self.windows
    }

    /// The largest watermark it was advanced to; `i64::MIN` at first.
    pub fn watermark(&self) -> Timestamp {
        Timestamp(self.watermark)
    }

    /// Adds partial results. They are late if all windows that count them are closed, which cannot be if
    /// they were flushed before the watermark was passed on. Windows that were released and are not
    /// closed are given again by the next [`advance`](Self::advance). Global windows that count their
    /// items look at the count only after all items of the partial result.
    pub fn merge<A>(&mut self, aggregate: &A, partial: Partial<K, S>) -> Arrival
    where
        A: Combine<State = S>,
    {
        let (first, skipped) = (partial.pane, partial.skipped_windows);
        let watermark = Timestamp(self.watermark);
        if (self.windows).is_late_for_rest(first, skipped, watermark) {
            self.late_events = self.late_events.saturating_add(partial.events);
            return Arrival::Late;
        }
        self.taken_events = self.taken_events.saturating_add(partial.events);
        let cell = Cell {
            state: partial.state,
            events: partial.events.into(),
            time_max: partial.time_max.0,
        };
        let at = (first.0, skipped);
        let journal = &mut self.journal;
        (self.open).merge(aggregate, partial.key, at, self.watermark, journal, cell);
        Arrival::OnTime
    }

    /// Adds an item that was not added up before. It is late if [`Windows::is_late`] holds for the store's watermark.
    pub fn add<T, A>(&mut self, aggregate: &A, key: &K, time: Timestamp, item: &T) -> Arrival
    where
        T: ?Sized,
        A: Aggregate<T, State = S>,
    {
        if self.windows.is_late(time, Timestamp(self.watermark)) {
            self.late_events = self.late_events.saturating_add(1);
            return Arrival::Late;
        }
        self.taken_events = self.taken_events.saturating_add(1);
        let journal = &mut self.journal;
        (self.open).add(aggregate, key, time.0, self.watermark, journal, item);
        Arrival::OnTime
    }

    /// Releases the windows that end by `watermark`, in the order of their ends, and gives the results that late
    /// items have changed or a count of items made due since the last time. Its cost is proportional to the results, however
    /// far the watermark goes. A watermark that goes back changes nothing.
    pub fn advance<A>(
        &mut self,
        aggregate: &A,
        watermark: Timestamp,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) where
        A: Combine<State = S>,
    {
        self.advance_some(aggregate, watermark, usize::MAX, out);
    }

    /// Does a part of [`advance`](Self::advance): gives up to `limit` results. Returns whether these were all; if
    /// not, it has to be called again, and items that come till then are late as if they were.
    ///
    /// ```
    /// use millstream_base::Timestamp;
    /// use millstream_flow::windows::{Count, WindowStore, Windows};
    ///
    /// let mut store = WindowStore::new(Windows::tumbling(1_000), 0);
    /// for key in 0..100 {
    ///     let _ = store.add(&Count, &key, Timestamp(key), &());
    /// }
    /// let mut keys = Vec::new();
    /// while !store.advance_some(&Count, Timestamp(1_000), 30, &mut |result| keys.push(result.key)) {
    ///     assert_eq!(keys.len() % 30, 0);
    /// }
    /// keys.sort();
    /// assert!(keys.into_iter().eq(0..100));
    /// ```
    pub fn advance_some<A>(
        &mut self,
        aggregate: &A,
        watermark: Timestamp,
        limit: usize,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) -> bool
    where
        A: Combine<State = S>,
    {
        self.watermark = self.watermark.max(watermark.0);
        let mut room = limit.max(1);
        let (journal, released) = (&mut self.journal, &mut self.released);
        (self.open).advance(aggregate, self.watermark, journal, released, &mut room, out);
        room > 0
    }

    /// Releases all windows: for the end of bounded input. Items that come after that are late, or in a global window
    /// that counts its items the beginning of another result.
    pub fn close_all<A>(&mut self, aggregate: &A, out: &mut impl FnMut(WindowResult<K, A::Out>))
    where
        A: Combine<State = S>,
    {
        self.close();
        self.advance(aggregate, Timestamp(i64::MAX), out);
    }

    /// Makes all windows due, for [`advance_some`](Self::advance_some) with the last [`Timestamp`] there is: together
    /// they do the same as [`close_all`](Self::close_all).
    pub fn close(&mut self) {
        self.open.close();
    }

    /// The newest window of a key: one that is yet to be released, or the last that was.
    pub fn newest<A>(&self, aggregate: &A, key: &K) -> Option<WindowResult<K, A::Out>>
    where
        A: Combine<State = S>,
    {
        match self.open.newest(aggregate, key) {
            Some(window) => Some(window.result(aggregate, key.clone())),
            None => Some(self.released.get(key)?.result(aggregate, key.clone())),
        }
    }

    /// Up to `limit` of the keys that [`newest`](Self::newest) knows, each once, in no particular
    /// order.
    pub fn keys(&self, limit: usize) -> Vec<K> {
        let mut seen = HashSet::new();
        let all = self.open.keys().chain(self.released.keys());
        all.filter(|key| seen.insert(*key))
            .take(limit)
            .cloned()
            .collect()
    }

    /// The sums at this moment. Looks at every key and window.
    pub fn totals(&self) -> WindowTotals {
        let (open_windows, open_events) = self.open.size();
        WindowTotals {
            open_windows: open_windows as u64,
            open_events,
            kept_windows: self.open.kept() as u64,
            closed_windows: self.released.windows,
            closed_events: self.taken_events.saturating_sub(open_events),
            late_events: self.late_events,
        }
    }

    /// Returns the number of items that came on time.
    pub(crate) fn taken_events(&self) -> u64 {
        self.taken_events
    }

    /// Returns the windows and panes in memory, once for each key, and their memory, by estimate. Looks at a few of them.
    pub fn memory<A>(&self, aggregate: &A) -> TableSize
    where
        A: Combine<State = S>,
        K: Serialize,
        S: Serialize,
    {
        let mut size = self.open.memory();
        size += self.released.memory();
        let keys = self.keys(SAMPLE_MAX).into_iter();
        size.add_owned(keys.map(|key| {
            let open = self.open.newest(aggregate, &key);
            let window = open.as_ref().or_else(|| self.released.get(&key));
            owned_bytes(&key) + window.map_or(0, |window| owned_bytes(&window.cell.state))
        }));
        size
    }

    /// Takes out the keys for which `moves` holds. The totals of released windows stay here.
    pub fn split_off(&mut self, mut moves: impl FnMut(&K) -> bool) -> Self {
        let open = self.open.split_off(&mut moves);
        let (_, open_events) = open.size();
        let taken_events = open_events.min(self.taken_events);
        self.taken_events -= taken_events;
        Self {
            windows: self.windows,
            watermark: self.watermark,
            open,
            released: self.released.split_off(&mut moves),
            taken_events,
            late_events: 0,
            journal: Journal::default(),
        }
    }

    /// Adds the keys of another store of the same windows. The watermark is the lesser one of both; windows that one
    /// of them has released are not released again.
    ///
    /// # Panics
    /// If a key is in both, or the windows are different ones.
    pub fn absorb(&mut self, other: Self) {
        assert_eq!(
            self.windows, other.windows,
            "only stores of the same windows can become one"
        );
        self.watermark = self.watermark.min(other.watermark);
        self.open.absorb(other.open, self.watermark);
        self.released.absorb(other.released);
        self.taken_events = self.taken_events.saturating_add(other.taken_events);
        self.late_events = self.late_events.saturating_add(other.late_events);
    }
}

impl<K: Hash + Eq + Clone, S: Clone> WindowStore<K, S> {
    /// Notes changes from now on: all that is there, and whatever changes. Shows in `count` how many there are since the
    /// last cut.
    pub(crate) fn note_changes(&mut self, count: &Arc<AtomicUsize>) {
        self.journal.begin(count);
        self.released.begin(self.journal.segment());
        self.open.note_all(&mut self.journal);
        self.released.note_all();
    }

    /// Replaces everything by another store, whose changes are noted if those of this one are.
    pub(crate) fn replace(&mut self, other: Self, count: &Arc<AtomicUsize>) {
        let notes_changes = self.journal.is_on();
        *self = other;
        if notes_changes {
            self.note_changes(count);
        }
    }

    pub(crate) fn head(&self, checkpoint: u64) -> StoreHead {
        StoreHead {
            watermark: self.watermark,
            taken_events: self.taken_events,
            late_events: self.late_events,
            closed_windows: self.released.windows,
            checkpoint,
        }
    }

    /// Makes the windows due that end by `watermark`, and the items late that are late by it.
    pub(crate) fn raise(&mut self, watermark: Timestamp) {
        self.watermark = self.watermark.max(watermark.0);
    }

    /// Continues behind a checkpoint; before an entry is restored.
    pub(crate) fn resume(&mut self, head: &StoreHead) {
        self.watermark = head.watermark;
        self.open.resume(head.watermark);
        self.journal.resume(head.checkpoint);
    }

    /// Adds the totals of stores that were there.
    pub(crate) fn add_totals(&mut self, head: StoreHead) {
        self.taken_events = self.taken_events.saturating_add(head.taken_events);
        self.late_events = self.late_events.saturating_add(head.late_events);
        self.released.windows = self.released.windows.saturating_add(head.closed_windows);
    }

    /// Restores an entry by its encoded content, or that there is none; a later one of the same name replaces it. The windows
    /// of its key were released up to `watermark`, at most that of the store: those in between are due.
    pub(crate) fn restore<A>(
        &mut self,
        aggregate: &A,
        id: EntryId<K>,
        content: Option<&[u8]>,
        watermark: i64,
    ) -> Result<(), BoxError>
    where
        A: Combine<State = S>,
        S: DeserializeOwned,
    {
        let content = content.map(postcard::from_bytes).transpose()?;
        match self.restore_entry(aggregate, id, content, watermark) {
            true => Ok(()),
            false => Err("it is an entry of other windows".into()),
        }
    }

    /// All entries are restored.
    pub(crate) fn restored<A: Combine<State = S>>(&mut self, aggregate: &A) {
        self.open.restored(aggregate);
    }

    /// Returns `false` if these windows have no such entries.
    fn restore_entry<A>(
        &mut self,
        aggregate: &A,
        id: EntryId<K>,
        content: Option<Entry<S>>,
        watermark: i64,
    ) -> bool
    where
        A: Combine<State = S>,
    {
        let end = content.as_ref().and_then(|it| self.open.end(&id, it));
        let is_over = end.is_some_and(|end| end <= watermark);
        let content = content.filter(|_| !is_over);
        match (id, content) {
            (EntryId::Released { key }, None) => self.released.restore(key, None),
            (EntryId::Released { key }, Some(Entry::Released(window))) => {
                self.released.restore(key, Some(window));
            }
            (EntryId::Released { .. }, Some(_)) => return false,
            (id, content) => return self.open.restore(aggregate, id, content, watermark),
        }
        true
    }

    /// Notes that the changelog has an entry of this name, which may differ from the store.
    pub(crate) fn note_stale(&mut self, id: EntryId<K>) {
        match id {
            EntryId::Released { key } => self.released.note_stale(key),
            id => self.journal.note_stale(id),
        }
    }

    /// Returns whether there is an entry of this name.
    pub(crate) fn has(&self, id: &EntryId<K>) -> bool {
        match id {
            EntryId::Released { key } => self.released.get(key).is_some(),
            id => self.open.entry(id).is_some(),
        }
    }

    /// Changes from now on are behind the checkpoint.
    pub(crate) fn cut(&mut self, checkpoint: u64) {
        self.journal.cut(checkpoint);
        self.released.cut(self.journal.segment());
    }

    /// Returns the next change before the last cut that the changelog does not have; `None` if there are no more.
    pub(crate) fn next_change(&self, cursor: &mut StoreCursor) -> Option<StoreChange<K, S>> {
        loop {
            let place = cursor.looked_at;
            let find = |id: &EntryId<K>| self.open.entry(id);
            let Some(change) = self.journal.change(place, find) else {
                break;
            };
            cursor.looked_at += 1;
            let EntryChange {
                id,
                content,
                is_stale,
            } = change;
            let is_gone_by_time = content.is_none() && self.open.ends_by_time(&id);
            if is_stale || !is_gone_by_time {
                let end = content.as_ref().and_then(|it| self.open.end(&id, it));
                return Some(StoreChange { id, content, end });
            }
        }
        let is_unwritten = |mark| self.journal.is_unwritten(mark);
        let (key, window) = (self.released).next_change(&mut cursor.released, is_unwritten)?;
        Some(StoreChange {
            id: EntryId::Released { key: key.clone() },
            content: window.cloned().map(Entry::Released),
            end: None,
        })
    }

    /// The changelog has the changes before the last cut. The caller drops the result, which may take long, where nothing
    /// waits for it.
    pub(crate) fn written(&mut self) -> impl Sized + use<K, S> {
        (self.journal.written(), self.released.written())
    }
}

#[cfg(test)]
mod tests;

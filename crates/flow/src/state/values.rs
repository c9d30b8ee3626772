//! A value for each key as a state element.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::{iter, slice};

use millstream_base::KeyRange;
use millstream_base::key::decode_key;
use millstream_exchange::Ranks;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::doorbell::Doorbell;
use crate::error::BoxError;
use crate::ranks::owners::{KeyOwners, Owner};
use crate::state::change::Change;
use crate::state::changelog_reader::ChangelogReader;
use crate::state::element::Element;
use crate::state::lazy_values::Visible;
use crate::state::lifetimes::{LifetimeHead, Lifetimes};
use crate::state::loading::{LoadThreads, Loading};
use crate::state::lockable::Locked;
use crate::state::logged::{LoggedState, StateHead, WriteChanges};
use crate::state::memory::{StateMemory, UsedMemory};
use crate::state::ordered::{OrderedState, ReadLevel};
use crate::state::partial::StateReader;
use crate::state::size::StateSize;
use crate::state::value_encoding::{
    Encoding, Saved, dated, encode, former_head, of_key, read_saved,
};
use crate::state::value_history::ChangeCursor;
use crate::state::value_table::{Dated, LifetimeSpec, ValueTable};
use crate::state::watched::ShownChange;
use crate::state::watchers::Watchers;
use crate::windows::{Key, of_text, text_of};

/// A value of a state element. Readers and changelogs get it as JSON, so a value must be the same after the way through
/// JSON: a map has keys that JSON takes, and floating-point numbers are finite. A checkpoint with another number fails;
/// within an `Option`, the number becomes `None`. A shard of a checkpoint has the value in postcard's format.
pub trait Value: Serialize + DeserializeOwned + Clone + Send + 'static {}

impl<V: Serialize + DeserializeOwned + Clone + Send + 'static> Value for V {}

/// A state element with a value for each key; a clone is another handle of the same element. On several ranks each has
/// the keys that it owns. Operators change it: [`Keyed::update`](crate::Keyed::update),
/// [`fold`](crate::Keyed::fold) and [`count`](crate::Keyed::count).
pub struct Values<K, V> {
    pub(super) shared: Arc<Shared<K, V>>,
}

pub(super) struct Shared<K, V> {
    /// By partition.
    pub(super) tables: Vec<SharedTable<K, V>>,
    /// By partition: the number of keys that have changed since the last cut.
    changed: Vec<Arc<AtomicUsize>>,
    pub(super) rank: u32,
    owners: KeyOwners,
    layout: Layout<K>,
    /// The format of the values in the changelog.
    pub(super) encoding: Encoding,
    /// Set if values can be read from the changelog while the flow runs.
    pub(super) loading: OnceLock<Arc<Loading>>,
    /// Other flows that read the values.
    pub(super) watchers: Arc<Watchers>,
    /// Locked by the thread that evicts values.
    pub(super) visible: Mutex<Visible>,
    pub(super) memory: UsedMemory,
    /// The last checkpoint that is complete on all ranks. The tables drop older values when a snapshot or a reader visits them.
    pub(super) complete: AtomicU64,
    /// The number of entries that were read back when they were saved. Written by the thread that saves.
    read_again: AtomicUsize,
    /// `None` if values live for ever.
    pub(super) lifetime: Option<LifetimeSpec>,
    /// Of this run and of former ones. Written before the flow runs.
    lifetimes: Mutex<Option<Lifetimes>>,
}

/// The kind of [`Values`].
pub const VALUES: &str = "values";

/// Locked by a stage for the time of a slice, and by readers of the state.
pub type SharedTable<K, V> = Arc<Mutex<ValueTable<K, V>>>;

impl<K, V> Clone for Values<K, V> {
    fn clone(&self) -> Self {
        Values {
            shared: Arc::clone(&self.shared),
        }
    }
}

/// The place of an element: `partitions` partitions on each of `ranks` ranks, as `rank` has them.
pub struct Place {
    pub rank: u32,
    pub ranks: u32,
    pub partitions: usize,
    /// The bound of its memory.
    pub memory: Arc<StateMemory>,
    /// The lifetime of its values; `None` if they live for ever.
    pub lifetime: Option<LifetimeSpec>,
    /// The format of its values in a changelog.
    pub encoding: Encoding,
}

/// The kind of an element, and how it finds the owners of its keys.
#[derive(Clone, Copy)]
pub struct Layout<K> {
    /// The kind, such as `values`.
    pub kind: &'static str,
    /// As [`StateReader::compared`].
    compared: &'static str,
    /// Whether values may be read while the flow runs.
    is_lazy: bool,
    /// Whether readers see the values as they are, not sums over replicas.
    is_whole: bool,
    owner_of: fn(&mut KeyOwners, &K) -> Result<Owner, BoxError>,
    owner_of_bytes: fn(&mut KeyOwners, &[u8]) -> Result<Owner, BoxError>,
}

impl<K: Key> Layout<K> {
    /// Keys that are owned one by one.
    pub const fn of_keys(kind: &'static str) -> Self {
        Layout {
            kind,
            compared: "",
            is_lazy: true,
            is_whole: true,
            owner_of: |owners, key| Ok(owners.of(key)?),
            owner_of_bytes: |owners, bytes| Ok(owners.of_bytes(bytes)),
        }
    }

    /// The same, with values that are compared by a number in them.
    pub fn compared_by(self, compared: &'static str) -> Self {
        Layout { compared, ..self }
    }
}

impl<K: Key, F: Key> Layout<(K, F)> {
    /// Entries of keys: all entries of a key are where the key is.
    pub const fn of_entries(kind: &'static str) -> Self {
        Layout {
            kind,
            compared: "",
            is_lazy: false,
            is_whole: true,
            owner_of: |owners, (key, _)| Ok(owners.of(key)?),
            owner_of_bytes: |owners, bytes| {
                let (key, _): (K, F) = decode_key(bytes)?;
                Ok(owners.of(&key)?)
            },
        }
    }
}

impl<D: Key, K: Key, T: Key> Layout<(D, i64, K, T)> {
    /// Timers of keys, by domain and time: all timers of a key are where the key is.
    pub const fn of_timers(kind: &'static str) -> Self {
        Layout {
            kind,
            compared: "",
            is_lazy: false,
            is_whole: true,
            owner_of: |owners, (_, _, key, _)| Ok(owners.of(key)?),
            owner_of_bytes: |owners, bytes| {
                let (_, _, key, _): (D, i64, K, T) = decode_key(bytes)?;
                Ok(owners.of(&key)?)
            },
        }
    }
}

impl<F: Key> Layout<(u32, F)> {
    /// Entries of numbered replicas: all entries of a replica are together.
    pub const fn of_replicas(kind: &'static str) -> Self {
        Layout {
            kind,
            compared: "",
            is_lazy: false,
            is_whole: false,
            owner_of: |owners, (replica, _)| Ok(owners.of_replica(*replica)),
            owner_of_bytes: |owners, bytes| {
                let (replica, _): (u32, F) = decode_key(bytes)?;
                Ok(owners.of_replica(replica))
            },
        }
    }
}

impl<K: Key, V: Value> Values<K, V> {
    /// An element at this place.
    pub(crate) fn new(layout: Layout<K>, place: &Place) -> Self {
        let Place {
            rank,
            ranks,
            partitions,
            ref memory,
            ref lifetime,
            encoding,
        } = *place;
        let tables = (0..partitions).map(|_| SharedTable::default());
        let tables: Vec<_> = tables.collect();
        if let Some(spec) = lifetime {
            tables.iter().for_each(|it| it.lock().set_lifetime(spec));
        }
        let changed = tables.iter();
        let shared = Shared {
            changed: changed.map(|it| Arc::clone(it.lock().changed())).collect(),
            tables,
            rank,
            owners: KeyOwners::new(ranks, partitions),
            layout,
            encoding,
            loading: OnceLock::new(),
            watchers: Arc::default(),
            visible: Mutex::default(),
            memory: UsedMemory::new(memory),
            complete: AtomicU64::new(0),
            read_again: AtomicUsize::new(0),
            lifetimes: Mutex::new(lifetime.as_ref().map(|it| Lifetimes::of(it.length()))),
            lifetime: lifetime.clone(),
        };
        Values {
            shared: Arc::new(shared),
        }
    }

    /// Returns the present value of a key; `None` if it has none, or another rank owns it. In a flow that has resumed, this
    /// may have to read the value, and waits. `None` also if it cannot be read, which ends the flow with an error.
    pub fn get(&self, key: &K) -> Option<V> {
        self.find(key).ok().flatten()
    }

    fn find(&self, key: &K) -> Result<Option<V>, BoxError> {
        let owner = self.shared.owner_of(key)?;
        let Some(table) = self.shared.table_of(owner) else {
            return Ok(None);
        };
        let table = self.shared.lock_with(table, key)?;
        Ok(table.get(key).cloned())
    }

    /// Locks the table that has a key with this owner; `None` if that is on another rank.
    pub(super) fn lock_of(&self, owner: Owner) -> Option<MutexGuard<'_, ValueTable<K, V>>> {
        self.shared.table_of(owner).map(lock_to_read)
    }

    /// Has a flow woken when values were read that its stages want.
    pub(crate) fn watch(&self, doorbell: &Arc<Doorbell>) {
        self.shared.watchers.add(doorbell);
    }

    /// Whether this rank owns the same keys here as in another flow: it is the same one of as many.
    pub(crate) fn is_on(&self, ranks: &Ranks) -> bool {
        let here = (self.shared.rank, self.shared.owners.ranks());
        here == (ranks.rank(), u64::from(ranks.count()))
    }

    /// Returns the tables by partition.
    pub(crate) fn tables(&self) -> &[SharedTable<K, V>] {
        &self.shared.tables
    }

    /// The owners of all keys.
    pub(super) fn owners(&self) -> KeyOwners {
        self.shared.owners.clone()
    }
}

impl<K: Key, V: Value> Element<K> for Values<K, V> {
    type Content<'a> = &'a mut Option<V>;
    type Partition = SharedTable<K, V>;

    fn partitions(&self) -> Option<usize> {
        Some(self.tables().len())
    }

    fn partition(&self, index: usize) -> Self::Partition {
        Arc::clone(&self.tables()[index])
    }

    fn is_known(table: &Locked<'_, Self::Partition>, key: &K) -> bool {
        table.is_known(key)
    }

    fn want(table: &mut Locked<'_, Self::Partition>, keys: Vec<K>) {
        table.want(keys);
    }

    #[inline]
    fn change<R>(
        &self,
        table: &mut Locked<'_, Self::Partition>,
        key: &K,
        change: impl FnOnce(&mut Option<V>) -> R,
    ) -> Option<R> {
        table.begin_call();
        table.update(key, change)
    }

    fn shorten<'short, 'long: 'short>(content: &'long mut Option<V>) -> &'short mut Option<V> {
        content
    }
}

impl<K: Key, V> Shared<K, V> {
    /// Locks a table, which then is as of the last complete checkpoint.
    pub(super) fn lock<'a>(
        &self,
        table: &'a SharedTable<K, V>,
    ) -> MutexGuard<'a, ValueTable<K, V>> {
        let mut table = lock_to_read(table);
        self.settle(slice::from_mut(&mut table));
        table
    }

    /// Makes all tables be as of one complete checkpoint, the last one.
    pub(super) fn settle(&self, tables: &mut [MutexGuard<'_, ValueTable<K, V>>]) {
        let complete = self.complete.load(Ordering::Relaxed);
        tables.iter_mut().for_each(|table| table.complete(complete));
    }
}

impl<K, V> Shared<K, V> {
    /// Returns the owner of a key.
    pub(super) fn owner_of(&self, key: &K) -> Result<Owner, BoxError> {
        (self.layout.owner_of)(&mut self.owners.clone(), key)
    }

    /// Returns the owner of the key that has these bytes.
    pub(super) fn owner_of_bytes(&self, key: &[u8]) -> Result<Owner, BoxError> {
        (self.layout.owner_of_bytes)(&mut self.owners.clone(), key)
    }

    /// Returns the table of an owner's keys, if that is on this rank.
    pub(super) fn table_of(&self, owner: Owner) -> Option<&SharedTable<K, V>> {
        match owner.rank == self.rank {
            true => self.tables.get(owner.partition),
            false => None,
        }
    }
}

impl<K: Key, V: Value> StateReader for Values<K, V> {
    fn get(&self, key: &str) -> Option<Json> {
        let value = of_text(key).find_map(|key: K| self.get(&key))?;
        serde_json::to_value(value).ok()
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        let mut keys = Vec::new();
        for table in &self.shared.tables {
            let table = lock_to_read(table);
            if table.is_cold() {
                drop(table);
                // Also values of tables that were whole a moment ago may have left memory.
                let page = self.page(&KeyRange::all(), limit, usize::MAX, ReadLevel::Live);
                return page.entries.into_iter().map(|entry| entry.key).collect();
            }
            let texts = table.iter().filter_map(|(key, _)| text_of(key));
            keys.extend(texts.take(limit - keys.len()));
        }
        keys
    }

    fn ordered(&self) -> Option<&dyn OrderedState> {
        Some(self)
    }

    fn compared(&self) -> &'static str {
        self.shared.layout.compared
    }

    fn size(&self) -> StateSize {
        let sizes = self.shared.tables.iter().map(|table| table.lock().memory());
        StateSize {
            kind: self.shared.layout.kind,
            tables: Some(sizes.sum()),
        }
    }

    fn is_whole(&self) -> Result<bool, BoxError> {
        self.shared.is_whole()
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        assert!(
            !self.shared.is_cold(),
            "values leave memory only if a changelog has them"
        );
        let tables: Vec<_> = self.shared.tables.iter().map(lock_to_read).collect();
        let entries: Vec<(&K, &V)> = tables.iter().flat_map(|it| it.iter()).collect();
        for (key, value) in &entries {
            let is_checked = self.shared.check(|| read_saved(*key, *value));
            if !is_checked.map_err(|error| of_key(*key, &error))? {
                break;
            }
        }
        if self.shared.lifetime.is_none() {
            return Ok(postcard::to_stdvec(&entries)?);
        }
        let tables = tables.iter();
        let times = tables
            .clone()
            .flat_map(|table| table.iter().map(|(key, _)| table.changed_at(key)));
        let dated: Vec<(i64, (&K, &V))> =
            iter::zip(times.map(Option::unwrap_or_default), entries).collect();
        let present = tables.filter_map(|table| table.time()).max();
        Ok(postcard::to_stdvec(&(present.unwrap_or_default(), dated))?)
    }

    fn types(&self) -> String {
        let types = std::any::type_name::<(K, V)>();
        let types = match self.shared.layout.kind {
            VALUES => types.to_owned(),
            kind => format!("{kind} {types}"),
        };
        let types = match self.shared.encoding {
            Encoding::Json => types,
            Encoding::Postcard => format!("{types} in postcard's format"),
        };
        match self.shared.lifetime {
            Some(_) => format!("{types} with a lifetime"),
            None => types,
        }
    }

    /// There may be more or fewer partitions than there were.
    fn restore(&self, saved: &[u8]) -> Result<(), BoxError> {
        let entries: Vec<(K, Dated<V>)> = match self.shared.lifetime {
            Some(_) => {
                let (time, entries): Saved<(K, V)> = postcard::from_bytes(saved)?;
                self.shared.advance_time(time);
                let entries = entries.into_iter();
                let dated = entries.map(|(time, (key, value))| (key, dated(value, time)));
                dated.collect()
            }
            None => {
                let entries: Vec<(K, V)> = postcard::from_bytes(saved)?;
                let entries = entries.into_iter();
                entries.map(|(key, value)| (key, value.into())).collect()
            }
        };
        let mut owners = self.shared.owners.clone();
        for (key, value) in entries {
            let owner = (self.shared.layout.owner_of)(&mut owners, &key)?;
            let table = self.shared.table_of(owner);
            let mut table = table.ok_or("it has keys of another rank")?.lock();
            match table.notes_changes() {
                true => {
                    table.restore(key.clone(), Some(value));
                    table.note_changed(key);
                }
                false => table.restore(key, Some(value)),
            }
        }
        Ok(())
    }
}

impl<K: Key, V: Value> LoggedState for Values<K, V> {
    fn note_changes(&self) {
        for table in &self.shared.tables {
            table.lock().note_changes();
        }
    }

    /// The time of an element with a lifetime, which does not go back from run to run, and its lifetimes.
    fn head(&self, _: u64) -> Result<Option<StateHead>, BoxError> {
        let (time, lifetimes) = (self.shared.time(), *self.shared.lifetimes.lock());
        let Some((time, lifetimes)) = time.zip(lifetimes) else {
            return Ok(None);
        };
        Ok(Some(StateHead {
            bytes: postcard::to_stdvec(&LifetimeHead { time, lifetimes })?,
            passed: Some(lifetimes.passed(time)),
        }))
    }

    fn restore_head(&self, head: &[u8]) -> Result<(), BoxError> {
        let Some(spec) = &self.shared.lifetime else {
            return Err(
                "it has a lifetime in the checkpoint, and none in the program: give it one, or another name".into(),
            );
        };
        let LifetimeHead { time, lifetimes } = former_head(head, spec)?;
        let lifetimes = lifetimes.resumed(time, spec.length());
        *self.shared.lifetimes.lock() = Some(lifetimes);
        for table in &self.shared.tables {
            let mut table = table.lock();
            table.advance_time(time);
            table.end_former(lifetimes.ended());
        }
        Ok(())
    }

    fn has_lifetime(&self) -> bool {
        self.shared.lifetime.is_some()
    }

    fn has_history(&self) -> bool {
        true
    }

    fn is_lazy(&self) -> bool {
        self.shared.layout.is_lazy
    }

    fn restore_change(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), BoxError> {
        if let Some(table) = self.shared.table_of(self.shared.owner_of_bytes(key)?) {
            let key = decode_key(key)?;
            let value = value.map(|value| self.shared.decode(value)).transpose()?;
            table.lock().restore(key, value);
        }
        Ok(())
    }

    fn read_lazily(
        &self,
        reader: Arc<dyn ChangelogReader>,
        scan: bool,
        waker: Waker,
    ) -> Result<LoadThreads, BoxError> {
        self.begin_loading(reader, scan, waker)
    }

    fn note_changed(&self, key: &[u8]) -> Result<(), BoxError> {
        if let Some(table) = self.shared.table_of(self.shared.owner_of_bytes(key)?) {
            table.lock().note_changed(decode_key(key)?);
        }
        Ok(())
    }

    fn sample(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        if self.shared.lifetime.is_some() {
            // The entry may have ended when a run resumes. Checkpoints have the types.
            return None;
        }
        let mut tables = self.shared.tables.iter();
        tables.find_map(|table| {
            let table = table.lock();
            let (key, value) = table.sample()?;
            let (key, value) = encode(
                self.shared.encoding,
                &(key.clone(), Some(value.clone().into())),
            )
            .ok()?;
            Some((key, value?))
        })
    }

    fn check_sample(&self, key: &[u8], value: &[u8]) -> Result<(), BoxError> {
        let _: K = decode_key(key)?;
        self.shared.decode(value)?;
        Ok(())
    }

    fn has(&self, key: &[u8]) -> Result<bool, BoxError> {
        match decode_key(key) {
            Ok(key) => Ok(self.find(&key)?.is_some()),
            Err(_) => Ok(false),
        }
    }

    fn has_plain_keys(&self) -> bool {
        true
    }

    fn is_watchable(&self) -> bool {
        self.shared.layout.is_whole
    }

    fn show(&self, key: &[u8], value: Option<&[u8]>) -> Result<ShownChange, BoxError> {
        let bytes = key.to_vec();
        let key: K = decode_key(key)?;
        let value = value.map(|value| self.shared.decode_json(value));
        Ok(ShownChange {
            key: text_of(&key),
            bytes,
            entry: None,
            value: value.transpose()?,
        })
    }

    fn changed_keys(&self) -> usize {
        let counts = self.shared.changed.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn cut(&self, checkpoint: u64) {
        for table in &self.shared.tables {
            self.shared.lock(table).cut(checkpoint);
        }
    }

    fn complete(&self, checkpoint: u64) {
        self.shared
            .complete
            .fetch_max(checkpoint, Ordering::Relaxed);
        if let Some(loading) = self.shared.loading.get() {
            loading.complete();
        }
    }

    fn write(&self, checkpoint: u64, write: &mut WriteChanges<'_>) -> Result<(), BoxError> {
        let tables = self.shared.tables.iter();
        let mut slices = tables.flat_map(|table| {
            let mut cursor = ChangeCursor::default();
            let next = move || {
                let changes = table.lock().changes(checkpoint, &mut cursor, KEYS_AT_ONCE);
                (!changes.is_empty()).then_some(changes)
            };
            iter::from_fn(next)
        });
        let changes = slices.by_ref().flatten().map(|entry| {
            let (key, value) = encode(self.shared.encoding, &entry)?;
            let checked = self
                .shared
                .check(|| self.shared.read_change(&entry.0, &key, value.as_deref()));
            checked.map_err(|error| of_key(&entry.0, &error))?;
            let changed_at = entry.1.and_then(|value| value.changed_at);
            let lifetime = self.shared.lifetime.as_ref().zip(changed_at);
            Ok(Change {
                key,
                value,
                checkpoint,
                expires: lifetime.and_then(|(it, changed_at)| it.end_of(changed_at)),
            })
        });
        write(&mut { changes })
    }

    fn written(&self, checkpoint: u64) {
        for table in &self.shared.tables {
            table.lock().written(checkpoint);
        }
        self.shared.note_written(checkpoint);
    }

    fn changed_bytes_max(&self) -> u64 {
        self.shared.memory.bytes_max() / CHANGED_SHARE
    }

    fn sweep(&self) {
        for table in &self.shared.tables {
            // Each slice is dropped when the table is unlocked.
            while let Some(_swept) = { table.lock().sweep(KEYS_AT_ONCE) } {}
            self.shared.remove_ended(table);
        }
        self.shared.relieve();
    }
}

/// The part of the memory for state that values which have changed since the last checkpoint may take.
const CHANGED_SHARE: u64 = 4;

/// Entries of a table that are looked at in one sweep, whether they have ended.
const LOOKED_AT_MAX: usize = 1 << 16;

/// Keys that are looked at while a table is locked, beside the stage that changes it.
pub(super) const KEYS_AT_ONCE: usize = 256;

impl<K, V> Shared<K, V> {
    /// Runs a check of a saved entry, if few of them were checked in this run. Returns whether it did.
    fn check(&self, check: impl FnOnce() -> Result<(), BoxError>) -> Result<bool, BoxError> {
        let checked = self.read_again.load(Ordering::Relaxed);
        if checked >= READ_AGAIN_MAX {
            return Ok(false);
        }
        check()?;
        self.read_again.store(checked + 1, Ordering::Relaxed);
        Ok(true)
    }
}

/// Entries that are read again in each run as soon as they are saved: so a type that is written and cannot be read shows at
/// the first checkpoint, and not when a flow resumes.
const READ_AGAIN_MAX: usize = 256;

impl<K: Key, V: Value> Shared<K, V> {
    /// Returns the present time of an element with a lifetime.
    fn time(&self) -> Option<i64> {
        let times = self.tables.iter().map(lock_to_read);
        times.filter_map(|table| table.time()).max()
    }

    /// Time has been at `time` in an earlier run.
    fn advance_time(&self, time: i64) {
        for table in &self.tables {
            table.lock().advance_time(time);
        }
    }

    /// Removes values that have ended: all that the hand finds in a part of a round. They become changes after the last cut.
    fn remove_ended(&self, table: &SharedTable<K, V>) {
        if self.lifetime.is_none() {
            return;
        }
        let entries = lock_to_read(table).may_end().min(LOOKED_AT_MAX);
        for _ in 0..entries.div_ceil(KEYS_AT_ONCE) {
            table.lock().remove_ended(KEYS_AT_ONCE);
        }
    }
}

/// Locks a table for a reader: time moves.
pub(super) fn lock_to_read<K: Key, V>(
    table: &SharedTable<K, V>,
) -> MutexGuard<'_, ValueTable<K, V>> {
    let table = table.lock();
    table.move_time();
    table
}

#[cfg(test)]
mod tests {
    use millstream_base::key::encode_key;
    use millstream_base::{Offset, WatchFrom};

    use super::*;
    use crate::state::watched::{ChangelogWatch, WatchFuture, WatchedChangelog, WatchedElement};

    /// A value that is written under another name than the one by which it is read.
    #[derive(Clone, Serialize, serde::Deserialize)]
    struct Renamed {
        #[serde(rename(serialize = "sum"))]
        total: u64,
    }

    /// A value that some formats leave out.
    #[derive(Clone, Serialize, serde::Deserialize)]
    struct LeftOut {
        #[serde(skip_serializing_if = "Option::is_none")]
        total: Option<u64>,
    }

    fn place(partitions: usize) -> Place {
        Place {
            rank: 0,
            ranks: 1,
            partitions,
            memory: StateMemory::of_process(),
            lifetime: None,
            encoding: Encoding::Json,
        }
    }

    fn one<V: Value>(value: V) -> Values<String, V> {
        let values = Values::new(Layout::of_keys(VALUES), &place(1));
        values.note_changes();
        let mut table = values.tables()[0].lock();
        let updated = table.update(&"tea".to_owned(), |present| *present = Some(value));
        updated.expect("it is in memory");
        drop(table);
        values
    }

    #[test]
    fn writing_a_value_that_cannot_be_read_back_fails_and_names_its_key() {
        let expected = "key \"tea\": it was written and cannot be read again: ";
        let values = one(Renamed { total: 7 });
        values.cut(1);
        for _ in 0..2 {
            let error = values
                .write(1, &mut |changes| {
                    for change in changes {
                        change?;
                    }
                    Ok(())
                })
                .unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
        let error = one(LeftOut { total: None }).save().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(one(LeftOut { total: Some(7) }).save().is_ok());
    }

    /// A key that cannot be read.
    #[derive(Clone, PartialEq, Eq, Hash, Serialize)]
    struct Fragile(u64);

    impl<'de> serde::Deserialize<'de> for Fragile {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            panic!("a test of a panic")
        }
    }

    struct NoChangelog;

    impl WatchedChangelog for NoChangelog {
        fn watch(
            &self,
            _: KeyRange,
            _: WatchFrom,
        ) -> WatchFuture<'static, Box<dyn ChangelogWatch>> {
            unreachable!("no reader watches it")
        }

        fn ends(&self) -> WatchFuture<'static, Vec<Offset>> {
            unreachable!("no reader watches it")
        }
    }

    #[test]
    fn a_panic_while_a_change_is_decoded_is_an_error_of_the_watch() {
        let values = Values::<Fragile, u64>::new(Layout::of_keys(VALUES), &place(1));
        let element = WatchedElement {
            changelog: Arc::new(NoChangelog),
            state: Arc::new(values),
        };
        let mut key = Vec::new();
        encode_key(&1_u64, &mut key).unwrap();
        let error = element.show(&key, None).unwrap_err();
        assert_eq!(error.to_string(), "the code of the element panicked");
    }

    #[test]
    fn changed_keys_are_counted_from_snapshot_to_snapshot() {
        let values = Values::<u64, u64>::new(Layout::of_keys(VALUES), &place(3));
        values.note_changes();
        for checkpoint in 1..4 {
            for key in (0..100).chain(50..100) {
                let table = &values.tables()[key as usize % 3];
                let updated = table.lock().update(&key, |value| *value = Some(checkpoint));
                updated.expect("it is in memory");
            }
            assert_eq!(values.changed_keys(), 100);
            values.cut(checkpoint);
            assert_eq!(values.changed_keys(), 0);
        }
    }

    #[test]
    fn only_the_first_entries_of_a_run_are_read_back() {
        let values = one(7_u64);
        for _ in 0..2 * READ_AGAIN_MAX {
            values.save().unwrap();
        }
        assert!(
            !values
                .shared
                .check(|| Err("it is not called".into()))
                .unwrap()
        );
    }

    #[test]
    fn a_number_round_trips_through_json() {
        let values = Values::<u64, f64>::new(Layout::of_keys(VALUES), &place(1));
        for (key, bits) in (0..1000_u64).map(|n| (n, n.wrapping_mul(0x9E37_79B9_7F4A_7C15))) {
            let value = f64::from_bits(bits);
            if value.is_finite() {
                let entry = (key, Some(value.into()));
                let (encoded, change) = encode(Encoding::Json, &entry).unwrap();
                values.restore_change(&encoded, change.as_deref()).unwrap();
                assert_eq!(values.get(&key).map(f64::to_bits), Some(bits));
            }
        }
    }
}

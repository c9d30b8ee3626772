//! The values of the keys of one partition, now and at the last complete checkpoint.

use std::cell::OnceCell;
use std::hash::Hash;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use millstream_base::KeyRange;
use serde::Serialize;

use crate::state::key_ref::KeyRef;
use crate::state::value_history::{ChangeCursor, Swept, ValueHistory};
use crate::windows::{TableSize, owned_bytes};

mod cold;
mod key_index;
mod lifetime;
mod slots;
mod stamp;

use cold::{Cold, Lookups};
use key_index::KeyIndex;
use lifetime::Lifetime;
pub use lifetime::{Dated, LifetimeSpec};
pub use slots::Slot;
use slots::Slots;
use stamp::Stamp;

/// The values of a partition's keys. Their history is noted only if the flow takes checkpoints. Values may be in the changelog
/// alone: see [`cold`].
pub struct ValueTable<K, V> {
    /// A key without a value was removed since the last complete checkpoint, or is one of a cold table.
    slots: Slots<K, V>,
    /// The keys of all slots in their order, from the first read of a range on. A key is among the index's keys with a value
    /// exactly if its slot has one.
    index: OnceCell<KeyIndex<K>>,
    history: Option<ValueHistory<K, V>>,
    changed: Arc<AtomicUsize>,
    /// `None` if all values are in memory.
    cold: Option<Box<Cold<K>>>,
    lookups: Lookups,
    /// `None` if values live for ever.
    lifetime: Option<Box<Lifetime<K>>>,
}

/// A value as a reader finds it.
pub struct Found<'a, V> {
    pub value: Option<&'a V>,
    /// Whether the last complete checkpoint has the same.
    pub is_committed: bool,
}

impl<K, V> Default for ValueTable<K, V> {
    fn default() -> Self {
        ValueTable {
            slots: Slots::default(),
            index: OnceCell::new(),
            history: None,
            changed: Arc::default(),
            cold: None,
            lookups: Lookups::new(),
            lifetime: None,
        }
    }
}

impl<K: Hash + Eq + Clone + Serialize, V> ValueTable<K, V> {
    /// Notes former values of keys that change from now on.
    pub fn note_changes(&mut self) {
        self.history
            .get_or_insert_with(|| ValueHistory::new(&self.changed));
    }

    /// Shows the number of keys that have changed since the last cut, if changes are noted. Written by the stage that has
    /// the table, read by workers.
    pub fn changed(&self) -> &Arc<AtomicUsize> {
        &self.changed
    }

    /// Whether changes are noted.
    pub fn notes_changes(&self) -> bool {
        self.history.is_some()
    }

    /// Returns the value of a [known](Self::is_known) key.
    #[inline]
    pub fn get(&self, key: &impl KeyRef<K>) -> Option<&V> {
        let value = self.slots.get(key)?.value.as_ref()?;
        (!self.has_ended(key)).then_some(value)
    }

    /// Returns the keys that have a value, in no particular order. All values are in memory.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let slots = self.slots.iter().filter(|slot| !self.has_ended(&slot.key));
        slots.filter_map(|slot| Some((&slot.key, slot.value.as_ref()?)))
    }

    /// Returns when the value of a key was changed last, in milliseconds since 1970; `None` without a lifetime.
    pub fn changed_at(&self, key: &K) -> Option<i64> {
        self.lifetime.as_ref()?.time_of(key)
    }

    /// Returns the entries and their memory, by estimate. Looks at a few of them.
    pub fn memory(&self) -> TableSize
    where
        V: Serialize,
    {
        let mut size = self.slots.size();
        size.bytes += self.owned_bytes() * size.entries;
        size
    }

    /// Returns the memory of an entry, by estimate.
    pub fn entry_bytes(&self) -> u64
    where
        V: Serialize,
    {
        Slots::<K, V>::SLOT_BYTES as u64 + self.owned_bytes()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the memory that an entry owns beside its slot, on average.
    fn owned_bytes(&self) -> u64
    where
        V: Serialize,
    {
        let mut size = TableSize::of_list::<()>(1, 0);
        let owned = |(key, value)| owned_bytes(key) + owned_bytes(value);
        size.add_owned(self.iter().map(owned));
        let indexed = self.index.get().map_or(0, |index| index.entry_bytes());
        let times = self.lifetime.as_ref().map_or(0, |it| it.entry_bytes());
        size.bytes + indexed as u64 + times
    }

    /// Returns the checkpoint of [`committed`](Self::committed) values; 0 for the beginning of the run, `None` if there are
    /// no checkpoints.
    pub fn checkpoint(&self) -> Option<u64> {
        self.history.as_ref().map(ValueHistory::checkpoint)
    }

    /// Finds the present value of a known key.
    pub fn live(&self, key: &K) -> Found<'_, V> {
        let history = self.history.as_ref();
        Found {
            value: self.get(key),
            is_committed: history.is_some_and(|history| history.former(key).is_none()),
        }
    }

    /// Finds the value of a known key at the last complete checkpoint.
    pub fn committed(&self, key: &K) -> Found<'_, V> {
        let history = self.history.as_ref();
        let former = history.and_then(|history| history.former(key));
        let has_ended = |history: &ValueHistory<K, V>| self.is_past(history.former_time(key));
        let value = match former {
            Some(former) => former.filter(|_| !history.is_some_and(has_ended)),
            None => self.get(key),
        };
        Found {
            value,
            is_committed: history.is_some(),
        }
    }

    /// Keeps an index of all keys from now on, and returns it.
    pub fn index_keys(&self) -> &KeyIndex<K> {
        self.index.get_or_init(|| {
            let slots = self.slots.iter();
            KeyIndex::of(slots.map(|slot| (&slot.key, slot.value.is_some())))
        })
    }

    /// Returns the keys of a range that have a value, by their canonical bytes; keys whose values have ended, and those that
    /// are not known, are among them. The first call builds the index.
    pub fn range<'a>(
        &'a self,
        range: &KeyRange,
    ) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a K)> + use<'a, K, V> {
        self.index_keys().range(range)
    }

    /// Returns all keys of a range, by their canonical bytes: also keys without a value, which may have a former one. Otherwise
    /// as [`range`](Self::range).
    pub fn range_of_all<'a>(
        &'a self,
        range: &KeyRange,
    ) -> impl Iterator<Item = (&'a [u8], &'a K)> + use<'a, K, V> {
        self.index_keys().range_of_all(range)
    }

    /// Lets `change` replace, change or remove the value of a key. Returns `None`, without a call, if the key is not
    /// [known](Self::is_known).
    #[inline]
    pub fn update<R>(
        &mut self,
        key: &impl KeyRef<K>,
        change: impl FnOnce(&mut Option<V>) -> R,
    ) -> Option<R>
    where
        V: Clone,
    {
        if self.lifetime.is_some() {
            self.remove_if_ended(key);
        }
        self.change_value(key, change)
    }

    /// The same, also for a value that has ended.
    #[inline]
    fn change_value<R>(
        &mut self,
        key: &impl KeyRef<K>,
        change: impl FnOnce(&mut Option<V>) -> R,
    ) -> Option<R>
    where
        V: Clone,
    {
        match self.slots.get_mut(key) {
            Some(slot) => {
                let had_value = slot.value.is_some();
                let mut may_be_removed = had_value;
                if let Some(history) = &mut self.history
                    && slot.stamp != Stamp::changed_in(history.number())
                {
                    if slot.stamp == Stamp::STAGED && cold::has_staged(&self.cold) {
                        return None;
                    }
                    if slot.stamp.number() != history.number() {
                        note(history, &self.lifetime, key.to_key(), slot.value.clone());
                        may_be_removed = true;
                    }
                    slot.stamp = Stamp::changed_in(history.number());
                }
                let result = change(&mut slot.value);
                let has_value = slot.value.is_some();
                if let Some(lifetime) = &mut self.lifetime {
                    lifetime.note(key, has_value);
                }
                if has_value && !had_value {
                    self.regained(key);
                } else if may_be_removed && !has_value {
                    self.removed(key.to_key(), had_value);
                }
                Some(result)
            }
            None if self.cold.is_some() => None,
            None => {
                let mut value = None;
                let result = change(&mut value);
                if value.is_some() {
                    self.insert_changed(key.to_key(), value);
                    if let Some(lifetime) = &mut self.lifetime {
                        lifetime.note(key, true);
                    }
                }
                Some(result)
            }
        }
    }

    /// Returns the value of a key, to be changed; `None` if it has none. All values are in memory.
    #[inline]
    pub fn get_mut(&mut self, key: &impl KeyRef<K>) -> Option<&mut V>
    where
        V: Clone,
    {
        if self.lifetime.is_some() {
            self.remove_if_ended(key);
        }
        let slot = self.slots.get_mut(key)?;
        if let Some(history) = &mut self.history
            && slot.stamp.number() != history.number()
            && slot.value.is_some()
        {
            slot.stamp = Stamp::changed_in(history.number());
            note(history, &self.lifetime, key.to_key(), slot.value.clone());
        }
        let value = slot.value.as_mut()?;
        if let Some(lifetime) = &mut self.lifetime {
            lifetime.note(key, true);
        }
        Some(value)
    }

    /// Sets or removes the value that a key had at the last checkpoint.
    pub fn restore(&mut self, key: K, value: Option<Dated<V>>) {
        match value {
            Some(value) => self.insert_dated(key, value, Stamp::CLEAN),
            None => self.remove(&key),
        }
    }

    /// Notes that the changelog may have another value of the key than this table has, or a value where it has none.
    pub fn note_changed(&mut self, key: K)
    where
        V: Clone,
    {
        let Some(history) = &mut self.history else {
            return;
        };
        match self.slots.get_mut(&key) {
            Some(slot) if slot.stamp.number() == history.number() => {}
            Some(slot) => {
                slot.stamp = Stamp::changed_in(history.number());
                note(history, &self.lifetime, key, slot.value.clone());
            }
            None => {
                history.note_removed(key.clone());
                self.insert_changed(key, None);
            }
        }
    }

    /// Changes from now on are behind the checkpoint.
    pub fn cut(&mut self, checkpoint: u64) {
        if let Some(history) = &mut self.history {
            history.cut(checkpoint);
        }
    }

    /// Returns up to `limit` of the keys that have changed before `checkpoint`, the last cut, and that the changelog has not
    /// as they are there; with their values at the checkpoint. The next call continues behind them; nothing is left when it
    /// returns none.
    pub fn changes(
        &self,
        checkpoint: u64,
        cursor: &mut ChangeCursor,
        limit: usize,
    ) -> Vec<(K, Option<Dated<V>>)>
    where
        V: Clone,
    {
        let Some(history) = &self.history else {
            return Vec::new();
        };
        let next = iter::from_fn(|| history.next_change(checkpoint, cursor));
        let value = |(key, former): (&K, Option<Option<&V>>)| {
            // Also one that has ended: it ends in the changelog, too.
            let present = || self.slots.get(key)?.value.as_ref();
            let changed_at = match former {
                Some(_) => history.time_at_cut(key),
                None => self.changed_at(key),
            };
            let value = former.unwrap_or_else(present).cloned();
            let value = value.map(|value| Dated { value, changed_at });
            (key.clone(), value)
        };
        next.take(limit).map(value).collect()
    }

    /// The changelog has the changes up to this checkpoint.
    pub fn written(&mut self, checkpoint: u64) {
        if let Some(history) = &mut self.history {
            history.written(checkpoint);
        }
    }

    /// Forgets the values from before a complete checkpoint. [`sweep`](Self::sweep) frees their memory.
    pub fn complete(&mut self, checkpoint: u64) {
        if let Some(history) = &mut self.history {
            history.complete(checkpoint);
        }
    }

    /// Frees memory of at most `limit` entries that were forgotten; `None` if there are no more. The caller drops the
    /// result when the table is unlocked.
    pub fn sweep(&mut self, limit: usize) -> Option<Swept<K, V>> {
        let history = self.history.as_mut()?;
        let swept = history.sweep(limit)?;
        // A cold table has to know that the key has no value.
        for key in swept.0.iter().filter(|_| self.cold.is_none()) {
            let is_absent = self.slots.get(key).is_some_and(|it| it.value.is_none());
            if is_absent && history.former(key).is_none() {
                self.slots.remove(key);
                if let Some(index) = self.index.get_mut() {
                    index.remove(key, false);
                }
            }
        }
        Some(swept)
    }

    /// The key has no value after a change, and had one before it if `had_value`. A key that no checkpoint had is forgotten at
    /// once, so items that come and go between two checkpoints cost no change of the changelog.
    #[cold]
    fn removed(&mut self, key: K, had_value: bool) {
        // A cold table has to know that the key has no value.
        let may_forget = self.cold.is_none();
        if let Some(history) = &mut self.history
            && !(may_forget && history.forget_new(&key))
        {
            if had_value && let Some(index) = self.index.get_mut() {
                index.change(&key, false);
            }
            return history.note_removed(key);
        }
        self.slots.remove(&key);
        if let Some(index) = self.index.get_mut() {
            index.remove(&key, had_value);
        }
    }

    /// A key whose slot had no value has one after a change.
    fn regained(&mut self, key: &impl KeyRef<K>) {
        if let Some(index) = self.index.get_mut() {
            index.change(&key.to_key(), true);
        }
    }

    fn insert_changed(&mut self, key: K, value: Option<V>) {
        let mut stamp = Stamp::CLEAN;
        if let Some(history) = &mut self.history {
            stamp = Stamp::changed_in(history.number());
            history.note(key.clone(), None);
        }
        self.insert(key, value, stamp);
    }

    fn insert(&mut self, key: K, value: Option<V>, stamp: Stamp) {
        let has_value = value.is_some();
        let indexed = self.index.get().map(|_| key.clone());
        let former = self.slots.insert(Slot { key, value, stamp });
        if let Some(index) = self.index.get_mut()
            && let Some(key) = indexed
        {
            match &former {
                None => index.insert(key, has_value),
                Some(former) if former.value.is_some() == has_value => {}
                Some(_) => index.change(&key, has_value),
            }
        }
    }

    /// Inserts a value that was changed at some time, or in an unknown run.
    fn insert_dated(&mut self, key: K, Dated { value, changed_at }: Dated<V>, stamp: Stamp) {
        if let Some(lifetime) = &mut self.lifetime
            && let Some(changed_at) = changed_at
        {
            lifetime.restore(key.clone(), changed_at);
        }
        self.insert(key, Some(value), stamp);
    }

    fn remove(&mut self, key: &K) {
        let removed = self.slots.remove(key);
        if let Some(index) = self.index.get_mut()
            && let Some(slot) = removed
        {
            index.remove(key, slot.value.is_some());
        }
        if let Some(lifetime) = &mut self.lifetime {
            lifetime.forget(key);
        }
    }
}

/// Notes a former value with its time.
fn note<K: Hash + Eq + Clone, V>(
    history: &mut ValueHistory<K, V>,
    lifetime: &Option<Box<Lifetime<K>>>,
    key: K,
    former: Option<V>,
) {
    if let Some(lifetime) = lifetime
        && let Some(time) = lifetime.time_of(&key)
    {
        history.note_time(key.clone(), time);
    }
    history.note(key, former);
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use super::*;

    impl<K: Hash + Eq + Ord + Clone + Serialize, V> ValueTable<K, V> {
        /// Asserts that the index has the keys of all slots, apart by whether they have a value.
        pub(super) fn assert_indexed(&self) {
            let slots = self.slots.iter();
            let mut slots: Vec<(&K, bool)> = slots
                .map(|slot| (&slot.key, slot.value.is_some()))
                .collect();
            slots.sort_unstable();
            let all = self.range_of_all(&KeyRange::all()).map(|(_, key)| key);
            assert!(all.eq(slots.iter().map(|slot| slot.0)));
            let with_value = slots.iter().filter(|slot| slot.1).map(|slot| slot.0);
            let range = self.range(&KeyRange::all());
            assert!(range.map(|(_, key)| key).eq(with_value.clone()));
            let range = self.range(&KeyRange::all()).rev();
            assert!(range.map(|(_, key)| key).eq(with_value.rev()));
        }
    }

    fn set(table: &mut ValueTable<u32, u64>, key: u32, value: Option<u64>) {
        let updated = table.update(&key, |present| *present = value);
        updated.expect("it is in memory");
    }

    /// Cuts the table, and returns the changes for a changelog, which takes them.
    fn take_changes(table: &mut ValueTable<u32, u64>, checkpoint: u64) -> Vec<(u32, Option<u64>)> {
        table.cut(checkpoint);
        let mut cursor = ChangeCursor::default();
        let next = iter::from_fn(|| table.changes(checkpoint, &mut cursor, 1).pop());
        let changes = next.map(|(key, value)| (key, value.map(|it| it.value)));
        let mut changes: Vec<_> = changes.collect();
        changes.sort_unstable();
        table.written(checkpoint);
        changes
    }

    /// Frees all memory that the table does not need any more.
    fn sweep(table: &mut ValueTable<u32, u64>) {
        while table.sweep(1).is_some() {}
    }

    #[test]
    fn each_changed_key_is_recorded_once_with_its_newest_value() {
        let mut table = ValueTable::default();
        table.note_changes();
        table.restore(1, Some(10.into()));
        table.restore(2, Some(20.into()));
        table.restore(3, Some(30.into()));
        table.restore(3, None);
        assert_eq!(take_changes(&mut table, 1), []);
        for _ in 0..3 {
            set(&mut table, 2, None);
            set(&mut table, 2, Some(21));
            set(&mut table, 4, Some(40));
            set(&mut table, 4, None);
        }
        set(&mut table, 5, None);
        assert_eq!(take_changes(&mut table, 2), [(2, Some(21))]);
        assert_eq!(table.get(&1), Some(&10));
        table.complete(2);
        sweep(&mut table);
        assert_eq!(table.slots.len(), 2, "removed keys take no memory");
        set(&mut table, 2, Some(22));
        assert_eq!(take_changes(&mut table, 3), [(2, Some(22))]);
        assert_eq!(take_changes(&mut table, 4), []);
    }

    #[test]
    fn keys_in_the_changelog_are_recorded_with_and_without_a_value() {
        let mut table = ValueTable::default();
        table.note_changes();
        table.restore(1, Some(10.into()));
        for key in [1, 2, 1, 2] {
            table.note_changed(key);
        }
        assert_eq!(take_changes(&mut table, 1), [(1, Some(10)), (2, None)]);
        assert_eq!(take_changes(&mut table, 2), []);
    }

    #[test]
    fn without_a_changelog_removed_keys_are_dropped_at_once() {
        let mut table = ValueTable::default();
        table.index_keys();
        set(&mut table, 1, Some(10));
        table.assert_indexed();
        set(&mut table, 1, None);
        assert!(table.slots.is_empty());
        table.assert_indexed();
    }

    /// A table, and plain maps beside it.
    #[derive(Default)]
    struct Model {
        table: ValueTable<u32, u64>,
        now: BTreeMap<u32, u64>,
        /// At each cut; at first the beginning.
        cuts: Vec<BTreeMap<u32, u64>>,
        /// Checkpoints that are written, and may be complete on all ranks.
        written: VecDeque<u64>,
        /// The last complete checkpoint.
        complete: u64,
        /// As the changelog has it.
        logged: BTreeMap<u32, u64>,
        /// The changes of the checkpoint that is being written.
        writing: BTreeMap<u32, Option<u64>>,
        cursor: ChangeCursor,
        checkpoint: u64,
    }

    impl Model {
        fn new() -> Model {
            let mut model = Model {
                cuts: vec![BTreeMap::new()],
                ..Model::default()
            };
            model.table.note_changes();
            model
        }

        fn change(&mut self, key: u32, value: Option<u64>) {
            set(&mut self.table, key, value);
            match value {
                Some(value) => drop(self.now.insert(key, value)),
                None => drop(self.now.remove(&key)),
            }
        }

        /// A checkpoint that is not written whole is given up.
        fn cut(&mut self) {
            self.checkpoint += 1;
            self.table.cut(self.checkpoint);
            self.cuts.push(self.now.clone());
            self.writing.clear();
            self.cursor = ChangeCursor::default();
        }

        /// Writes some changes.
        fn write(&mut self, limit: usize) {
            let changes = self.table.changes(self.checkpoint, &mut self.cursor, limit);
            let is_all = changes.is_empty();
            for (key, value) in changes {
                let former = self.writing.insert(key, value.map(|it| it.value));
                assert_eq!(former, None, "each key is written once");
            }
            if !is_all || self.checkpoint == 0 {
                return;
            }
            for (key, value) in std::mem::take(&mut self.writing) {
                match value {
                    Some(value) => drop(self.logged.insert(key, value)),
                    None => drop(self.logged.remove(&key)),
                }
            }
            self.table.written(self.checkpoint);
            assert_eq!(Some(&self.logged), self.cuts.last());
            self.written.push_back(self.checkpoint);
        }

        fn complete(&mut self) {
            if let Some(checkpoint) = self.written.pop_front() {
                self.table.complete(checkpoint);
                self.complete = checkpoint;
            }
        }

        fn check(&self) {
            // Where segments were joined, readers find an older checkpoint.
            let checkpoint = self.table.checkpoint().unwrap();
            assert!(checkpoint <= self.complete);
            let complete = &self.cuts[checkpoint as usize];
            for key in 0..KEYS {
                assert_eq!(self.table.get(&key), self.now.get(&key));
                let committed = self.table.committed(&key).value;
                assert_eq!(committed, complete.get(&key), "key {key}");
            }
        }

        fn check_ranges(&self) {
            self.table.assert_indexed();
            let live = self.table.range(&KeyRange::all()).map(|(_, key)| key);
            assert!(live.eq(self.now.keys()));
            let checkpoint = self.table.checkpoint().unwrap();
            let keys = self.table.range_of_all(&KeyRange::all());
            let committed =
                keys.filter_map(|(_, key)| Some((key, self.table.committed(key).value?)));
            assert!(committed.eq(&self.cuts[checkpoint as usize]));
        }
    }

    const KEYS: u32 = 12;

    #[test]
    fn a_changelog_has_the_values_of_each_cut_while_newer_ones_replace_them() {
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut model = Model::new();
            // The first read of a range builds the index.
            let ranges_from = [0, rng.u32(..400)][seed as usize % 2];
            for step in 0..400 {
                match rng.u32(..12) {
                    0 => model.cut(),
                    1..=3 => model.write(rng.usize(1..4)),
                    4 => model.complete(),
                    5 => drop(model.table.sweep(rng.usize(1..3))),
                    6 => model.change(rng.u32(..KEYS), None),
                    _ => model.change(rng.u32(..KEYS), Some(rng.u64(..3))),
                }
                model.check();
                if step >= ranges_from {
                    model.check_ranges();
                }
            }
            // More checkpoints fail than segments are kept apart.
            (0..10).for_each(|key| {
                model.change(key, Some(u64::from(key)));
                model.cut();
            });
            while Some(&model.logged) != model.cuts.last() {
                model.write(usize::MAX);
            }
            model.cut();
            model.write(1);
            while !model.written.is_empty() {
                model.complete();
            }
            sweep(&mut model.table);
            assert_eq!(model.table.slots.len(), model.now.len());
            model.check_ranges();
        }
    }
}

//! A map for each key as a state element.

use std::cell::OnceCell;
use std::sync::Arc;

use millstream_base::KeyRange;
use millstream_base::key::encode_key;
use parking_lot::MutexGuard;

use crate::state::element::Element;
use crate::state::key_ref::PairRef;
use crate::state::lockable::Locked;
use crate::state::value_table::ValueTable;
use crate::state::values::{Layout, Place, SharedTable, Value, Values};
use crate::windows::Key;

/// A state element with a map for each key `K`, from fields `F` to values `V`; in Flink a `MapState`. A clone is another
/// handle of the same element. On several ranks each has the maps of the keys that it owns.
/// [`Keyed::update`](crate::Keyed::update) changes the map of an item's key, which it gets as [`MapOf`].
///
/// A changelog has a record for each entry: a checkpoint writes the entries that have changed, not the maps. To readers by
/// text the pair of key and field is the key of an entry, such as `["ann","tea"]`.
pub struct Maps<K, F, V> {
    pub(crate) values: Values<(K, F), V>,
}

impl<K, F, V> Clone for Maps<K, F, V> {
    fn clone(&self) -> Self {
        Maps {
            values: self.values.clone(),
        }
    }
}

impl<K: Key, F: Key, V: Value> Maps<K, F, V> {
    pub(crate) fn new(place: &Place) -> Self {
        Maps::of_kind("maps", place)
    }

    pub(crate) fn of_kind(kind: &'static str, place: &Place) -> Self {
        Maps {
            values: Values::new(Layout::of_entries(kind), place),
        }
    }

    /// Returns the present value of a field of a key; `None` if there is none, or another rank owns the key.
    pub fn get(&self, key: &K, field: &F) -> Option<V> {
        self.lock(key)?.get(&PairRef(key, field)).cloned()
    }

    /// Returns the present entries of a key, sorted as [`MapOf::iter`] sorts them; none if another rank owns the key.
    pub fn entries(&self, key: &K) -> Vec<(F, V)> {
        let table = self.lock(key);
        let entries = table
            .as_ref()
            .map(|table| entries_of(table, &prefix_of(key)));
        let entries = entries.into_iter().flatten();
        entries
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect()
    }

    /// Locks the table of a key that this rank owns.
    pub(super) fn lock(&self, key: &K) -> Option<MutexGuard<'_, ValueTable<(K, F), V>>> {
        // A key without canonical bytes has no owner, and no entries.
        let owner = self.values.owners().of(key).ok()?;
        self.values.lock_of(owner)
    }
}

impl<K: Key, F: Key, V: Value> Element<K> for Maps<K, F, V> {
    type Content<'a> = MapOf<'a, K, F, V>;
    type Partition = SharedTable<(K, F), V>;

    fn partitions(&self) -> Option<usize> {
        Some(self.values.tables().len())
    }

    fn partition(&self, index: usize) -> Self::Partition {
        Arc::clone(&self.values.tables()[index])
    }

    #[inline]
    fn change<R>(
        &self,
        table: &mut Locked<'_, Self::Partition>,
        key: &K,
        change: impl FnOnce(MapOf<'_, K, F, V>) -> R,
    ) -> Option<R> {
        Some(change(MapOf::new(table, key)))
    }

    fn shorten<'short, 'long: 'short>(content: MapOf<'long, K, F, V>) -> MapOf<'short, K, F, V> {
        content
    }
}

/// The map of one key, in the function of an [`update`](crate::Keyed::update).
pub struct MapOf<'a, K, F, V> {
    table: &'a mut ValueTable<(K, F), V>,
    key: &'a K,
    /// The range of the key's entries in the order of all entries.
    range: OnceCell<KeyRange>,
}

impl<'a, K: Key, F: Key, V: Value> MapOf<'a, K, F, V> {
    pub(super) fn new(table: &'a mut ValueTable<(K, F), V>, key: &'a K) -> Self {
        table.begin_call();
        MapOf {
            table,
            key,
            range: OnceCell::new(),
        }
    }

    /// Returns the value of a field.
    #[inline]
    pub fn get(&self, field: &F) -> Option<&V> {
        self.table.get(&PairRef(self.key, field))
    }

    /// Returns the value of a field, to be changed. The checkpoint has it as a change, even if it stays the same.
    #[inline]
    pub fn get_mut(&mut self, field: &F) -> Option<&mut V> {
        self.table.get_mut(&PairRef(self.key, field))
    }

    /// Whether a field has a value.
    #[inline]
    pub fn contains(&self, field: &F) -> bool {
        self.get(field).is_some()
    }

    /// Sets the value of a field, and returns the former one.
    #[inline]
    pub fn insert(&mut self, field: &F, value: V) -> Option<V> {
        self.update(field, |present| present.replace(value))
    }

    /// Removes a field, and returns its value.
    #[inline]
    pub fn remove(&mut self, field: &F) -> Option<V> {
        match self.contains(field) {
            true => self.update(field, Option::take),
            false => None,
        }
    }

    /// Lets `change` set, change or remove the value of a field, which is `None` if the field has none. It looks up the
    /// field once. The checkpoint has it as a change, even if it stays the same.
    #[inline]
    pub fn update<R>(&mut self, field: &F, change: impl FnOnce(&mut Option<V>) -> R) -> R {
        let changed = self.table.update(&PairRef(self.key, field), change);
        changed.expect("all entries are in memory")
    }

    /// Returns the value of a field, to be changed; one that has none begins as the default.
    #[inline]
    pub fn or_default(&mut self, field: &F) -> &mut V
    where
        V: Default,
    {
        self.or_insert_with(field, V::default)
    }

    /// Returns the value of a field, to be changed; one that has none gets the value of `value` first.
    #[inline]
    pub fn or_insert_with(&mut self, field: &F, value: impl FnOnce() -> V) -> &mut V {
        if !self.contains(field) {
            self.insert(field, value());
        }
        self.get_mut(field).expect("it has a value")
    }

    /// Returns the entries, in the order of the [canonical bytes](millstream_base::key) of their fields: that of the fields
    /// themselves for all usual types. The first call for any key builds an index of the partition's entries, which then
    /// takes memory: a copy of each key and field.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&F, &V)> {
        self.entries_of(self.range())
    }

    /// Returns the fields, in their order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &F> {
        self.iter().map(|(field, _)| field)
    }

    /// Returns the values, in the order of their fields.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Whether the map has no entries.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Returns the number of entries. It looks at each.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.retain(|_, _| false);
    }

    /// Removes the entries for which `is_kept` returns `false`.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&F, &V) -> bool) {
        let dropped = self.iter().filter(|(field, value)| !is_kept(field, value));
        let dropped: Vec<F> = dropped.map(|(field, _)| field.clone()).collect();
        for field in &dropped {
            self.remove(field);
        }
    }

    /// Returns the entries of a range of the key's entries.
    pub(super) fn entries_of<'b>(
        &'b self,
        range: &KeyRange,
    ) -> impl DoubleEndedIterator<Item = (&'b F, &'b V)> + use<'a, 'b, K, F, V> {
        entries_of(self.table, range)
    }

    /// Returns the range of all entries of the key.
    pub(super) fn range(&self) -> &KeyRange {
        self.range.get_or_init(|| prefix_of(self.key))
    }
}

/// Returns the range of the entries of a key, in the order of all entries.
fn prefix_of<K: Key>(key: &K) -> KeyRange {
    let mut bytes = Vec::new();
    // Nothing follows the key, and it is encoded as in front of a field. A key that has an owner has canonical bytes.
    let encoded = encode_key(&(key, ()), &mut bytes);
    encoded.expect("the key has an owner");
    KeyRange::prefix(bytes)
}

/// Returns the entries of a range.
fn entries_of<'a, K: Key, F: Key, V>(
    table: &'a ValueTable<(K, F), V>,
    range: &KeyRange,
) -> impl DoubleEndedIterator<Item = (&'a F, &'a V)> + use<'a, K, F, V> {
    table
        .range(range)
        .filter_map(|(_, entry)| Some((&entry.1, table.get(entry)?)))
}

//! An ordered map for each key as a state element.

use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::sync::Arc;

use millstream_base::KeyRange;
use millstream_base::key::encode_key;

use crate::state::element::Element;
use crate::state::lockable::Locked;
use crate::state::maps::{MapOf, Maps};
use crate::state::values::{Place, SharedTable, Value};
use crate::windows::Key;

/// A state element with an ordered map for each key `K`, from fields `F` to values `V`, in the order of the
/// [canonical bytes](millstream_base::key) of the fields: that of the fields themselves for all usual types. As [`Maps`],
/// and an index of all entries is kept from the beginning. [`Keyed::update`](crate::Keyed::update) changes the map of an
/// item's key, which it gets as [`OrderedMapOf`].
pub struct OrderedMaps<K, F, V> {
    pub(crate) maps: Maps<K, F, V>,
}

impl<K, F, V> Clone for OrderedMaps<K, F, V> {
    fn clone(&self) -> Self {
        OrderedMaps {
            maps: self.maps.clone(),
        }
    }
}

impl<K: Key, F: Key, V: Value> OrderedMaps<K, F, V> {
    pub(crate) fn new(place: &Place) -> Self {
        let maps = Maps::of_kind("ordered maps", place);
        for table in maps.values.tables() {
            table.lock().index_keys();
        }
        OrderedMaps { maps }
    }

    /// As [`Maps::get`].
    pub fn get(&self, key: &K, field: &F) -> Option<V> {
        self.maps.get(key, field)
    }

    /// As [`Maps::entries`].
    pub fn entries(&self, key: &K) -> Vec<(F, V)> {
        self.maps.entries(key)
    }
}

impl<K: Key, F: Key, V: Value> Element<K> for OrderedMaps<K, F, V> {
    type Content<'a> = OrderedMapOf<'a, K, F, V>;
    type Partition = SharedTable<(K, F), V>;

    fn partitions(&self) -> Option<usize> {
        Some(self.maps.values.tables().len())
    }

    fn partition(&self, index: usize) -> Self::Partition {
        Arc::clone(&self.maps.values.tables()[index])
    }

    #[inline]
    fn change<R>(
        &self,
        table: &mut Locked<'_, Self::Partition>,
        key: &K,
        change: impl FnOnce(OrderedMapOf<'_, K, F, V>) -> R,
    ) -> Option<R> {
        let map = MapOf::new(table, key);
        Some(change(OrderedMapOf { map }))
    }

    fn shorten<'short, 'long: 'short>(
        content: OrderedMapOf<'long, K, F, V>,
    ) -> OrderedMapOf<'short, K, F, V> {
        content
    }
}

/// The ordered map of one key, in the function of an [`update`](crate::Keyed::update): a [`MapOf`] with ranges.
pub struct OrderedMapOf<'a, K, F, V> {
    map: MapOf<'a, K, F, V>,
}

impl<'a, K, F, V> Deref for OrderedMapOf<'a, K, F, V> {
    type Target = MapOf<'a, K, F, V>;

    fn deref(&self) -> &MapOf<'a, K, F, V> {
        &self.map
    }
}

impl<'a, K, F, V> DerefMut for OrderedMapOf<'a, K, F, V> {
    fn deref_mut(&mut self) -> &mut MapOf<'a, K, F, V> {
        &mut self.map
    }
}

impl<K: Key, F: Key, V: Value> OrderedMapOf<'_, K, F, V> {
    /// Returns the entries of a range of fields, in their order.
    ///
    /// # Panics
    /// When a bound has no canonical bytes, so that no field equals it.
    pub fn range(&self, range: impl RangeBounds<F>) -> impl DoubleEndedIterator<Item = (&F, &V)> {
        let from = match range.start_bound() {
            Bound::Included(field) => self.bytes_of(field),
            Bound::Excluded(field) => behind(self.bytes_of(field)),
            Bound::Unbounded => self.map.range().from.clone(),
        };
        let until = match range.end_bound() {
            Bound::Included(field) => Some(behind(self.bytes_of(field))),
            Bound::Excluded(field) => Some(self.bytes_of(field)),
            Bound::Unbounded => self.map.range().until.clone(),
        };
        self.map.entries_of(&KeyRange { from, until })
    }

    /// Returns the first entry.
    pub fn first(&self) -> Option<(&F, &V)> {
        self.map.iter().next()
    }

    /// Returns the last entry.
    pub fn last(&self) -> Option<(&F, &V)> {
        self.map.iter().next_back()
    }

    /// Removes the first entry, and returns it.
    pub fn pop_first(&mut self) -> Option<(F, V)> {
        let field = self.first()?.0.clone();
        let value = self.map.remove(&field)?;
        Some((field, value))
    }

    /// Removes the last entry, and returns it.
    pub fn pop_last(&mut self) -> Option<(F, V)> {
        let field = self.last()?.0.clone();
        let value = self.map.remove(&field)?;
        Some((field, value))
    }

    fn bytes_of(&self, field: &F) -> Vec<u8> {
        // Nothing follows the field, so its bytes are the same behind the key as alone.
        let mut bytes = self.map.range().from.clone();
        let encoded = encode_key(field, &mut bytes);
        encoded.expect("a bound of a range has canonical bytes");
        bytes
    }
}

/// Returns the least bytes behind these.
fn behind(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.push(0);
    bytes
}

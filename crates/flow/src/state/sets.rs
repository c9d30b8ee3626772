//! A set for each key as a state element.

use std::sync::Arc;

use crate::state::element::Element;
use crate::state::lockable::Locked;
use crate::state::maps::{MapOf, Maps};
use crate::state::values::{Place, SharedTable};
use crate::windows::Key;

/// A state element with a set of elements `T` for each key `K`. Otherwise as [`Maps`]: to readers by text, an element of a
/// set has the value `true`. [`Keyed::update`](crate::Keyed::update) changes the set of an item's key, which it gets as
/// [`SetOf`].
pub struct Sets<K, T> {
    /// The value of each element is `true`.
    pub(crate) maps: Maps<K, T, bool>,
}

impl<K, T> Clone for Sets<K, T> {
    fn clone(&self) -> Self {
        Sets {
            maps: self.maps.clone(),
        }
    }
}

impl<K: Key, T: Key> Sets<K, T> {
    pub(crate) fn new(place: &Place) -> Self {
        Sets {
            maps: Maps::of_kind("sets", place),
        }
    }

    /// Whether the set of a key has an element at present. `false` also if another rank owns the key.
    pub fn contains(&self, key: &K, element: &T) -> bool {
        self.maps.get(key, element).is_some()
    }

    /// Returns the present elements of a key, sorted as [`SetOf::iter`] sorts them; none if another rank owns the key.
    pub fn elements(&self, key: &K) -> Vec<T> {
        let entries = self.maps.entries(key).into_iter();
        entries.map(|(element, _)| element).collect()
    }
}

impl<K: Key, T: Key> Element<K> for Sets<K, T> {
    type Content<'a> = SetOf<'a, K, T>;
    type Partition = SharedTable<(K, T), bool>;

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
        change: impl FnOnce(SetOf<'_, K, T>) -> R,
    ) -> Option<R> {
        let map = MapOf::new(table, key);
        Some(change(SetOf { map }))
    }

    fn shorten<'short, 'long: 'short>(content: SetOf<'long, K, T>) -> SetOf<'short, K, T> {
        content
    }
}

/// The set of one key, in the function of an [`update`](crate::Keyed::update).
pub struct SetOf<'a, K, T> {
    map: MapOf<'a, K, T, bool>,
}

impl<K: Key, T: Key> SetOf<'_, K, T> {
    /// Whether the set has an element.
    #[inline]
    pub fn contains(&self, element: &T) -> bool {
        self.map.contains(element)
    }

    /// Adds an element. Returns whether the set did not have it.
    #[inline]
    pub fn insert(&mut self, element: &T) -> bool {
        !self.contains(element) && self.map.insert(element, true).is_none()
    }

    /// Removes an element. Returns whether the set had it.
    #[inline]
    pub fn remove(&mut self, element: &T) -> bool {
        self.map.remove(element).is_some()
    }

    /// Returns the elements, in the order and with the cost of [`MapOf::iter`].
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.map.keys()
    }

    /// Whether the set has no elements.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns the number of elements. It looks at each.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Removes all elements.
    pub fn clear(&mut self) {
        self.map.clear();
    }

    /// Removes the elements for which `is_kept` returns `false`.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&T) -> bool) {
        self.map.retain(|element, _| is_kept(element));
    }
}

//! The items with the highest scores of each key as a state element.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::state::element::Element;
use crate::state::lockable::Locked;
use crate::state::values::{Layout, Place, SharedTable, Value, Values};
use crate::windows::{Key, put_score};

/// A state element with the items of the highest scores for each key, up to a number of them. A score may be a number, a
/// text, or a tuple of them; for the lowest scores, wrap it in [`Reverse`](std::cmp::Reverse). Of items with equal
/// scores, those come first whose serialized bytes are smaller. [`Keyed::update`](crate::Keyed::update) changes the items
/// of an item's key, which it gets as [`TopOf`]. A clone is another handle of the same element.
///
/// A changelog has one record for each key: a pair of score and item for each of its items.
pub struct Tops<K, S, T> {
    pub(crate) values: Values<K, Vec<(S, T)>>,
    count: usize,
}

impl<K, S, T> Clone for Tops<K, S, T> {
    fn clone(&self) -> Self {
        Tops {
            values: self.values.clone(),
            count: self.count,
        }
    }
}

/// A score of a [`Tops`].
pub trait Score: Value + PartialOrd + Sync {}

impl<S: Value + PartialOrd + Sync> Score for S {}

impl<K: Key, S: Score, T: Value + PartialEq> Tops<K, S, T> {
    pub(crate) fn new(count: usize, place: &Place) -> Self {
        Tops {
            // The score of the first pair.
            values: Values::new(Layout::of_keys("tops").compared_by("/0/0"), place),
            count,
        }
    }

    /// Returns the present items of a key with their scores, the highest first; none also if another rank owns the key. It
    /// waits as [`Values::get`] does.
    pub fn get(&self, key: &K) -> Vec<(S, T)> {
        self.values.get(key).unwrap_or_default()
    }
}

impl<K: Key, S: Score, T: Value + PartialEq> Element<K> for Tops<K, S, T> {
    type Content<'a> = TopOf<'a, S, T>;
    type Partition = SharedTable<K, Vec<(S, T)>>;

    fn partitions(&self) -> Option<usize> {
        Some(self.values.tables().len())
    }

    fn partition(&self, index: usize) -> Self::Partition {
        Arc::clone(&self.values.tables()[index])
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
        change: impl FnOnce(TopOf<'_, S, T>) -> R,
    ) -> Option<R> {
        let count = self.count;
        table.begin_call();
        table.update(key, |items| change(TopOf { items, count }))
    }

    fn shorten<'short, 'long: 'short>(content: TopOf<'long, S, T>) -> TopOf<'short, S, T> {
        content
    }
}

/// The items with the highest scores of one key, in the function of an [`update`](crate::Keyed::update).
pub struct TopOf<'a, S, T> {
    /// `None` for none.
    items: &'a mut Option<Vec<(S, T)>>,
    count: usize,
}

impl<S, T> TopOf<'_, S, T>
where
    S: Clone + PartialOrd + Serialize + DeserializeOwned,
    T: Clone + PartialEq + Serialize + DeserializeOwned,
{
    /// Gives an item this score. It replaces the score that the item has here. Returns whether the item is among the
    /// highest now. An item whose score cannot be compared, a NaN, is not.
    ///
    /// An item that has left the highest is forgotten: it comes back when it is put again, and not when the score of another
    /// one falls.
    pub fn put(&mut self, score: &S, item: &T) -> bool {
        self.remove(item);
        if self.count == 0 || score.partial_cmp(score).is_none() {
            return false;
        }
        let items = self.items.get_or_insert_default();
        // An earlier program may have kept more.
        items.truncate(self.count);
        put_score(self.count, items, score, item)
    }

    /// Removes an item, and returns its score.
    pub fn remove(&mut self, item: &T) -> Option<S> {
        let items = self.items.as_mut()?;
        let place = items.iter().position(|(_, other)| other == item)?;
        let (score, _) = items.remove(place);
        if items.is_empty() {
            *self.items = None;
        }
        Some(score)
    }

    /// Returns the scores and items, the highest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&S, &T)> {
        let items = self.items.as_deref().unwrap_or_default();
        let items = &items[..items.len().min(self.count)];
        items.iter().map(|(score, item)| (score, item))
    }

    /// Returns the highest score, and its item.
    pub fn highest(&self) -> Option<(&S, &T)> {
        self.iter().next()
    }

    /// Returns the lowest score of those that are here, and its item.
    pub fn lowest(&self) -> Option<(&S, &T)> {
        self.iter().next_back()
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.highest().is_none()
    }

    /// Removes all items.
    pub fn clear(&mut self) {
        *self.items = None;
    }
}

//! A counter for each key as a state element.

use std::sync::Arc;

use crate::state::element::Element;
use crate::state::lockable::Locked;
use crate::state::values::{Layout, Place, SharedTable, Values};
use crate::windows::Key;

/// A state element with a counter for each key, an `i64` that begins at 0. A counter at 0 takes no memory, and to readers
/// by text the key is absent. A clone is another handle of the same element. [`Keyed::update`](crate::Keyed::update)
/// changes the counter of an item's key, which it gets as [`CounterOf`].
pub struct Counters<K> {
    pub(crate) values: Values<K, i64>,
}

impl<K> Clone for Counters<K> {
    fn clone(&self) -> Self {
        Counters {
            values: self.values.clone(),
        }
    }
}

impl<K: Key> Counters<K> {
    pub(crate) fn new(place: &Place) -> Self {
        Counters {
            values: Values::new(Layout::of_keys("counters"), place),
        }
    }

    /// Returns the present count of a key; 0 also if another rank owns the key. It waits as [`Values::get`] does.
    pub fn get(&self, key: &K) -> i64 {
        self.values.get(key).unwrap_or(0)
    }
}

impl<K: Key> Element<K> for Counters<K> {
    type Content<'a> = CounterOf<'a>;
    type Partition = SharedTable<K, i64>;

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
        change: impl FnOnce(CounterOf<'_>) -> R,
    ) -> Option<R> {
        table.begin_call();
        table.update(key, |count| change(CounterOf { count }))
    }

    fn shorten<'short, 'long: 'short>(content: CounterOf<'long>) -> CounterOf<'short> {
        content
    }
}

/// The counter of one key, in the function of an [`update`](crate::Keyed::update).
pub struct CounterOf<'a> {
    /// `None` for 0.
    count: &'a mut Option<i64>,
}

impl CounterOf<'_> {
    /// Returns the count.
    #[inline]
    pub fn get(&self) -> i64 {
        self.count.unwrap_or(0)
    }

    /// Sets the count.
    #[inline]
    pub fn set(&mut self, count: i64) {
        *self.count = (count != 0).then_some(count);
    }

    /// Adds `by`, and returns the new count. A sum beyond the bounds of an `i64` becomes the nearest bound, so that one
    /// extreme item does not end the flow: use [`checked_add`](Self::checked_add) where that matters.
    #[inline]
    pub fn add(&mut self, by: i64) -> i64 {
        let sum = self.get().saturating_add(by);
        self.set(sum);
        sum
    }

    /// Subtracts `by`, and returns the new count; beyond the bounds as [`add`](Self::add).
    #[inline]
    pub fn sub(&mut self, by: i64) -> i64 {
        let difference = self.get().saturating_sub(by);
        self.set(difference);
        difference
    }

    /// Adds `by`, and returns the new count. `None` if the sum is beyond the bounds of an `i64`: then the count stays.
    #[inline]
    pub fn checked_add(&mut self, by: i64) -> Option<i64> {
        let sum = self.get().checked_add(by)?;
        self.set(sum);
        Some(sum)
    }
}

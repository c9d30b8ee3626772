//! A list for each key as a state element.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::state::element::Element;
use crate::state::key_ref::PairRef;
use crate::state::lockable::Locked;
use crate::state::value_table::ValueTable;
use crate::state::values::{Layout, Place, SharedTable, Value, Values};
use crate::windows::Key;

/// A state element with a list for each key: items are added and removed at both ends, and read and set at any place. In
/// Flink a `ListState`. A clone is another handle of the same element. On several ranks each has the lists of the keys that
/// it owns. [`Keyed::update`](crate::Keyed::update) changes the list of an item's key, which it gets as [`ListOf`].
///
/// A changelog has a record for each item of a list, and one with the bounds of the list. To readers by text an item is
/// `["ann",7]`, where the number is its position: positions count up from the first item that the list ever had, and down
/// in front of it, and do not change. The bounds are at `["ann",null]`.
pub struct Lists<K, V> {
    pub(crate) values: Values<Id<K>, Record<V>>,
}

/// The key of a list, and the position of an item; `None` for the bounds.
type Id<K> = (K, Option<i64>);

/// A record of a list.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record<V> {
    /// The position of the first item, and the one behind the last.
    Bounds(i64, i64),
    /// An item.
    Item(V),
}

type Table<K, V> = ValueTable<Id<K>, Record<V>>;

impl<K, V> Clone for Lists<K, V> {
    fn clone(&self) -> Self {
        Lists {
            values: self.values.clone(),
        }
    }
}

impl<K: Key, V: Value> Lists<K, V> {
    pub(crate) fn new(place: &Place) -> Self {
        Lists {
            values: Values::new(Layout::of_entries("lists"), place),
        }
    }

    /// Returns the present items of a key, the first one first; none if another rank owns the key.
    pub fn items(&self, key: &K) -> Vec<V> {
        // A key without canonical bytes has no owner, and no items.
        let owner = self.values.owners().of(key).ok();
        let table = owner.and_then(|owner| self.values.lock_of(owner));
        let Some(table) = table else {
            return Vec::new();
        };
        let bounds = Bounds::of(&table, key);
        let items = bounds.positions().filter_map(|it| item(&table, key, it));
        items.cloned().collect()
    }
}

impl<K: Key, V: Value> Element<K> for Lists<K, V> {
    type Content<'a> = ListOf<'a, K, V>;
    type Partition = SharedTable<Id<K>, Record<V>>;

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
        change: impl FnOnce(ListOf<'_, K, V>) -> R,
    ) -> Option<R> {
        let bounds = Bounds::of(table, key);
        let mut changed = bounds;
        let result = change(ListOf {
            table,
            key,
            bounds: &mut changed,
        });
        if changed != bounds {
            table.update(&PairRef(key, &None), |record| *record = changed.record());
        }
        Some(result)
    }

    fn shorten<'short, 'long: 'short>(content: ListOf<'long, K, V>) -> ListOf<'short, K, V> {
        content
    }
}

/// The positions of a list's items; both are 0 for an empty list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    first: i64,
    end: i64,
}

impl Bounds {
    fn of<K: Key, V: Value>(table: &Table<K, V>, key: &K) -> Bounds {
        match table.get(&PairRef(key, &None)) {
            Some(Record::Bounds(first, end)) => Bounds {
                first: *first,
                end: *end,
            },
            _ => Bounds { first: 0, end: 0 },
        }
    }

    /// An empty list takes no memory.
    fn record<V>(self) -> Option<Record<V>> {
        (self.first < self.end).then_some(Record::Bounds(self.first, self.end))
    }

    fn positions(self) -> std::ops::Range<i64> {
        self.first..self.end
    }

    fn len(self) -> usize {
        (self.end - self.first) as usize
    }

    fn position(self, index: usize) -> Option<i64> {
        (index < self.len()).then(|| self.first + index as i64)
    }
}

fn item<'a, K: Key, V: Value>(table: &'a Table<K, V>, key: &K, position: i64) -> Option<&'a V> {
    match table.get(&PairRef(key, &Some(position)))? {
        Record::Item(item) => Some(item),
        Record::Bounds(..) => None,
    }
}

/// The list of one key, in the function of an [`update`](crate::Keyed::update). All operations but
/// [`iter`](Self::iter) and [`clear`](Self::clear) take the same time, however long the list is.
pub struct ListOf<'a, K, V> {
    table: &'a mut Table<K, V>,
    key: &'a K,
    /// The table gets them behind the function.
    bounds: &'a mut Bounds,
}

impl<K: Key, V: Value> ListOf<'_, K, V> {
    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.bounds.len()
    }

    /// Whether the list has no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an item; `None` behind the end.
    pub fn get(&self, index: usize) -> Option<&V> {
        item(self.table, self.key, self.bounds.position(index)?)
    }

    /// Returns an item, to be changed; `None` behind the end. The checkpoint has it as a change, even if it stays the same.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut V> {
        let position = self.bounds.position(index)?;
        match self.table.get_mut(&PairRef(self.key, &Some(position)))? {
            Record::Item(item) => Some(item),
            Record::Bounds(..) => None,
        }
    }

    /// Replaces an item, and returns the former one. `None` behind the end: then the list stays as it is.
    pub fn set(&mut self, index: usize, item: V) -> Option<V> {
        let present = self.get_mut(index)?;
        Some(std::mem::replace(present, item))
    }

    /// Returns the first item.
    pub fn front(&self) -> Option<&V> {
        self.get(0)
    }

    /// Returns the last item.
    pub fn back(&self) -> Option<&V> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Adds an item behind the last one.
    pub fn push_back(&mut self, item: V) {
        self.put(self.bounds.end, Some(Record::Item(item)));
        self.bounds.end += 1;
    }

    /// Adds an item in front of the first one.
    pub fn push_front(&mut self, item: V) {
        self.bounds.first -= 1;
        self.put(self.bounds.first, Some(Record::Item(item)));
    }

    /// Removes the last item, and returns it.
    pub fn pop_back(&mut self) -> Option<V> {
        let last = self.bounds.position(self.len().checked_sub(1)?)?;
        let item = self.put(last, None);
        self.bounds.end = last;
        self.reset_if_empty();
        item
    }

    /// Removes the first item, and returns it.
    pub fn pop_front(&mut self) -> Option<V> {
        let first = self.bounds.position(0)?;
        let item = self.put(first, None);
        self.bounds.first = first + 1;
        self.reset_if_empty();
        item
    }

    /// Returns the items, the first one first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &V> {
        let positions = self.bounds.positions();
        positions.filter_map(|position| item(self.table, self.key, position))
    }

    /// Removes all items.
    pub fn clear(&mut self) {
        for position in self.bounds.positions() {
            self.put(position, None);
        }
        self.bounds.end = self.bounds.first;
        self.reset_if_empty();
    }

    /// Sets or removes the record of an item, and returns the former item.
    fn put(&mut self, position: i64, record: Option<Record<V>>) -> Option<V> {
        let id = PairRef(self.key, &Some(position));
        let former = self
            .table
            .update(&id, |present| std::mem::replace(present, record));
        match former.flatten() {
            Some(Record::Item(item)) => Some(item),
            _ => None,
        }
    }

    fn reset_if_empty(&mut self) {
        if self.is_empty() {
            *self.bounds = Bounds { first: 0, end: 0 };
        }
    }
}

impl<K: Key, V: Value> Extend<V> for ListOf<'_, K, V> {
    fn extend<I: IntoIterator<Item = V>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push_back(item));
    }
}

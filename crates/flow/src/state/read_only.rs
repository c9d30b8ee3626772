//! The values of an element of another flow, as an operator reads them.

use crate::error::BoxError;
use crate::state::element::Element;
use crate::state::lockable::Locked;
use crate::state::values::{SharedTable, Value, Values};
use crate::windows::Key;

/// The values of an element that an operator does not change.
pub struct ReadOnly<K, V>(pub Values<K, V>);

impl<K, V> Clone for ReadOnly<K, V> {
    fn clone(&self) -> Self {
        ReadOnly(self.0.clone())
    }
}

impl<K: Key, V: Value> Element<K> for ReadOnly<K, V> {
    /// The value, if the key has one; an error if it cannot be read.
    type Content<'a> = Result<Option<&'a V>, BoxError>;
    type Partition = SharedTable<K, V>;

    fn partitions(&self) -> Option<usize> {
        self.0.partitions()
    }

    fn partition(&self, index: usize) -> Self::Partition {
        self.0.partition(index)
    }

    /// Values of a flow that has ended are read at once, since nothing loads them.
    fn is_known(table: &Locked<'_, Self::Partition>, key: &K) -> bool {
        table.is_known(key) || !table.is_loading()
    }

    fn want(table: &mut Locked<'_, Self::Partition>, keys: Vec<K>) {
        table.want(keys);
    }

    fn change<R>(
        &self,
        table: &mut Locked<'_, Self::Partition>,
        key: &K,
        change: impl FnOnce(Self::Content<'_>) -> R,
    ) -> Option<R> {
        match Self::is_known(table, key) {
            true => Some(change(self.0.shared.get_in(table, key))),
            false => None,
        }
    }

    fn shorten<'short, 'long: 'short>(content: Self::Content<'long>) -> Self::Content<'short> {
        content
    }
}

//! The last items of each key.

use super::RowChange;
use crate::stage::chain::Emit;
use crate::state::lists::ListOf;
use crate::state::values::Value;
use crate::windows::Key;

/// Adds an item to the last `count` items of a key, and emits the change of them.
pub fn last<K: Key, T: Value>(
    count: usize,
    items: &mut ListOf<'_, K, T>,
    item: &T,
    emit: &mut Emit<'_, RowChange<T>>,
) {
    // An earlier program may have kept more.
    while items.len() >= count.max(1) {
        let oldest = items.pop_front();
        oldest
            .into_iter()
            .for_each(|oldest| emit(&RowChange::Delete(oldest)));
    }
    if count > 0 {
        items.push_back(item.clone());
        emit(&RowChange::Insert(item.clone()));
    }
}

//! Each key once.

use super::{RowChange, Unmatched};
use crate::stage::chain::Emit;

/// Returns a function for [`Keyed::update`](crate::Keyed::update), which does the work of
/// [`Keyed::distinct`](crate::Keyed::distinct).
pub fn distinct<K, T>()
-> impl Fn(&K, &mut Option<u64>, &T, &mut Emit<'_, RowChange<K>>) + Send + Sync + 'static
where
    K: Clone + 'static,
    T: 'static,
{
    |key, rows, _, emit| {
        if rows.is_none() {
            *rows = Some(1);
            emit(&RowChange::Insert(key.clone()));
        }
    }
}

/// Returns a function for [`Keyed::update`](crate::Keyed::update), which does the work of
/// [`KeyedRows::distinct`](crate::KeyedRows::distinct). The value of a key is the number of its rows.
pub fn distinct_rows<K, R>(
    unmatched: Unmatched,
) -> impl Fn(&K, &mut Option<u64>, &RowChange<R>, &mut Emit<'_, RowChange<K>>) + Send + Sync + 'static
where
    K: Clone + 'static,
    R: 'static,
{
    move |key, rows, change, emit| match (change.adds(), rows.unwrap_or(0)) {
        (true, 0) => {
            *rows = Some(1);
            emit(&RowChange::Insert(key.clone()));
        }
        (true, present) => *rows = Some(present + 1),
        (false, 0) => unmatched.add(),
        (false, 1) => {
            *rows = None;
            emit(&RowChange::Delete(key.clone()));
        }
        (false, present) => *rows = Some(present - 1),
    }
}

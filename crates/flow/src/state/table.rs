//! Tables that streams are joined with.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hashbrown::HashMap;

/// Rows by key, the same for all instances of a stage: see [`Operators::join`](crate::Operators::join). A clone is
/// another handle of the same table, to [`load`](Table::load) it anew while flows run.
pub struct Table<K, V> {
    rows: Arc<ArcSwap<HashMap<K, V>>>,
}

impl<K: Hash + Eq, V> Table<K, V> {
    /// A table of these rows; of two with one key the latter counts.
    pub fn new(rows: impl IntoIterator<Item = (K, V)>) -> Self {
        Table {
            rows: Arc::new(ArcSwap::from_pointee(rows.into_iter().collect())),
        }
    }

    /// Replaces all rows at once: items that are looked up from now on find the new ones.
    pub fn load(&self, rows: impl IntoIterator<Item = (K, V)>) {
        self.rows.store(Arc::new(rows.into_iter().collect()));
    }

    /// Calls `found` with the row of a key, if there is one.
    #[inline]
    pub(crate) fn with<R>(&self, key: &K, found: impl FnOnce(Option<&V>) -> R) -> R {
        found(self.rows.load().get(key))
    }
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Table {
            rows: Arc::clone(&self.rows),
        }
    }
}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("rows", &self.rows.load().len())
            .finish_non_exhaustive()
    }
}

//! The results that change streams describe.

use std::collections::BTreeMap;

use super::RowChange;

/// The rows of a result, each with the number of times that it is present: a multiset.
///
/// ```
/// use millstream_flow::changes::{RowChange, RowSet};
///
/// let mut rows = RowSet::default();
/// for change in [
///     RowChange::Insert("tea"),
///     RowChange::Insert("cup"),
///     RowChange::UpdateBefore("cup"),
///     RowChange::UpdateAfter("mug"),
/// ] {
///     rows.apply(change).unwrap();
/// }
/// assert_eq!(rows.apply(RowChange::Delete("cup")), Err("cup"));
/// assert_eq!(rows.iter().collect::<Vec<_>>(), [(&"mug", 1), (&"tea", 1)]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSet<T>(BTreeMap<T, u64>);

impl<T> Default for RowSet<T> {
    fn default() -> Self {
        RowSet(BTreeMap::new())
    }
}

impl<T: Ord> RowSet<T> {
    /// Applies a change.
    ///
    /// # Errors
    /// The row, if the change takes back a row that is not present; then nothing changes.
    pub fn apply(&mut self, change: RowChange<T>) -> Result<(), T> {
        match change {
            RowChange::Insert(row) | RowChange::UpdateAfter(row) => {
                *self.0.entry(row).or_default() += 1;
            }
            RowChange::UpdateBefore(row) | RowChange::Delete(row) => match self.0.get_mut(&row) {
                Some(1) => drop(self.0.remove(&row)),
                Some(count) => *count -= 1,
                None => return Err(row),
            },
        }
        Ok(())
    }

    /// Returns the different rows in their order, each with the number of times that it is present.
    pub fn iter(&self) -> impl Iterator<Item = (&T, u64)> {
        self.0.iter().map(|(row, count)| (row, *count))
    }

    /// Returns the number of rows, each counted as often as it is present.
    pub fn len(&self) -> u64 {
        self.0.values().sum()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The values of a result that has one row, a pair of key and value, for each key.
///
/// ```
/// use millstream_flow::changes::{RowChange, RowTable};
///
/// let mut prices = RowTable::default();
/// prices.apply(RowChange::Insert(("tea", 3))).unwrap();
/// prices.apply(RowChange::UpdateBefore(("tea", 3))).unwrap();
/// prices.apply(RowChange::UpdateAfter(("tea", 4))).unwrap();
/// assert_eq!(prices.get(&"tea"), Some(&4));
/// // The table has another value.
/// assert_eq!(prices.apply(RowChange::Delete(("tea", 3))), Err(("tea", 3)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowTable<K, V>(BTreeMap<K, V>);

impl<K, V> Default for RowTable<K, V> {
    fn default() -> Self {
        RowTable(BTreeMap::new())
    }
}

impl<K: Ord, V: PartialEq> RowTable<K, V> {
    /// Applies a change.
    ///
    /// # Errors
    /// The row, if the change adds a row to a key that has one, or takes back a row that is not present; then nothing changes.
    pub fn apply(&mut self, change: RowChange<(K, V)>) -> Result<(), (K, V)> {
        let adds = change.adds();
        let (RowChange::Insert(row)
        | RowChange::UpdateBefore(row)
        | RowChange::UpdateAfter(row)
        | RowChange::Delete(row)) = change;
        let (key, value) = row;
        let present = self.0.get(&key);
        let fits = match adds {
            true => present.is_none(),
            false => present == Some(&value),
        };
        if !fits {
            return Err((key, value));
        }
        match adds {
            true => drop(self.0.insert(key, value)),
            false => drop(self.0.remove(&key)),
        }
        Ok(())
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }

    /// Returns the rows in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter()
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

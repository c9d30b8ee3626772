//! A sparse matrix as a state element.

use std::collections::HashSet;
use std::sync::Arc;

use crate::state::element::Element;
use crate::state::lockable::Locked;
use crate::state::maps::{MapOf, Maps};
use crate::state::values::{Place, SharedTable};
use crate::windows::Key;

/// A state element that is a sparse matrix of finite numbers, with rows `R` and columns `C`: for example the ratings of
/// users for items (iwo 2.7.2). A number that is absent is 0, and a number that becomes 0 takes no memory. Each row is on
/// the rank that owns it. [`Keyed::update`](crate::Keyed::update) changes the row of an item's key, which it gets as
/// [`RowOf`]. A clone is another handle of the same element.
///
/// A changelog has a record for each number that is not 0. To readers by text the pair of row and column is its key.
pub struct Matrices<R, C> {
    pub(crate) maps: Maps<R, C, f64>,
}

impl<R, C> Clone for Matrices<R, C> {
    fn clone(&self) -> Self {
        Matrices {
            maps: self.maps.clone(),
        }
    }
}

impl<R: Key, C: Key> Matrices<R, C> {
    pub(crate) fn new(place: &Place) -> Self {
        Matrices {
            maps: Maps::of_kind("matrix", place),
        }
    }

    /// Returns the present number of a row and column; 0 also if another rank owns the row.
    pub fn get(&self, row: &R, column: &C) -> f64 {
        self.maps.get(row, column).unwrap_or(0.0)
    }

    /// Returns the present numbers of a row that are not 0, sorted as [`MapOf::iter`] sorts them; none if another rank owns
    /// the row.
    pub fn row(&self, row: &R) -> Vec<(C, f64)> {
        self.maps.entries(row)
    }

    /// Returns up to `limit` rows of this rank that have numbers, in no particular order. It looks at numbers until it has
    /// found them.
    pub fn rows(&self, limit: usize) -> Vec<R> {
        let mut rows = HashSet::new();
        for table in self.maps.values.tables() {
            let table = table.lock();
            for ((row, _), _) in table.iter() {
                if rows.len() >= limit {
                    return rows.into_iter().collect();
                }
                if !rows.contains(row) {
                    rows.insert(row.clone());
                }
            }
        }
        rows.into_iter().collect()
    }
}

impl<R: Key, C: Key> Element<R> for Matrices<R, C> {
    type Content<'a> = RowOf<'a, R, C>;
    type Partition = SharedTable<(R, C), f64>;

    fn partitions(&self) -> Option<usize> {
        Some(self.maps.values.tables().len())
    }

    fn partition(&self, index: usize) -> Self::Partition {
        Arc::clone(&self.maps.values.tables()[index])
    }

    #[inline]
    fn change<T>(
        &self,
        table: &mut Locked<'_, Self::Partition>,
        row: &R,
        change: impl FnOnce(RowOf<'_, R, C>) -> T,
    ) -> Option<T> {
        let map = MapOf::new(table, row);
        Some(change(RowOf { map }))
    }

    fn shorten<'short, 'long: 'short>(content: RowOf<'long, R, C>) -> RowOf<'short, R, C> {
        content
    }
}

/// One row of a matrix, in the function of an [`update`](crate::Keyed::update).
pub struct RowOf<'a, R, C> {
    map: MapOf<'a, R, C, f64>,
}

impl<R: Key, C: Key> RowOf<'_, R, C> {
    /// Returns the number of a column.
    #[inline]
    pub fn get(&self, column: &C) -> f64 {
        self.map.get(column).copied().unwrap_or(0.0)
    }

    /// Sets the number of a column.
    #[inline]
    pub fn set(&mut self, column: &C, number: f64) {
        self.map
            .update(column, |present| *present = unless_zero(number));
    }

    /// Adds to the number of a column, and returns the sum.
    #[inline]
    pub fn add(&mut self, column: &C, number: f64) -> f64 {
        self.map.update(column, |present| {
            let sum = present.unwrap_or(0.0) + number;
            *present = unless_zero(sum);
            sum
        })
    }

    /// Returns the numbers that are not 0, in the order and with the cost of [`MapOf::iter`].
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&C, f64)> {
        self.map.iter().map(|(column, number)| (column, *number))
    }

    /// Multiplies the row by a vector, given as the numbers of its columns: returns the sum of the products. A number for
    /// each column that the vector names is looked up, so this costs the same however long the row is.
    pub fn multiply<'v>(&self, vector: impl IntoIterator<Item = (&'v C, f64)>) -> f64
    where
        C: 'v,
    {
        let products = vector.into_iter();
        products
            .map(|(column, number)| self.get(column) * number)
            .sum()
    }

    /// Returns the number of columns that are not 0. It looks at each.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether all columns are 0.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Makes all columns 0.
    pub fn clear(&mut self) {
        self.map.clear();
    }
}

fn unless_zero(number: f64) -> Option<f64> {
    (number != 0.0).then_some(number)
}

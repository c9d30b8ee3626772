//! A sparse matrix of which each instance of an operator changes a replica of its own, as a state element.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_base::KeyRange;
use millstream_base::key::encode_key;

use crate::state::element::{Element, PartialElement, Replica};
use crate::state::key_ref::CellRef;
use crate::state::lockable::Locked;
use crate::state::partial_map::PartialMap;
use crate::state::value_table::ValueTable;
use crate::state::values::{Place, SharedTable};
use crate::windows::Key;

/// A partial state element that is a sparse matrix of finite numbers (iwo 2.7.2), such as how often two items were bought
/// together. Each instance of [`update_local`](crate::Operators::update_local) reads and changes a replica of its own, as
/// [`PartialMatrixOf`]; readers get the sum of all replicas. A number that is absent is 0. Otherwise as [`PartialMap`].
pub struct PartialMatrix<R, C> {
    pub(crate) map: PartialMap<(R, C), f64>,
}

type Table<R, C> = ValueTable<(u32, (R, C)), f64>;

impl<R, C> Clone for PartialMatrix<R, C> {
    fn clone(&self) -> Self {
        PartialMatrix {
            map: self.map.clone(),
        }
    }
}

impl<R: Key, C: Key> PartialMatrix<R, C> {
    pub(crate) fn new(place: &Place) -> Self {
        let add = |sum: &mut f64, number: &f64| *sum += number;
        PartialMatrix {
            map: PartialMap::new("partial matrix", place, add),
        }
    }

    /// Returns the present number of a row and column: the sum over all replicas of this rank. The function of an
    /// [`update_local`](crate::Operators::update_local) of the same element must not call this, since it would wait for
    /// itself.
    pub fn get(&self, row: &R, column: &C) -> f64 {
        let mut sum = 0.0;
        self.map.for_each_replica(|table, replica| {
            let number = table.get(&CellRef(&replica, row, column));
            sum += number.copied().unwrap_or(0.0);
        });
        sum
    }

    /// Multiplies a row vector by the matrix, the sum of all replicas of this rank, and returns the product: for each column
    /// the sum of its numbers times the vector's numbers of their rows. `vector` names rows with their numbers. It looks at
    /// these rows only. Otherwise as [`get`](Self::get).
    pub fn multiply<'v>(&self, vector: impl IntoIterator<Item = (&'v R, f64)>) -> HashMap<C, f64>
    where
        R: 'v,
    {
        let vector: Vec<(&R, f64)> = vector.into_iter().collect();
        let mut product = HashMap::new();
        self.map.for_each_replica(|table, replica| {
            multiply(table, replica, &vector, &mut product);
        });
        product
    }

    /// Returns the present numbers of a row, summed over all replicas of this rank. Otherwise as [`get`](Self::get).
    pub fn row(&self, row: &R) -> HashMap<C, f64> {
        self.multiply([(row, 1.0)])
    }
}

impl<R: Key, C: Key> Element<u32> for PartialMatrix<R, C> {
    type Content<'a> = PartialMatrixOf<'a, R, C>;
    type Partition = SharedTable<(u32, (R, C)), f64>;

    fn partitions(&self) -> Option<usize> {
        Some(self.map.values.tables().len())
    }

    fn partition(&self, index: usize) -> Self::Partition {
        Arc::clone(&self.map.values.tables()[index])
    }

    #[inline]
    fn change<T>(
        &self,
        table: &mut Locked<'_, Self::Partition>,
        replica: &u32,
        change: impl FnOnce(PartialMatrixOf<'_, R, C>) -> T,
    ) -> Option<T> {
        let replica = *replica;
        Some(change(PartialMatrixOf { table, replica }))
    }

    fn shorten<'short, 'long: 'short>(
        content: PartialMatrixOf<'long, R, C>,
    ) -> PartialMatrixOf<'short, R, C> {
        content
    }
}

impl<R: Key, C: Key> PartialElement for PartialMatrix<R, C> {
    fn add_replica(&self) -> Replica<Self::Partition> {
        self.map.add_replica()
    }
}

/// The replica of one instance, in the function of an [`update_local`](crate::Operators::update_local).
pub struct PartialMatrixOf<'a, R, C> {
    table: &'a mut Table<R, C>,
    replica: u32,
}

impl<R: Key, C: Key> PartialMatrixOf<'_, R, C> {
    /// Returns the number of a row and column.
    #[inline]
    pub fn get(&self, row: &R, column: &C) -> f64 {
        let number = self.table.get(&CellRef(&self.replica, row, column));
        number.copied().unwrap_or(0.0)
    }

    /// Sets the number of a row and column.
    #[inline]
    pub fn set(&mut self, row: &R, column: &C, number: f64) {
        self.update(row, column, |_| number);
    }

    /// Adds to the number of a row and column, and returns the sum.
    #[inline]
    pub fn add(&mut self, row: &R, column: &C, number: f64) -> f64 {
        self.update(row, column, |present| present + number)
    }

    /// Returns the numbers of a row that are not 0, in the order of the canonical bytes of their columns. The first call
    /// builds an index, as that of [`MapOf::iter`](crate::MapOf::iter).
    pub fn row(&self, row: &R) -> impl DoubleEndedIterator<Item = (&C, f64)> {
        row_of(self.table, self.replica, row)
    }

    /// Multiplies a row vector by this replica: as [`PartialMatrix::multiply`].
    pub fn multiply<'v>(&self, vector: impl IntoIterator<Item = (&'v R, f64)>) -> HashMap<C, f64>
    where
        R: 'v,
    {
        let vector: Vec<(&R, f64)> = vector.into_iter().collect();
        let mut product = HashMap::new();
        multiply(self.table, self.replica, &vector, &mut product);
        product
    }

    #[inline]
    fn update(&mut self, row: &R, column: &C, change: impl FnOnce(f64) -> f64) -> f64 {
        let cell = CellRef(&self.replica, row, column);
        let changed = self.table.update(&cell, |present| {
            let number = change(present.unwrap_or(0.0));
            *present = (number != 0.0).then_some(number);
            number
        });
        changed.expect("all numbers are in memory")
    }
}

fn multiply<R: Key, C: Key>(
    table: &Table<R, C>,
    replica: u32,
    vector: &[(&R, f64)],
    product: &mut HashMap<C, f64>,
) {
    for (row, factor) in vector {
        for (column, number) in row_of(table, replica, row) {
            *product.entry(column.clone()).or_default() += factor * number;
        }
    }
}

fn row_of<'a, R: Key, C: Key>(
    table: &'a Table<R, C>,
    replica: u32,
    row: &R,
) -> impl DoubleEndedIterator<Item = (&'a C, f64)> + use<'a, R, C> {
    let mut bytes = Vec::new();
    // Nothing follows the row, and it is encoded as in front of a column. A row without canonical bytes has no numbers: a
    // checkpoint would refuse them.
    let range = match encode_key(&(replica, (row, ())), &mut bytes) {
        Ok(()) => KeyRange::prefix(bytes),
        Err(_) => KeyRange::new("", Some(Vec::new())),
    };
    let cells = table.range(&range);
    cells.filter_map(|(_, cell)| {
        let (_, (_, column)) = cell;
        Some((column, *table.get(cell)?))
    })
}

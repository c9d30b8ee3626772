//! A vector of numbers for each key as a state element.

use std::sync::Arc;

use crate::state::element::Element;
use crate::state::lockable::Locked;
use crate::state::values::{Layout, Place, SharedTable, Values};
use crate::windows::Key;

/// A state element with a dense vector of finite numbers for each key, such as the factors of a user. A vector has a length,
/// and is 0 behind it. A checkpoint writes a changed vector whole: numbers that change one by one in a large vector belong
/// in a [row of a matrix](crate::Matrices). [`Keyed::update`](crate::Keyed::update) changes the vector of an item's key,
/// which it gets as [`VectorOf`]. A clone is another handle of the same element.
pub struct Vectors<K> {
    pub(crate) values: Values<K, Vec<f64>>,
}

impl<K> Clone for Vectors<K> {
    fn clone(&self) -> Self {
        Vectors {
            values: self.values.clone(),
        }
    }
}

impl<K: Key> Vectors<K> {
    pub(crate) fn new(place: &Place) -> Self {
        Vectors {
            values: Values::new(Layout::of_keys("vectors"), place),
        }
    }

    /// Returns the present vector of a key; an empty one also if another rank owns the key. It waits as [`Values::get`]
    /// does.
    pub fn get(&self, key: &K) -> Vec<f64> {
        self.values.get(key).unwrap_or_default()
    }
}

impl<K: Key> Element<K> for Vectors<K> {
    type Content<'a> = VectorOf<'a>;
    type Partition = SharedTable<K, Vec<f64>>;

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
        change: impl FnOnce(VectorOf<'_>) -> R,
    ) -> Option<R> {
        table.begin_call();
        table.update(key, |vector| change(VectorOf { vector }))
    }

    fn shorten<'short, 'long: 'short>(content: VectorOf<'long>) -> VectorOf<'short> {
        content
    }
}

/// The vector of one key, in the function of an [`update`](crate::Keyed::update).
pub struct VectorOf<'a> {
    /// `None` if it is empty.
    vector: &'a mut Option<Vec<f64>>,
}

impl VectorOf<'_> {
    /// Returns the length.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all numbers.
    pub fn as_slice(&self) -> &[f64] {
        self.vector.as_deref().unwrap_or_default()
    }

    /// Returns all numbers, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [f64] {
        self.vector.as_deref_mut().unwrap_or_default()
    }

    /// Returns a number; 0 behind the end.
    pub fn get(&self, index: usize) -> f64 {
        self.as_slice().get(index).copied().unwrap_or(0.0)
    }

    /// Sets a number. The vector becomes long enough for it.
    pub fn set(&mut self, index: usize, number: f64) {
        *self.at(index) = number;
    }

    /// Adds to a number, and returns the sum. The vector becomes long enough for it.
    pub fn add(&mut self, index: usize, number: f64) -> f64 {
        let sum = self.at(index);
        *sum += number;
        *sum
    }

    /// Makes the vector have these numbers and no others.
    pub fn assign(&mut self, numbers: &[f64]) {
        match numbers.is_empty() {
            true => *self.vector = None,
            false => numbers.clone_into(self.vector.get_or_insert_default()),
        }
    }

    /// Adds `factor` times another vector. The vector becomes as long as the other one.
    pub fn add_scaled(&mut self, factor: f64, other: &[f64]) {
        if let Some(last) = other.len().checked_sub(1) {
            self.at(last);
        }
        let numbers = self.as_mut_slice().iter_mut().zip(other);
        numbers.for_each(|(number, other)| *number += factor * other);
    }

    /// Multiplies each number by `factor`.
    pub fn scale(&mut self, factor: f64) {
        self.as_mut_slice().iter_mut().for_each(|it| *it *= factor);
    }

    /// Returns the dot product with another vector.
    pub fn dot(&self, other: &[f64]) -> f64 {
        self.as_slice()
            .iter()
            .zip(other)
            .map(|(one, other)| one * other)
            .sum()
    }

    /// Makes the vector empty.
    pub fn clear(&mut self) {
        *self.vector = None;
    }

    fn at(&mut self, index: usize) -> &mut f64 {
        let vector = self.vector.get_or_insert_default();
        if vector.len() <= index {
            vector.resize(index + 1, 0.0);
        }
        &mut vector[index]
    }
}

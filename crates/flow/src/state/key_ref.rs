//! Keys of a table as callers have them: whole, or as the parts of a pair.

use std::hash::Hash;

use hashbrown::Equivalent;

/// A reference to a key: a table finds the key by it, and copies the key only where it stores one.
pub trait KeyRef<K>: Hash + Equivalent<K> {
    /// Returns the key.
    fn to_key(&self) -> K;
}

impl<K: Hash + Eq + Clone> KeyRef<K> for K {
    fn to_key(&self) -> K {
        self.clone()
    }
}

/// A pair of which the caller has the parts. It hashes as the pair does.
#[derive(Hash)]
pub struct PairRef<'a, K, F>(pub &'a K, pub &'a F);

impl<K: Eq, F: Eq> Equivalent<(K, F)> for PairRef<'_, K, F> {
    fn equivalent(&self, (key, field): &(K, F)) -> bool {
        self.0 == key && self.1 == field
    }
}

/// A number and a pair, of which the caller has the parts: a row and a column.
#[derive(Hash)]
pub struct CellRef<'a, R, C>(pub &'a u32, pub &'a R, pub &'a C);

impl<R: Eq, C: Eq> Equivalent<(u32, (R, C))> for CellRef<'_, R, C> {
    fn equivalent(&self, (number, (row, column)): &(u32, (R, C))) -> bool {
        self.0 == number && self.1 == row && self.2 == column
    }
}

impl<R: Hash + Eq + Clone, C: Hash + Eq + Clone> KeyRef<(u32, (R, C))> for CellRef<'_, R, C> {
    fn to_key(&self) -> (u32, (R, C)) {
        (*self.0, (self.1.clone(), self.2.clone()))
    }
}

impl<K: Hash + Eq + Clone, F: Hash + Eq + Clone> KeyRef<(K, F)> for PairRef<'_, K, F> {
    fn to_key(&self) -> (K, F) {
        (self.0.clone(), self.1.clone())
    }
}

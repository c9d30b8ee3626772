//! The memory of tables, by estimate.

use std::hash::{BuildHasher, Hash};
use std::iter::Sum;
use std::mem::{needs_drop, size_of};
use std::ops::AddAssign;

use hashbrown::HashMap;
use serde::Serialize;

/// Entries of tables, and the memory of these: an estimate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableSize {
    /// The number of entries.
    pub entries: u64,
    /// The memory in bytes.
    pub bytes: u64,
}

/// Entries of a table that are looked at for the memory that they own elsewhere.
pub const SAMPLE_MAX: usize = 16;

impl TableSize {
    /// The size of a hash table, without the memory that its entries own elsewhere.
    pub fn of<K: Hash + Eq, V, H: BuildHasher>(table: &HashMap<K, V, H>) -> TableSize {
        TableSize {
            entries: table.len() as u64,
            bytes: table.allocation_size() as u64,
        }
    }

    /// The size of `len` entries in a list with room for `capacity`.
    pub fn of_list<T>(len: usize, capacity: usize) -> TableSize {
        TableSize {
            entries: len as u64,
            bytes: (capacity * size_of::<T>()) as u64,
        }
    }

    /// Adds the memory that entries own elsewhere: for each as much as the `sample` has on average.
    pub fn add_owned(&mut self, sample: impl Iterator<Item = u64>) {
        let (mut count, mut bytes) = (0, 0);
        for owned in sample.take(SAMPLE_MAX) {
            count += 1;
            bytes += owned;
        }
        self.bytes += (bytes * self.entries).checked_div(count).unwrap_or(0);
    }
}

impl AddAssign for TableSize {
    fn add_assign(&mut self, other: TableSize) {
        self.entries += other.entries;
        self.bytes += other.bytes;
    }
}

impl Sum for TableSize {
    fn sum<I: Iterator<Item = TableSize>>(sizes: I) -> TableSize {
        let mut sum = TableSize::default();
        sizes.for_each(|size| sum += size);
        sum
    }
}

/// Returns the bytes that a value owns elsewhere in memory: none if its type owns nothing, else about as many as its
/// encoding has.
pub fn owned_bytes<T: Serialize>(value: &T) -> u64 {
    match needs_drop::<T>() {
        true => postcard::to_stdvec(value).map_or(0, |bytes| bytes.len() as u64),
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_count_with_their_bytes_and_numbers_with_those_of_the_table() {
        let numbers: HashMap<u64, u64> = (0..1_000).map(|number| (number, number)).collect();
        let size = TableSize::of(&numbers);
        assert_eq!(size.entries, 1_000);
        assert!((16_000..70_000).contains(&size.bytes), "{size:?}");
        assert_eq!(owned_bytes(&7_u64), 0);

        let mut texts = TableSize::of_list::<String>(3, 4);
        assert_eq!(texts.bytes, 4 * 24);
        let sample = ["tea".to_owned(), "cocoa".to_owned()];
        texts.add_owned(sample.iter().map(owned_bytes));
        // Five bytes on average, with the lengths.
        assert_eq!(texts.bytes, 4 * 24 + 3 * 5);
    }
}

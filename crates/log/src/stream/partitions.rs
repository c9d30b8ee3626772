//! The number of partitions of the node: each takes memory for as long as it exists, so their number has a bound.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{LogError, Result};

/// Counts the partitions of all streams and objects, but for the log's own.
#[derive(Debug, Default)]
pub struct PartitionCount {
    /// Raised before partitions are made, lowered after they are gone.
    count: AtomicU64,
}

/// Room for partitions that are being made: dropping it gives the room back, unless the partitions exist.
#[derive(Debug)]
pub struct Reserved<'a> {
    of: &'a PartitionCount,
    count: u64,
}

impl PartitionCount {
    /// Reserves room for `more` partitions.
    ///
    /// # Errors
    /// When there would be more than `most`.
    pub fn reserve(&self, more: u64, most: u64) -> Result<Reserved<'_>> {
        let add = |has: u64| has.checked_add(more).filter(|sum| *sum <= most);
        let relaxed = Ordering::Relaxed;
        match self.count.fetch_update(relaxed, relaxed, add) {
            Ok(_) => Ok(Reserved {
                of: self,
                count: more,
            }),
            Err(has) => Err(LogError::TooManyPartitions { more, has, most }),
        }
    }

    /// Returns the number of partitions, including those that are being made.
    pub fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts partitions that are there already.
    pub fn add(&self, count: u64) {
        self.count.fetch_add(count, Ordering::Relaxed);
    }

    /// Gives back the room of partitions that are gone.
    pub fn release(&self, count: u64) {
        self.count.fetch_sub(count, Ordering::Relaxed);
    }
}

impl Reserved<'_> {
    /// The partitions exist.
    pub fn keep(mut self) {
        self.count = 0;
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.of.release(self.count);
    }
}

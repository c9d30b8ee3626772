//! Chooses the partition of a record without a key.

/// The partitioner for records without a key: fills a chunk for one partition, then moves to the
/// next one, so that chunks are full.
#[derive(Debug, Default)]
pub struct Turn {
    partition: usize,
    bytes: usize,
}

impl Turn {
    /// Returns the partition of the next record.
    pub fn next(&mut self, record_bytes: usize, chunk_bytes: usize, partitions: usize) -> usize {
        if self.bytes >= chunk_bytes {
            self.bytes = 0;
            self.partition += 1;
        }
        self.partition %= partitions.max(1);
        self.bytes += record_bytes;
        self.partition
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_without_a_key_fill_one_chunk_after_another() {
        let mut turn = Turn::default();
        let partitions: Vec<usize> = (0..7).map(|_| turn.next(10, 20, 3)).collect();
        assert_eq!(partitions, [0, 0, 1, 1, 2, 2, 0]);
    }
}

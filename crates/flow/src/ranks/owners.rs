//! The owner of each key: the rank and the partition that aggregate all items and hold all state of the key.

use millstream_base::key::{KeyError, encode_key};
use millstream_base::murmur2;
use serde::Serialize;

/// The number of key ranges. The hash of a key's bytes selects its range; each partition of each rank owns adjacent ranges.
const KEY_RANGES: u64 = 4096;

/// The owners of keys among all partitions of all ranks: the same in each run and on each rank. A clone is for another
/// instance, which encodes keys in a buffer of its own.
#[derive(Clone)]
pub struct KeyOwners {
    ranks: u64,
    /// The partitions of one rank.
    partitions: u64,
    /// The key at hand.
    bytes: Vec<u8>,
}

/// The place of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub rank: u32,
    /// The partition of the rank.
    pub partition: usize,
}

impl KeyOwners {
    /// The owners among `ranks` ranks with `partitions` partitions each.
    pub fn new(ranks: u32, partitions: usize) -> KeyOwners {
        KeyOwners {
            ranks: u64::from(ranks),
            partitions: partitions as u64,
            bytes: Vec::new(),
        }
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> u64 {
        self.ranks
    }

    /// Returns the owner of a key.
    ///
    /// # Errors
    /// When the key has no canonical encoding.
    #[inline]
    pub fn of<K: Serialize>(&mut self, key: &K) -> Result<Owner, KeyError> {
        // `serialize` may have panicked in the middle of the key before.
        self.bytes.clear();
        encode_key(key, &mut self.bytes)?;
        Ok(self.of_bytes(&self.bytes))
    }

    /// Returns the owner of a replica of a partial element. Ranks, and then partitions, take turns.
    pub fn of_replica(&self, number: u32) -> Owner {
        let number = u64::from(number);
        Owner {
            rank: (number % self.ranks) as u32,
            partition: (number / self.ranks % self.partitions) as usize,
        }
    }

    /// Returns the owner of the key that has these bytes.
    #[inline]
    pub fn of_bytes(&self, key: &[u8]) -> Owner {
        let range = u64::from(murmur2(key)) % KEY_RANGES;
        // Each rank owns a stretch of the ranges, and each of its partitions a part of that.
        let stretch = range * self.ranks;
        Owner {
            rank: (stretch / KEY_RANGES) as u32,
            partition: (stretch % KEY_RANGES * self.partitions / KEY_RANGES) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_spread_evenly_over_ranks_and_partitions() {
        for (ranks, partitions) in [(4, 4), (1, 16), (16, 1), (3, 5)] {
            let mut owners = KeyOwners::new(ranks, partitions);
            let mut counts = vec![0; ranks as usize * partitions];
            for key in 0..16_000_u32 {
                let owner = owners.of(&key).unwrap();
                counts[owner.rank as usize * partitions + owner.partition] += 1;
            }
            let even = 16_000 / counts.len();
            assert!(
                counts
                    .iter()
                    .all(|count| (even * 4 / 5..even * 6 / 5).contains(count)),
                "{ranks} ranks of {partitions}: {counts:?}"
            );
        }
    }

    #[test]
    fn the_owner_of_a_key_has_its_golden_values() {
        let mut owners = KeyOwners::new(4, 4);
        let mut of = |key: &str| {
            let owner = owners.of(&key).unwrap();
            (owner.rank, owner.partition)
        };
        // murmur2 of "foobar" is -790332482, which is in range 3006 of 4096.
        assert_eq!(of("foobar"), (2, 3));
        assert_eq!(owners.of_bytes(b"foobar"), owners.of(&"foobar").unwrap());
    }
}

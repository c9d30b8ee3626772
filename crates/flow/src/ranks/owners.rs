//! The owner of each key: the rank and the partition at which all that is known of the key comes together.

use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, OnceLock};

use foldhash::fast::FixedState;

/// The owners of keys. All ranks agree on them when they begin.
#[derive(Clone, Default)]
pub struct KeyOwners {
    /// Set before the flow runs.
    hasher: Arc<OnceLock<FixedState>>,
}

/// The place of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub rank: u32,
    /// The partition of the rank.
    pub partition: usize,
}

impl KeyOwners {
    pub fn settle(&self, seed: u64) {
        self.hasher.get_or_init(|| FixedState::with_seed(seed));
    }

    /// Returns the owner of a key, among `ranks` ranks with `partitions` partitions each.
    #[inline]
    pub fn of<K: Hash>(&self, key: &K, ranks: u32, partitions: usize) -> Owner {
        let hasher = self.hasher.get_or_init(|| FixedState::with_seed(0));
        let hash = hasher.hash_one(key);
        // Of different bits: else a rank would use only some of its partitions.
        Owner {
            rank: ((hash >> 32) % u64::from(ranks)) as u32,
            partition: ((hash & 0xFFFF_FFFF) % partitions as u64) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_spread_evenly_over_ranks_and_partitions() {
        let owners = KeyOwners::default();
        owners.settle(7);
        let (ranks, partitions) = (4, 4);
        let mut counts = vec![0; 16];
        for key in 0..16_000u32 {
            let owner = owners.of(&key, ranks, partitions);
            counts[owner.rank as usize * partitions + owner.partition] += 1;
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
    }
}

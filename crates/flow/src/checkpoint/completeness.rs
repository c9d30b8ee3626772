//! Decides which checkpoints are complete, and which shards are obsolete.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkpoint::store::{Checkpoints, ShardKey};
use crate::error::BoxError;

/// Returns the number of the newest checkpoint of which the shards of all ranks are stored.
pub fn newest_complete(shards: &[ShardKey], ranks: u32) -> Option<u64> {
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    for key in shards.iter().filter(|key| key.rank < ranks) {
        *counts.entry(key.checkpoint).or_default() += 1;
    }
    let mut complete = counts.iter().rev().filter(|(_, count)| **count == ranks);
    complete.next().map(|(number, _)| *number)
}

/// Removes this rank's shards before `last`, except shards of the checkpoints `kept`, which other ranks may need. They are of this
/// run, or of `resumed_run`; shards of other runs are not touched, since one of these may have taken this run's place.
pub fn remove_others(
    store: &dyn Checkpoints,
    last: ShardKey,
    resumed_run: u64,
    kept: &BTreeSet<u64>,
) -> Result<(), BoxError> {
    let shards = store.list()?.into_iter();
    shards
        .filter(|key| key.rank == last.rank && key.checkpoint < last.checkpoint)
        .filter(|key| key.run == last.run || key.run == resumed_run)
        .filter(|key| !kept.contains(&key.checkpoint))
        .try_for_each(|key| store.remove(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_complete_when_all_ranks_have_stored_their_shards() {
        let key = |checkpoint, rank| ShardKey {
            checkpoint,
            rank,
            run: 0,
        };
        let mut shards = vec![key(4, 0), key(4, 1), key(5, 0), key(6, 1)];
        assert_eq!(newest_complete(&shards, 2), Some(4));
        assert_eq!(newest_complete(&shards, 3), None);
        shards.push(key(5, 1));
        assert_eq!(newest_complete(&shards, 2), Some(5));
    }
}

//! Which checkpoints are complete, and which shards are of no use any more.

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

/// Removes this rank's shards before `last` but those of the checkpoints `kept`, which others may count on.
pub fn remove_others(
    store: &dyn Checkpoints,
    last: ShardKey,
    kept: &BTreeSet<u64>,
) -> Result<(), BoxError> {
    let shards = store.list()?.into_iter();
    shards
        .filter(|key| key.rank == last.rank && key.checkpoint < last.checkpoint)
        .filter(|key| !kept.contains(&key.checkpoint))
        .try_for_each(|key| store.remove(key))
}

/// Removes this rank's shards that are of no use any more, `last` being the last one. For flows in which nothing waits for
/// complete checkpoints: one that becomes complete while this runs may lose its shard again.
pub fn remove_old(store: &dyn Checkpoints, last: ShardKey, ranks: u32) -> Result<(), BoxError> {
    let shards = store.list()?;
    old(&shards, last, ranks)
        .into_iter()
        .try_for_each(|key| store.remove(key))
}

/// Returns a rank's shards that are older than the newest complete checkpoint, and those that wait for the shards of
/// other ranks: else they would pile up where another rank can never store its own. The last two stay, since other
/// ranks may be writing theirs, and so does the oldest one that others may still reach, however far behind they are.
fn old(shards: &[ShardKey], last: ShardKey, ranks: u32) -> Vec<ShardKey> {
    let newest = newest_complete(shards, ranks).unwrap_or(0);
    // Each rank stores its shards in their order.
    let may_come = |number: u64| {
        (0..ranks).all(|rank| {
            let mut of_rank = shards.iter().filter(|key| key.rank == rank);
            let has_later = of_rank.clone().any(|key| key.checkpoint > number);
            !has_later || of_rank.any(|key| key.checkpoint == number)
        })
    };
    let own = || shards.iter().filter(|key| key.rank == last.rank).copied();
    let waiting =
        || own().filter(|key| key.checkpoint > newest && key.checkpoint + 1 < last.checkpoint);
    let oldest = waiting().filter(|key| may_come(key.checkpoint)).min();
    let before = own().filter(|key| key.checkpoint < newest);
    before
        .chain(waiting().filter(|key| Some(*key) != oldest))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_complete_when_all_ranks_have_stored_their_shards() {
        let key = |checkpoint, rank| ShardKey { checkpoint, rank };
        let mut shards = vec![key(4, 0), key(4, 1), key(5, 0), key(6, 1)];
        assert_eq!(newest_complete(&shards, 2), Some(4));
        assert_eq!(newest_complete(&shards, 3), None);
        shards.push(key(5, 1));
        assert_eq!(newest_complete(&shards, 2), Some(5));
    }

    #[test]
    fn shards_do_not_pile_up_where_another_rank_stores_none() {
        let key = |checkpoint, rank| ShardKey { checkpoint, rank };
        let mut shards = vec![key(1, 0), key(1, 1)];
        for number in 2..100 {
            shards.push(key(number, 0));
            let old = old(&shards, key(number, 0), 2);
            shards.retain(|shard| !old.contains(shard));
            assert!(shards.len() <= 5, "{shards:?}");
            assert_eq!(newest_complete(&shards, 2), Some(1));
        }
        // The other one comes to the oldest after all, or leaves it out and comes to the last but one.
        assert_eq!(shards[2..], [key(2, 0), key(98, 0), key(99, 0)]);
        shards.push(key(98, 1));
        assert_eq!(newest_complete(&shards, 2), Some(98));
        assert_eq!(old(&shards, key(99, 0), 2), [key(1, 0), key(2, 0)]);
    }
}

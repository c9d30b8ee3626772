//! The way of partial results that arrived from another rank: to the partition that owns the key.

use std::hash::Hash;

use crate::ranks::owners::KeyOwners;
use crate::stage::attempt::Attempt;
use crate::stage::ends::outbox::Outbox;
use crate::stage::ends::to_rings::Partitioner;
use crate::stage::user_code::Label;
use crate::windows::Partial;

/// To the partition of this rank that owns the key.
pub struct ToOwner {
    pub owners: KeyOwners,
    pub ranks: u32,
    pub label: Label,
}

impl<K, S> Partitioner<Partial<K, S>> for ToOwner
where
    K: Hash + Clone,
    S: Clone,
{
    #[inline]
    fn put<A: Attempt>(
        &self,
        attempt: &A,
        item: &Partial<K, S>,
        outbox: &mut Outbox<Partial<K, S>>,
    ) {
        // A partial result is the sum of many items: no dead letter could name what was lost with it.
        attempt.change(&self.label, || {
            let owner = self.owners.of(&item.key, self.ranks, outbox.len());
            outbox.put(owner.partition, item.clone());
        });
    }
}

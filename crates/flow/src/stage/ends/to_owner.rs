//! The way of messages that arrived from another rank: to the partition that owns the key.

use serde::Serialize;

use crate::ranks::owners::KeyOwners;
use crate::stage::attempt::Attempt;
use crate::stage::ends::outbox::Outbox;
use crate::stage::ends::to_rings::Partitioner;
use crate::stage::user_code::Label;
use crate::windows::Partial;

/// A message that belongs to a key.
pub trait OfKey {
    type Key: Serialize;

    fn key(&self) -> &Self::Key;
}

impl<K: Serialize, S> OfKey for Partial<K, S> {
    type Key = K;

    fn key(&self) -> &K {
        &self.key
    }
}

/// To the partition of this rank that owns the key.
pub struct ToOwner {
    pub owners: KeyOwners,
    pub label: Label,
}

impl<M: OfKey + Clone> Partitioner<M> for ToOwner {
    #[inline]
    fn put<A: Attempt>(&mut self, attempt: &A, item: &M, outbox: &mut Outbox<M>) {
        // A partial result is the sum of many items: no dead letter could name the lost items.
        attempt.change(&self.label, || match self.owners.of(item.key()) {
            Ok(owner) => outbox.put(owner.partition, item.clone()),
            // The rank that sent it could encode the key.
            Err(error) => panic!("a key that another rank sent cannot be encoded: {error}"),
        });
    }
}

//! Items on their way to the owner of their key.

use std::fmt::Debug;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ranks::message::Message;
use crate::ranks::owners::KeyOwners;
use crate::stage::attempt::Attempt;
use crate::stage::ends::exchange::Exchange;
use crate::stage::ends::to_owner::OfKey;
use crate::stage::ends::to_ranks::Router;
use crate::stage::user_code::Label;

/// An item, or the part of it that its key's owner needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeyedItem<K, M> {
    /// The key.
    pub key: K,
    /// The item, or that part.
    pub content: M,
}

impl<K: Serialize, M> OfKey for KeyedItem<K, M> {
    type Key = K;

    fn key(&self) -> &K {
        &self.key
    }
}

/// Sends items to the partition, on any rank, that owns the key. `G` makes the content of the message.
pub struct ToKeyOwner<F, G> {
    pub owners: KeyOwners,
    pub key: Arc<F>,
    pub content: G,
    pub label: Label,
}

impl<T, K, M, F, G> Router<T, KeyedItem<K, M>> for ToKeyOwner<F, G>
where
    T: Debug,
    K: Message,
    M: Message,
    F: Fn(&T) -> K + Send + Sync + 'static,
    G: Fn(&T) -> M + Send + 'static,
{
    #[inline]
    fn put<A: Attempt>(&mut self, attempt: &A, item: &T, exchange: &mut Exchange<KeyedItem<K, M>>) {
        let put = attempt.call(&self.label, item, || {
            let key = (self.key)(item);
            let owner = self.owners.of(&key);
            let owner = owner.map_err(|error| format!("its key: {error}"))?;
            let content = (self.content)(item);
            exchange.put(owner, KeyedItem { key, content })
        });
        if let Some(Err(error)) = put {
            attempt.reject(&self.label, item, error);
        }
    }
}

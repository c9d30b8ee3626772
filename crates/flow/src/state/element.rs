//! The contract of state elements that are partitioned by key, as operators change them.

use std::sync::Arc;

use parking_lot::Mutex;

/// A state element that is partitioned by keys of the type `K`, such as [`Values`](crate::Values) or
/// [`Maps`](crate::Maps). [`Keyed::update`](crate::Keyed::update) changes it. Only this crate implements it.
pub trait Element<K>: Clone + Send + Sync + 'static {
    /// The content of one key, which the function of an update reads and changes.
    type Content<'a>;

    /// The content of the keys of one partition.
    #[doc(hidden)]
    type Table: Send + 'static;

    /// The tables by partition.
    #[doc(hidden)]
    fn tables(&self) -> &[Arc<Mutex<Self::Table>>];

    /// Whether the content of a key is in memory: see [`change`](Self::change).
    #[doc(hidden)]
    fn is_known(_: &Self::Table, _: &K) -> bool {
        true
    }

    /// Lets the content of keys be read that is not in memory.
    #[doc(hidden)]
    fn want(_: &mut Self::Table, _: Vec<K>) {}

    /// Lets `change` read and change the content of a key. Returns `None`, without a call, if it is not in memory.
    #[doc(hidden)]
    fn change<R>(
        &self,
        table: &mut Self::Table,
        key: &K,
        change: impl FnOnce(&mut Self::Content<'_>) -> R,
    ) -> Option<R>;
}

/// A partial state element: each instance of an operator has a replica of its own, which
/// [`update_local`](crate::Operators::update_local) changes. Only this crate implements it.
pub trait PartialElement: Element<u32> {
    /// Returns a replica that no instance has.
    #[doc(hidden)]
    fn add_replica(&self) -> Replica<Self::Table>;
}

/// A replica of a partial state element.
pub struct Replica<T> {
    /// Unlike those of all other replicas, on all ranks.
    pub number: u32,
    /// The table that has the replica, maybe among others.
    pub table: Arc<Mutex<T>>,
}

#[cfg(test)]
mod tests;

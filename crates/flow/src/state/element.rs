//! The contract of state elements that are partitioned by key, as operators change them.

use crate::state::lockable::{Lockable, Locked};

/// A state element that is partitioned by keys of the type `K`, such as [`Values`](crate::Values) or
/// [`Maps`](crate::Maps), or a tuple of two, three or four of these. [`Keyed::update`](crate::Keyed::update) changes
/// it. Only this crate implements it.
pub trait Element<K>: Clone + Send + Sync + 'static {
    /// The content of one key, which the function of an update reads and changes; of a tuple of elements the tuple of
    /// their contents.
    type Content<'a>;

    /// The tables with the keys of one partition.
    #[doc(hidden)]
    type Partition: Lockable;

    /// Returns the number of partitions; `None` if the elements of a tuple have different numbers of them.
    #[doc(hidden)]
    fn partitions(&self) -> Option<usize>;

    /// Returns a partition of the [`partitions`](Self::partitions).
    #[doc(hidden)]
    fn partition(&self, index: usize) -> Self::Partition;

    /// Whether the content of a key is in memory: see [`change`](Self::change).
    #[doc(hidden)]
    fn is_known(_: &Locked<'_, Self::Partition>, _: &K) -> bool {
        true
    }

    /// Lets the content of keys be read that is not in memory.
    #[doc(hidden)]
    fn want(_: &mut Locked<'_, Self::Partition>, _: Vec<K>) {}

    /// Lets `change` read and change the content of a key. Returns `None`, without a call, if it is not in memory.
    #[doc(hidden)]
    fn change<R>(
        &self,
        tables: &mut Locked<'_, Self::Partition>,
        key: &K,
        change: impl FnOnce(Self::Content<'_>) -> R,
    ) -> Option<R>;

    /// Returns the same content for a shorter time, so that contents of several elements have one lifetime.
    #[doc(hidden)]
    fn shorten<'short, 'long: 'short>(content: Self::Content<'long>) -> Self::Content<'short>;
}

/// A partial state element: each instance of an operator has a replica of its own, which
/// [`update_local`](crate::Operators::update_local) changes. Only this crate implements it.
pub trait PartialElement: Element<u32> {
    /// Returns a replica that no instance has.
    #[doc(hidden)]
    fn add_replica(&self) -> Replica<Self::Partition>;
}

/// A replica of a partial state element.
pub struct Replica<P> {
    /// Unlike those of all other replicas, on all ranks.
    pub number: u32,
    /// The table that has the replica, maybe among others.
    pub table: P,
}

#[cfg(test)]
mod tests;

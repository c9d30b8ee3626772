//! Windowed joins: an aggregate that retains the items of both sides.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::aggregate::{Aggregate, Combine};

/// An item of one of the two streams that are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side<L, R> {
    /// An item of the first stream.
    Left(L),
    /// An item of the second stream.
    Right(R),
}

/// The items that two streams have of a key in a window: the items of the first and the items of the
/// second stream, each in no particular order. Every pair of them is a row of the streams' equi-join; if only one
/// stream has the key, the other list is empty.
///
/// A state holds a copy of each item until its windows have been released.
///
/// ```
/// use millstream_base::Timestamp;
/// use millstream_flow::windows::{Arrival, Joined, Side, WindowStore, Windows};
///
/// let joined = Joined::<String, u32>::new();
/// let mut store = WindowStore::new(Windows::tumbling(1_000), 0);
/// for (time, item) in [
///     (10, Side::Left("view".to_owned())),
///     (20, Side::Right(7)),
///     (30, Side::Right(8)),
/// ] {
///     let arrival = store.add(&joined, &"key", Timestamp(time), &item);
///     assert_eq!(arrival, Arrival::OnTime);
/// }
/// let mut pairs = Vec::new();
/// store.close_all(&joined, &mut |result| {
///     let (lefts, rights) = result.value;
///     for left in &lefts {
///         pairs.extend(rights.iter().map(|right| (left.clone(), *right)));
///     }
/// });
/// assert_eq!(pairs, [("view".to_owned(), 7), ("view".to_owned(), 8)]);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Joined<L, R> {
    of: PhantomData<fn() -> (L, R)>,
}

impl<L, R> Joined<L, R> {
    /// Returns the aggregate that joins streams of `L` and `R`.
    pub fn new() -> Self {
        Self { of: PhantomData }
    }
}

impl<L, R> Default for Joined<L, R> {
    fn default() -> Self {
        Self::new()
    }
}

/// Adds the items of one stream to a [`Joined`] state.
pub struct OneSide<L, R, T> {
    /// Puts an item into the list of its stream.
    pub put: fn(&mut (Vec<L>, Vec<R>), &T),
}

impl<L, R> Combine for Joined<L, R>
where
    L: Clone + Send + Serialize + DeserializeOwned + 'static,
    R: Clone + Send + Serialize + DeserializeOwned + 'static,
{
    type State = (Vec<L>, Vec<R>);
    type Out = (Vec<L>, Vec<R>);

    fn empty(&self) -> Self::State {
        (Vec::new(), Vec::new())
    }

    fn merge(&self, state: &mut Self::State, other: &Self::State) {
        state.0.extend_from_slice(&other.0);
        state.1.extend_from_slice(&other.1);
    }

    fn result(&self, state: &Self::State, _: u64) -> Self::Out {
        state.clone()
    }
}

impl<L, R> Aggregate<Side<L, R>> for Joined<L, R>
where
    L: Clone + Send + Serialize + DeserializeOwned + 'static,
    R: Clone + Send + Serialize + DeserializeOwned + 'static,
{
    #[inline]
    fn add(&self, (lefts, rights): &mut Self::State, item: &Side<L, R>) {
        match item {
            Side::Left(left) => lefts.push(left.clone()),
            Side::Right(right) => rights.push(right.clone()),
        }
    }
}

impl<L, R, T: 'static> Combine for OneSide<L, R, T>
where
    L: Clone + Send + Serialize + DeserializeOwned + 'static,
    R: Clone + Send + Serialize + DeserializeOwned + 'static,
{
    type State = (Vec<L>, Vec<R>);
    type Out = (Vec<L>, Vec<R>);

    fn empty(&self) -> Self::State {
        Joined::new().empty()
    }

    fn merge(&self, state: &mut Self::State, other: &Self::State) {
        Joined::new().merge(state, other);
    }

    fn result(&self, state: &Self::State, events: u64) -> Self::Out {
        Joined::new().result(state, events)
    }
}

impl<L, R, T: 'static> Aggregate<T> for OneSide<L, R, T>
where
    L: Clone + Send + Serialize + DeserializeOwned + 'static,
    R: Clone + Send + Serialize + DeserializeOwned + 'static,
{
    #[inline]
    fn add(&self, state: &mut Self::State, item: &T) {
        (self.put)(state, item);
    }
}

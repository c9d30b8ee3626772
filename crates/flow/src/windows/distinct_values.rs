//! The exact number of different values.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;
use std::marker::PhantomData;

use foldhash::fast::RandomState;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::aggregate::{Aggregate, Combine};

/// How many different values the items have, exactly. A state holds a copy of every value: its memory, and the bytes
/// that go to other ranks and into checkpoints, grow with the number of values without a bound. Where 1.6 % more or
/// less will do, [`Distinct`](super::Distinct) takes 4 KiB.
///
/// ```
/// use millstream_flow::windows::{Aggregate, Combine, ExactDistinct};
///
/// struct View { user: String }
///
/// let users = ExactDistinct::of(|view: &View| view.user.as_str());
/// let mut state = users.empty();
/// for number in 0..3_000 {
///     users.add(&mut state, &View { user: format!("user {}", number % 1_000) });
/// }
/// assert_eq!(users.result(&state, 2_000), 1_000);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ExactDistinct<F, V: ?Sized> {
    value: F,
    of: PhantomData<fn(&V)>,
}

impl<F, V: ?Sized> ExactDistinct<F, V> {
    /// Counts the values that `value` returns.
    pub fn of<T: ?Sized>(value: F) -> Self
    where
        F: Fn(&T) -> &V,
    {
        Self {
            value,
            of: PhantomData,
        }
    }
}

/// The distinct values.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(
    serialize = "V: Hash + Eq + Serialize",
    deserialize = "V: Hash + Eq + Deserialize<'de>"
))]
pub struct DistinctValues<V>(HashSet<V, RandomState>);

impl<V: Hash + Eq + Clone> DistinctValues<V> {
    fn absorb(&mut self, other: &Self) {
        for value in &other.0 {
            if !self.0.contains(value) {
                self.0.insert(value.clone());
            }
        }
    }
}

impl<F, V> Combine for ExactDistinct<F, V>
where
    F: Send + Sync + 'static,
    V: ToOwned + ?Sized + 'static,
    V::Owned: Hash + Eq + Clone + Send + Serialize + DeserializeOwned + 'static,
{
    type State = DistinctValues<V::Owned>;
    type Out = u64;

    fn empty(&self) -> Self::State {
        DistinctValues(HashSet::default())
    }

    fn merge(&self, state: &mut Self::State, other: &Self::State) {
        state.absorb(other);
    }

    fn result(&self, DistinctValues(values): &Self::State, _: u64) -> u64 {
        values.len() as u64
    }
}

impl<T, F, V> Aggregate<T> for ExactDistinct<F, V>
where
    T: ?Sized,
    F: Fn(&T) -> &V + Send + Sync + 'static,
    V: ToOwned + Hash + Eq + ?Sized + 'static,
    V::Owned: Borrow<V> + Hash + Eq + Clone + Send + Serialize + DeserializeOwned + 'static,
{
    #[inline]
    fn add(&self, DistinctValues(values): &mut Self::State, item: &T) {
        let value = (self.value)(item);
        if !values.contains(value) {
            values.insert(value.to_owned());
        }
    }
}

//! The items with the highest scores.

use std::cmp::Ordering;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::aggregate::{Aggregate, Combine};

/// The items with the highest scores: see [`top`].
#[derive(Debug, Clone, Copy)]
pub struct Top<T, S, F> {
    count: usize,
    score: F,
    of: PhantomData<fn(T) -> S>,
}

/// The `count` items with the highest scores, the highest first, of each window and key. A score may be a number,
/// a text, or a tuple of them; for the lowest scores, wrap it in [`Reverse`](std::cmp::Reverse). An item whose
/// score cannot be compared, a NaN, is left out.
///
/// Of items with equal scores, those come first whose serialized bytes are smaller: an arbitrary order, but the same
/// in every run on any number of workers and ranks. For another order, make the deciding value a part of the score.
///
/// A state holds up to `count` items with their scores, and so does each partial result between workers and
/// ranks.
///
/// ```
/// use millstream_flow::windows::{Aggregate, Combine, top};
///
/// let dearest = top(2, |(_, price): &(String, f64)| *price);
/// let mut state = dearest.empty();
/// for (fruit, price) in [("fig", 0.5), ("pear", 2.5), ("kiwi", 1.0), ("?", f64::NAN)] {
///     dearest.add(&mut state, &(fruit.to_owned(), price));
/// }
/// assert_eq!(dearest.result(&state, 3), [("pear".to_owned(), 2.5), ("kiwi".to_owned(), 1.0)]);
/// ```
pub fn top<T, S, F>(count: usize, score: F) -> Top<T, S, F>
where
    F: Fn(&T) -> S,
    S: PartialOrd,
{
    Top {
        count,
        score,
        of: PhantomData,
    }
}

impl<T, S, F> Top<T, S, F>
where
    T: Clone + Serialize,
    S: Clone + PartialOrd,
{
    /// Puts an item where it belongs, if it belongs to the highest.
    pub(super) fn put(&self, state: &mut Vec<(S, T)>, score: &S, item: &T) {
        put(self.count, state, score, item);
    }
}

/// Puts an item where it belongs among the `count` highest, if it belongs to them. Returns whether it does.
pub(crate) fn put<S, T>(count: usize, state: &mut Vec<(S, T)>, score: &S, item: &T) -> bool
where
    T: Clone + Serialize,
    S: Clone + PartialOrd,
{
    let is_full = state.len() >= count;
    let is_below =
        |(last_score, last): &(S, T)| order((score, item), (last_score, last)) != Ordering::Less;
    if is_full && state.last().is_none_or(is_below) {
        return false;
    }
    let place = state.partition_point(|(other_score, other)| {
        order((other_score, other), (score, item)) != Ordering::Greater
    });
    if is_full {
        state.pop();
    }
    state.insert(place, (score.clone(), item.clone()));
    true
}

/// The higher score is less: it comes first.
fn order<S: PartialOrd, T: Serialize>(
    (score, item): (&S, &T),
    (other_score, other): (&S, &T),
) -> Ordering {
    match other_score.partial_cmp(score) {
        Some(Ordering::Equal) | None => bytes_of(item).cmp(&bytes_of(other)),
        Some(order) => order,
    }
}

/// None of an item that cannot be serialized, which then goes to no other rank either.
#[cold]
fn bytes_of<T: Serialize>(item: &T) -> Option<Vec<u8>> {
    postcard::to_stdvec(item).ok()
}

impl<T, S, F> Combine for Top<T, S, F>
where
    T: Clone + Send + Serialize + DeserializeOwned + 'static,
    S: Clone + PartialOrd + Send + Serialize + DeserializeOwned + 'static,
    F: Send + Sync + 'static,
{
    /// The highest first.
    type State = Vec<(S, T)>;
    type Out = Vec<T>;

    fn empty(&self) -> Self::State {
        Vec::new()
    }

    fn merge(&self, state: &mut Self::State, other: &Self::State) {
        for (score, item) in other {
            self.put(state, score, item);
        }
    }

    fn result(&self, state: &Self::State, _: u64) -> Vec<T> {
        state.iter().map(|(_, item)| item.clone()).collect()
    }
}

impl<T, S, F> Aggregate<T> for Top<T, S, F>
where
    T: Clone + Send + Serialize + DeserializeOwned + 'static,
    S: Clone + PartialOrd + Send + Serialize + DeserializeOwned + 'static,
    F: Fn(&T) -> S + Send + Sync + 'static,
{
    #[inline]
    fn add(&self, state: &mut Self::State, item: &T) {
        let score = (self.score)(item);
        if score.partial_cmp(&score).is_some() {
            self.put(state, &score, item);
        }
    }
}

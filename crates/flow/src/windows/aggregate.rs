//! Aggregates: functions over the items of a window.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::retract::Retract;

/// Combines partial results into the result of a window. [`Aggregate`] adds the items.
///
/// A window's items are added up in several places and in any order: `merge` must be associative
/// and commutative, and [`empty`](Combine::empty) must be neutral, for results not to depend on it.
pub trait Combine: Send + Sync + 'static {
    /// The partial result of some items. It travels between ranks and into checkpoints.
    type State: Clone + Send + Serialize + DeserializeOwned + 'static;
    /// The result when the window ends. Readers of the state find none if JSON cannot hold it: a map whose keys are no text, or
    /// an integer above `u64::MAX`.
    type Out: Clone + Serialize + Send + 'static;

    /// The state of no items.
    fn empty(&self) -> Self::State;

    /// Adds to `state` the items that `other` has.
    fn merge(&self, state: &mut Self::State, other: &Self::State);

    /// Returns the result of `state`, which has `events` items. That number is stored for every window: an aggregate
    /// need not count its items itself.
    fn result(&self, state: &Self::State, events: u64) -> Self::Out;
}

/// An aggregate over items of type `T`.
pub trait Aggregate<T: ?Sized>: Combine {
    /// Adds one item to `state`.
    fn add(&self, state: &mut Self::State, item: &T);
}

/// Counts items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count;

impl Combine for Count {
    type State = ();
    type Out = u64;

    fn empty(&self) {}

    fn merge(&self, (): &mut (), (): &()) {}

    fn result(&self, (): &(), events: u64) -> u64 {
        events
    }
}

impl<T: ?Sized> Aggregate<T> for Count {
    #[inline]
    fn add(&self, (): &mut (), _: &T) {}
}

/// An aggregate made of functions: see [`fold`].
#[derive(Debug, Clone, Copy)]
pub struct Fold<E, A, M> {
    empty: E,
    add: A,
    merge: M,
}

/// An aggregate of the user's own: `empty` makes the state of no items, `add` adds an item to it, `merge` adds
/// another state. The state is the result.
///
/// ```
/// use millstream_flow::windows::{Aggregate, Combine, fold};
///
/// let longest = fold(
///     String::new,
///     |longest: &mut String, word: &str| {
///         if word.len() > longest.len() {
///             word.clone_into(longest);
///         }
///     },
///     |longest: &mut String, other: &String| {
///         if other.len() > longest.len() {
///             other.clone_into(longest);
///         }
///     },
/// );
/// let mut state = longest.empty();
/// longest.add(&mut state, "pear");
/// longest.add(&mut state, "fig");
/// assert_eq!(longest.result(&state, 2), "pear");
/// ```
pub fn fold<T, S, E, A, M>(empty: E, add: A, merge: M) -> Fold<E, A, M>
where
    T: ?Sized,
    E: Fn() -> S,
    A: Fn(&mut S, &T),
    M: Fn(&mut S, &S),
{
    Fold { empty, add, merge }
}

impl<S, E, A, M> Combine for Fold<E, A, M>
where
    S: Clone + Send + Serialize + DeserializeOwned + 'static,
    E: Fn() -> S + Send + Sync + 'static,
    A: Send + Sync + 'static,
    M: Fn(&mut S, &S) + Send + Sync + 'static,
{
    type State = S;
    type Out = S;

    fn empty(&self) -> S {
        (self.empty)()
    }

    fn merge(&self, state: &mut S, other: &S) {
        (self.merge)(state, other);
    }

    fn result(&self, state: &S, _: u64) -> S {
        state.clone()
    }
}

impl<T, S, E, A, M> Aggregate<T> for Fold<E, A, M>
where
    T: ?Sized,
    S: Clone + Send + Serialize + DeserializeOwned + 'static,
    E: Fn() -> S + Send + Sync + 'static,
    A: Fn(&mut S, &T) + Send + Sync + 'static,
    M: Fn(&mut S, &S) + Send + Sync + 'static,
{
    #[inline]
    fn add(&self, state: &mut S, item: &T) {
        (self.add)(state, item);
    }
}

/// An aggregate that makes one item of all: see [`reduce`].
#[derive(Debug, Clone, Copy)]
pub struct Reduce<T, F> {
    function: F,
    item: PhantomData<fn(T)>,
}

/// An aggregate that makes one item of all: `function` adds an item to another, and must be associative and
/// commutative. The result is `None` only where there are no items, as where a window is read before it has any.
///
/// ```
/// use millstream_flow::windows::{Aggregate, Combine, reduce};
///
/// let dearest = reduce(|dearest: &mut (u32, String), bid: &(u32, String)| {
///     if *bid > *dearest {
///         dearest.clone_from(bid);
///     }
/// });
/// let mut state = dearest.empty();
/// dearest.add(&mut state, &(7, "pear".to_owned()));
/// dearest.add(&mut state, &(5, "fig".to_owned()));
/// assert_eq!(dearest.result(&state, 2), Some((7, "pear".to_owned())));
/// ```
pub fn reduce<T, F: Fn(&mut T, &T)>(function: F) -> Reduce<T, F> {
    Reduce {
        function,
        item: PhantomData,
    }
}

impl<T, F> Combine for Reduce<T, F>
where
    T: Clone + Send + Serialize + DeserializeOwned + 'static,
    F: Fn(&mut T, &T) + Send + Sync + 'static,
{
    type State = Option<T>;
    type Out = Option<T>;

    fn empty(&self) -> Option<T> {
        None
    }

    fn merge(&self, state: &mut Option<T>, other: &Option<T>) {
        if let Some(other) = other {
            self.add(state, other);
        }
    }

    fn result(&self, state: &Option<T>, _: u64) -> Option<T> {
        state.clone()
    }
}

impl<T, F> Aggregate<T> for Reduce<T, F>
where
    T: Clone + Send + Serialize + DeserializeOwned + 'static,
    F: Fn(&mut T, &T) + Send + Sync + 'static,
{
    #[inline]
    fn add(&self, state: &mut Option<T>, item: &T) {
        match state {
            Some(all) => (self.function)(all, item),
            None => *state = Some(item.clone()),
        }
    }
}

/// Several aggregates over the same items, in one pass.
macro_rules! tuple_of_aggregates {
    ($($name:ident . $index:tt),+) => {
        impl<$($name: Combine),+> Combine for ($($name,)+) {
            type State = ($($name::State,)+);
            type Out = ($($name::Out,)+);

            fn empty(&self) -> Self::State {
                ($(self.$index.empty(),)+)
            }

            fn merge(&self, state: &mut Self::State, other: &Self::State) {
                $(self.$index.merge(&mut state.$index, &other.$index);)+
            }

            fn result(&self, state: &Self::State, events: u64) -> Self::Out {
                ($(self.$index.result(&state.$index, events),)+)
            }
        }

        impl<T: ?Sized, $($name: Aggregate<T>),+> Aggregate<T> for ($($name,)+) {
            #[inline]
            fn add(&self, state: &mut Self::State, item: &T) {
                $(self.$index.add(&mut state.$index, item);)+
            }
        }

        impl<T: ?Sized, $($name: Retract<T>),+> Retract<T> for ($($name,)+) {
            #[inline]
            fn may_have(&self, state: &Self::State, item: &T) -> bool {
                $(self.$index.may_have(&state.$index, item))&&+
            }

            #[inline]
            fn retract(&self, state: &mut Self::State, item: &T) {
                $(self.$index.retract(&mut state.$index, item);)+
            }
        }
    };
}

tuple_of_aggregates!(A.0, B.1);
tuple_of_aggregates!(A.0, B.1, C.2);
tuple_of_aggregates!(A.0, B.1, C.2, D.3);

//! Aggregates that can take items back.

use std::cmp::Ordering;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::aggregate::{Aggregate, Combine, Count};
use super::of_value::of_value;

/// An aggregate that can also take items back: [`Count`], [`Sum`](super::Sum) and [`Mean`](super::Mean),
/// [`RetractableMin`] and [`RetractableMax`], and tuples of them.
///
/// An item is taken back only after it was added. A state from which all items were taken back equals the empty one, but for
/// sums of floating-point numbers, whose last digits may differ, and which a NaN or an infinity spoils for ever.
pub trait Retract<T: ?Sized>: Aggregate<T> {
    /// Returns `false` if `state` shows that the item was not added. Most states cannot show it: `true` by default.
    fn may_have(&self, _state: &Self::State, _item: &T) -> bool {
        true
    }

    /// Takes an item back that was added before.
    fn retract(&self, state: &mut Self::State, item: &T);
}

impl<T: ?Sized> Retract<T> for Count {
    #[inline]
    fn retract(&self, (): &mut (), _: &T) {}
}

/// Different values in their order, each with the number of items that have it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValueCounts<V>(Vec<(V, u64)>);

impl<V: PartialOrd + Clone> ValueCounts<V> {
    /// Returns the place of a value, or the place where it belongs; `None` of a value that cannot be compared, a NaN.
    fn find(&self, value: &V) -> Option<Result<usize, usize>> {
        value.partial_cmp(value)?;
        Some(self.0.binary_search_by(|(other, _)| {
            let order = other.partial_cmp(value);
            order.unwrap_or(Ordering::Less)
        }))
    }

    fn add(&mut self, value: V, items: u64) {
        match self.find(&value) {
            Some(Ok(place)) => self.0[place].1 += items,
            Some(Err(place)) => self.0.insert(place, (value, items)),
            None => {}
        }
    }

    fn remove(&mut self, value: &V) {
        let Some(Ok(place)) = self.find(value) else {
            return;
        };
        let (_, items) = &mut self.0[place];
        *items -= 1;
        if *items == 0 {
            self.0.remove(place);
        }
    }
}

macro_rules! retractable {
    ($(#[$doc:meta])* $name:ident, $end:ident) => {
        of_value! {
            $(#[$doc])*
            $name
        }

        impl<F, V> Combine for $name<F, V>
        where
            F: Send + Sync + 'static,
            V: PartialOrd + Clone + Serialize + DeserializeOwned + Send + 'static,
        {
            type State = ValueCounts<V>;
            type Out = Option<V>;

            fn empty(&self) -> ValueCounts<V> {
                ValueCounts(Vec::new())
            }

            fn merge(&self, state: &mut ValueCounts<V>, other: &ValueCounts<V>) {
                for (value, items) in &other.0 {
                    state.add(value.clone(), *items);
                }
            }

            fn result(&self, state: &ValueCounts<V>, _: u64) -> Option<V> {
                state.0.$end().map(|(value, _)| value.clone())
            }
        }

        impl<T, F, V> Aggregate<T> for $name<F, V>
        where
            T: ?Sized,
            F: Fn(&T) -> V + Send + Sync + 'static,
            V: PartialOrd + Clone + Serialize + DeserializeOwned + Send + 'static,
        {
            fn add(&self, state: &mut ValueCounts<V>, item: &T) {
                state.add((self.value)(item), 1);
            }
        }

        impl<T, F, V> Retract<T> for $name<F, V>
        where
            T: ?Sized,
            F: Fn(&T) -> V + Send + Sync + 'static,
            V: PartialOrd + Clone + Serialize + DeserializeOwned + Send + 'static,
        {
            fn may_have(&self, state: &ValueCounts<V>, item: &T) -> bool {
                !matches!(state.find(&(self.value)(item)), Some(Err(_)))
            }

            fn retract(&self, state: &mut ValueCounts<V>, item: &T) {
                state.remove(&(self.value)(item));
            }
        }
    };
}

retractable! {
    /// The least of the items' values, where items may be taken back; nothing if all are NaN. [`Min`](super::Min) is for items
    /// that are only added.
    ///
    /// Its state is an ordered multiset: each different value of a key, with the number of items that have it. Each change of
    /// a key costs time and bytes of the changelog in proportion to the number of these values. For many values per key use
    /// [`top`](crate::KeyedRows::top) with one row: its cost does not grow with them.
    ///
    /// ```
    /// use millstream_flow::windows::{Aggregate, Combine, Retract, RetractableMin};
    ///
    /// let cheapest = RetractableMin::of(|price: &u64| *price);
    /// let mut state = cheapest.empty();
    /// for price in [5, 3, 3, 9] {
    ///     cheapest.add(&mut state, &price);
    /// }
    /// cheapest.retract(&mut state, &3);
    /// assert_eq!(cheapest.result(&state, 3), Some(3));
    /// cheapest.retract(&mut state, &3);
    /// assert_eq!(cheapest.result(&state, 2), Some(5));
    /// ```
    RetractableMin, first
}

retractable! {
    /// The largest of the items' values, where items may be taken back; otherwise as [`RetractableMin`].
    RetractableMax, last
}

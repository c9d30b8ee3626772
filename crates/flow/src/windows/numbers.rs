//! Sums, means and extremes.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::aggregate::{Aggregate, Combine};
use super::of_value::of_value;
use super::retract::Retract;

/// Numbers that can be added up. The totals of integers are exact however many there are, so they do not depend on
/// the order; totals of floating-point numbers are rounded, and may differ in the last digits. A NaN makes the sum
/// NaN, and infinities are added as IEEE 754 defines.
pub trait Number: Copy + private::Sealed + 'static {
    /// Holds the sum of any number of items.
    type Total: Copy + Default + Send + Serialize + DeserializeOwned + 'static;
    /// The type of the sum: `i64`, `u64` or `f64`. An integer that is too large is given as the largest there is, and
    /// one that is too small as the smallest.
    type Sum: Clone + Serialize + Send + 'static;

    #[doc(hidden)]
    fn add_to(self, total: &mut Self::Total);
    #[doc(hidden)]
    fn take_from(self, total: &mut Self::Total);
    #[doc(hidden)]
    fn merge(total: &mut Self::Total, other: Self::Total);
    #[doc(hidden)]
    fn sum(total: Self::Total) -> Self::Sum;
    #[doc(hidden)]
    fn as_f64(total: Self::Total) -> f64;
}

mod private {
    pub trait Sealed {}
}

macro_rules! integer {
    ($sum:ident: $($name:ident),+) => {$(
        impl private::Sealed for $name {}

        impl Number for $name {
            type Total = i128;
            type Sum = $sum;

            #[inline]
            fn add_to(self, total: &mut i128) {
                *total = total.saturating_add(i128::from(self));
            }

            #[inline]
            fn take_from(self, total: &mut i128) {
                *total = total.saturating_sub(i128::from(self));
            }

            fn merge(total: &mut i128, other: i128) {
                *total = total.saturating_add(other);
            }

            fn sum(total: i128) -> $sum {
                let nearest = if total < 0 { $sum::MIN } else { $sum::MAX };
                $sum::try_from(total).unwrap_or(nearest)
            }

            fn as_f64(total: i128) -> f64 {
                total as f64
            }
        }
    )+};
}

integer!(i64: i8, i16, i32, i64);
integer!(u64: u8, u16, u32, u64);

macro_rules! float {
    ($($name:ident),+) => {$(
        impl private::Sealed for $name {}

        impl Number for $name {
            type Total = f64;
            type Sum = f64;

            #[inline]
            fn add_to(self, total: &mut f64) {
                *total += f64::from(self);
            }

            #[inline]
            fn take_from(self, total: &mut f64) {
                *total -= f64::from(self);
            }

            fn merge(total: &mut f64, other: f64) {
                *total += other;
            }

            fn sum(total: f64) -> f64 {
                total
            }

            fn as_f64(total: f64) -> f64 {
                total
            }
        }
    )+};
}

float!(f32, f64);

/// Adds items to a total, and takes them back.
macro_rules! total {
    ($name:ident) => {
        impl<T, F, V> Aggregate<T> for $name<F, V>
        where
            T: ?Sized,
            F: Fn(&T) -> V + Send + Sync + 'static,
            V: Number,
        {
            #[inline]
            fn add(&self, state: &mut V::Total, item: &T) {
                (self.value)(item).add_to(state);
            }
        }

        impl<T, F, V> Retract<T> for $name<F, V>
        where
            T: ?Sized,
            F: Fn(&T) -> V + Send + Sync + 'static,
            V: Number,
        {
            #[inline]
            fn retract(&self, state: &mut V::Total, item: &T) {
                (self.value)(item).take_from(state);
            }
        }
    };
}

of_value! {
    /// The sum of the items' values: see [`Number`] for its type and limits.
    ///
    /// ```
    /// use millstream_flow::windows::{Aggregate, Combine, Sum};
    ///
    /// let bytes = Sum::of(|line: &str| line.len() as u64);
    /// let mut state = bytes.empty();
    /// bytes.add(&mut state, "an apple");
    /// bytes.add(&mut state, "a pear");
    /// assert_eq!(bytes.result(&state, 2), 14);
    /// ```
    Sum
}

impl<F: Send + Sync + 'static, V: Number> Combine for Sum<F, V> {
    type State = V::Total;
    type Out = V::Sum;

    fn empty(&self) -> V::Total {
        V::Total::default()
    }

    fn merge(&self, state: &mut V::Total, other: &V::Total) {
        V::merge(state, *other);
    }

    fn result(&self, state: &V::Total, _: u64) -> V::Sum {
        V::sum(*state)
    }
}

total!(Sum);

of_value! {
    /// The arithmetic mean of the items' values.
    Mean
}

impl<F: Send + Sync + 'static, V: Number> Combine for Mean<F, V> {
    /// The sum of the values.
    type State = V::Total;
    type Out = f64;

    fn empty(&self) -> V::Total {
        V::Total::default()
    }

    fn merge(&self, total: &mut V::Total, other: &V::Total) {
        V::merge(total, *other);
    }

    fn result(&self, total: &V::Total, events: u64) -> f64 {
        V::as_f64(*total) / events as f64
    }
}

total!(Mean);

/// Replaces `best` if `value` is better. A value that does not even compare with itself (NaN) is
/// left out.
fn keep<V: PartialOrd>(best: &mut Option<V>, value: V, is_better: impl Fn(&V, &V) -> bool) {
    let is_comparable = value.partial_cmp(&value).is_some();
    if is_comparable && best.as_ref().is_none_or(|best| is_better(&value, best)) {
        *best = Some(value);
    }
}

macro_rules! extreme {
    ($name:ident, $is_better:expr) => {
        impl<F, V> Combine for $name<F, V>
        where
            F: Send + Sync + 'static,
            V: PartialOrd + Clone + Serialize + DeserializeOwned + Send + 'static,
        {
            type State = Option<V>;
            type Out = Option<V>;

            fn empty(&self) -> Option<V> {
                None
            }

            fn merge(&self, state: &mut Option<V>, other: &Option<V>) {
                if let Some(value) = other {
                    keep(state, value.clone(), $is_better);
                }
            }

            fn result(&self, state: &Option<V>, _: u64) -> Option<V> {
                state.clone()
            }
        }

        impl<T, F, V> Aggregate<T> for $name<F, V>
        where
            T: ?Sized,
            F: Fn(&T) -> V + Send + Sync + 'static,
            V: PartialOrd + Clone + Serialize + DeserializeOwned + Send + 'static,
        {
            #[inline]
            fn add(&self, state: &mut Option<V>, item: &T) {
                keep(state, (self.value)(item), $is_better);
            }
        }
    };
}

of_value! {
    /// The least of the items' values; nothing if all are NaN.
    Min
}
extreme!(Min, |value, best| value < best);

of_value! {
    /// The largest of the items' values; nothing if all are NaN.
    Max
}
extreme!(Max, |value, best| value > best);

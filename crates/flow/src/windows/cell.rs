//! The partial result of a key in one stretch of time.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::aggregate::{Aggregate, Combine};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Cell<S> {
    pub state: S,
    pub events: Count,
    /// Largest event time of the items; `i64::MIN` if there are none.
    pub time_max: i64,
}

impl<S> Cell<S> {
    pub fn empty<A: Combine<State = S>>(aggregate: &A) -> Self {
        Self {
            state: aggregate.empty(),
            events: Count::default(),
            time_max: i64::MIN,
        }
    }

    /// Returns the number of items.
    pub fn events(&self) -> u64 {
        u64::from(self.events)
    }

    #[inline]
    pub fn add<T: ?Sized, A: Aggregate<T, State = S>>(
        &mut self,
        aggregate: &A,
        time: i64,
        item: &T,
    ) {
        aggregate.add(&mut self.state, item);
        self.events.add_one();
        self.time_max = self.time_max.max(time);
    }

    pub fn merge<A: Combine<State = S>>(&mut self, aggregate: &A, other: &Self) {
        aggregate.merge(&mut self.state, &other.state);
        self.events.add(other.events());
        self.time_max = self.time_max.max(other.time_max);
    }
}

/// A count, plus one: so a cell that may be missing takes no more memory than one that is there.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub(super) struct Count(NonZeroU64);

impl Count {
    /// Counts one more; a full count stays as it is.
    #[inline]
    fn add_one(&mut self) {
        if let Some(more) = NonZeroU64::new(self.0.get().wrapping_add(1)) {
            self.0 = more;
        }
    }

    fn add(&mut self, more: u64) {
        self.0 = self.0.saturating_add(more);
    }
}

impl Default for Count {
    fn default() -> Self {
        Self(NonZeroU64::MIN)
    }
}

impl From<u64> for Count {
    fn from(count: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(count))
    }
}

impl From<Count> for u64 {
    fn from(Count(plus_one): Count) -> Self {
        plus_one.get() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optional_cell_takes_no_more_memory_than_a_cell() {
        assert_eq!(size_of::<Option<Cell<u64>>>(), size_of::<Cell<u64>>());
    }

    #[test]
    fn a_count_is_serialized_as_a_number_and_saturates() {
        let mut count = Count::default();
        count.add(7);
        let kept = postcard::to_stdvec(&count).unwrap();
        assert_eq!(kept, postcard::to_stdvec(&7_u64).unwrap());
        assert_eq!(u64::from(postcard::from_bytes::<Count>(&kept).unwrap()), 7);
        count.add(u64::MAX);
        assert_eq!(u64::from(count), u64::MAX - 1);
        count.add_one();
        assert_eq!(u64::from(count), u64::MAX - 1);
    }
}

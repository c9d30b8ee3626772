//! What is known of the items of a key in one stretch of time.

use serde::{Deserialize, Serialize};

use super::aggregate::{Aggregate, Combine};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Cell<S> {
    pub state: S,
    pub events: u64,
    /// Largest event time of the items; `i64::MIN` if there are none.
    pub time_max: i64,
}

impl<S> Cell<S> {
    pub fn empty<A: Combine<State = S>>(aggregate: &A) -> Self {
        Self {
            state: aggregate.empty(),
            events: 0,
            time_max: i64::MIN,
        }
    }

    #[inline]
    pub fn add<T: ?Sized, A: Aggregate<T, State = S>>(
        &mut self,
        aggregate: &A,
        time: i64,
        item: &T,
    ) {
        aggregate.add(&mut self.state, item);
        self.events = self.events.saturating_add(1);
        self.time_max = self.time_max.max(time);
    }

    pub fn merge<A: Combine<State = S>>(&mut self, aggregate: &A, other: &Self) {
        aggregate.merge(&mut self.state, &other.state);
        self.events = self.events.saturating_add(other.events);
        self.time_max = self.time_max.max(other.time_max);
    }
}

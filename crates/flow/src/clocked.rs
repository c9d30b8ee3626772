//! Processing-time windows: the aggregates of each key over windows of the wall clock.
//!
//! [`Keyed::clock_windows`](crate::Keyed::clock_windows) emits them. The state of a key has a record for each pane or session
//! that is open, and one with the end of the next window. One timer of the wall clock is set for that end, and one of event
//! time for the end of the input.

mod step;

use serde::{Deserialize, Serialize};

pub(crate) use step::ClockStep;

use crate::windows::{Aggregate, Combine};

/// A record of a key.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClockRecord<S> {
    /// The end of the next window, in milliseconds since 1970: at the field `None`.
    Next(i64),
    /// The items of a pane, at the start of the pane, or of a session, at the time of its first item.
    Pane(ClockPane<S>),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClockPane<S> {
    state: S,
    events: u64,
    /// The largest time of an item.
    time_max: i64,
}

impl<S> ClockPane<S> {
    fn empty<A: Combine<State = S>>(aggregate: &A) -> Self {
        ClockPane {
            state: aggregate.empty(),
            events: 0,
            time_max: i64::MIN,
        }
    }

    fn add<T: ?Sized, A: Aggregate<T, State = S>>(&mut self, aggregate: &A, time: i64, item: &T) {
        aggregate.add(&mut self.state, item);
        self.events += 1;
        self.time_max = self.time_max.max(time);
    }

    fn merge<A: Combine<State = S>>(&mut self, aggregate: &A, other: &Self) {
        aggregate.merge(&mut self.state, &other.state);
        self.events += other.events;
        self.time_max = self.time_max.max(other.time_max);
    }
}

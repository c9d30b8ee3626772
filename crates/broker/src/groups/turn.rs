//! What an event has at hand, and what comes of it.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::Timestamp;

use super::answer::Answer;
use super::config::Config;
use super::record::{Key, Value, record};
use super::timers::{Timer, Timers};
use super::topics::Topics;
use super::{GroupName, InternalTopic, Record, RequestId};

/// The time of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Time since some fixed moment; never goes back. Timeouts go by it.
    pub elapsed: Duration,
    /// Wall-clock time. Retention goes by it.
    pub timestamp: Timestamp,
}

/// What the caller is to do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Append this to the log. All of one call go in together. No record has more than some megabytes.
    Persist(Record),
    /// Answer a request, but not before all records returned so far are durable: those of earlier
    /// calls too, and those that follow in the same call. So nobody sees what a crash takes back.
    Answer(RequestId, Answer),
    /// Make topics that a group needs, if the member that asks for them may. Their absence is seen again later.
    CreateTopics(Creation),
}

/// Topics that a group needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creation {
    /// The group.
    pub group: GroupName,
    /// As whom the member is known to the access rules.
    pub principal: Arc<str>,
    /// Where the member comes from.
    pub host: Arc<str>,
    /// The topics, with their partitions.
    pub topics: Vec<InternalTopic>,
}

/// One event under way.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub now: Moment,
    pub config: &'a Config,
    pub topics: &'a Topics,
    timers: &'a mut Timers,
    pub actions: Vec<Action>,
}

impl<'a> Turn<'a> {
    pub fn new(
        now: Moment,
        config: &'a Config,
        topics: &'a Topics,
        timers: &'a mut Timers,
    ) -> Self {
        Turn {
            now,
            config,
            topics,
            timers,
            actions: Vec::new(),
        }
    }

    pub fn answer(&mut self, request: RequestId, answer: Answer) {
        self.actions.push(Action::Answer(request, answer));
    }

    /// Stores a value.
    pub fn store(&mut self, key: &Key, value: &Value) {
        self.actions.push(Action::Persist(record(key, Some(value))));
    }

    /// Removes what is stored under a key.
    pub fn remove(&mut self, key: &Key) {
        self.actions.push(Action::Persist(record(key, None)));
    }

    /// Sets a deadline, in place of the one that there may be.
    pub fn set_timer(&mut self, timer: Timer, after: Duration) {
        let at = self.now.elapsed.saturating_add(after);
        self.timers.set(timer, at);
    }

    pub fn cancel_timer(&mut self, timer: &Timer) {
        self.timers.cancel(timer);
    }
}

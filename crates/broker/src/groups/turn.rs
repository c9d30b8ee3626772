//! The state that one event works on, and the actions that it produces.

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
    /// Time since some fixed moment; never goes back. For timeouts.
    pub elapsed: Duration,
    /// Wall-clock time, for retention.
    pub timestamp: Timestamp,
}

/// An action for the caller, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Append this to the log, together with all other records of the same call. No record exceeds a few megabytes.
    Persist(Record),
    /// Answer a request, but not before all records returned so far are durable: those of earlier calls too, and those
    /// that follow in the same call. So no client sees a state that a crash takes back.
    Answer(RequestId, Answer),
    /// Create topics that a group needs, if the requesting member may. A later heartbeat notices topics that are still
    /// missing.
    CreateTopics(Creation),
}

/// Topics that a group needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creation {
    /// The group.
    pub group: GroupName,
    /// The member's principal, for the access rules.
    pub principal: Arc<str>,
    /// The host of the member.
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

    /// Removes the value of a key.
    pub fn remove(&mut self, key: &Key) {
        self.actions.push(Action::Persist(record(key, None)));
    }

    /// Sets a deadline; replaces an earlier one of the same kind.
    pub fn set_timer(&mut self, timer: Timer, after: Duration) {
        let at = self.now.elapsed.saturating_add(after);
        self.timers.set(timer, at);
    }

    pub fn cancel_timer(&mut self, timer: &Timer) {
        self.timers.cancel(timer);
    }
}

//! The state that one event works on, and the actions that it produces.

use std::collections::BTreeSet;
use std::time::Duration;

use super::answer::Answer;
use super::{Outcome, Producer, Record, TopicPartition, TransactionalId};
use crate::groups::{GroupName, Moment, RequestId};

/// An action for the caller, in this order.
///
/// The caller must not begin any action other than an append before all records returned so far are durable: those of
/// earlier calls too, and those that follow in the same call. So no client sees a state that a crash takes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Append this to the log, together with all other records of the same call.
    Persist(Record),
    /// Answer a request.
    Answer(RequestId, Answer),
    /// Append a marker to each of these partitions, and [report](super::Report) when they are durable.
    WriteMarkers(Ending, Vec<TopicPartition>),
    /// Let these groups apply or drop the offsets of the transaction, and [report](super::Report) when that is
    /// durable.
    EndGroupOffsets(Ending, Vec<GroupName>),
}

/// A transaction that is being ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ending {
    /// The transactional id.
    pub transactional_id: TransactionalId,
    /// The producer as its markers have it. The epoch may be higher than that of the records, so that the log refuses
    /// records of the same transaction behind a marker.
    pub producer: Producer,
    /// How it ends.
    pub outcome: Outcome,
}

/// The result of an action that ends a transaction. The caller sends exactly one report for each partition and group
/// of the action; after a failure, the coordinator asks again after a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The markers are durable in these partitions, or these partitions exist no more.
    MarkersWritten(Ending, Vec<TopicPartition>),
    /// The markers could not be written, or made durable.
    MarkersFailed(Ending, Vec<TopicPartition>),
    /// The groups have the outcome, durably.
    GroupOffsetsEnded(Ending, Vec<GroupName>),
    /// The groups could not store the outcome.
    GroupOffsetsFailed(Ending, Vec<GroupName>),
}

/// One event under way.
#[derive(Debug)]
pub(super) struct Turn {
    pub now: Moment,
    pub actions: Vec<Action>,
}

impl Turn {
    pub fn new(now: Moment) -> Self {
        Turn {
            now,
            actions: Vec::new(),
        }
    }

    pub fn persist(&mut self, record: Record) {
        self.actions.push(Action::Persist(record));
    }
}

/// Deadlines, of which a transactional id has at most one.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Duration, TransactionalId)>);

impl Timers {
    /// Moves a deadline.
    pub fn set(
        &mut self,
        id: &TransactionalId,
        deadline: &mut Option<Duration>,
        at: Option<Duration>,
    ) {
        if let Some(before) = std::mem::replace(deadline, at) {
            self.0.remove(&(before, id.clone()));
        }
        if let Some(at) = at {
            self.0.insert((at, id.clone()));
        }
    }

    /// The next one.
    pub fn next(&self) -> Option<Duration> {
        self.0.first().map(|(at, _)| *at)
    }

    /// One that has passed; it stays set.
    pub fn due(&self, now: Duration) -> Option<TransactionalId> {
        let (at, id) = self.0.first()?;
        (*at <= now).then(|| id.clone())
    }
}

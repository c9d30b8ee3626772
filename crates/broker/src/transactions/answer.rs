//! The coordinator's answers, independent of the wire format.

use std::fmt;
use std::time::Duration;

use millstream_base::{ProducerId, Timestamp};

use super::{Producer, TopicPartition, TransactionError, TransactionalId};
use crate::groups::GroupName;

/// The answer to a [`Request`](super::Request) of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The producer, with the id and epoch that it uses from now on.
    InitProducerId(Result<Producer, TransactionError>),
    /// Whether all the partitions take part.
    AddPartitions(Result<(), TransactionError>),
    /// Whether the group takes part.
    AddOffsets(Result<(), TransactionError>),
    /// Whether something may be appended, for each partition, in the order of the request.
    VerifyPartitions(Vec<(TopicPartition, Result<(), TransactionError>)>),
    /// Whether offsets may be committed.
    VerifyOffsets(Result<(), TransactionError>),
    /// The producer in its next transaction: the same as before, unless it bumps its epoch.
    EndTransaction(Result<Producer, TransactionError>),
    /// The coordinator's part in the abort.
    AbortTransaction(Result<Abort, TransactionError>),
    /// For each transactional id, in the order of the request.
    DescribeTransactions(Vec<(TransactionalId, Result<Described, TransactionError>)>),
    /// In the order of their transactional ids.
    ListTransactions(Result<Vec<ListedTransaction>, TransactionError>),
}

impl Answer {
    /// Whether the transaction before is still being ended.
    pub fn is_too_early(&self) -> bool {
        let too_early = Err(TransactionError::ConcurrentTransactions);
        match self {
            Answer::AddPartitions(result) | Answer::AddOffsets(result) => *result == too_early,
            _ => false,
        }
    }
}

/// The fate of a transaction that an administrator wants to abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// The coordinator aborts all of it, as it aborts one that took too long.
    UnderWay,
    /// The coordinator knows no transaction of this producer with this partition.
    Unknown,
}

/// The state of a transactional id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The producer has had no transaction yet.
    Empty,
    /// A transaction is open.
    Ongoing,
    /// The coordinator is committing it to all participants.
    PrepareCommit,
    /// The coordinator is aborting it in all participants.
    PrepareAbort,
    /// The last one was committed.
    CompleteCommit,
    /// The last one was aborted.
    CompleteAbort,
}

impl State {
    const ALL: [State; 6] = [
        State::Empty,
        State::Ongoing,
        State::PrepareCommit,
        State::PrepareAbort,
        State::CompleteCommit,
        State::CompleteAbort,
    ];

    /// The state that has this name.
    pub(super) fn named(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Kafka's name.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::Ongoing => "Ongoing",
            State::PrepareCommit => "PrepareCommit",
            State::PrepareAbort => "PrepareAbort",
            State::CompleteCommit => "CompleteCommit",
            State::CompleteAbort => "CompleteAbort",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A transactional id, in detail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its state.
    pub state: State,
    /// The current producer.
    pub producer: Producer,
    /// The longest that a transaction may take; `None` for no limit.
    pub timeout: Option<Duration>,
    /// When the current transaction began, or the last one had begun.
    pub started: Option<Timestamp>,
    /// The partitions of the current transaction; while it is being ended, the partitions whose markers are missing.
    pub partitions: Vec<TopicPartition>,
    /// The groups that commit offsets with it; while it is being ended, those that lack the outcome.
    pub groups: Vec<GroupName>,
}

/// A transactional id, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTransaction {
    /// The transactional id.
    pub transactional_id: TransactionalId,
    /// The current producer.
    pub producer: ProducerId,
    /// Its state.
    pub state: State,
}

//! What is asked of transactions, apart from how it is put on the wire.
//!
//! Where Kafka's protocol lets one request be about several transactional ids (AddPartitionsToTxn from version
//! 4 on), it becomes several requests here.

use std::time::Duration;

use millstream_base::ProducerId;

use super::{Outcome, Producer, TopicPartition, TransactionalId};
use crate::groups::GroupName;

/// A request to the coordinator of transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Begin as a producer, and fence those before with the same transactional id.
    InitProducerId(InitProducerId),
    /// Let partitions take part in the transaction, which begins with the first of them.
    AddPartitions(AddPartitions),
    /// Let the offsets of a group take part in the transaction, which may begin with it.
    AddOffsets(AddOffsets),
    /// Ask whether partitions take part in the open transaction, before something is appended to them.
    VerifyPartitions(VerifyPartitions),
    /// Ask the same of the offsets of a group.
    VerifyOffsets(VerifyOffsets),
    /// Commit or abort. The answer comes when the outcome is certain, and may come before it is visible.
    EndTransaction(EndTransaction),
    /// Abort what a producer has open in a partition, for an administrator.
    AbortTransaction(AbortTransaction),
    /// Tell about transactional ids.
    DescribeTransactions(Vec<TransactionalId>),
    /// Tell which transactional ids there are.
    ListTransactions(ListTransactions),
}

/// Kafka's InitProducerId.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitProducerId {
    /// `None` if the producer only wants its records without duplicates.
    pub transactional_id: Option<TransactionalId>,
    /// How long a transaction may take, unless it is [decided from outside](Self::two_phase).
    pub timeout: Duration,
    /// From version 6 on: transactions stay open until the producer, or an administrator, decides them. They have no
    /// timeout.
    pub two_phase: bool,
    /// From version 3 on, what a producer was until now that goes on after an error: see
    /// [`Producer::expected`].
    pub expected: Option<Producer>,
    /// From version 4 on: the client knows that producers are fenced.
    pub knows_fencing: bool,
}

/// Kafka's AddPartitionsToTxn; and what comes before each transactional append of a client that does not send
/// it (Produce from version 12 on), whose errors are [those of a produce
/// request](super::TransactionError::in_produce).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddPartitions {
    /// Whose transaction it is.
    pub transactional_id: TransactionalId,
    /// The producer, which must be the current one.
    pub producer: Producer,
    /// The partitions; they exist, and the client may write to them.
    pub partitions: Vec<TopicPartition>,
    /// From version 2 on: the client knows that producers are fenced.
    pub knows_fencing: bool,
}

/// Kafka's AddOffsetsToTxn; and what comes before each TxnOffsetCommit of a client that does not send it (from
/// its version 5 on), whose errors are [those of such a
/// commit](super::TransactionError::in_offset_commit).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddOffsets {
    /// Whose transaction it is.
    pub transactional_id: TransactionalId,
    /// The producer, which must be the current one.
    pub producer: Producer,
    /// The group whose offsets are committed with the transaction.
    pub group: GroupName,
    /// From version 2 on: the client knows that producers are fenced.
    pub knows_fencing: bool,
}

/// Kafka's AddPartitionsToTxn with "verify only".
///
/// What is allowed must not be appended any more once a marker of the producer has come in between: else it
/// would be behind the end of its transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyPartitions {
    /// Whose transaction it is.
    pub transactional_id: TransactionalId,
    /// The producer, which must be the current one.
    pub producer: Producer,
    /// The partitions.
    pub partitions: Vec<TopicPartition>,
}

/// The same about the offsets of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyOffsets {
    /// Whose transaction it is.
    pub transactional_id: TransactionalId,
    /// The producer, which must be the current one.
    pub producer: Producer,
    /// The group.
    pub group: GroupName,
}

/// Kafka's EndTxn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndTransaction {
    /// Whose transaction it is.
    pub transactional_id: TransactionalId,
    /// The producer, which must be the current one.
    pub producer: Producer,
    /// How to end it.
    pub outcome: Outcome,
    /// From version 5 on: the producer gets a new epoch with every transaction.
    pub bumps_epoch: bool,
    /// From version 2 on: the client knows that producers are fenced.
    pub knows_fencing: bool,
}

/// Kafka's WriteTxnMarkers, as administrators send it to abort a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbortTransaction {
    /// The producer whose transaction it is.
    pub producer: Producer,
    /// Where it has something open.
    pub partition: TopicPartition,
}

/// Kafka's ListTransactions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListTransactions {
    /// Only those in one of these states, by Kafka's names; all if empty.
    pub states: Vec<String>,
    /// Only those of these producers; all if empty.
    pub producers: Vec<ProducerId>,
    /// From version 1 on: only those with a transaction that began longer ago than this.
    pub duration: Option<Duration>,
    /// From version 2 on: only those that this regular expression matches as a whole; all if it is empty.
    pub pattern: Option<String>,
}

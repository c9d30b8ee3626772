//! The coordinator's requests, independent of the wire format.
//!
//! Where one request of Kafka's protocol covers several transactional ids (AddPartitionsToTxn from version 4 on), it
//! becomes several requests here.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use millstream_base::ProducerId;

use super::{Outcome, Producer, State, TopicPartition, TransactionalId};
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
    /// Abort a producer's open transaction in a partition, for an administrator.
    AbortTransaction(AbortTransaction),
    /// Describe transactional ids.
    DescribeTransactions(Vec<TransactionalId>),
    /// List the transactional ids.
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
    /// From version 3 on, the id and epoch so far of a producer that goes on after an error: see
    /// [`Producer::expected`].
    pub expected: Option<Producer>,
    /// From version 4 on: the client knows that producers are fenced.
    pub knows_fencing: bool,
}

/// Kafka's AddPartitionsToTxn. The broker also sends it before each transactional append of a client that does not
/// (Produce from version 12 on); the errors are then [those of a produce
/// request](super::TransactionError::in_produce).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddPartitions {
    /// The producer's transactional id.
    pub transactional_id: TransactionalId,
    /// The producer, which must be the current one.
    pub producer: Producer,
    /// The partitions; they exist, and the client may write to them.
    pub partitions: Vec<TopicPartition>,
    /// From version 2 on: the client knows that producers are fenced.
    pub knows_fencing: bool,
}

/// Kafka's AddOffsetsToTxn. The broker also sends it before each TxnOffsetCommit of a client that does not (from its
/// version 5 on); the errors are then [those of a TxnOffsetCommit](super::TransactionError::in_offset_commit).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddOffsets {
    /// The producer's transactional id.
    pub transactional_id: TransactionalId,
    /// The producer, which must be the current one.
    pub producer: Producer,
    /// The group that commits offsets with the transaction.
    pub group: GroupName,
    /// From version 2 on: the client knows that producers are fenced.
    pub knows_fencing: bool,
}

/// Kafka's AddPartitionsToTxn with "verify only".
///
/// The caller must not append any more once a marker of the producer has come in between, even if the answer permits
/// it: the records would lie behind the end of their transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyPartitions {
    /// The producer's transactional id.
    pub transactional_id: TransactionalId,
    /// The producer, which must be the current one.
    pub producer: Producer,
    /// The partitions.
    pub partitions: Vec<TopicPartition>,
}

/// As [`VerifyPartitions`], for the offsets of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyOffsets {
    /// The producer's transactional id.
    pub transactional_id: TransactionalId,
    /// The producer, which must be the current one.
    pub producer: Producer,
    /// The group.
    pub group: GroupName,
}

/// Kafka's EndTxn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndTransaction {
    /// The producer's transactional id.
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
    /// The producer of the transaction.
    pub producer: Producer,
    /// A partition of its open transaction.
    pub partition: TopicPartition,
}

/// Kafka's ListTransactions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListTransactions {
    /// Only those in one of these states; `None` for those in any state.
    pub states: Option<BTreeSet<State>>,
    /// Only those of these producers; all if empty.
    pub producers: HashSet<ProducerId>,
    /// From version 1 on: only those with a transaction that began longer ago than this.
    pub duration: Option<Duration>,
    /// From version 2 on: only those that this regular expression matches as a whole; all if it is empty.
    pub pattern: Option<String>,
}

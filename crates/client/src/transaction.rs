//! The identity of a transaction.

use millstream_base::{ProducerEpoch, ProducerId};

/// Identifies one transaction of a transactional id permanently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransactionIdentity {
    /// The producer's id.
    pub producer: ProducerId,
    /// Its epoch: each transaction has its own.
    pub epoch: ProducerEpoch,
}

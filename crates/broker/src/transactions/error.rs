//! The errors of transactions, by Kafka's names.

/// The reason why a request is refused: Kafka's error of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(i16)]
pub enum TransactionError {
    /// There are no producer ids left.
    #[error("there are no producer ids left")]
    UnknownServerError = -1,
    /// To a commit of offsets: the previous transaction is still being ended: try again, try again.
    #[error("the previous transaction is still being ended: try again")]
    CoordinatorLoadInProgress = 14,
    /// To a produce request: the previous transaction is still being ended: try again, try again.
    #[error("the previous transaction is still being ended: try again")]
    NotEnoughReplicas = 19,
    /// A field of the request is out of bounds.
    #[error("the request is invalid")]
    InvalidRequest = 42,
    /// There are as many transactional ids, or the transaction has as many participants, as there may be.
    #[error("there are too many transactional ids, or too many participants")]
    PolicyViolation = 44,
    /// [`ProducerFenced`](Self::ProducerFenced), for requests that do not know that error.
    #[error("the producer's epoch is not the current one")]
    InvalidProducerEpoch = 47,
    /// The transaction is in no state to be ended like this.
    #[error("the transaction's state does not allow the request")]
    InvalidTxnState = 48,
    /// The transactional id is unknown, or has another producer id.
    #[error("the transactional id belongs to another producer id")]
    InvalidProducerIdMapping = 49,
    /// The timeout of transactions is zero, or longer than allowed.
    #[error("the timeout of the transaction is out of bounds")]
    InvalidTransactionTimeout = 50,
    /// The transaction before is still being ended: try again.
    #[error("the previous transaction is still being ended: try again")]
    ConcurrentTransactions = 51,
    /// Another producer has taken the transactional id over, or the transaction took too long.
    #[error("the producer is fenced")]
    ProducerFenced = 90,
    /// The transactional id does not exist.
    #[error("there is no such transactional id")]
    TransactionalIdNotFound = 105,
    /// The partition or group is not part of the transaction, which can only be aborted.
    #[error("the partition or group is not part of the transaction: abort it")]
    TransactionAbortable = 120,
    /// The regular expression does not parse, or is too large.
    #[error("the regular expression is invalid")]
    InvalidRegularExpression = 128,
}

impl TransactionError {
    /// Kafka's error code.
    pub fn code(self) -> i16 {
        self as i16
    }

    /// Converts the error for a client; `knows_fencing` if its request knows of fenced producers.
    pub(super) fn to_client(self, knows_fencing: bool) -> Self {
        match self {
            Self::ProducerFenced if !knows_fencing => Self::InvalidProducerEpoch,
            other => other,
        }
    }

    /// Converts the error for a produce request, whose clients expect other errors; `knows_abortable` from version 11
    /// on.
    pub fn in_produce(self, knows_abortable: bool) -> Self {
        match self {
            // Every client retries after this error, without looking the partition's leader up again.
            Self::ConcurrentTransactions => Self::NotEnoughReplicas,
            other => other.to_appender(knows_abortable),
        }
    }

    /// Converts the error for a TxnOffsetCommit; `knows_abortable` from version 4 on.
    pub fn in_offset_commit(self, knows_abortable: bool) -> Self {
        match self {
            // Every client retries after this error.
            Self::ConcurrentTransactions => Self::CoordinatorLoadInProgress,
            other => other.to_appender(knows_abortable),
        }
    }

    fn to_appender(self, knows_abortable: bool) -> Self {
        match self {
            Self::ProducerFenced => Self::InvalidProducerEpoch,
            Self::TransactionAbortable if !knows_abortable => Self::InvalidTxnState,
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TransactionError::*;

    #[test]
    fn produce_maps_transaction_errors_to_codes_that_producers_know() {
        assert_eq!(ProducerFenced.in_produce(true), InvalidProducerEpoch);
        assert_eq!(ConcurrentTransactions.in_produce(true), NotEnoughReplicas);
        assert_eq!(TransactionAbortable.in_produce(true), TransactionAbortable);
        assert_eq!(TransactionAbortable.in_produce(false), InvalidTxnState);
    }

    #[test]
    fn offset_commits_map_transaction_errors_to_codes_that_they_know() {
        assert_eq!(ProducerFenced.in_offset_commit(true), InvalidProducerEpoch);
        let ending = ConcurrentTransactions.in_offset_commit(true);
        assert_eq!(ending, CoordinatorLoadInProgress);
        assert_eq!(
            TransactionAbortable.in_offset_commit(false),
            InvalidTxnState
        );
    }
}

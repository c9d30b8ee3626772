//! The names of producers and participants in transactions.

use std::fmt;

use millstream_base::{ProducerEpoch, ProducerId};

use super::TransactionError;
use crate::groups::{Partition, TopicName, text};

text! {
    /// The identity of a producer across its restarts: Kafka's `transactional.id`.
    TransactionalId
}

/// A producer, in one of its incarnations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Producer {
    /// Its id.
    pub id: ProducerId,
    /// Its epoch: among producers with the same id, the highest epoch is current, and the others are fenced.
    pub epoch: ProducerEpoch,
}

/// The coordinator gives no producer this epoch, so that it can fence every one.
const EPOCH_LAST: ProducerEpoch = ProducerEpoch(i16::MAX);

impl Producer {
    const NO_EPOCH: ProducerEpoch = ProducerEpoch(-1);

    /// Returns the producer that an InitProducerId request continues, or `None` for a new one.
    ///
    /// # Errors
    /// `InvalidRequest` if only one of id and epoch is given.
    pub fn expected(
        id: ProducerId,
        epoch: ProducerEpoch,
    ) -> Result<Option<Producer>, TransactionError> {
        match (id == ProducerId::NONE, epoch == Producer::NO_EPOCH) {
            (true, true) => Ok(None),
            (false, false) => Ok(Some(Producer { id, epoch })),
            _ => Err(TransactionError::InvalidRequest),
        }
    }

    pub(super) fn first(id: ProducerId) -> Producer {
        let epoch = ProducerEpoch(0);
        Producer { id, epoch }
    }

    /// The next incarnation. After [`EPOCH_LAST`] there is none.
    pub(super) fn bumped(self) -> Producer {
        let epoch = ProducerEpoch(self.epoch.0.saturating_add(1));
        Producer { epoch, ..self }
    }

    pub(super) fn is_last(self) -> bool {
        self.epoch == EPOCH_LAST
    }

    /// Whether the next incarnation needs another id, since its epoch must not be the last.
    pub(super) fn is_exhausted(self) -> bool {
        self.epoch.0 >= EPOCH_LAST.0 - 1
    }
}

impl fmt::Display for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in epoch {}", self.id, self.epoch)
    }
}

/// A partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: Partition,
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// All of it is visible.
    Committed,
    /// Nothing of it is visible.
    Aborted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_both_a_producer_id_and_an_epoch_or_neither() {
        let none = (ProducerId::NONE, Producer::NO_EPOCH);
        assert_eq!(Producer::expected(none.0, none.1), Ok(None));
        let some = Producer::first(ProducerId(7));
        assert_eq!(Producer::expected(some.id, some.epoch), Ok(Some(some)));
        let error = Err(TransactionError::InvalidRequest);
        assert_eq!(Producer::expected(some.id, none.1), error);
        assert_eq!(Producer::expected(none.0, some.epoch), error);
    }
}

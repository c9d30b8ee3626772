//! Producers begin, or go on after an error.

use std::time::Duration;

use millstream_base::ProducerId;

use super::config::TRANSACTIONAL_ID_BYTES_MAX;
use super::coordinator::{Coordinator, Entry};
use super::record;
use super::transaction::{InitStep, Transaction};
use super::turn::Turn;
use super::{InitProducerId, Producer, TransactionError, TransactionalId};

impl Coordinator {
    pub(super) fn init_producer_id(
        &mut self,
        turn: &mut Turn,
        init: &InitProducerId,
    ) -> Result<Producer, TransactionError> {
        let Some(id) = &init.transactional_id else {
            return self.new_producer_id(turn).map(Producer::first);
        };
        if id.is_empty() || id.len() > TRANSACTIONAL_ID_BYTES_MAX {
            return Err(TransactionError::InvalidRequest);
        }
        let timeout = match init.two_phase {
            true => None,
            false if init.timeout.is_zero() || init.timeout > self.config.timeout_max => {
                return Err(TransactionError::InvalidTransactionTimeout);
            }
            false => Some(init.timeout),
        };
        let Some(entry) = self.entries.get(id) else {
            return self.new_entry(turn, id, timeout);
        };
        let producer = entry.transaction.producer;
        match entry.transaction.init_step(init.expected)? {
            InitStep::Fence { asked_by_itself } => {
                self.fence(turn, id, asked_by_itself);
                // The client retries, and gets its next epoch once the abort is complete.
                Err(TransactionError::ConcurrentTransactions)
            }
            InitStep::Repeated => {
                let last = entry.transaction.last;
                self.init(turn, id, timeout, producer, last);
                Ok(producer)
            }
            InitStep::Next { last } => {
                let next = match producer.is_exhausted() {
                    true => Producer::first(self.new_producer_id(turn)?),
                    false => producer.bumped(),
                };
                self.init(turn, id, timeout, next, last);
                Ok(next)
            }
        }
    }

    fn new_entry(
        &mut self,
        turn: &mut Turn,
        id: &TransactionalId,
        timeout: Option<Duration>,
    ) -> Result<Producer, TransactionError> {
        let is_room = self.entries.len() < self.config.transactional_ids_max
            && self.name_bytes + id.len() <= self.config.name_bytes_max;
        if !is_room {
            return Err(TransactionError::PolicyViolation);
        }
        let producer = Producer::first(self.new_producer_id(turn)?);
        let transaction = Transaction::new(producer, timeout, turn.now.timestamp);
        turn.persist(record::transaction(id, &transaction));
        self.name_bytes += id.len();
        self.entries.insert(id.clone(), Entry::new(transaction));
        Ok(producer)
    }

    fn init(
        &mut self,
        turn: &mut Turn,
        id: &TransactionalId,
        timeout: Option<Duration>,
        producer: Producer,
        last: Option<Producer>,
    ) {
        if let Some(entry) = self.entries.get_mut(id) {
            let transaction = &mut entry.transaction;
            transaction.init(turn.now.timestamp, timeout, producer, last);
            turn.persist(record::transaction(id, transaction));
        }
    }

    pub(super) fn new_producer_id(
        &mut self,
        turn: &mut Turn,
    ) -> Result<ProducerId, TransactionError> {
        let (id, is_reserving) = self.producer_ids.next()?;
        if is_reserving {
            let reserved_end = self.producer_ids.reserved_end();
            turn.persist(record::producer_ids(reserved_end));
        }
        Ok(id)
    }

    /// Removes transactional ids that have been unused for the retention time.
    pub(super) fn expire(&mut self, turn: &mut Turn) {
        let retention = self.config.transactional_id_retention.as_millis();
        let retention = i64::try_from(retention).unwrap_or(i64::MAX);
        let oldest = turn.now.timestamp.0.saturating_sub(retention);
        let name_bytes = &mut self.name_bytes;
        self.entries.retain(|id, entry| {
            let transaction = &entry.transaction;
            let is_kept = transaction.participants().is_some() || transaction.updated.0 > oldest;
            if !is_kept {
                turn.persist(record::tombstone(id));
                *name_bytes -= id.len();
            }
            is_kept
        });
    }
}

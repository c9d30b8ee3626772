//! Partitions and groups take part in a transaction.

use super::config::TRANSACTIONAL_ID_BYTES_MAX;
use super::coordinator::{Coordinator, Entry};
use super::participants::{Participants, check_name};
use super::record;
use super::transaction::Phase;
use super::turn::Turn;
use super::{
    AddOffsets, AddPartitions, Producer, TopicPartition, TransactionError, TransactionalId,
    VerifyOffsets, VerifyPartitions,
};

impl Coordinator {
    pub(super) fn add_partitions(
        &mut self,
        turn: &mut Turn,
        add: AddPartitions,
    ) -> Result<(), TransactionError> {
        let entry = self.entry(&add.transactional_id)?;
        entry.transaction.check_open(add.producer)?;
        let present = entry.transaction.participants();
        let is_new = |partition: &TopicPartition| {
            !present.is_some_and(|present| present.has_partition(partition))
        };
        let mut added = Participants::default();
        for partition in add.partitions.into_iter().filter(is_new) {
            check_name(&partition.topic)?;
            added.add_partition(partition);
        }
        self.add(turn, &add.transactional_id, added)
    }

    pub(super) fn add_offsets(
        &mut self,
        turn: &mut Turn,
        add: AddOffsets,
    ) -> Result<(), TransactionError> {
        let entry = self.entry(&add.transactional_id)?;
        entry.transaction.check_open(add.producer)?;
        let present = entry.transaction.participants();
        let mut added = Participants::default();
        if !present.is_some_and(|present| present.has_group(&add.group)) {
            check_name(&add.group)?;
            added.add_group(add.group);
        }
        self.add(turn, &add.transactional_id, added)
    }

    /// Adds the partitions and groups that do not take part yet.
    fn add(
        &mut self,
        turn: &mut Turn,
        id: &TransactionalId,
        added: Participants,
    ) -> Result<(), TransactionError> {
        if added.is_empty() {
            return Ok(());
        }
        let Some(entry) = self.entries.get_mut(id) else {
            return Err(TransactionError::InvalidProducerIdMapping);
        };
        let transaction = &mut entry.transaction;
        let none = Participants::default();
        let present = transaction.participants().unwrap_or(&none);
        present.check_room(&added)?;
        let name_bytes = self.name_bytes + present.name_bytes_of(&added);
        if name_bytes > self.config.name_bytes_max {
            return Err(TransactionError::PolicyViolation);
        }
        let is_first = !matches!(transaction.phase, Phase::Ongoing { .. });
        transaction.add(turn.now.timestamp, added);
        self.name_bytes = name_bytes;
        turn.persist(record::transaction(id, transaction));
        if is_first {
            let timeout = transaction.timeout;
            let at = timeout.map(|timeout| turn.now.elapsed.saturating_add(timeout));
            self.timers.set(id, &mut entry.deadline, at);
        }
        Ok(())
    }

    pub(super) fn verify_partitions(
        &self,
        verify: VerifyPartitions,
    ) -> Vec<(TopicPartition, Result<(), TransactionError>)> {
        let present = self.open_transaction(&verify.transactional_id, verify.producer);
        let partitions = verify.partitions.into_iter();
        let result = |partition: &TopicPartition| match &present {
            Ok(Some(present)) if present.has_partition(partition) => Ok(()),
            Ok(_) => Err(TransactionError::TransactionAbortable),
            Err(error) => Err(*error),
        };
        let results = partitions.map(|partition| {
            let result = result(&partition);
            (partition, result)
        });
        results.collect()
    }

    pub(super) fn verify_offsets(&self, verify: &VerifyOffsets) -> Result<(), TransactionError> {
        match self.open_transaction(&verify.transactional_id, verify.producer)? {
            Some(present) if present.has_group(&verify.group) => Ok(()),
            _ => Err(TransactionError::TransactionAbortable),
        }
    }

    /// The participants of a producer's open transaction, if there is one.
    fn open_transaction(
        &self,
        id: &TransactionalId,
        producer: Producer,
    ) -> Result<Option<&Participants>, TransactionError> {
        let transaction = &self.entry(id)?.transaction;
        transaction.check_open(producer)?;
        Ok(transaction.participants())
    }

    /// A transactional id that has a producer.
    pub(super) fn entry(&self, id: &TransactionalId) -> Result<&Entry, TransactionError> {
        if id.is_empty() || id.len() > TRANSACTIONAL_ID_BYTES_MAX {
            return Err(TransactionError::InvalidRequest);
        }
        let entry = self.entries.get(id);
        entry.ok_or(TransactionError::InvalidProducerIdMapping)
    }
}

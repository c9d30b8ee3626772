//! The end of transactions: a durable record decides the outcome, then every participant learns of it, and then the
//! producer may begin its next transaction.

use super::coordinator::{Coordinator, Entry};
use super::participants::Participants;
use super::progress::Progress;
use super::record;
use super::transaction::{End, EndStep, Phase};
use super::turn::{Action, Ending, Report, Turn};
use super::{
    Abort, AbortTransaction, EndTransaction, Outcome, Producer, TransactionError, TransactionalId,
};

impl Coordinator {
    pub(super) fn end_transaction(
        &mut self,
        turn: &mut Turn,
        request: &EndTransaction,
    ) -> Result<Producer, TransactionError> {
        let id = &request.transactional_id;
        let transaction = &self.entry(id)?.transaction;
        let end = End {
            outcome: request.outcome,
            bumps_epoch: request.bumps_epoch,
        };
        if transaction.end_step(request.producer, end)? == EndStep::Repeated {
            return Ok(transaction.current());
        }
        let next = match transaction.needs_id_to_end(end) {
            true => Some(self.new_producer_id(turn)?),
            false => None,
        };
        if let Some(entry) = self.entries.get_mut(id) {
            entry.transaction.end(turn.now.timestamp, end, next);
            self.begin_ending(turn, id);
        }
        Ok(self.entry(id)?.transaction.current())
    }

    /// Aborts an open transaction for an administrator. The request names its producer and a partition.
    pub(super) fn abort_transaction(
        &mut self,
        turn: &mut Turn,
        request: &AbortTransaction,
    ) -> Result<Abort, TransactionError> {
        let mut entries = self.entries.iter();
        let known = entries.find(|(_, entry)| {
            let transaction = &entry.transaction;
            let has_partition =
                |participants: &Participants| participants.has_partition(&request.partition);
            transaction.producer.id == request.producer.id
                && transaction.participants().is_some_and(has_partition)
        });
        let Some((id, entry)) = known else {
            return Ok(Abort::Unknown);
        };
        match &entry.transaction.phase {
            Phase::Ending { end, .. } => match end.outcome {
                Outcome::Aborted => Ok(Abort::UnderWay),
                Outcome::Committed => Err(TransactionError::ConcurrentTransactions),
            },
            _ if entry.transaction.producer != request.producer => {
                Err(TransactionError::InvalidProducerEpoch)
            }
            _ => {
                let id = id.clone();
                self.fence(turn, &id, false);
                Ok(Abort::UnderWay)
            }
        }
    }

    /// Aborts an open transaction, and fences its producer unless the producer itself asked for the abort.
    pub(super) fn fence(&mut self, turn: &mut Turn, id: &TransactionalId, asked_by_itself: bool) {
        if let Some(entry) = self.entries.get_mut(id) {
            let now = turn.now.timestamp;
            entry.transaction.fence(now, asked_by_itself);
            self.begin_ending(turn, id);
        }
    }

    /// Once this record is durable the outcome is decided; then the participants learn it.
    fn begin_ending(&mut self, turn: &mut Turn, id: &TransactionalId) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        self.timers.set(id, &mut entry.deadline, None);
        let participants = entry.transaction.participants();
        entry.progress = participants.map(Progress::new).unwrap_or_default();
        turn.persist(record::transaction(id, &entry.transaction));
        entry.tell(turn, id);
        self.end_if_told(turn, id);
    }

    pub(super) fn on_report(&mut self, turn: &mut Turn, report: Report) {
        let (Report::MarkersWritten(ending, _)
        | Report::MarkersFailed(ending, _)
        | Report::GroupOffsetsEnded(ending, _)
        | Report::GroupOffsetsFailed(ending, _)) = &report;
        let id = ending.transactional_id.clone();
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if entry.ending(&id).as_ref() != Some(ending) {
            return;
        }
        match report {
            Report::MarkersWritten(_, partitions) => entry.progress.partitions_done(&partitions),
            Report::GroupOffsetsEnded(_, groups) => entry.progress.groups_done(&groups),
            Report::MarkersFailed(_, partitions) => entry.progress.partitions_failed(partitions),
            Report::GroupOffsetsFailed(_, groups) => entry.progress.groups_failed(groups),
        }
        if entry.progress.has_untold() && entry.deadline.is_none() {
            let at = turn.now.elapsed.saturating_add(entry.progress.backoff());
            self.timers.set(&id, &mut entry.deadline, Some(at));
        }
        self.end_if_told(turn, &id);
    }

    /// Completes the transaction once every participant has the outcome.
    fn end_if_told(&mut self, turn: &mut Turn, id: &TransactionalId) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        if !entry.progress.is_done() {
            return;
        }
        let participants = entry.transaction.participants();
        self.name_bytes -= participants.map_or(0, Participants::name_bytes);
        entry.transaction.complete(turn.now.timestamp);
        self.timers.set(id, &mut entry.deadline, None);
        turn.persist(record::transaction(id, &entry.transaction));
    }

    /// Aborts a transaction that has timed out, or sends an outcome again.
    pub(super) fn on_deadline(&mut self, turn: &mut Turn, id: &TransactionalId) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        self.timers.set(id, &mut entry.deadline, None);
        match entry.transaction.phase {
            Phase::Ongoing { .. } => self.fence(turn, id, false),
            Phase::Ending { .. } => {
                entry.tell(turn, id);
                self.end_if_told(turn, id);
            }
            Phase::Empty | Phase::Ended { .. } => {}
        }
    }
}

impl Entry {
    /// The end that is under way.
    fn ending(&self, id: &TransactionalId) -> Option<Ending> {
        match self.transaction.phase {
            Phase::Ending { end, .. } => Some(Ending {
                transactional_id: id.clone(),
                producer: self.transaction.producer,
                outcome: end.outcome,
            }),
            _ => None,
        }
    }

    /// Sends the outcome to the participants that lack it and have no attempt under way.
    fn tell(&mut self, turn: &mut Turn, id: &TransactionalId) {
        let Some(ending) = self.ending(id) else {
            return;
        };
        let (partitions, groups) = self.progress.take_untold();
        if !partitions.is_empty() {
            let write = Action::WriteMarkers(ending.clone(), partitions);
            turn.actions.push(write);
        }
        if !groups.is_empty() {
            turn.actions.push(Action::EndGroupOffsets(ending, groups));
        }
    }
}

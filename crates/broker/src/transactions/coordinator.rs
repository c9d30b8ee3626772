//! The coordinator: events in, actions out.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::answer::Answer;
use super::config::Config;
use super::producer_ids::ProducerIds;
use super::progress::Progress;
use super::record::{self, Key, Value};
use super::transaction::{Phase, Transaction};
use super::turn::{Action, Report, Timers, Turn};
use super::{Record, RecordError, Request, TransactionalId};
use crate::groups::{Moment, RequestId};

/// The coordinator of all transactions, which also gives out producer ids.
///
/// It does no I/O and asks no clock: the caller passes events and times in, and carries out the actions that come
/// back. The call that handles a request also answers it, exactly once.
///
/// Its memory runs ahead of the log. If an append fails, drop the coordinator, and [restore](Coordinator::restore)
/// another from the log; but not before every marker and every group's outcome that an earlier one asked for is either
/// written or given up permanently. A late marker would end a later transaction of the same producer.
#[derive(Debug)]
pub struct Coordinator {
    pub(super) config: Config,
    pub(super) producer_ids: ProducerIds,
    pub(super) entries: BTreeMap<TransactionalId, Entry>,
    pub(super) timers: Timers,
    /// The time of the next search for expired transactional ids.
    pub(super) expiry_at: Duration,
    /// The bytes of all transactional ids and of the names of all participants.
    pub(super) name_bytes: usize,
}

/// A transactional id.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its state, as the log has it.
    pub transaction: Transaction,
    /// The participants that lack the outcome, while a transaction is being ended.
    pub progress: Progress,
    /// The time at which its transaction times out, or the next attempt to end it is due.
    pub deadline: Option<Duration>,
}

impl Entry {
    pub fn new(transaction: Transaction) -> Self {
        Entry {
            transaction,
            progress: Progress::default(),
            deadline: None,
        }
    }
}

impl Coordinator {
    /// Creates a coordinator without any transactional id.
    pub fn new(config: Config, now: Moment) -> Self {
        let mut coordinator = Coordinator {
            config,
            producer_ids: ProducerIds::default(),
            entries: BTreeMap::new(),
            timers: Timers::default(),
            expiry_at: Duration::ZERO,
            name_bytes: 0,
        };
        coordinator.set_expiry(now);
        coordinator
    }

    /// Restores a coordinator from the log. `records` are those of a [snapshot](Self::snapshot) and all that were
    /// persisted since, or all that were ever persisted, in their order.
    ///
    /// A transaction that was being ended goes on with the next [`tick`](Self::tick), which is due at once: it writes
    /// again even the markers that were written already.
    ///
    /// # Errors
    /// When a record is not one of this module.
    pub fn restore(
        config: Config,
        now: Moment,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<Self, RecordError> {
        // Keep only the last value of each key.
        let mut transactions = HashMap::new();
        let mut coordinator = Coordinator::new(config, now);
        for record in records {
            match record::decode(record)? {
                (Key::Transaction(id), Some(Value::Transaction(transaction))) => {
                    transactions.insert(id, transaction);
                }
                (Key::Transaction(id), _) => {
                    transactions.remove(&id);
                }
                (Key::ProducerIds, Some(Value::ProducerIds(reserved_end))) => {
                    coordinator.producer_ids = ProducerIds::restore(reserved_end);
                }
                (Key::ProducerIds, _) => {
                    let field = "producer ids";
                    return Err(RecordError::Removed { field });
                }
            }
        }
        for (id, transaction) in transactions {
            coordinator.restore_one(now, id, transaction);
        }
        Ok(coordinator)
    }

    fn restore_one(&mut self, now: Moment, id: TransactionalId, transaction: Transaction) {
        let mut entry = Entry::new(transaction);
        self.name_bytes += id.len();
        if let Some(participants) = entry.transaction.participants() {
            self.name_bytes += participants.name_bytes();
        }
        let at = match &entry.transaction.phase {
            Phase::Ongoing { started, .. } => {
                // The wall clock may have been set back: a transaction never gets more than its whole timeout.
                let passed = now.timestamp.0.saturating_sub(started.0);
                let passed = Duration::from_millis(passed.try_into().unwrap_or(0));
                let timeout = entry.transaction.timeout;
                let left = timeout.map(|timeout| timeout.saturating_sub(passed));
                left.map(|left| now.elapsed.saturating_add(left))
            }
            Phase::Ending { participants, .. } => {
                entry.progress = Progress::new(participants);
                Some(now.elapsed)
            }
            Phase::Empty | Phase::Ended { .. } => None,
        };
        self.timers.set(&id, &mut entry.deadline, at);
        self.entries.insert(id, entry);
    }

    /// Handles a request; one of the actions answers it.
    pub fn handle(&mut self, now: Moment, request_id: RequestId, request: Request) -> Vec<Action> {
        let mut turn = Turn::new(now);
        let answer = match request {
            Request::InitProducerId(init) => {
                let result = self.init_producer_id(&mut turn, &init);
                let result = result.map_err(|error| error.to_client(init.knows_fencing));
                Answer::InitProducerId(result)
            }
            Request::AddPartitions(add) => {
                let knows_fencing = add.knows_fencing;
                let result = self.add_partitions(&mut turn, add);
                let result = result.map_err(|error| error.to_client(knows_fencing));
                Answer::AddPartitions(result)
            }
            Request::AddOffsets(add) => {
                let knows_fencing = add.knows_fencing;
                let result = self.add_offsets(&mut turn, add);
                let result = result.map_err(|error| error.to_client(knows_fencing));
                Answer::AddOffsets(result)
            }
            Request::VerifyPartitions(verify) => {
                Answer::VerifyPartitions(self.verify_partitions(verify))
            }
            Request::VerifyOffsets(verify) => Answer::VerifyOffsets(self.verify_offsets(&verify)),
            Request::EndTransaction(end) => {
                let result = self.end_transaction(&mut turn, &end);
                let result = result.map_err(|error| error.to_client(end.knows_fencing));
                Answer::EndTransaction(result)
            }
            Request::AbortTransaction(abort) => {
                Answer::AbortTransaction(self.abort_transaction(&mut turn, &abort))
            }
            Request::DescribeTransactions(ids) => Answer::DescribeTransactions(self.describe(ids)),
            Request::ListTransactions(list) => Answer::ListTransactions(self.list(now, &list)),
        };
        turn.actions.push(Action::Answer(request_id, answer));
        turn.actions
    }

    /// Takes note of how an action went. Reports about transactions that are ended are ignored.
    pub fn report(&mut self, now: Moment, report: Report) -> Vec<Action> {
        let mut turn = Turn::new(now);
        self.on_report(&mut turn, report);
        turn.actions
    }

    /// When to call [`tick`](Self::tick) next, in the time of [`Moment::elapsed`].
    pub fn next_deadline(&self) -> Duration {
        let next = self.timers.next().unwrap_or(Duration::MAX);
        next.min(self.expiry_at)
    }

    /// Handles all deadlines that have passed.
    pub fn tick(&mut self, now: Moment) -> Vec<Action> {
        let mut turn = Turn::new(now);
        while let Some(id) = self.timers.due(now.elapsed) {
            self.on_deadline(&mut turn, &id);
        }
        if self.expiry_at <= now.elapsed {
            self.set_expiry(now);
            self.expire(&mut turn);
        }
        turn.actions
    }

    fn set_expiry(&mut self, now: Moment) {
        // Never at once, or the caller would tick forever.
        let interval = self.config.retention_check_interval;
        let interval = interval.max(Duration::from_millis(1));
        self.expiry_at = now.elapsed.saturating_add(interval);
    }

    /// Returns all state as records, as if the log were just compacted: a coordinator can be [restored](Self::restore)
    /// from them.
    pub fn snapshot(&self) -> Vec<Record> {
        let reserved_end = self.producer_ids.reserved_end();
        let ids = record::producer_ids(reserved_end);
        let entries = self.entries.iter();
        let entries = entries.map(|(id, entry)| record::transaction(id, &entry.transaction));
        std::iter::once(ids).chain(entries).collect()
    }
}

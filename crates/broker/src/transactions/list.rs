//! The requests of administrators about transactions.

use millstream_base::ProducerId;

use super::answer::{Described, ListedTransaction};
use super::coordinator::{Coordinator, Entry};
use super::participants::Participants;
use super::{ListTransactions, State, TransactionError, TransactionalId};
use crate::groups::{GroupName, Moment};
use crate::pattern::compile;

impl Coordinator {
    /// Whether a transaction is being committed, and partitions of a stream lack its marker.
    pub fn is_committing(&self, stream: &str) -> bool {
        self.entries.values().any(|entry| {
            entry.transaction.state() == State::PrepareCommit && entry.progress.lacks(stream)
        })
    }

    /// Returns the groups that take part in transactions, open or being ended, with the producers of these.
    pub fn groups(&self) -> impl Iterator<Item = (ProducerId, &GroupName)> {
        self.entries.values().flat_map(|entry| {
            let producer = entry.transaction.producer.id;
            let participants = entry.transaction.participants().into_iter();
            let groups = participants.flat_map(Participants::groups);
            groups.map(move |group| (producer, group))
        })
    }

    pub(super) fn describe(
        &self,
        ids: Vec<TransactionalId>,
    ) -> Vec<(TransactionalId, Result<Described, TransactionError>)> {
        let described = ids.into_iter().map(|id| {
            let result = match self.entries.get(&id) {
                Some(entry) => Ok(entry.described()),
                None if id.is_empty() => Err(TransactionError::InvalidRequest),
                None => Err(TransactionError::TransactionalIdNotFound),
            };
            (id, result)
        });
        described.collect()
    }

    pub(super) fn list(
        &self,
        now: Moment,
        list: &ListTransactions,
    ) -> Result<Vec<ListedTransaction>, TransactionError> {
        let pattern = list
            .pattern
            .as_deref()
            .filter(|pattern| !pattern.is_empty());
        let pattern = pattern.map(compile).transpose();
        let pattern = pattern.map_err(|_| TransactionError::InvalidRegularExpression)?;
        let (states, producers) = (list.states.as_ref(), &list.producers);
        let is_wanted = |id: &TransactionalId, entry: &Entry| {
            let transaction = &entry.transaction;
            let is_long = list.duration.is_none_or(|duration| {
                transaction.started().is_some_and(|started| {
                    let passed = now.timestamp.0.saturating_sub(started.0);
                    u128::try_from(passed).is_ok_and(|passed| passed > duration.as_millis())
                })
            });
            is_long
                && states.is_none_or(|states| states.contains(&transaction.state()))
                && (producers.is_empty() || producers.contains(&transaction.current().id))
                && pattern.as_ref().is_none_or(|pattern| pattern.is_match(id))
        };
        let entries = self.entries.iter();
        let found = entries.filter(|(id, entry)| is_wanted(id, entry));
        let transactions = found.map(|(id, entry)| ListedTransaction {
            transactional_id: id.clone(),
            producer: entry.transaction.current().id,
            state: entry.transaction.state(),
        });
        Ok(transactions.collect())
    }
}

impl Entry {
    fn described(&self) -> Described {
        let transaction = &self.transaction;
        let (partitions, groups) = match transaction.participants() {
            Some(open) if transaction.state() == State::Ongoing => {
                let groups = open.groups().iter().cloned();
                (open.partitions().collect(), groups.collect())
            }
            _ => (self.progress.partitions(), self.progress.groups()),
        };
        Described {
            state: transaction.state(),
            producer: transaction.current(),
            timeout: transaction.timeout,
            started: transaction.started(),
            partitions,
            groups,
        }
    }
}

//! The requests of administrators about transactions.

use std::collections::HashSet;

use super::answer::{Described, Listed, ListedTransaction};
use super::coordinator::{Coordinator, Entry};
use super::{ListTransactions, State, TransactionError, TransactionalId};
use crate::groups::Moment;
use crate::pattern::compile;

/// States of Kafka that no transaction has here; a request may still name them.
const UNSEEN_STATES: [&str; 2] = ["Dead", "PrepareEpochFence"];

impl Coordinator {
    /// Whether a transaction is being committed, and partitions of a stream lack its marker.
    pub fn is_committing(&self, stream: &str) -> bool {
        self.entries.values().any(|entry| {
            entry.transaction.state() == State::PrepareCommit && entry.progress.lacks(stream)
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
    ) -> Result<Listed, TransactionError> {
        let pattern = list
            .pattern
            .as_deref()
            .filter(|pattern| !pattern.is_empty());
        let pattern = pattern.map(compile).transpose();
        let pattern = pattern.map_err(|_| TransactionError::InvalidRegularExpression)?;
        let producers: HashSet<_> = list.producers.iter().collect();
        let is_wanted = |id: &TransactionalId, entry: &Entry| {
            let transaction = &entry.transaction;
            let is_state = |name: &String| transaction.state().as_str() == name;
            let is_long = list.duration.is_none_or(|duration| {
                transaction.started().is_some_and(|started| {
                    let passed = now.timestamp.0.saturating_sub(started.0);
                    u128::try_from(passed).is_ok_and(|passed| passed > duration.as_millis())
                })
            });
            is_long
                && (list.states.is_empty() || list.states.iter().any(is_state))
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
        Ok(Listed {
            unknown_states: unknown_states(&list.states),
            transactions: transactions.collect(),
        })
    }
}

fn unknown_states(states: &[String]) -> Vec<String> {
    let is_known = |name: &&String| {
        let is_seen = State::ALL.iter().any(|state| state.as_str() == *name);
        is_seen || UNSEEN_STATES.contains(&name.as_str())
    };
    states
        .iter()
        .filter(|name| !is_known(name))
        .cloned()
        .collect()
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

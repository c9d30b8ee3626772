//! Transactions: their list, and deciding those that their producer left undecided.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_base::{ProducerEpoch, ProducerId, Timestamp};
use millstream_wire::ResponseError;
use millstream_wire::messages::{
    DescribeTransactionsRequest, ListTransactionsRequest,
    describe_transactions_response as described,
};

use crate::client::Client;
use crate::error::ClientError;
use crate::offsets::TopicPartition;
use crate::producer::{TransactionConfig, init, transactional_id};
use crate::transaction::TransactionIdentity;

/// For this time the client retries before it gives up.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// The timeout of a transaction of which only the id is known.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout that a server reports for a transaction without one.
const NO_TIMEOUT_MS: i32 = i32::MAX;

/// The description of a transactional id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionDescription {
    /// The transactional id.
    pub id: String,
    /// Kafka's name of its state: `Ongoing` if a transaction is open.
    pub state: String,
    /// The identity of the open transaction, or else of the next one.
    pub identity: TransactionIdentity,
    /// The start of the open transaction, or else of the last one.
    pub started: Option<Timestamp>,
    /// The timeout of a transaction; `None` if it waits for a decision without a limit (two-phase
    /// commit).
    pub timeout: Option<Duration>,
    /// The partitions of the transaction.
    pub partitions: Vec<TopicPartition>,
}

impl TransactionDescription {
    /// Returns whether a transaction is open.
    pub fn is_open(&self) -> bool {
        self.state == "Ongoing"
    }

    /// Returns whether this transaction was aborted, and no later one has begun.
    pub fn was_aborted(&self, identity: TransactionIdentity) -> bool {
        // The end of the transaction raised the producer's epoch by one.
        let is_last = self.identity.producer == identity.producer
            && self.identity.epoch.0.checked_sub(1) == Some(identity.epoch.0);
        is_last && matches!(self.state.as_str(), "PrepareAbort" | "CompleteAbort")
    }
}

impl Client {
    /// Returns all transactional ids that this client may see, in their order.
    ///
    /// # Errors
    /// When a server does not answer.
    pub async fn transactions(&self) -> Result<Vec<TransactionDescription>, ClientError> {
        let mut found = BTreeMap::new();
        for server in self.all().await? {
            let answer = server.ask(ListTransactionsRequest::default()).await?;
            ClientError::check(answer.error_code, None, "listing transactions")?;
            let ids = answer.transaction_states.into_iter();
            let ids: Vec<_> = ids.map(|state| state.transactional_id).collect();
            let request = DescribeTransactionsRequest::default().with_transactional_ids(ids);
            for state in server.ask(request).await?.transaction_states {
                let description = description(&state);
                // The id may have expired after the list was made.
                if description.is_ok() || !is_unknown(state.error_code) {
                    let description = description?;
                    found.insert(description.id.clone(), description);
                }
            }
        }
        Ok(found.into_values().collect())
    }

    /// Returns the description of a transactional id; `None` if the server does not know the id.
    ///
    /// # Errors
    /// When the server does not answer, or refuses to describe it.
    pub async fn transaction(
        &self,
        id: &str,
    ) -> Result<Option<TransactionDescription>, ClientError> {
        let request = DescribeTransactionsRequest::default()
            .with_transactional_ids(vec![transactional_id(id)]);
        let server = self.transaction_coordinator(id).await?;
        let answer = server.ask(request).await?;
        let state = answer.transaction_states.first();
        let state = state.filter(|state| !is_unknown(state.error_code));
        state.map(description).transpose()
    }

    /// Commits or aborts a transaction that its producer has
    /// [prepared](crate::TransactionalProducer::prepared) or left open. If it has already ended in
    /// this way, nothing changes.
    ///
    /// # Errors
    /// When the transaction has ended in the other way, or the server refuses or does not answer.
    pub async fn end_transaction(
        &self,
        id: &str,
        identity: TransactionIdentity,
        is_committed: bool,
    ) -> Result<(), ClientError> {
        self.end(id, identity, is_committed, RETRY_FOR)
            .await
            .map(drop)
    }

    /// Fences the producers of a transactional id, and aborts their open transaction. Returns the identity that the id has
    /// now, until it is fenced again or a producer begins with it.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub async fn fence_producers(&self, id: &str) -> Result<TransactionIdentity, ClientError> {
        let config = TransactionConfig {
            id: id.to_owned(),
            timeout: TIMEOUT,
            two_phase: false,
        };
        init(self, &config, None, RETRY_FOR).await
    }
}

fn is_unknown(code: i16) -> bool {
    code == ResponseError::TransactionalIdNotFound.code()
}

fn description(state: &described::TransactionState) -> Result<TransactionDescription, ClientError> {
    let id = state.transactional_id.to_string();
    ClientError::check(state.error_code, None, format!("transactional id {id}"))?;
    let timeout_ms = state.transaction_timeout_ms;
    let partitions = state.topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| TopicPartition {
            topic: topic.topic.as_str().into(),
            partition: *partition,
        })
    });
    Ok(TransactionDescription {
        state: state.transaction_state.to_string(),
        identity: TransactionIdentity {
            producer: ProducerId(state.producer_id.0),
            epoch: ProducerEpoch(state.producer_epoch),
        },
        started: Some(state.transaction_start_time_ms)
            .filter(|started| *started >= 0)
            .map(Timestamp),
        timeout: (timeout_ms != NO_TIMEOUT_MS)
            .then(|| Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0))),
        partitions: partitions.collect(),
        id,
    })
}

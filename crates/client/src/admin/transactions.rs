//! Transactions: their list, and deciding those that their producer left undecided.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_base::{ProducerEpoch, ProducerId, Timestamp};
use millstream_wire::ResponseError;
use millstream_wire::messages::describe_producers_request::TopicRequest;
use millstream_wire::messages::describe_producers_response::ProducerState;
use millstream_wire::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use millstream_wire::messages::{
    DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest,
    WriteTxnMarkersRequest, describe_transactions_response as described,
};

use crate::client::{Client, topic_name};
use crate::error::ClientError;
use crate::offsets::TopicPartition;
use crate::producer::{TransactionConfig, init, transactional_id};
use crate::transaction::TransactionIdentity;

/// For this time the client retries before it gives up.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// The timeout of a transaction of which only the id is known.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The state of an open transaction, under Kafka's name.
const ONGOING: &str = "Ongoing";

/// Begins the id of a transaction that has no transactional id, before the number of its producer.
const OF_PRODUCER: &str = "producer/";

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
        self.state == ONGOING
    }

    /// Returns whether it is of a sink of a flow that writes to the log in its own process, which decides it when it
    /// resumes.
    pub fn is_in_process(&self) -> bool {
        self.id.starts_with(OF_PRODUCER) && self.identity.producer >= ProducerId::IN_PROCESS
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

    /// Returns the open transactions that no coordinator knows, each with the id `producer/<number>`: transactions of
    /// sinks of flows that write to the log in their own process, and transactions that their coordinator has
    /// forgotten. Leaves out partitions that this client may not read.
    ///
    /// # Errors
    /// When a server does not answer.
    pub async fn transactions_without_coordinator(
        &self,
    ) -> Result<Vec<TransactionDescription>, ClientError> {
        let mut topics = Vec::new();
        for stream in self.streams("").await? {
            let topic = self.topic(&stream.name).await?;
            let partitions = topic.partitions().map(|place| place.partition);
            topics.push(
                TopicRequest::default()
                    .with_name(topic_name(&stream.name))
                    .with_partition_indexes(partitions.collect()),
            );
        }
        let request = DescribeProducersRequest::default().with_topics(topics);
        let mut found: BTreeMap<i64, TransactionDescription> = BTreeMap::new();
        for server in self.all().await? {
            for topic in server.ask(request.clone()).await?.topics {
                // Partitions of other leaders have no producers in this answer.
                for partition in topic.partitions {
                    let place = TopicPartition {
                        topic: topic.name.as_str().into(),
                        partition: partition.partition_index,
                    };
                    let producers = partition.active_producers.into_iter();
                    for producer in producers.filter(|it| it.current_txn_start_offset >= 0) {
                        let open = found.entry(producer.producer_id.0);
                        let open = open.or_insert_with(|| of_producer(&producer));
                        open.partitions.push(place.clone());
                    }
                }
            }
        }
        for known in self.transactions().await? {
            found.remove(&known.identity.producer.0);
        }
        Ok(found.into_values().collect())
    }

    /// Commits or aborts a transaction that [no coordinator knows](Self::transactions_without_coordinator).
    ///
    /// # Errors
    /// When a server refuses or does not answer: it commits only those that are [in process](TransactionDescription::is_in_process).
    pub async fn end_without_coordinator(
        &self,
        transaction: &TransactionDescription,
        is_committed: bool,
    ) -> Result<(), ClientError> {
        for place in &transaction.partitions {
            let topic = WritableTxnMarkerTopic::default()
                .with_name(topic_name(&place.topic))
                .with_partition_indexes(vec![place.partition]);
            let marker = WritableTxnMarker::default()
                .with_producer_id(transaction.identity.producer.0.into())
                .with_producer_epoch(transaction.identity.epoch.0)
                .with_transaction_result(is_committed)
                .with_topics(vec![topic]);
            let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
            let leader = self.server(self.leader_of(place).await?).await?;
            let answer = leader.ask(request).await?;
            let topics = answer.markers.iter().flat_map(|marker| &marker.topics);
            for partition in topics.flat_map(|topic| &topic.partitions) {
                let (topic, number) = (&place.topic, place.partition);
                ClientError::check(
                    partition.error_code,
                    None,
                    format!(
                        "ending transaction {} in partition {number} of {topic}",
                        transaction.id
                    ),
                )?;
            }
        }
        Ok(())
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

fn of_producer(producer: &ProducerState) -> TransactionDescription {
    TransactionDescription {
        id: format!("{OF_PRODUCER}{}", producer.producer_id.0),
        state: ONGOING.to_owned(),
        identity: TransactionIdentity {
            producer: ProducerId(producer.producer_id.0),
            // Epochs have 16 bits, though this answer has room for more.
            epoch: ProducerEpoch(producer.producer_epoch as i16),
        },
        started: None,
        timeout: None,
        partitions: Vec::new(),
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

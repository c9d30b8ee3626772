//! The transactional producer: all records of a transaction count, or none.
//!
//! Each transaction has an epoch of its own: from [`PER_TRANSACTION_EPOCHS`] on, the server assigns it at the end of
//! the previous transaction; the producer requests it from older servers. So producer id and epoch identify one
//! transaction, for ever.
//!
//! An *ended* transaction is visible or gone. A *prepared* transaction waits for a decision from outside: all its
//! records are stored, and the producer writes no more to it. The server needs no notice of this state, since a
//! transaction of [two phases](TransactionConfig::two_phase) has no timeout (KIP-939).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Offset, ProducerEpoch, ProducerId};
use millstream_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use millstream_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use millstream_wire::messages::{
    self, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest,
    EndTxnRequest, GroupId, InitProducerIdRequest, ProduceRequest, TransactionalId,
    TxnOffsetCommitRequest,
};
use millstream_wire::{ApiKey, Question, ResponseError};
use tokio::time::{Instant, timeout};

use super::outcome::Delivery;
use super::partition::Identity;
use super::state::Transaction;
use super::{PER_TRANSACTION_EPOCHS, Producer, ProducerConfig, ProducerRecord};
use crate::client::{Client, text, topic_name};
use crate::connection::{Connection, Pending};
use crate::error::ClientError;
use crate::offsets::TopicPartition;
use crate::transaction::TransactionIdentity;

/// The newest versions that do not imply an epoch for each transaction.
const PRODUCE_VERSION_OLD: i16 = 11;
const END_VERSION_OLD: i16 = 4;
const OFFSETS_VERSION_OLD: i16 = 4;
/// A version of AddOffsetsToTxn that all brokers know with this behaviour.
const ADD_OFFSETS_VERSION: i16 = 3;
/// The newest version that clients may send: later ones are between brokers.
const ADD_VERSION: i16 = 3;
/// The first version of InitProducerId with two-phase commit.
const TWO_PHASE_FROM: i16 = 6;

/// The settings of a transactional producer.
#[derive(Debug, Clone)]
pub struct TransactionConfig {
    /// The transactional id. A producer that begins with it fences its predecessors, and aborts their open transaction.
    pub id: String,
    /// The server aborts a transaction that takes longer, unless it has two phases.
    pub timeout: Duration,
    /// Whether transactions stay open without a limit until they are decided: for those that another system decides. It
    /// needs the right `TwoPhaseCommit` to the transactional id, and a server that knows KIP-939.
    pub two_phase: bool,
}

/// Sends records in transactions, one after the other. Dropping it leaves an open transaction as it is.
#[derive(Debug)]
pub struct TransactionalProducer {
    producer: Producer,
    client: Client,
    config: TransactionConfig,
    /// The longest time for which it retries a request.
    patience: Duration,
}

impl TransactionalProducer {
    /// Begins as the producer of a transactional id: fences its predecessor, and aborts the open transaction if there
    /// is one. Call it within a runtime.
    ///
    /// # Errors
    /// When the server refuses, does not know two-phase commit although the settings want it, or does not answer within
    /// [`ProducerConfig::delivery_timeout`].
    pub async fn new(
        client: &Client,
        producer: ProducerConfig,
        config: TransactionConfig,
    ) -> Result<TransactionalProducer, ClientError> {
        let client = client.separate();
        let patience = producer.delivery_timeout;
        let identity = init(&client, &config, None, patience).await?;
        let adds_partitions = {
            let coordinator = client.transaction_coordinator(&config.id).await?;
            coordinator.versions().transactions() < PER_TRANSACTION_EPOCHS
        };
        let transaction = Transaction {
            identity: Identity {
                id: identity.producer,
                epoch: identity.epoch,
                generation: 0,
            },
            is_open: false,
            has_records: false,
            failed: None,
            adds_partitions,
        };
        let id = Arc::from(config.id.as_str());
        let producer = Producer::start(client.clone(), producer, Some((id, transaction)));
        Ok(TransactionalProducer {
            producer,
            client,
            config,
            patience,
        })
    }

    /// Returns the transactional id.
    pub fn id(&self) -> &str {
        &self.config.id
    }

    /// Returns whether transactions wait for a decision without a limit.
    pub fn has_two_phases(&self) -> bool {
        self.config.two_phase
    }

    /// Begins a transaction. Its first records announce it to the server.
    ///
    /// # Errors
    /// When one is open.
    pub fn begin(&self) -> Result<(), ClientError> {
        let mut state = self.producer.shared.state.lock();
        match &mut state.transaction {
            Some(transaction) if !transaction.is_open && transaction.failed.is_none() => {
                transaction.is_open = true;
                Ok(())
            }
            _ => Err(ClientError::TransactionOpen),
        }
    }

    /// Queues a record in the transaction; see [`Producer::send`].
    ///
    /// # Errors
    /// As there, and when no transaction has begun, or it can only be aborted.
    pub async fn send(&self, record: ProducerRecord<'_>) -> Result<Delivery, ClientError> {
        self.producer.send(record).await
    }

    /// Queues a record in the transaction if this needs no waiting; see [`Producer::offer`].
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn offer(&self, record: &ProducerRecord<'_>) -> Result<bool, ClientError> {
        self.producer.offer(record)
    }

    /// Waits until a record may be accepted; see [`Producer::room`].
    ///
    /// # Errors
    /// When there is no such stream.
    pub async fn room(&self, topic: &str) -> Result<(), ClientError> {
        self.producer.room(topic).await
    }

    /// Sends all queued records, and waits until they are stored.
    ///
    /// # Errors
    /// The first error of the transaction's records, which can only be aborted then.
    pub async fn flush(&self) -> Result<(), ClientError> {
        self.producer.flush().await
    }

    /// Returns the identity of the open transaction, once it is [flushed](Self::flush): with it, another client can
    /// [decide](Client::end_transaction) the transaction, also after a crash of this producer. `None` if it has no
    /// records, so that there is nothing to decide.
    ///
    /// # Errors
    /// When none is open, or it can only be aborted.
    pub fn prepared(&self) -> Result<Option<TransactionIdentity>, ClientError> {
        let state = self.producer.shared.state.lock();
        let transaction = state.transaction.as_ref();
        let transaction = transaction.ok_or(ClientError::NoTransaction)?;
        transaction.check()?;
        let named = || identity_of(transaction.identity);
        Ok(transaction.has_records.then(named))
    }

    /// Commits offsets of a group with the transaction: they count once it is [committed](Self::commit). The group must
    /// have no members. `metadata` is any text, which comes back with the offsets.
    ///
    /// # Errors
    /// When no transaction has begun, or the server refuses, or does not answer within
    /// [`ProducerConfig::delivery_timeout`]: [`abort`](Self::abort) the transaction.
    pub async fn commit_offsets(
        &self,
        group: &str,
        offsets: &BTreeMap<TopicPartition, Offset>,
        metadata: &str,
    ) -> Result<(), ClientError> {
        let (identity, adds_group) = {
            let mut state = self.producer.shared.state.lock();
            let transaction = state.transaction.as_mut();
            let transaction = transaction.ok_or(ClientError::NoTransaction)?;
            transaction.check()?;
            transaction.has_records = true;
            (transaction.identity, transaction.adds_partitions)
        };
        if adds_group {
            let request = AddOffsetsToTxnRequest::default()
                .with_transactional_id(transactional_id(&self.config.id))
                .with_producer_id(identity.id.0.into())
                .with_producer_epoch(identity.epoch.0)
                .with_group_id(GroupId(text(group)));
            let what = format!("adding group {group} to a transaction");
            let question = |_: &Connection| Ok((request.clone(), ADD_OFFSETS_VERSION));
            let code = |answer: &AddOffsetsToTxnResponse| answer.error_code;
            let (id, patience) = (&self.config.id, self.patience);
            self.client
                .ask_transactions(id, patience, &what, question, code)
                .await?;
        }
        let request = TxnOffsetCommitRequest::default()
            .with_transactional_id(transactional_id(&self.config.id))
            .with_group_id(GroupId(text(group)))
            .with_producer_id(identity.id.0.into())
            .with_producer_epoch(identity.epoch.0)
            .with_topics(offset_topics(offsets, metadata));
        let version_max = match adds_group {
            true => OFFSETS_VERSION_OLD,
            false => i16::MAX,
        };
        let until = Instant::now() + self.patience;
        loop {
            match offer_offsets(&self.client, group, &request, version_max).await {
                Err(error) if error.is_retriable_in_transaction() && Instant::now() < until => {
                    tokio::time::sleep(self.client.config().backoff).await;
                }
                result => return result,
            }
        }
    }

    /// Stores the remaining records of the transaction, and commits it: from then on all its records count.
    ///
    /// # Errors
    /// When some records were not stored: [`abort`](Self::abort) it. When the server does not answer in time, the
    /// outcome is unknown; the next producer that begins with the transactional id waits for it.
    pub async fn commit(&self) -> Result<(), ClientError> {
        self.flush().await?;
        self.end(true).await
    }

    /// Aborts the transaction: none of its records counts.
    ///
    /// # Errors
    /// When the producer is fenced, or the server does not answer in time.
    pub async fn abort(&self) -> Result<(), ClientError> {
        self.producer.shared.state.lock().cancel_transaction();
        self.answered().await;
        self.end(false).await
    }

    async fn end(&self, is_committed: bool) -> Result<(), ClientError> {
        let shared = &*self.producer.shared;
        let (identity, has_records) = {
            let mut state = shared.state.lock();
            let transaction = state
                .transaction
                .as_mut()
                .ok_or(ClientError::NoTransaction)?;
            if is_committed {
                transaction.check()?;
            }
            transaction.is_open = false;
            (transaction.identity, transaction.has_records)
        };
        let next = match has_records {
            true => {
                let named = identity_of(identity);
                self.client
                    .end(&self.config.id, named, is_committed, self.patience)
                    .await?
            }
            false => Some(identity_of(identity)),
        };
        let next = match next {
            Some(next) => next,
            // An older server: the producer must request an epoch for the next transaction.
            None => {
                let expected = Some(identity_of(identity));
                init(&self.client, &self.config, expected, self.patience).await?
            }
        };
        let next = Identity {
            id: next.producer,
            epoch: next.epoch,
            generation: identity.generation + 1,
        };
        shared.state.lock().next_transaction(next);
        shared.room.notify_waiters();
        Ok(())
    }

    /// Waits until no request is in flight that could write to the transaction.
    async fn answered(&self) {
        let shared = &*self.producer.shared;
        let all = async {
            loop {
                let mut answered = std::pin::pin!(shared.answered.notified());
                answered.as_mut().enable();
                if !shared.state.lock().is_in_flight() {
                    return;
                }
                answered.await;
            }
        };
        // The server refuses later requests by their epoch.
        let _ = timeout(self.client.config().request_timeout, all).await;
    }
}

fn identity_of(identity: Identity) -> TransactionIdentity {
    TransactionIdentity {
        producer: identity.id,
        epoch: identity.epoch,
    }
}

/// Begins as the producer of a transactional id, or continues as the `expected` one.
pub(crate) async fn init(
    client: &Client,
    config: &TransactionConfig,
    expected: Option<TransactionIdentity>,
    patience: Duration,
) -> Result<TransactionIdentity, ClientError> {
    let what = format!("beginning with transactional id {}", config.id);
    let timeout_ms = i32::try_from(config.timeout.as_millis()).unwrap_or(i32::MAX);
    let (id, epoch) = expected.map_or((-1, -1), |it| (it.producer.0, it.epoch.0));
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(transactional_id(&config.id)))
        .with_transaction_timeout_ms(timeout_ms)
        .with_producer_id(id.into())
        .with_producer_epoch(epoch)
        .with_enable_2_pc(config.two_phase);
    let answer = client
        .ask_transactions(
            &config.id,
            patience,
            &what,
            |connection| {
                let newest = connection.versions().newest(ApiKey::InitProducerId);
                match config.two_phase && newest.is_none_or(|newest| newest < TWO_PHASE_FROM) {
                    true => Err(ClientError::NoTwoPhaseCommit {
                        address: connection.address().to_string(),
                    }),
                    false => Ok((request.clone(), i16::MAX)),
                }
            },
            |answer| answer.error_code,
        )
        .await?;
    Ok(TransactionIdentity {
        producer: ProducerId(answer.producer_id.0),
        epoch: ProducerEpoch(answer.producer_epoch),
    })
}

impl Client {
    /// Ends a transaction; returns the identity of the next one, if the server sends it.
    pub(crate) async fn end(
        &self,
        id: &str,
        named: TransactionIdentity,
        is_committed: bool,
        patience: Duration,
    ) -> Result<Option<TransactionIdentity>, ClientError> {
        let doing = if is_committed {
            "committing"
        } else {
            "aborting"
        };
        let what = format!("{doing} the transaction of {id}");
        let request = EndTxnRequest::default()
            .with_transactional_id(transactional_id(id))
            .with_producer_id(named.producer.0.into())
            .with_producer_epoch(named.epoch.0)
            .with_committed(is_committed);
        let answer = self
            .ask_transactions(
                id,
                patience,
                &what,
                |connection| {
                    let is_new = connection.versions().transactions() >= PER_TRANSACTION_EPOCHS;
                    Ok((
                        request.clone(),
                        if is_new { i16::MAX } else { END_VERSION_OLD },
                    ))
                },
                |answer| answer.error_code,
            )
            .await?;
        let messages::ProducerId(producer) = answer.producer_id;
        Ok((producer >= 0).then_some(TransactionIdentity {
            producer: ProducerId(producer),
            epoch: ProducerEpoch(answer.producer_epoch),
        }))
    }

    /// Asks the coordinator of a transactional id, in a version up to that of `question`, and retries retriable errors.
    async fn ask_transactions<Q: Question>(
        &self,
        id: &str,
        patience: Duration,
        what: &str,
        question: impl Fn(&Connection) -> Result<(Q, i16), ClientError>,
        code: impl Fn(&Q::Answer) -> i16,
    ) -> Result<Q::Answer, ClientError> {
        let until = Instant::now() + patience;
        let request_timeout = self.config().request_timeout;
        let once = async || {
            let connection = self.transaction_coordinator(id).await?;
            let (request, version_max) = question(&connection)?;
            let pending = send_up_to(&connection, request, version_max).await?;
            let answer = timeout(request_timeout, pending.wait()).await;
            let answer = answer.unwrap_or_else(|_| {
                // The next answer would belong to another request.
                connection.close();
                Err(ClientError::Timeout {
                    what: what.to_owned(),
                    after: request_timeout,
                    trouble: None,
                })
            })?;
            ClientError::check(code(&answer), None, what)?;
            Ok::<_, ClientError>(answer)
        };
        loop {
            match once().await {
                Err(error) if error.is_retriable_in_transaction() => {
                    if Instant::now() >= until {
                        return Err(ClientError::Timeout {
                            what: what.to_owned(),
                            after: patience,
                            trouble: Some(Arc::new(error)),
                        });
                    }
                    tokio::time::sleep(self.config().backoff).await;
                }
                answer => return answer,
            }
        }
    }
}

/// Sends chunks of a transaction, in a version that matches the server's transaction protocol.
pub(super) async fn send(
    connection: &Connection,
    request: ProduceRequest,
) -> Result<Pending<ProduceRequest>, ClientError> {
    let version_max = match connection.versions().transactions() >= PER_TRANSACTION_EPOCHS {
        true => i16::MAX,
        false => PRODUCE_VERSION_OLD,
    };
    send_up_to(connection, request, version_max).await
}

async fn send_up_to<Q: Question>(
    connection: &Connection,
    request: Q,
    version_max: i16,
) -> Result<Pending<Q>, ClientError> {
    let newest = connection.versions().newest(Q::API);
    let version = newest.ok_or_else(|| ClientError::Unsupported {
        api: Q::API,
        address: connection.address().to_string(),
    })?;
    connection
        .send_version(request, version.min(version_max))
        .await
}

/// Sends a request, and closes the connection if there is no answer within the request timeout.
async fn ask_up_to<Q: Question>(
    client: &Client,
    connection: &Connection,
    request: Q,
    version_max: i16,
) -> Result<Q::Answer, ClientError> {
    let pending = send_up_to(connection, request, version_max).await?;
    let answer = timeout(client.config().request_timeout, pending.wait()).await;
    answer.unwrap_or_else(|_| {
        // The next answer would belong to another request.
        connection.close();
        Err(ClientError::Disconnected {
            address: connection.address().to_string(),
        })
    })
}

/// Adds partitions to a transaction.
pub(super) async fn add_partitions(
    client: &Client,
    id: &str,
    identity: Identity,
    topics: Vec<AddPartitionsToTxnTopic>,
) -> Result<(), ClientError> {
    let connection = client.transaction_coordinator(id).await?;
    let request = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(transactional_id(id))
        .with_v3_and_below_producer_id(identity.id.0.into())
        .with_v3_and_below_producer_epoch(identity.epoch.0)
        .with_v3_and_below_topics(topics);
    let answer = ask_up_to(client, &connection, request, ADD_VERSION).await?;
    for topic in &answer.results_by_topic_v3_and_below {
        for partition in &topic.results_by_partition {
            let index = partition.partition_index;
            let what = format!(
                "adding partition {index} of {} to a transaction",
                &*topic.name
            );
            // The server adds all partitions of a request, or none.
            let is_cause =
                partition.partition_error_code != ResponseError::OperationNotAttempted.code();
            if is_cause {
                ClientError::check(partition.partition_error_code, None, what)?;
            }
        }
    }
    Ok(())
}

/// Commits offsets with a transaction.
async fn offer_offsets(
    client: &Client,
    group: &str,
    request: &TxnOffsetCommitRequest,
    version_max: i16,
) -> Result<(), ClientError> {
    let connection = client.coordinator(group).await?;
    let answer = ask_up_to(client, &connection, request.clone(), version_max).await?;
    for topic in &answer.topics {
        for partition in &topic.partitions {
            let index = partition.partition_index;
            let name = topic.name.as_str();
            let what = format!("offset of group {group} in partition {index} of {name}");
            ClientError::check(partition.error_code, None, what)?;
        }
    }
    Ok(())
}

fn offset_topics(
    offsets: &BTreeMap<TopicPartition, Offset>,
    metadata: &str,
) -> Vec<TxnOffsetCommitRequestTopic> {
    let mut topics: BTreeMap<&str, Vec<TxnOffsetCommitRequestPartition>> = BTreeMap::new();
    for (place, Offset(next)) in offsets {
        let partition = TxnOffsetCommitRequestPartition::default()
            .with_partition_index(place.partition)
            .with_committed_offset(i64::try_from(*next).unwrap_or(i64::MAX))
            .with_committed_metadata(Some(text(metadata)));
        topics.entry(&place.topic).or_default().push(partition);
    }
    let topics = topics.into_iter().map(|(name, partitions)| {
        TxnOffsetCommitRequestTopic::default()
            .with_name(topic_name(name))
            .with_partitions(partitions)
    });
    topics.collect()
}

pub(crate) fn transactional_id(id: &str) -> TransactionalId {
    TransactionalId(text(id))
}

//! The requests of transactions, in versions that match the server's transaction protocol.

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
use tokio::time::Instant;

use super::partition::Identity;
use crate::client::{Client, text, topic_name};
use crate::connection::{Connection, Pending};
use crate::error::ClientError;
use crate::offsets::{TopicPartition, check_commit};
use crate::transaction::TransactionIdentity;

/// The level of the cluster's feature `transaction.version` from which each transaction has an epoch of its own, and a
/// produce request adds its partitions to the transaction.
pub(super) const PER_TRANSACTION_EPOCHS: i16 = 2;

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

/// Begins as the producer of a transactional id, or continues as the `expected` one.
pub(crate) async fn init(
    client: &Client,
    config: &TransactionConfig,
    expected: Option<TransactionIdentity>,
    retry_for: Duration,
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
    let right = match config.two_phase {
        true => "Write, and TwoPhaseCommit for transactions without a timeout",
        false => "Write",
    };
    let answer = client
        .ask_transactions(
            &config.id,
            retry_for,
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
        .await
        .map_err(|error| error.needing(right))?;
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
        retry_for: Duration,
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
                retry_for,
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
        retry_for: Duration,
        what: &str,
        question: impl Fn(&Connection) -> Result<(Q, i16), ClientError>,
        code: impl Fn(&Q::Answer) -> i16,
    ) -> Result<Q::Answer, ClientError> {
        let until = Instant::now() + retry_for;
        let request_timeout = self.config().request_timeout;
        let once = async || {
            let connection = self.transaction_coordinator(id).await?;
            let (request, version_max) = question(&connection)?;
            let answer = connection.ask_up_to(request, version_max, request_timeout);
            let answer = answer.await?;
            ClientError::check(code(&answer), None, what)?;
            Ok::<_, ClientError>(answer)
        };
        loop {
            match once().await {
                Err(error) if error.is_retriable_in_transaction() => {
                    if Instant::now() >= until {
                        return Err(ClientError::Timeout {
                            what: what.to_owned(),
                            after: retry_for,
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
pub(super) async fn send_chunks(
    connection: &Connection,
    request: ProduceRequest,
) -> Result<Pending<ProduceRequest>, ClientError> {
    let version_max = match connection.versions().transactions() >= PER_TRANSACTION_EPOCHS {
        true => i16::MAX,
        false => PRODUCE_VERSION_OLD,
    };
    connection.send_up_to(request, version_max).await
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
    let answer = connection.ask_up_to(request, ADD_VERSION, client.config().request_timeout);
    let answer = answer.await?;
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

/// Adds a group to a transaction.
pub(super) async fn add_group(
    client: &Client,
    id: &str,
    identity: Identity,
    group: &str,
    retry_for: Duration,
) -> Result<(), ClientError> {
    let request = AddOffsetsToTxnRequest::default()
        .with_transactional_id(transactional_id(id))
        .with_producer_id(identity.id.0.into())
        .with_producer_epoch(identity.epoch.0)
        .with_group_id(GroupId(text(group)));
    let what = format!("adding group {group} to a transaction");
    let question = |_: &Connection| Ok((request.clone(), ADD_OFFSETS_VERSION));
    let code = |answer: &AddOffsetsToTxnResponse| answer.error_code;
    let answer = client.ask_transactions(id, retry_for, &what, question, code);
    answer.await.map(drop)
}

/// Commits offsets with a transaction, and retries retriable errors. `adds_group` is whether the server has an old
/// transaction protocol, so that [`add_group`] was necessary.
pub(super) async fn commit_offsets(
    client: &Client,
    request: &TxnOffsetCommitRequest,
    adds_group: bool,
    retry_for: Duration,
) -> Result<(), ClientError> {
    let version_max = match adds_group {
        true => OFFSETS_VERSION_OLD,
        false => i16::MAX,
    };
    let until = Instant::now() + retry_for;
    loop {
        match try_commit_offsets(client, request, version_max).await {
            Err(error) if error.is_retriable_in_transaction() && Instant::now() < until => {
                tokio::time::sleep(client.config().backoff).await;
            }
            result => return result,
        }
    }
}

async fn try_commit_offsets(
    client: &Client,
    request: &TxnOffsetCommitRequest,
    version_max: i16,
) -> Result<(), ClientError> {
    let group = request.group_id.as_str();
    let connection = client.coordinator(group).await?;
    let request_timeout = client.config().request_timeout;
    let answer = connection.ask_up_to(request.clone(), version_max, request_timeout);
    let answer = answer.await?;
    for topic in &answer.topics {
        for partition in &topic.partitions {
            let index = partition.partition_index;
            check_commit(partition.error_code, group, &topic.name, index)?;
        }
    }
    Ok(())
}

/// Returns the topics of a TxnOffsetCommit.
pub(super) fn offset_topics(
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

//! Conversion between Kafka's messages about transactions and the coordinator's requests and answers.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::{ProducerEpoch, ProducerId};
use millstream_wire::ResponseError;
use millstream_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use millstream_wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResponse, AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
};
use millstream_wire::messages::{
    self, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest,
    EndTxnRequest, EndTxnResponse, InitProducerIdRequest, InitProducerIdResponse,
};

use super::TransactionService;
use crate::groups::{GroupName, Partition, TopicName};
use crate::transactions::{
    AddOffsets, AddPartitions, Answer, EndTransaction, InitProducerId, Outcome, Producer, Request,
    TopicPartition, TransactionError, TransactionalId, VerifyPartitions,
};

/// From this version of EndTxn on, every transaction has an epoch of its own.
const EPOCH_PER_TRANSACTION_FROM: i16 = 5;
/// From this version of AddPartitionsToTxn on it covers several transactions.
const SEVERAL_TRANSACTIONS_FROM: i16 = 4;

/// The answer is of another kind than the request: a bug of the broker.
pub(super) const MISMATCH: ResponseError = ResponseError::UnknownServerError;

/// Sends a request to the coordinator. If the ledger cannot store it, clients look the coordinator up again, and
/// retry.
pub(super) async fn ask(
    transactions: &Arc<TransactionService>,
    request: Request,
) -> Result<Answer, ResponseError> {
    let answer = transactions.ask(request).await;
    answer.map_err(|_| ResponseError::CoordinatorNotAvailable)
}

pub(super) fn code(error: TransactionError) -> i16 {
    error.code()
}

pub(super) fn producer(id: messages::ProducerId, epoch: i16) -> Producer {
    Producer {
        id: ProducerId(id.0),
        epoch: ProducerEpoch(epoch),
    }
}

pub(super) fn transactional_id(id: &messages::TransactionalId) -> TransactionalId {
    TransactionalId::from(&***id)
}

/// Gives a producer an id and an epoch.
pub async fn init(
    transactions: &Arc<TransactionService>,
    version: i16,
    request: &InitProducerIdRequest,
) -> Result<InitProducerIdResponse, ResponseError> {
    let refused = |error: TransactionError| {
        InitProducerIdResponse::default()
            .with_error_code(error.code())
            .with_producer_id((-1).into())
            .with_producer_epoch(-1)
    };
    if request.keep_prepared_txn {
        return Ok(refused(TransactionError::InvalidRequest));
    }
    let expected = match version >= 3 {
        true => {
            let epoch = ProducerEpoch(request.producer_epoch);
            Producer::expected(ProducerId(request.producer_id.0), epoch)
        }
        false => Ok(None),
    };
    let expected = match expected {
        Ok(expected) => expected,
        Err(error) => return Ok(refused(error)),
    };
    let asked = Request::InitProducerId(InitProducerId {
        transactional_id: request.transactional_id.as_ref().map(transactional_id),
        timeout: Duration::from_millis(request.transaction_timeout_ms.max(0) as u64),
        two_phase: request.enable_2_pc,
        expected,
        knows_fencing: version >= 4,
    });
    match ask(transactions, asked).await? {
        Answer::InitProducerId(Ok(producer)) => Ok(InitProducerIdResponse::default()
            .with_producer_id(producer.id.0.into())
            .with_producer_epoch(producer.epoch.0)),
        Answer::InitProducerId(Err(error)) => Ok(refused(error)),
        _ => Err(MISMATCH),
    }
}

fn partitions(topics: &[AddPartitionsToTxnTopic]) -> Vec<TopicPartition> {
    let partitions = topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| TopicPartition {
            topic: TopicName::from(&**topic.name),
            partition: Partition(*partition),
        })
    });
    partitions.collect()
}

/// Returns the results of all partitions, in the order of the request: calls `next_code` once for each of them.
fn results(
    topics: &[AddPartitionsToTxnTopic],
    mut next_code: impl FnMut() -> i16,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let topics = topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(*partition)
                .with_partition_error_code(next_code())
        });
        AddPartitionsToTxnTopicResult::default()
            .with_name(topic.name.clone())
            .with_results_by_partition(partitions.collect())
    });
    topics.collect()
}

/// Adds partitions to transactions, or verifies that they take part.
pub async fn add(
    transactions: &Arc<TransactionService>,
    version: i16,
    request: &AddPartitionsToTxnRequest,
) -> Result<AddPartitionsToTxnResponse, ResponseError> {
    if version < SEVERAL_TRANSACTIONS_FROM {
        let topics = &request.v3_and_below_topics;
        let asked = AddPartitions {
            transactional_id: transactional_id(&request.v3_and_below_transactional_id),
            producer: producer(
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
            ),
            partitions: partitions(topics),
            knows_fencing: version >= 2,
        };
        let error = add_one(transactions, asked).await?;
        return Ok(AddPartitionsToTxnResponse::default()
            .with_results_by_topic_v3_and_below(results(topics, || error)));
    }
    let mut all = Vec::with_capacity(request.transactions.len());
    for transaction in &request.transactions {
        let asked = AddPartitions {
            transactional_id: transactional_id(&transaction.transactional_id),
            producer: producer(transaction.producer_id, transaction.producer_epoch),
            partitions: partitions(&transaction.topics),
            knows_fencing: true,
        };
        let topics = match transaction.verify_only {
            true => verify(transactions, asked, &transaction.topics).await?,
            false => {
                let error = add_one(transactions, asked).await?;
                results(&transaction.topics, || error)
            }
        };
        all.push(
            AddPartitionsToTxnResult::default()
                .with_transactional_id(transaction.transactional_id.clone())
                .with_topic_results(topics),
        );
    }
    Ok(AddPartitionsToTxnResponse::default().with_results_by_transaction(all))
}

/// Refuses all partitions if one does not exist, or else adds all of them.
async fn add_one(
    transactions: &Arc<TransactionService>,
    asked: AddPartitions,
) -> Result<i16, ResponseError> {
    if !asked
        .partitions
        .iter()
        .all(|partition| transactions.knows(partition))
    {
        return Ok(ResponseError::UnknownTopicOrPartition.code());
    }
    match ask(transactions, Request::AddPartitions(asked)).await? {
        Answer::AddPartitions(result) => Ok(result.err().map_or(0, code)),
        _ => Err(MISMATCH),
    }
}

async fn verify(
    transactions: &Arc<TransactionService>,
    asked: AddPartitions,
    topics: &[AddPartitionsToTxnTopic],
) -> Result<Vec<AddPartitionsToTxnTopicResult>, ResponseError> {
    let asked = VerifyPartitions {
        transactional_id: asked.transactional_id,
        producer: asked.producer,
        partitions: asked.partitions,
    };
    let Answer::VerifyPartitions(verified) =
        ask(transactions, Request::VerifyPartitions(asked)).await?
    else {
        return Err(MISMATCH);
    };
    // The answer has the partitions in the order of the request.
    let mut codes = verified
        .into_iter()
        .map(|(_, result)| result.err().map_or(0, code));
    Ok(results(topics, || codes.next().unwrap_or(MISMATCH.code())))
}

/// Adds the offsets of a group to a transaction.
pub async fn add_offsets(
    transactions: &Arc<TransactionService>,
    version: i16,
    request: &AddOffsetsToTxnRequest,
) -> Result<AddOffsetsToTxnResponse, ResponseError> {
    let asked = Request::AddOffsets(AddOffsets {
        transactional_id: transactional_id(&request.transactional_id),
        producer: producer(request.producer_id, request.producer_epoch),
        group: GroupName::from(&**request.group_id),
        knows_fencing: version >= 2,
    });
    match ask(transactions, asked).await? {
        Answer::AddOffsets(result) => {
            Ok(AddOffsetsToTxnResponse::default().with_error_code(result.err().map_or(0, code)))
        }
        _ => Err(MISMATCH),
    }
}

/// Ends a transaction.
pub async fn end(
    transactions: &Arc<TransactionService>,
    version: i16,
    request: &EndTxnRequest,
) -> Result<EndTxnResponse, ResponseError> {
    let bumps_epoch = version >= EPOCH_PER_TRANSACTION_FROM;
    let asked = Request::EndTransaction(EndTransaction {
        transactional_id: transactional_id(&request.transactional_id),
        producer: producer(request.producer_id, request.producer_epoch),
        outcome: match request.committed {
            true => Outcome::Committed,
            false => Outcome::Aborted,
        },
        bumps_epoch,
        knows_fencing: version >= 2,
    });
    let response = EndTxnResponse::default();
    match ask(transactions, asked).await? {
        Answer::EndTransaction(Ok(producer)) if bumps_epoch => Ok(response
            .with_producer_id(producer.id.0.into())
            .with_producer_epoch(producer.epoch.0)),
        Answer::EndTransaction(result) => {
            Ok(response.with_error_code(result.err().map_or(0, code)))
        }
        _ => Err(MISMATCH),
    }
}

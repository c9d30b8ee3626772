//! Kafka's messages about transactions, and what the coordinator is asked and answers.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Offset, ProducerEpoch, ProducerId};
use millstream_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use millstream_wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResponse, AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
};
use millstream_wire::messages::{
    self, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest,
    DescribeTransactionsRequest, DescribeTransactionsResponse, EndTxnRequest, EndTxnResponse,
    InitProducerIdRequest, InitProducerIdResponse, ListTransactionsRequest,
    ListTransactionsResponse, TxnOffsetCommitRequest, TxnOffsetCommitResponse,
    describe_transactions_response as described, list_transactions_response as listed,
    txn_offset_commit_response as committed,
};
use millstream_wire::{Request as WireRequest, Response, ResponseError, StrBytes, refuse};

use super::TransactionService;
use crate::broker::Broker;
use crate::group_service::GroupService;
use crate::groups::{
    self, CommitTransactionOffsets, Generation, GroupName, InstanceId, LeaderEpoch, MemberId,
    Partition, PartitionCommit, TopicCommit, TopicName,
};
use crate::reply::Reply;
use crate::transactions::{
    AddOffsets, AddPartitions, Answer, EndTransaction, InitProducerId, ListTransactions, Outcome,
    Producer, Request, TopicPartition, TransactionError, TransactionalId, VerifyPartitions,
};

/// From this version of EndTxn on every transaction has an epoch of its own.
const EPOCH_PER_TRANSACTION_FROM: i16 = 5;
/// From this version of TxnOffsetCommit on the group need not be added before.
const OFFSETS_ADD_THEMSELVES_FROM: i16 = 5;
/// From this version of AddPartitionsToTxn on it is about several transactions.
const SEVERAL_TRANSACTIONS_FROM: i16 = 4;

/// Works on a request about transactions.
pub fn handle(broker: &Arc<Broker>, version: i16, request: WireRequest) -> Reply {
    let transactions = Arc::clone(broker.transactions());
    let groups = Arc::clone(broker.groups());
    Reply::later(async move {
        let answer = answer(&transactions, &groups, version, &request).await;
        answer.unwrap_or_else(|error| refuse(&request, version, error, None))
    })
}

async fn answer(
    transactions: &Arc<TransactionService>,
    groups: &GroupService,
    version: i16,
    request: &WireRequest,
) -> Result<Response, ResponseError> {
    match request {
        WireRequest::InitProducerId(request) => init(transactions, version, request).await,
        WireRequest::AddPartitionsToTxn(request) => add(transactions, version, request).await,
        WireRequest::AddOffsetsToTxn(request) => add_offsets(transactions, version, request).await,
        WireRequest::EndTxn(request) => end(transactions, version, request).await,
        WireRequest::TxnOffsetCommit(request) => {
            commit_offsets(transactions, groups, version, request).await
        }
        WireRequest::DescribeTransactions(request) => describe(transactions, request).await,
        WireRequest::ListTransactions(request) => list(transactions, version, request).await,
        _ => Err(ResponseError::InvalidRequest),
    }
}

/// What was answered is not what was asked: a mistake of the broker's own.
const MISMATCH: ResponseError = ResponseError::UnknownServerError;

/// Asks; when nothing can be kept, clients look for the coordinator again, and come back.
async fn ask(
    transactions: &Arc<TransactionService>,
    request: Request,
) -> Result<Answer, ResponseError> {
    let answer = transactions.ask(request).await;
    answer.map_err(|_| ResponseError::CoordinatorNotAvailable)
}

fn code(error: TransactionError) -> i16 {
    error.code()
}

fn producer(id: messages::ProducerId, epoch: i16) -> Producer {
    Producer {
        id: ProducerId(id.0),
        epoch: ProducerEpoch(epoch),
    }
}

fn transactional_id(id: &messages::TransactionalId) -> TransactionalId {
    TransactionalId::from(&***id)
}

async fn init(
    transactions: &Arc<TransactionService>,
    version: i16,
    request: &InitProducerIdRequest,
) -> Result<Response, ResponseError> {
    let refused = |error: TransactionError| {
        InitProducerIdResponse::default()
            .with_error_code(error.code())
            .with_producer_id((-1).into())
            .with_producer_epoch(-1)
            .into()
    };
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
        expected,
        knows_fencing: version >= 4,
    });
    match ask(transactions, asked).await? {
        Answer::InitProducerId(Ok(producer)) => Ok(InitProducerIdResponse::default()
            .with_producer_id(producer.id.0.into())
            .with_producer_epoch(producer.epoch.0)
            .into()),
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

fn results(
    topics: &[AddPartitionsToTxnTopic],
    error_of: impl Fn(&str, i32) -> i16,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let topics = topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(*partition)
                .with_partition_error_code(error_of(&topic.name, *partition))
        });
        AddPartitionsToTxnTopicResult::default()
            .with_name(topic.name.clone())
            .with_results_by_partition(partitions.collect())
    });
    topics.collect()
}

async fn add(
    transactions: &Arc<TransactionService>,
    version: i16,
    request: &AddPartitionsToTxnRequest,
) -> Result<Response, ResponseError> {
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
            .with_results_by_topic_v3_and_below(results(topics, |_, _| error))
            .into());
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
                results(&transaction.topics, |_, _| error)
            }
        };
        all.push(
            AddPartitionsToTxnResult::default()
                .with_transactional_id(transaction.transactional_id.clone())
                .with_topic_results(topics),
        );
    }
    Ok(AddPartitionsToTxnResponse::default()
        .with_results_by_transaction(all)
        .into())
}

/// Refuses partitions that are not there, or else adds all of them.
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
    let error_of = |topic: &str, partition: i32| {
        let found = verified.iter().find(|(place, _)| {
            place.topic.as_str() == topic && place.partition == Partition(partition)
        });
        found.map_or(0, |(_, result)| result.err().map_or(0, code))
    };
    Ok(results(topics, error_of))
}

async fn add_offsets(
    transactions: &Arc<TransactionService>,
    version: i16,
    request: &AddOffsetsToTxnRequest,
) -> Result<Response, ResponseError> {
    let asked = Request::AddOffsets(AddOffsets {
        transactional_id: transactional_id(&request.transactional_id),
        producer: producer(request.producer_id, request.producer_epoch),
        group: GroupName::from(&**request.group_id),
        knows_fencing: version >= 2,
    });
    match ask(transactions, asked).await? {
        Answer::AddOffsets(result) => Ok(AddOffsetsToTxnResponse::default()
            .with_error_code(result.err().map_or(0, code))
            .into()),
        _ => Err(MISMATCH),
    }
}

async fn end(
    transactions: &Arc<TransactionService>,
    version: i16,
    request: &EndTxnRequest,
) -> Result<Response, ResponseError> {
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
            .with_producer_epoch(producer.epoch.0)
            .into()),
        Answer::EndTransaction(result) => Ok(response
            .with_error_code(result.err().map_or(0, code))
            .into()),
        _ => Err(MISMATCH),
    }
}

async fn commit_offsets(
    transactions: &Arc<TransactionService>,
    groups: &GroupService,
    version: i16,
    request: &TxnOffsetCommitRequest,
) -> Result<Response, ResponseError> {
    let id = transactional_id(&request.transactional_id);
    let producer = producer(request.producer_id, request.producer_epoch);
    let group = GroupName::from(&**request.group_id);
    let adds_itself = version >= OFFSETS_ADD_THEMSELVES_FROM;
    let asked = match adds_itself {
        true => Request::AddOffsets(AddOffsets {
            transactional_id: id,
            producer,
            group: group.clone(),
            knows_fencing: true,
        }),
        false => Request::VerifyOffsets(crate::transactions::VerifyOffsets {
            transactional_id: id,
            producer,
            group: group.clone(),
        }),
    };
    let permitted = match ask(transactions, asked).await? {
        Answer::AddOffsets(result) | Answer::VerifyOffsets(result) => result,
        _ => return Err(MISMATCH),
    };
    let committed = match permitted {
        Err(error) => Err(code(error)),
        Ok(()) => {
            let topics = request.topics.iter().map(|topic| TopicCommit {
                topic: TopicName::from(&**topic.name),
                partitions: topic.partitions.iter().map(commit_of).collect(),
            });
            let commit = groups::Request::CommitTransactionOffsets(CommitTransactionOffsets {
                group,
                producer: producer.id,
                member: MemberId::from(&*request.member_id),
                instance: request
                    .group_instance_id
                    .as_ref()
                    .map(|id| InstanceId::from(&**id)),
                generation: Generation(request.generation_id),
                topics: topics.collect(),
            });
            match groups.ask(commit).await {
                Ok(groups::Answer::CommitTransactionOffsets(topics)) => Ok(topics),
                Ok(_) => return Err(MISMATCH),
                Err(_) => return Err(ResponseError::NotCoordinator),
            }
        }
    };
    let topics = request.topics.iter().enumerate().map(|(number, topic)| {
        let partitions = topic
            .partitions
            .iter()
            .enumerate()
            .map(|(index, partition)| {
                let error = match &committed {
                    Err(error) => *error,
                    Ok(topics) => topics
                        .get(number)
                        .and_then(|topic| topic.partitions.get(index))
                        .and_then(|(_, result)| result.err())
                        .map_or(0, groups::GroupError::code),
                };
                committed::TxnOffsetCommitResponsePartition::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(error)
            });
        committed::TxnOffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    Ok(TxnOffsetCommitResponse::default()
        .with_topics(topics.collect())
        .into())
}

fn commit_of(
    partition: &messages::txn_offset_commit_request::TxnOffsetCommitRequestPartition,
) -> PartitionCommit {
    let epoch = partition.committed_leader_epoch;
    let metadata = partition.committed_metadata.as_ref();
    PartitionCommit {
        partition: Partition(partition.partition_index),
        offset: Offset(partition.committed_offset.max(0) as u64),
        leader_epoch: (epoch >= 0).then_some(LeaderEpoch(epoch)),
        metadata: metadata.map(|text| Arc::from(&**text)).unwrap_or_default(),
    }
}

async fn describe(
    transactions: &Arc<TransactionService>,
    request: &DescribeTransactionsRequest,
) -> Result<Response, ResponseError> {
    let ids = request.transactional_ids.iter().map(transactional_id);
    let asked = Request::DescribeTransactions(ids.collect());
    let Answer::DescribeTransactions(found) = ask(transactions, asked).await? else {
        return Err(MISMATCH);
    };
    let states = found.into_iter().map(|(id, result)| {
        let state = described::TransactionState::default().with_transactional_id(
            messages::TransactionalId(StrBytes::from_string(id.to_string())),
        );
        let found = match result {
            Ok(found) => found,
            Err(error) => return state.with_error_code(code(error)),
        };
        let mut topics: Vec<described::TopicData> = Vec::new();
        for place in &found.partitions {
            match topics.last_mut() {
                Some(topic) if **topic.topic == *place.topic.as_str() => {
                    topic.partitions.push(place.partition.0);
                }
                _ => topics.push(
                    described::TopicData::default()
                        .with_topic(crate::topics::topic_name(&place.topic))
                        .with_partitions(vec![place.partition.0]),
                ),
            }
        }
        state
            .with_transaction_state(StrBytes::from_static_str(found.state.as_str()))
            .with_transaction_timeout_ms(found.timeout.as_millis() as i32)
            .with_transaction_start_time_ms(found.started.map_or(-1, |time| time.0))
            .with_producer_id(found.producer.id.0.into())
            .with_producer_epoch(found.producer.epoch.0)
            .with_topics(topics)
    });
    Ok(DescribeTransactionsResponse::default()
        .with_transaction_states(states.collect())
        .into())
}

async fn list(
    transactions: &Arc<TransactionService>,
    version: i16,
    request: &ListTransactionsRequest,
) -> Result<Response, ResponseError> {
    let duration = u64::try_from(request.duration_filter).ok();
    let pattern = request.transactional_id_pattern.as_ref();
    let asked = Request::ListTransactions(ListTransactions {
        states: request
            .state_filters
            .iter()
            .map(|state| state.to_string())
            .collect(),
        producers: request
            .producer_id_filters
            .iter()
            .map(|id| ProducerId(id.0))
            .collect(),
        duration: duration.filter(|_| version >= 1).map(Duration::from_millis),
        pattern: pattern.map(|pattern| pattern.to_string()),
    });
    let response = ListTransactionsResponse::default();
    let found = match ask(transactions, asked).await? {
        Answer::ListTransactions(Ok(found)) => found,
        Answer::ListTransactions(Err(error)) => {
            return Ok(response.with_error_code(code(error)).into());
        }
        _ => return Err(MISMATCH),
    };
    let unknown = found.unknown_states.into_iter().map(StrBytes::from_string);
    let states = found.transactions.into_iter().map(|transaction| {
        let id = StrBytes::from_string(transaction.transactional_id.to_string());
        listed::TransactionState::default()
            .with_transactional_id(messages::TransactionalId(id))
            .with_producer_id(transaction.producer.0.into())
            .with_transaction_state(StrBytes::from_static_str(transaction.state.as_str()))
    });
    Ok(response
        .with_unknown_state_filters(unknown.collect())
        .with_transaction_states(states.collect())
        .into())
}

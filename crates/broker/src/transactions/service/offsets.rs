//! Offsets of groups, and acknowledgements of share groups, that are committed with a transaction.

use std::sync::Arc;

use millstream_base::{Offset, ProducerId};
use millstream_wire::ResponseError;
use millstream_wire::messages::txn_offset_commit_request::TxnOffsetCommitRequestPartition;
use millstream_wire::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use millstream_wire::messages::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};

use tokio::sync::oneshot;

use super::requests::{MISMATCH, producer, transactional_id};
use super::{TransactionService, Unavailable};
use crate::groups::service::GroupService;
use crate::groups::{
    self, CommitTransactionOffsets, Generation, GroupName, InstanceId, LeaderEpoch, MemberId,
    Partition, PartitionCommit, TopicCommit, TopicName,
};
use crate::shares::service::{self as shares, ShareService};
use crate::transactions::{AddOffsets, Answer, Request, TransactionError, VerifyOffsets};

/// From this version of TxnOffsetCommit on, clients know errors after which a transaction can only be aborted.
const KNOWS_ABORTABLE_FROM: i16 = 4;
/// From this version of TxnOffsetCommit on, clients need not add the group before.
const OFFSETS_ADD_THEMSELVES_FROM: i16 = 5;

/// Commits offsets or acknowledgements with a transaction: they apply when it is committed.
pub async fn commit(
    transactions: &Arc<TransactionService>,
    groups: &GroupService,
    version: i16,
    request: &TxnOffsetCommitRequest,
) -> Result<TxnOffsetCommitResponse, ResponseError> {
    let knows_abortable = version >= KNOWS_ABORTABLE_FROM;
    let refuse = |error: TransactionError| error.in_offset_commit(knows_abortable).code();
    let committed = match permit_offsets(transactions, version, request).await? {
        Err(error) => Err(refuse(error)),
        Ok(verify) => {
            let append = |verified: Result<Answer, Unavailable>| match verified {
                Ok(Answer::VerifyOffsets(Ok(()))) => {
                    Ok(Ok(Appended::append(groups, &transactions.shares, request)?))
                }
                Ok(Answer::VerifyOffsets(Err(error))) => Ok(Err(refuse(error))),
                Ok(_) => Err(MISMATCH),
                Err(Unavailable) => Err(ResponseError::CoordinatorNotAvailable),
            };
            match transactions.append(verify, append).await? {
                Err(error) => Err(error),
                Ok(appended) => Ok(appended
                    .codes(&transactions.shares, knows_abortable)
                    .await?),
            }
        }
    };
    let topics = request.topics.iter().enumerate().map(|(number, topic)| {
        let partitions = topic.partitions.iter().enumerate();
        let partitions = partitions.map(|(index, partition)| {
            let error = match &committed {
                Err(error) => *error,
                Ok(topics) => {
                    let topic = topics.get(number);
                    topic
                        .and_then(|topic| topic.get(index))
                        .copied()
                        .unwrap_or(0)
                }
            };
            TxnOffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(error)
        });
        TxnOffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    Ok(TxnOffsetCommitResponse::default().with_topics(topics.collect()))
}

/// The offsets that a request commits, appended to the ledger.
enum Appended {
    Offsets(oneshot::Receiver<groups::Answer>),
    /// The group is a share group.
    Acknowledgements(shares::Prepared),
}

impl Appended {
    fn append(
        groups: &GroupService,
        shares: &ShareService,
        request: &TxnOffsetCommitRequest,
    ) -> Result<Appended, ResponseError> {
        let commit = commit_request(groups, request)?;
        Ok(match shares.has_group(&commit.group) {
            true => Appended::Acknowledgements(shares.prepare(request)),
            false => {
                let request = groups::Request::CommitTransactionOffsets(commit);
                Appended::Offsets(groups.ask(request))
            }
        })
    }

    /// Waits until it is durable; returns an error code for each partition of each topic.
    async fn codes(
        self,
        shares: &ShareService,
        knows_abortable: bool,
    ) -> Result<Vec<Vec<i16>>, ResponseError> {
        let answer = match self {
            Appended::Acknowledgements(prepared) => {
                return shares.prepared(prepared, knows_abortable).await;
            }
            Appended::Offsets(answer) => answer.await,
        };
        let topics = match answer {
            Ok(groups::Answer::CommitTransactionOffsets(topics)) => topics,
            Ok(_) => return Err(MISMATCH),
            Err(_) => return Err(ResponseError::NotCoordinator),
        };
        let codes = topics.into_iter().map(|topic| {
            let partitions = topic.partitions.into_iter();
            let codes =
                partitions.map(|(_, result)| result.err().map_or(0, groups::GroupError::code));
            codes.collect()
        });
        Ok(codes.collect())
    }
}

/// Asks whether the group takes part in the transaction; returns the request that asks again.
async fn permit_offsets(
    transactions: &Arc<TransactionService>,
    version: i16,
    request: &TxnOffsetCommitRequest,
) -> Result<Result<Request, TransactionError>, ResponseError> {
    let transactional_id = transactional_id(&request.transactional_id);
    let producer = producer(request.producer_id, request.producer_epoch);
    let group = GroupName::from(&**request.group_id);
    let verify = Request::VerifyOffsets(VerifyOffsets {
        transactional_id: transactional_id.clone(),
        producer,
        group: group.clone(),
    });
    let asked = match version >= OFFSETS_ADD_THEMSELVES_FROM {
        true => Request::AddOffsets(AddOffsets {
            transactional_id,
            producer,
            group,
            knows_fencing: true,
        }),
        false => verify.clone(),
    };
    let answer = transactions.ask_behind_last(asked).await;
    match answer.map_err(|Unavailable| ResponseError::CoordinatorNotAvailable)? {
        Answer::AddOffsets(result) | Answer::VerifyOffsets(result) => Ok(result.map(|()| verify)),
        _ => Err(MISMATCH),
    }
}

fn commit_request(
    groups: &GroupService,
    request: &TxnOffsetCommitRequest,
) -> Result<CommitTransactionOffsets, ResponseError> {
    let mut committed = request.topics.iter().flat_map(|topic| &topic.partitions);
    if committed.any(|partition| partition.committed_offset < 0) {
        return Err(ResponseError::OffsetOutOfRange);
    }
    let topics = request.topics.iter().map(|topic| TopicCommit {
        topic: TopicName::from(&**topic.name),
        id: groups.topic_id(&topic.name).unwrap_or_default(),
        partitions: topic.partitions.iter().map(commit_of).collect(),
    });
    let instance = request.group_instance_id.as_ref();
    Ok(CommitTransactionOffsets {
        group: GroupName::from(&**request.group_id),
        producer: ProducerId(request.producer_id.0),
        member: MemberId::from(&*request.member_id),
        instance: instance.map(|id| InstanceId::from(&**id)),
        generation: Generation(request.generation_id),
        topics: topics.collect(),
    })
}

fn commit_of(partition: &TxnOffsetCommitRequestPartition) -> PartitionCommit {
    let epoch = partition.committed_leader_epoch;
    let metadata = partition.committed_metadata.as_ref();
    PartitionCommit {
        partition: Partition(partition.partition_index),
        offset: Offset(partition.committed_offset.max(0) as u64),
        leader_epoch: (epoch >= 0).then_some(LeaderEpoch(epoch)),
        metadata: metadata.map(|text| Arc::from(&**text)).unwrap_or_default(),
    }
}

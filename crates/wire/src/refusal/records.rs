//! Refusals of requests about records, their offsets, and their transactions.

use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::describe_producers_response::{PartitionResponse, TopicResponse};
use kafka_protocol::messages::describe_transactions_response::TransactionState;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::*;

use super::{Refusal, each};
use crate::fetch::{FetchResponse, FetchedPartition, FetchedTopic};

/// The first version of Fetch with an error for the whole request.
const FETCH_ERROR_FROM: i16 = 7;
/// The first version of AddPartitionsToTxn with an error for the whole request.
const ADD_PARTITIONS_ERROR_FROM: i16 = 4;

impl Refusal {
    pub(super) fn produce(&self, request: &ProduceRequest) -> ProduceResponse {
        ProduceResponse::default().with_responses(each(&request.topic_data, |topic| {
            TopicProduceResponse::default()
                .with_name(topic.name.clone())
                .with_topic_id(topic.topic_id)
                .with_partition_responses(each(&topic.partition_data, |partition| {
                    PartitionProduceResponse::default()
                        .with_index(partition.index)
                        .with_error_code(self.code)
                        .with_error_message(self.message.clone())
                        .with_base_offset(-1)
                }))
        }))
    }

    pub(super) fn fetch(&self, request: &FetchRequest) -> FetchResponse {
        if self.version >= FETCH_ERROR_FROM {
            return FetchResponse {
                error_code: self.code,
                ..FetchResponse::default()
            };
        }
        let topics = each(&request.topics, |topic| FetchedTopic {
            name: topic.topic.clone(),
            id: topic.topic_id,
            partitions: each(&topic.partitions, |partition| FetchedPartition {
                partition: partition.partition,
                error_code: self.code,
                ..FetchedPartition::default()
            }),
        });
        FetchResponse {
            topics,
            ..FetchResponse::default()
        }
    }

    pub(super) fn list_offsets(&self, request: &ListOffsetsRequest) -> ListOffsetsResponse {
        ListOffsetsResponse::default().with_topics(each(&request.topics, |topic| {
            ListOffsetsTopicResponse::default()
                .with_name(topic.name.clone())
                .with_partitions(each(&topic.partitions, |partition| {
                    ListOffsetsPartitionResponse::default()
                        .with_partition_index(partition.partition_index)
                        .with_error_code(self.code)
                }))
        }))
    }

    pub(super) fn offset_for_leader_epoch(
        &self,
        request: &OffsetForLeaderEpochRequest,
    ) -> OffsetForLeaderEpochResponse {
        let topics = each(&request.topics, |topic| {
            OffsetForLeaderTopicResult::default()
                .with_topic(topic.topic.clone())
                .with_partitions(each(&topic.partitions, |partition| {
                    EpochEndOffset::default()
                        .with_partition(partition.partition)
                        .with_error_code(self.code)
                }))
        });
        OffsetForLeaderEpochResponse::default().with_topics(topics)
    }

    pub(super) fn delete_records(&self, request: &DeleteRecordsRequest) -> DeleteRecordsResponse {
        DeleteRecordsResponse::default().with_topics(each(&request.topics, |topic| {
            DeleteRecordsTopicResult::default()
                .with_name(topic.name.clone())
                .with_partitions(each(&topic.partitions, |partition| {
                    DeleteRecordsPartitionResult::default()
                        .with_partition_index(partition.partition_index)
                        .with_low_watermark(-1)
                        .with_error_code(self.code)
                }))
        }))
    }

    pub(super) fn describe_producers(
        &self,
        request: &DescribeProducersRequest,
    ) -> DescribeProducersResponse {
        DescribeProducersResponse::default().with_topics(each(&request.topics, |topic| {
            TopicResponse::default()
                .with_name(topic.name.clone())
                .with_partitions(each(&topic.partition_indexes, |partition| {
                    PartitionResponse::default()
                        .with_partition_index(*partition)
                        .with_error_code(self.code)
                        .with_error_message(self.message.clone())
                }))
        }))
    }

    pub(super) fn init_producer_id(&self) -> InitProducerIdResponse {
        InitProducerIdResponse::default()
            .with_error_code(self.code)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1)
    }

    pub(super) fn add_partitions_to_txn(
        &self,
        request: &AddPartitionsToTxnRequest,
    ) -> AddPartitionsToTxnResponse {
        if self.version < ADD_PARTITIONS_ERROR_FROM {
            return AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(
                self.partitions_not_added(&request.v3_and_below_topics),
            );
        }
        AddPartitionsToTxnResponse::default()
            .with_error_code(self.code)
            .with_results_by_transaction(each(&request.transactions, |transaction| {
                AddPartitionsToTxnResult::default()
                    .with_transactional_id(transaction.transactional_id.clone())
                    .with_topic_results(self.partitions_not_added(&transaction.topics))
            }))
    }

    fn partitions_not_added(
        &self,
        topics: &[AddPartitionsToTxnTopic],
    ) -> Vec<AddPartitionsToTxnTopicResult> {
        each(topics, |topic| {
            AddPartitionsToTxnTopicResult::default()
                .with_name(topic.name.clone())
                .with_results_by_partition(each(&topic.partitions, |partition| {
                    AddPartitionsToTxnPartitionResult::default()
                        .with_partition_index(*partition)
                        .with_partition_error_code(self.code)
                }))
        })
    }

    pub(super) fn add_offsets_to_txn(&self) -> AddOffsetsToTxnResponse {
        AddOffsetsToTxnResponse::default().with_error_code(self.code)
    }

    pub(super) fn end_txn(&self) -> EndTxnResponse {
        EndTxnResponse::default().with_error_code(self.code)
    }

    pub(super) fn write_txn_markers(
        &self,
        request: &WriteTxnMarkersRequest,
    ) -> WriteTxnMarkersResponse {
        WriteTxnMarkersResponse::default().with_markers(each(&request.markers, |marker| {
            WritableTxnMarkerResult::default()
                .with_producer_id(marker.producer_id)
                .with_topics(each(&marker.topics, |topic| {
                    WritableTxnMarkerTopicResult::default()
                        .with_name(topic.name.clone())
                        .with_partitions(each(&topic.partition_indexes, |partition| {
                            WritableTxnMarkerPartitionResult::default()
                                .with_partition_index(*partition)
                                .with_error_code(self.code)
                        }))
                }))
        }))
    }

    pub(super) fn txn_offset_commit(
        &self,
        request: &TxnOffsetCommitRequest,
    ) -> TxnOffsetCommitResponse {
        TxnOffsetCommitResponse::default().with_topics(each(&request.topics, |topic| {
            TxnOffsetCommitResponseTopic::default()
                .with_name(topic.name.clone())
                .with_partitions(each(&topic.partitions, |partition| {
                    TxnOffsetCommitResponsePartition::default()
                        .with_partition_index(partition.partition_index)
                        .with_error_code(self.code)
                }))
        }))
    }

    pub(super) fn describe_transactions(
        &self,
        request: &DescribeTransactionsRequest,
    ) -> DescribeTransactionsResponse {
        let states = each(&request.transactional_ids, |id| {
            TransactionState::default()
                .with_transactional_id(id.clone())
                .with_error_code(self.code)
        });
        DescribeTransactionsResponse::default().with_transaction_states(states)
    }

    pub(super) fn list_transactions(&self) -> ListTransactionsResponse {
        ListTransactionsResponse::default().with_error_code(self.code)
    }
}

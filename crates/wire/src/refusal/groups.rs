//! Refusals of requests about consumer groups and their offsets.

use kafka_protocol::messages::consumer_group_describe_response::DescribedGroup as DescribedConsumerGroup;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::describe_groups_response::DescribedGroup;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponseTopic,
};
use kafka_protocol::messages::*;

use super::{Refusal, each};
use crate::streams_group::{
    DescribedStreamsGroup, StreamsGroupDescribeRequest, StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatResponse,
};

/// The first version of OffsetFetch with an error for the whole request.
const OFFSET_FETCH_ERROR_FROM: i16 = 2;
/// The first version of OffsetFetch for several groups.
const OFFSET_FETCH_GROUPS_FROM: i16 = 8;
/// The first version of FindCoordinator for several coordinators.
const COORDINATORS_FROM: i16 = 4;
/// The first version of DescribeGroups with an error message.
const DESCRIBE_MESSAGE_FROM: i16 = 6;

impl Refusal {
    pub(super) fn offset_commit(&self, request: &OffsetCommitRequest) -> OffsetCommitResponse {
        OffsetCommitResponse::default().with_topics(each(&request.topics, |topic| {
            OffsetCommitResponseTopic::default()
                .with_name(topic.name.clone())
                .with_topic_id(topic.topic_id)
                .with_partitions(each(&topic.partitions, |partition| {
                    OffsetCommitResponsePartition::default()
                        .with_partition_index(partition.partition_index)
                        .with_error_code(self.code)
                }))
        }))
    }

    pub(super) fn offset_fetch(&self, request: &OffsetFetchRequest) -> OffsetFetchResponse {
        if self.version >= OFFSET_FETCH_GROUPS_FROM {
            let groups = each(&request.groups, |group| {
                OffsetFetchResponseGroup::default()
                    .with_group_id(group.group_id.clone())
                    .with_error_code(self.code)
            });
            return OffsetFetchResponse::default().with_groups(groups);
        }
        if self.version >= OFFSET_FETCH_ERROR_FROM {
            return OffsetFetchResponse::default().with_error_code(self.code);
        }
        let topics = request.topics.as_deref().unwrap_or_default();
        let topics = each(topics, |topic| {
            OffsetFetchResponseTopic::default()
                .with_name(topic.name.clone())
                .with_partitions(each(&topic.partition_indexes, |partition| {
                    OffsetFetchResponsePartition::default()
                        .with_partition_index(*partition)
                        .with_committed_offset(-1)
                        .with_error_code(self.code)
                }))
        });
        OffsetFetchResponse::default().with_topics(topics)
    }

    pub(super) fn offset_delete(&self) -> OffsetDeleteResponse {
        OffsetDeleteResponse::default().with_error_code(self.code)
    }

    pub(super) fn find_coordinator(
        &self,
        request: &FindCoordinatorRequest,
    ) -> FindCoordinatorResponse {
        let no_node = BrokerId(-1);
        if self.version < COORDINATORS_FROM {
            return FindCoordinatorResponse::default()
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
                .with_node_id(no_node)
                .with_port(-1);
        }
        FindCoordinatorResponse::default().with_coordinators(each(
            &request.coordinator_keys,
            |key| {
                Coordinator::default()
                    .with_key(key.clone())
                    .with_node_id(no_node)
                    .with_port(-1)
                    .with_error_code(self.code)
                    .with_error_message(self.message.clone())
            },
        ))
    }

    pub(super) fn join_group(&self, request: &JoinGroupRequest) -> JoinGroupResponse {
        JoinGroupResponse::default()
            .with_error_code(self.code)
            .with_member_id(request.member_id.clone())
    }

    pub(super) fn heartbeat(&self) -> HeartbeatResponse {
        HeartbeatResponse::default().with_error_code(self.code)
    }

    pub(super) fn leave_group(&self) -> LeaveGroupResponse {
        LeaveGroupResponse::default().with_error_code(self.code)
    }

    pub(super) fn sync_group(&self) -> SyncGroupResponse {
        SyncGroupResponse::default().with_error_code(self.code)
    }

    pub(super) fn describe_groups(
        &self,
        request: &DescribeGroupsRequest,
    ) -> DescribeGroupsResponse {
        let has_message = self.version >= DESCRIBE_MESSAGE_FROM;
        DescribeGroupsResponse::default().with_groups(each(&request.groups, |group| {
            DescribedGroup::default()
                .with_group_id(group.clone())
                .with_error_code(self.code)
                .with_error_message(self.message.clone().filter(|_| has_message))
        }))
    }

    pub(super) fn list_groups(&self) -> ListGroupsResponse {
        ListGroupsResponse::default().with_error_code(self.code)
    }

    pub(super) fn delete_groups(&self, request: &DeleteGroupsRequest) -> DeleteGroupsResponse {
        DeleteGroupsResponse::default().with_results(each(&request.groups_names, |group| {
            DeletableGroupResult::default()
                .with_group_id(group.clone())
                .with_error_code(self.code)
        }))
    }

    pub(super) fn consumer_group_heartbeat(&self) -> ConsumerGroupHeartbeatResponse {
        ConsumerGroupHeartbeatResponse::default()
            .with_error_code(self.code)
            .with_error_message(self.message.clone())
    }

    pub(super) fn consumer_group_describe(
        &self,
        request: &ConsumerGroupDescribeRequest,
    ) -> ConsumerGroupDescribeResponse {
        ConsumerGroupDescribeResponse::default().with_groups(each(&request.group_ids, |group| {
            DescribedConsumerGroup::default()
                .with_group_id(group.clone())
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
        }))
    }

    pub(super) fn streams_group_heartbeat(&self) -> StreamsGroupHeartbeatResponse {
        StreamsGroupHeartbeatResponse {
            error_code: self.code,
            error_message: self.message.clone(),
            ..StreamsGroupHeartbeatResponse::default()
        }
    }

    pub(super) fn streams_group_describe(
        &self,
        request: &StreamsGroupDescribeRequest,
    ) -> StreamsGroupDescribeResponse {
        StreamsGroupDescribeResponse {
            throttle_time_ms: 0,
            groups: each(&request.group_ids, |group| DescribedStreamsGroup {
                error_code: self.code,
                error_message: self.message.clone(),
                ..DescribedStreamsGroup::empty(group.clone())
            }),
        }
    }
}

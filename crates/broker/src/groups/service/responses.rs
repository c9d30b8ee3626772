//! Conversion of the coordinator's answers into Kafka's messages.

use millstream_wire::messages::consumer_group_describe_response as describe_consumer;
use millstream_wire::messages::consumer_group_heartbeat_response as consumer_beat;
use millstream_wire::messages::delete_groups_response::{
    DeletableGroupResult, DeleteGroupsResponse,
};
use millstream_wire::messages::describe_groups_response as describe;
use millstream_wire::messages::join_group_response::{JoinGroupResponse, JoinGroupResponseMember};
use millstream_wire::messages::leave_group_response::{LeaveGroupResponse, MemberResponse};
use millstream_wire::messages::list_groups_response as list;
use millstream_wire::messages::offset_commit_response as commit;
use millstream_wire::messages::offset_delete_response as delete;
use millstream_wire::messages::offset_fetch_response as fetch;
use millstream_wire::messages::share_group_describe_response as describe_share;
use millstream_wire::messages::share_group_heartbeat_response as share_beat;
use millstream_wire::messages::{
    self, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatResponse, DescribeGroupsResponse,
    HeartbeatResponse, ListGroupsResponse, OffsetCommitResponse, OffsetDeleteResponse,
    OffsetFetchResponse, ShareGroupDescribeResponse, ShareGroupHeartbeatResponse,
    SyncGroupResponse,
};
use millstream_wire::{Request as WireRequest, Response, ResponseError, StrBytes, Uuid, refuse};

use super::streams;
use crate::groups::{
    Answer, ConsumerBeat, ConsumerMember, DescribedConsumerGroup, DescribedGroup,
    DescribedShareGroup, FetchedOffset, GroupError, HeartbeatRefused, JoinRefused, Joined,
    LeftMember, ListedGroup, ShareBeat, ShareMember, Synced, TopicAssignment, TopicOffsets,
    TopicResults,
};

/// Converts answers into a response; `answers` are in the order of the requests that the message became.
pub fn translate(version: i16, request: &WireRequest, mut answers: Vec<Answer>) -> Response {
    if let WireRequest::OffsetFetch(request) = request
        && version >= 8
    {
        let groups = request.groups.iter().zip(answers);
        let groups = groups.map(|(asked, answer)| fetched_group(asked.group_id.clone(), answer));
        return OffsetFetchResponse::default()
            .with_groups(groups.collect())
            .into();
    }
    match answers.pop() {
        Some(Answer::JoinGroup(answer)) => joined(version, answer).into(),
        Some(Answer::SyncGroup(answer)) => synced(version, answer).into(),
        Some(Answer::Heartbeat(answer)) => HeartbeatResponse::default()
            .with_error_code(code(answer.err()))
            .into(),
        Some(Answer::LeaveGroup(answer)) => left(version, answer).into(),
        Some(Answer::DescribeGroups(answer)) => described(version, answer).into(),
        Some(Answer::ListGroups(answer)) => listed(version, answer).into(),
        Some(Answer::DeleteGroups(answer)) => {
            let results = answer.into_iter().map(|(group, result)| {
                DeletableGroupResult::default()
                    .with_group_id(group_id(&group))
                    .with_error_code(code(result.err()))
            });
            DeleteGroupsResponse::default()
                .with_results(results.collect())
                .into()
        }
        Some(Answer::CommitOffsets(answer)) => committed(answer).into(),
        Some(Answer::FetchOffsets(answer)) => fetched(version, request, answer),
        Some(Answer::DeleteOffsets(answer)) => deleted(answer).into(),
        Some(Answer::ConsumerHeartbeat(answer)) => beat(answer).into(),
        Some(Answer::DescribeConsumerGroups(answer)) => described_consumer(answer).into(),
        Some(Answer::ShareHeartbeat(answer)) => beat_of_share(answer).into(),
        Some(Answer::DescribeShareGroups(answer)) => described_share(answer).into(),
        Some(Answer::StreamsHeartbeat(answer)) => streams::beat(answer).into(),
        Some(Answer::DescribeStreamsGroups(answer)) => streams::described(answer).into(),
        // Only the broker itself sends these requests; or there was no request.
        Some(Answer::CommitTransactionOffsets(_) | Answer::EndTransaction) | None => {
            refuse(request, version, ResponseError::InvalidRequest, None)
        }
    }
}

fn code(error: Option<GroupError>) -> i16 {
    error.map_or(0, GroupError::code)
}

pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn group_id(name: &str) -> messages::GroupId {
    messages::GroupId(text(name))
}

fn topic_name(name: &str) -> messages::TopicName {
    messages::TopicName(text(name))
}

fn joined(version: i16, answer: Result<Joined, JoinRefused>) -> JoinGroupResponse {
    let response = JoinGroupResponse::default();
    let joined = match answer {
        Ok(joined) => joined,
        Err(refused) => {
            return response
                .with_error_code(refused.error.code())
                .with_generation_id(-1)
                // Before version 7 it cannot be null.
                .with_protocol_name((version < 7).then(StrBytes::default))
                .with_member_id(text(&refused.member));
        }
    };
    let members = joined.members.iter().map(|member| {
        let instance = member.instance.as_ref().filter(|_| version >= 5);
        JoinGroupResponseMember::default()
            .with_member_id(text(&member.member))
            .with_group_instance_id(instance.map(|id| text(id)))
            .with_metadata(member.metadata.clone())
    });
    let protocol = joined.protocol.as_deref().map(text);
    response
        .with_generation_id(joined.generation.0)
        .with_protocol_type(
            joined
                .protocol_type
                .as_deref()
                .filter(|_| version >= 7)
                .map(text),
        )
        .with_protocol_name(protocol.or((version < 7).then(StrBytes::default)))
        .with_leader(text(&joined.leader))
        .with_skip_assignment(joined.skip_assignment && version >= 9)
        .with_member_id(text(&joined.member))
        .with_members(members.collect())
}

fn synced(version: i16, answer: Result<Synced, GroupError>) -> SyncGroupResponse {
    match answer {
        Ok(synced) => SyncGroupResponse::default()
            .with_protocol_type(
                synced
                    .protocol_type
                    .as_deref()
                    .filter(|_| version >= 5)
                    .map(text),
            )
            .with_protocol_name(
                synced
                    .protocol
                    .as_deref()
                    .filter(|_| version >= 5)
                    .map(text),
            )
            .with_assignment(synced.assignment),
        Err(error) => SyncGroupResponse::default().with_error_code(error.code()),
    }
}

fn left(version: i16, answer: Result<Vec<LeftMember>, GroupError>) -> LeaveGroupResponse {
    let response = LeaveGroupResponse::default();
    match answer {
        Err(error) => response.with_error_code(error.code()),
        Ok(members) if version < 3 => {
            let error = members.into_iter().find_map(|member| member.error);
            response.with_error_code(code(error))
        }
        Ok(members) => {
            let members = members.iter().map(|left| {
                MemberResponse::default()
                    .with_member_id(text(&left.member))
                    .with_group_instance_id(left.instance.as_ref().map(|id| text(id)))
                    .with_error_code(code(left.error))
            });
            response.with_members(members.collect())
        }
    }
}

fn described(version: i16, groups: Vec<DescribedGroup>) -> DescribeGroupsResponse {
    let groups = groups.into_iter().map(|group| {
        let members = group.members.into_iter().map(|member| {
            let instance = member.instance.as_ref().filter(|_| version >= 4);
            describe::DescribedGroupMember::default()
                .with_member_id(text(&member.member))
                .with_group_instance_id(instance.map(|id| text(id)))
                .with_client_id(text(&member.client.id))
                .with_client_host(text(&member.client.host))
                .with_member_metadata(member.metadata)
                .with_member_assignment(member.assignment)
        });
        // Before version 6 only the state says so.
        let error = group.error.filter(|_| version >= 6);
        describe::DescribedGroup::default()
            .with_error_code(code(error))
            .with_error_message(error.map(|error| text(&error.to_string())))
            .with_group_id(group_id(&group.group))
            .with_group_state(text(group.state.as_str()))
            .with_protocol_type(text(&group.protocol_type))
            .with_protocol_data(text(&group.protocol))
            .with_members(members.collect())
    });
    DescribeGroupsResponse::default().with_groups(groups.collect())
}

fn listed(version: i16, groups: Vec<ListedGroup>) -> ListGroupsResponse {
    let groups = groups.into_iter().map(|group| {
        let listed = list::ListedGroup::default()
            .with_group_id(group_id(&group.group))
            .with_protocol_type(text(&group.protocol_type));
        let listed = match version >= 4 {
            true => listed.with_group_state(text(group.state.as_str())),
            false => listed,
        };
        match version >= 5 {
            true => listed.with_group_type(text(group.group_type.as_str())),
            false => listed,
        }
    });
    ListGroupsResponse::default().with_groups(groups.collect())
}

fn committed(topics: Vec<TopicResults>) -> OffsetCommitResponse {
    let topics = topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|(partition, result)| {
            commit::OffsetCommitResponsePartition::default()
                .with_partition_index(partition.0)
                .with_error_code(code(result.err()))
        });
        commit::OffsetCommitResponseTopic::default()
            .with_name(topic_name(&topic.topic))
            .with_partitions(partitions.collect())
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

/// Up to version 7: one group.
fn fetched(
    version: i16,
    request: &WireRequest,
    answer: Result<Vec<TopicOffsets>, GroupError>,
) -> Response {
    let topics = match answer {
        Ok(topics) => topics,
        Err(error) => {
            let error = ResponseError::try_from_code(error.code());
            let error = error.unwrap_or(ResponseError::UnknownServerError);
            return refuse(request, version, error, None);
        }
    };
    let topics = topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|(partition, result)| {
            let (offset, error) = offset_of(result);
            let response = fetch::OffsetFetchResponsePartition::default()
                .with_partition_index(partition.0)
                .with_committed_offset(offset.offset)
                .with_metadata(Some(offset.metadata))
                .with_error_code(error);
            match version >= 5 {
                true => response.with_committed_leader_epoch(offset.leader_epoch),
                false => response,
            }
        });
        fetch::OffsetFetchResponseTopic::default()
            .with_name(topic_name(&topic.topic))
            .with_partitions(partitions.collect())
    });
    OffsetFetchResponse::default()
        .with_topics(topics.collect())
        .into()
}

/// From version 8 on: one of several groups.
fn fetched_group(group: messages::GroupId, answer: Answer) -> fetch::OffsetFetchResponseGroup {
    let response = fetch::OffsetFetchResponseGroup::default().with_group_id(group);
    let topics = match answer {
        Answer::FetchOffsets(Ok(topics)) => topics,
        Answer::FetchOffsets(Err(error)) => return response.with_error_code(error.code()),
        _ => return response.with_error_code(ResponseError::UnknownServerError.code()),
    };
    let topics = topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|(partition, result)| {
            let (offset, error) = offset_of(result);
            fetch::OffsetFetchResponsePartitions::default()
                .with_partition_index(partition.0)
                .with_committed_offset(offset.offset)
                .with_committed_leader_epoch(offset.leader_epoch)
                .with_metadata(Some(offset.metadata))
                .with_error_code(error)
        });
        fetch::OffsetFetchResponseTopics::default()
            .with_name(topic_name(&topic.topic))
            .with_partitions(partitions.collect())
    });
    response.with_topics(topics.collect())
}

/// An offset as a response carries it; -1 for none.
struct SentOffset {
    offset: i64,
    leader_epoch: i32,
    metadata: StrBytes,
}

fn offset_of(result: Result<Option<FetchedOffset>, GroupError>) -> (SentOffset, i16) {
    let none = SentOffset {
        offset: -1,
        leader_epoch: -1,
        metadata: StrBytes::default(),
    };
    match result {
        Ok(Some(offset)) => {
            let sent = SentOffset {
                offset: offset.offset.0 as i64,
                leader_epoch: offset.leader_epoch.map_or(-1, |epoch| epoch.0),
                metadata: text(&offset.metadata),
            };
            (sent, 0)
        }
        Ok(None) => (none, 0),
        Err(error) => (none, error.code()),
    }
}

fn deleted(answer: Result<Vec<TopicResults>, GroupError>) -> OffsetDeleteResponse {
    let topics = match answer {
        Ok(topics) => topics,
        Err(error) => return OffsetDeleteResponse::default().with_error_code(error.code()),
    };
    let topics = topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|(partition, result)| {
            delete::OffsetDeleteResponsePartition::default()
                .with_partition_index(partition.0)
                .with_error_code(code(result.err()))
        });
        delete::OffsetDeleteResponseTopic::default()
            .with_name(topic_name(&topic.topic))
            .with_partitions(partitions.collect())
    });
    OffsetDeleteResponse::default().with_topics(topics.collect())
}

fn beat(answer: Result<ConsumerBeat, HeartbeatRefused>) -> ConsumerGroupHeartbeatResponse {
    let response = ConsumerGroupHeartbeatResponse::default();
    let beat = match answer {
        Ok(beat) => beat,
        Err(refused) => {
            return response
                .with_error_code(refused.error.code())
                .with_error_message(Some(text(&refused.reason)));
        }
    };
    let assignment = beat.assignment.map(|assignment| {
        let partitions = assignment.into_iter().map(|(topic, partitions)| {
            consumer_beat::TopicPartitions::default()
                .with_topic_id(Uuid::from_u128(topic.0))
                .with_partitions(partitions.iter().map(|partition| partition.0).collect())
        });
        consumer_beat::Assignment::default().with_topic_partitions(partitions.collect())
    });
    response
        .with_member_id(Some(text(&beat.member)))
        .with_member_epoch(beat.epoch.0)
        .with_heartbeat_interval_ms(beat.heartbeat_interval.as_millis() as i32)
        .with_assignment(assignment)
}

fn described_consumer(groups: Vec<DescribedConsumerGroup>) -> ConsumerGroupDescribeResponse {
    let groups = groups.into_iter().map(|group| {
        let message = group.error.map(|error| text(&error.to_string()));
        describe_consumer::DescribedGroup::default()
            .with_error_code(code(group.error))
            .with_error_message(message)
            .with_group_id(group_id(&group.group))
            .with_group_state(text(group.state.as_str()))
            .with_group_epoch(group.epoch.0)
            .with_assignment_epoch(group.target_epoch.0)
            .with_assignor_name(text(&group.assignor))
            .with_members(group.members.iter().map(consumer_member).collect())
    });
    ConsumerGroupDescribeResponse::default().with_groups(groups.collect())
}

fn consumer_member(member: &ConsumerMember) -> describe_consumer::Member {
    describe_consumer::Member::default()
        .with_member_id(text(&member.member))
        .with_instance_id(member.instance.as_ref().map(|id| text(id)))
        .with_rack_id(member.rack.as_deref().map(text))
        .with_member_epoch(member.epoch.0)
        .with_client_id(text(&member.client.id))
        .with_client_host(text(&member.client.host))
        .with_subscribed_topic_names(member.topics.iter().map(|name| topic_name(name)).collect())
        .with_subscribed_topic_regex(member.regex.as_deref().map(text))
        .with_assignment(assignment(&member.assigned))
        .with_target_assignment(assignment(&member.target))
}

fn assignment(topics: &[TopicAssignment]) -> describe_consumer::Assignment {
    let partitions = topics.iter().map(|topic| {
        describe_consumer::TopicPartitions::default()
            .with_topic_id(Uuid::from_u128(topic.id.0))
            .with_topic_name(topic_name(&topic.topic))
            .with_partitions(
                topic
                    .partitions
                    .iter()
                    .map(|partition| partition.0)
                    .collect(),
            )
    });
    describe_consumer::Assignment::default().with_topic_partitions(partitions.collect())
}

fn beat_of_share(answer: Result<ShareBeat, HeartbeatRefused>) -> ShareGroupHeartbeatResponse {
    let response = ShareGroupHeartbeatResponse::default();
    let beat = match answer {
        Ok(beat) => beat,
        Err(refused) => {
            return response
                .with_error_code(refused.error.code())
                .with_error_message(Some(text(&refused.reason)));
        }
    };
    let assignment = beat.assignment.map(|assignment| {
        let partitions = assignment.into_iter().map(|(topic, partitions)| {
            share_beat::TopicPartitions::default()
                .with_topic_id(Uuid::from_u128(topic.0))
                .with_partitions(partitions.iter().map(|partition| partition.0).collect())
        });
        share_beat::Assignment::default().with_topic_partitions(partitions.collect())
    });
    response
        .with_member_id(Some(text(&beat.member)))
        .with_member_epoch(beat.epoch.0)
        .with_heartbeat_interval_ms(beat.heartbeat_interval.as_millis() as i32)
        .with_assignment(assignment)
}

fn described_share(groups: Vec<DescribedShareGroup>) -> ShareGroupDescribeResponse {
    let groups = groups.into_iter().map(|group| {
        let message = group.error.map(|error| text(&error.to_string()));
        describe_share::DescribedGroup::default()
            .with_error_code(code(group.error))
            .with_error_message(message)
            .with_group_id(group_id(&group.group))
            .with_group_state(text(group.state.as_str()))
            .with_group_epoch(group.epoch.0)
            .with_assignment_epoch(group.epoch.0)
            .with_assignor_name(text(&group.assignor))
            .with_members(group.members.iter().map(share_member).collect())
    });
    ShareGroupDescribeResponse::default().with_groups(groups.collect())
}

fn share_member(member: &ShareMember) -> describe_share::Member {
    let partitions = member.assigned.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| partition.0);
        describe_share::TopicPartitions::default()
            .with_topic_id(Uuid::from_u128(topic.id.0))
            .with_topic_name(topic_name(&topic.topic))
            .with_partitions(partitions.collect())
    });
    let assignment =
        describe_share::Assignment::default().with_topic_partitions(partitions.collect());
    describe_share::Member::default()
        .with_member_id(text(&member.member))
        .with_rack_id(member.rack.as_deref().map(text))
        .with_member_epoch(member.epoch.0)
        .with_client_id(text(&member.client.id))
        .with_client_host(text(&member.client.host))
        .with_subscribed_topic_names(member.topics.iter().map(|name| topic_name(name)).collect())
        .with_assignment(assignment)
}

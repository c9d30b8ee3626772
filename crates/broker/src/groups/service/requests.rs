//! Conversion of Kafka's messages into the coordinator's requests.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Offset, Random};
use millstream_wire::messages::{
    self, ConsumerGroupHeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, OffsetCommitRequest,
    OffsetDeleteRequest, OffsetFetchRequest, ShareGroupHeartbeatRequest, SyncGroupRequest,
};
use millstream_wire::{Request as WireRequest, ResponseError, StrBytes};

use super::streams;
use crate::broker::Broker;
use crate::client::Client;
use crate::groups::{
    Client as GroupClient, CommitOffsets, ConsumerHeartbeat, DeleteOffsets, Epoch, FetchOffsets,
    Generation, GroupName, Heartbeat, InstanceId, JoinGroup, LeaderEpoch, LeaveGroup,
    LeavingMember, ListGroups, MemberId, Partition, PartitionCommit, Protocol, RandomBytes,
    Request, ShareHeartbeat, SyncGroup, TopicCommit, TopicId, TopicName,
};

/// Converts a message into requests: one for each group if the message may name several that are answered apart.
pub fn translate(
    broker: &Broker,
    client: &Client,
    version: i16,
    request: &WireRequest,
) -> Result<Vec<Request>, ResponseError> {
    let one = |request: Request| Ok(vec![request]);
    match request {
        WireRequest::JoinGroup(request) => one(join(broker, client, version, request)?),
        WireRequest::SyncGroup(request) => one(sync(request)),
        WireRequest::Heartbeat(request) => one(Request::Heartbeat(Heartbeat {
            group: group(&request.group_id),
            member: member(&request.member_id),
            instance: instance(request.group_instance_id.as_ref()),
            generation: Generation(request.generation_id),
        })),
        WireRequest::LeaveGroup(request) => one(leave(version, request)),
        WireRequest::DescribeGroups(request) => {
            one(Request::DescribeGroups(groups(&request.groups)))
        }
        WireRequest::ListGroups(request) => one(Request::ListGroups(ListGroups {
            states: request
                .states_filter
                .iter()
                .map(|state| state.to_string())
                .collect(),
            types: request
                .types_filter
                .iter()
                .map(|kind| kind.to_string())
                .collect(),
        })),
        WireRequest::DeleteGroups(request) => {
            one(Request::DeleteGroups(groups(&request.groups_names)))
        }
        WireRequest::OffsetCommit(request) => one(commit(version, request)?),
        WireRequest::OffsetFetch(request) => fetch(version, request),
        WireRequest::OffsetDelete(request) => one(delete_offsets(request)),
        WireRequest::ConsumerGroupHeartbeat(request) => {
            one(consumer_heartbeat(broker, client, version, request)?)
        }
        WireRequest::ConsumerGroupDescribe(request) => {
            one(Request::DescribeConsumerGroups(groups(&request.group_ids)))
        }
        WireRequest::ShareGroupHeartbeat(request) => one(share_heartbeat(client, request)),
        WireRequest::ShareGroupDescribe(request) => {
            one(Request::DescribeShareGroups(groups(&request.group_ids)))
        }
        WireRequest::StreamsGroupHeartbeat(request) => one(Request::StreamsHeartbeat(
            streams::heartbeat(client, request),
        )),
        WireRequest::StreamsGroupDescribe(request) => {
            let names = request.group_ids.iter().cloned().map(messages::GroupId);
            let names: Vec<messages::GroupId> = names.collect();
            one(Request::DescribeStreamsGroups(groups(&names)))
        }
        _ => Err(ResponseError::InvalidRequest),
    }
}

/// Copies a text that stays in memory: the original would hold on to the whole buffer of its connection.
pub(super) fn text(text: &StrBytes) -> Arc<str> {
    Arc::from(&**text)
}

fn bytes(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn group(name: &messages::GroupId) -> GroupName {
    GroupName::from(&***name)
}

/// Returns each group once, however often the request names it: an answer is no larger than all groups together.
fn groups(names: &[messages::GroupId]) -> Vec<GroupName> {
    let mut named = HashSet::new();
    let names = names.iter().filter(|name| named.insert(&***name));
    names.map(group).collect()
}

fn member(id: &StrBytes) -> MemberId {
    MemberId::from(&**id)
}

fn instance(id: Option<&StrBytes>) -> Option<InstanceId> {
    id.map(|id| InstanceId::from(&**id))
}

fn topic(name: &messages::TopicName) -> TopicName {
    TopicName::from(&***name)
}

fn milliseconds(number: i32) -> Duration {
    Duration::from_millis(number.max(0) as u64)
}

pub(super) fn client_of(client: &Client) -> GroupClient {
    GroupClient {
        id: client.id().into(),
        host: format!("/{}", client.peer().address.ip()).into(),
    }
}

fn join(
    broker: &Broker,
    client: &Client,
    version: i16,
    request: &JoinGroupRequest,
) -> Result<Request, ResponseError> {
    let protocols = request.protocols.iter().map(|protocol| Protocol {
        name: text(&protocol.name),
        metadata: bytes(&protocol.metadata),
    });
    // The oldest version knows one timeout.
    let rebalance_timeout = match version {
        0 => request.session_timeout_ms,
        _ => request.rebalance_timeout_ms,
    };
    Ok(Request::JoinGroup(JoinGroup {
        group: group(&request.group_id),
        member: member(&request.member_id),
        instance: instance(request.group_instance_id.as_ref()),
        client: client_of(client),
        session_timeout: milliseconds(request.session_timeout_ms),
        rebalance_timeout: milliseconds(rebalance_timeout),
        protocol_type: text(&request.protocol_type),
        protocols: protocols.collect(),
        member_id_required: version >= 4,
        can_skip_assignment: version >= 9,
        random: random_bytes(broker.random()).map_err(|_| ResponseError::UnknownServerError)?,
    }))
}

fn sync(request: &SyncGroupRequest) -> Request {
    let assignments = request.assignments.iter().map(|assignment| {
        let member = member(&assignment.member_id);
        (member, bytes(&assignment.assignment))
    });
    Request::SyncGroup(SyncGroup {
        group: group(&request.group_id),
        member: member(&request.member_id),
        instance: instance(request.group_instance_id.as_ref()),
        generation: Generation(request.generation_id),
        protocol_type: request.protocol_type.as_ref().map(text),
        protocol: request.protocol_name.as_ref().map(text),
        assignments: assignments.collect(),
    })
}

fn leave(version: i16, request: &LeaveGroupRequest) -> Request {
    let members = match version {
        0..=2 => vec![LeavingMember {
            member: member(&request.member_id),
            instance: None,
        }],
        _ => {
            let members = request.members.iter().map(|leaving| LeavingMember {
                member: member(&leaving.member_id),
                instance: instance(leaving.group_instance_id.as_ref()),
            });
            members.collect()
        }
    };
    Request::LeaveGroup(LeaveGroup {
        group: group(&request.group_id),
        members,
    })
}

fn commit(version: i16, request: &OffsetCommitRequest) -> Result<Request, ResponseError> {
    let mut committed = request.topics.iter().flat_map(|topic| &topic.partitions);
    if committed.any(|partition| partition.committed_offset < 0) {
        return Err(ResponseError::OffsetOutOfRange);
    }
    let topics = request.topics.iter().map(|committed| {
        let partitions = committed
            .partitions
            .iter()
            .map(|partition| PartitionCommit {
                partition: Partition(partition.partition_index),
                offset: Offset(partition.committed_offset.max(0) as u64),
                leader_epoch: leader_epoch(partition.committed_leader_epoch),
                metadata: partition
                    .committed_metadata
                    .as_ref()
                    .map(text)
                    .unwrap_or_default(),
            });
        TopicCommit {
            topic: topic(&committed.name),
            partitions: partitions.collect(),
        }
    });
    let retention = u64::try_from(request.retention_time_ms).ok();
    Ok(Request::CommitOffsets(CommitOffsets {
        group: group(&request.group_id),
        member: member(&request.member_id),
        instance: instance(request.group_instance_id.as_ref()),
        generation: Generation(request.generation_id_or_member_epoch),
        knows_member_epochs: version >= 9,
        retention: retention
            .filter(|_| version <= 4)
            .map(Duration::from_millis),
        topics: topics.collect(),
    }))
}

fn leader_epoch(epoch: i32) -> Option<LeaderEpoch> {
    (epoch >= 0).then_some(LeaderEpoch(epoch))
}

fn fetch(version: i16, request: &OffsetFetchRequest) -> Result<Vec<Request>, ResponseError> {
    let mut named = HashSet::new();
    if !request
        .groups
        .iter()
        .all(|asked| named.insert(&asked.group_id))
    {
        return Err(ResponseError::InvalidRequest);
    }
    if version < 8 {
        let topics = request.topics.as_ref().map(|topics| {
            let topics = topics.iter();
            each_once(topics.map(|asked| (&asked.name, &asked.partition_indexes[..])))
        });
        return Ok(vec![Request::FetchOffsets(FetchOffsets {
            group: group(&request.group_id),
            member: None,
            member_epoch: Generation::NONE,
            topics,
            require_stable: request.require_stable,
        })]);
    }
    let groups = request.groups.iter().map(|asked| {
        let topics = asked.topics.as_ref().map(|topics| {
            let topics = topics.iter();
            each_once(topics.map(|asked| (&asked.name, &asked.partition_indexes[..])))
        });
        Request::FetchOffsets(FetchOffsets {
            group: group(&asked.group_id),
            member: asked.member_id.as_ref().map(member),
            member_epoch: Generation(asked.member_epoch),
            topics,
            require_stable: request.require_stable,
        })
    });
    Ok(groups.collect())
}

/// Returns the partitions of each topic. A repeated partition is left out: an answer has the text of
/// each commit once.
fn each_once<'a>(
    topics: impl Iterator<Item = (&'a messages::TopicName, &'a [i32])>,
) -> Vec<(TopicName, Vec<Partition>)> {
    let mut named = HashSet::new();
    let topics = topics.map(|(name, indexes)| {
        let indexes = indexes.iter().copied();
        let once = indexes.filter(|index| named.insert((name, *index)));
        (topic(name), once.map(Partition).collect())
    });
    topics.collect()
}

fn delete_offsets(request: &OffsetDeleteRequest) -> Request {
    let topics = request.topics.iter().map(|asked| {
        let partitions = asked.partitions.iter();
        let partitions = partitions.map(|partition| Partition(partition.partition_index));
        (topic(&asked.name), partitions.collect())
    });
    Request::DeleteOffsets(DeleteOffsets {
        group: group(&request.group_id),
        topics: topics.collect(),
    })
}

fn consumer_heartbeat(
    broker: &Broker,
    client: &Client,
    version: i16,
    request: &ConsumerGroupHeartbeatRequest,
) -> Result<Request, ResponseError> {
    let topics = request.subscribed_topic_names.as_ref();
    let owned = request.topic_partitions.as_ref().map(|owned| {
        let owned = owned.iter().map(|owned| {
            let partitions = owned.partitions.iter().copied().map(Partition);
            (TopicId(owned.topic_id.as_u128()), partitions.collect())
        });
        owned.collect()
    });
    let timeout = u64::try_from(request.rebalance_timeout_ms).ok();
    Ok(Request::ConsumerHeartbeat(ConsumerHeartbeat {
        group: group(&request.group_id),
        member: member(&request.member_id),
        gets_member_id: version == 0,
        epoch: Epoch(request.member_epoch),
        instance: instance(request.instance_id.as_ref()),
        rack: request.rack_id.as_ref().map(text),
        client: client_of(client),
        principal: client.access().principal().to_string().into(),
        rebalance_timeout: timeout.map(Duration::from_millis),
        topics: topics.map(|names| names.iter().map(topic).collect()),
        regex: request.subscribed_topic_regex.as_ref().map(text),
        assignor: request.server_assignor.as_ref().map(text),
        owned,
        random: random_bytes(broker.random()).map_err(|_| ResponseError::UnknownServerError)?,
    }))
}

fn share_heartbeat(client: &Client, request: &ShareGroupHeartbeatRequest) -> Request {
    let topics = request.subscribed_topic_names.as_ref();
    Request::ShareHeartbeat(ShareHeartbeat {
        group: group(&request.group_id),
        member: member(&request.member_id),
        epoch: Epoch(request.member_epoch),
        rack: request.rack_id.as_ref().map(text),
        client: client_of(client),
        topics: topics.map(|names| names.iter().map(topic).collect()),
    })
}

fn random_bytes(random: &dyn Random) -> std::io::Result<RandomBytes> {
    let mut bytes = [0; 16];
    random.fill(&mut bytes)?;
    Ok(RandomBytes(u128::from_be_bytes(bytes)))
}

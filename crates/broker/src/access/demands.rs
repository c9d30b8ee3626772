//! The rights that a client needs for a request as a whole.

use millstream_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use millstream_wire::messages::{AddPartitionsToTxnRequest, GroupId, TopicName};
use millstream_wire::streams_group::StreamsGroupHeartbeatRequest;
use millstream_wire::{Request, ResponseError};

use super::unknown::denied_by_id;
use super::{Access, denied};
use crate::client::Client;
use crate::security::{Operation, Resource};

use Operation::{
    Alter, AlterConfigs, ClusterAction, Delete, Describe, DescribeConfigs, Read, TwoPhaseCommit,
    Write,
};

/// In FindCoordinator: asks for the coordinator of a group.
pub const KEY_OF_GROUP: i8 = 0;
/// In FindCoordinator: asks for the coordinator of a share-partition's state, which only brokers
/// do; other types ask for that of a transaction.
pub const KEY_OF_SHARE: i8 = 2;
/// From this version on FindCoordinator names several keys.
const SEVERAL_KEYS_FROM: i16 = 4;
/// From this version on OffsetFetch names several groups.
const SEVERAL_GROUPS_FROM: i16 = 8;

type Checked = Result<(), ResponseError>;

/// Refuses a request if the client lacks a right that the whole request needs.
pub fn check(client: &Client, version: i16, request: &Request) -> Checked {
    let access = client.access();
    let topic = |operation, name: &str| need(access, operation, Resource::topic(name));
    let group = |operation, name: &str| need(access, operation, Resource::group(name));
    let cluster = |operation| need(access, operation, Resource::CLUSTER);
    let transaction = |operation, id: &str| need(access, operation, Resource::transactional_id(id));
    let stream = |operation, id| {
        let name = client.stream_name(id);
        let name = name.ok_or(ResponseError::UnknownTopicId)?;
        topic(operation, &name).map_err(|_| denied_by_id(access, &name))
    };
    // In a list, each stream that the client may not know of gets its own answer: see
    // `unknown::withhold`.
    let listed = |operation, id| match stream(operation, id) {
        Err(ResponseError::UnknownTopicId) => Ok(()),
        checked => checked,
    };
    match request {
        Request::JoinGroup(request) => group(Read, &request.group_id),
        Request::SyncGroup(request) => group(Read, &request.group_id),
        Request::Heartbeat(request) => group(Read, &request.group_id),
        Request::LeaveGroup(request) => group(Read, &request.group_id),
        Request::OffsetCommit(request) => group(Read, &request.group_id),
        Request::OffsetDelete(request) => {
            group(Delete, &request.group_id)?;
            each(&request.topics, |asked| topic(Read, &asked.name))
        }
        Request::OffsetFetch(request) if version < SEVERAL_GROUPS_FROM => {
            group(Describe, &request.group_id)
        }
        Request::ConsumerGroupHeartbeat(request) => {
            let topics = request.subscribed_topic_names.as_deref();
            heartbeat(access, &request.group_id, topics)
        }
        Request::ShareGroupHeartbeat(request) => {
            let topics = request.subscribed_topic_names.as_deref();
            heartbeat(access, &request.group_id, topics)
        }
        Request::ShareFetch(request) => {
            group(Read, request.group_id.as_deref().map_or("", |id| &**id))
        }
        Request::ShareAcknowledge(request) => {
            group(Read, request.group_id.as_deref().map_or("", |id| &**id))
        }
        Request::AlterShareGroupOffsets(request) => group(Read, &request.group_id),
        Request::DeleteShareGroupOffsets(request) => group(Delete, &request.group_id),
        Request::FindCoordinator(request) if request.key_type == KEY_OF_SHARE => {
            cluster(ClusterAction)
        }
        Request::StreamsGroupHeartbeat(request) => streams_heartbeat(access, request),
        Request::FindCoordinator(request) if version < SEVERAL_KEYS_FROM => {
            match request.key_type {
                KEY_OF_GROUP => group(Describe, &request.key),
                _ => transaction(Describe, &request.key),
            }
        }

        Request::Produce(request) => match &request.transactional_id {
            Some(id) => transaction(Write, id),
            None => Ok(()),
        },
        Request::InitProducerId(request) => match &request.transactional_id {
            Some(id) => {
                transaction(Write, id)?;
                match request.enable_2_pc {
                    true => transaction(TwoPhaseCommit, id),
                    false => Ok(()),
                }
            }
            None if access.may_be_idempotent() => Ok(()),
            None => Err(ResponseError::ClusterAuthorizationFailed),
        },
        Request::AddPartitionsToTxn(request) => add_partitions(access, request),
        Request::AddOffsetsToTxn(request) => {
            transaction(Write, &request.transactional_id)?;
            group(Read, &request.group_id)
        }
        Request::TxnOffsetCommit(request) => {
            transaction(Write, &request.transactional_id)?;
            group(Read, &request.group_id)
        }
        Request::WriteTxnMarkers(_) => match access.would(Alter, Resource::CLUSTER) {
            true => Ok(()),
            false => cluster(ClusterAction),
        },
        Request::EndTxn(request) => transaction(Write, &request.transactional_id),

        Request::DescribeLogDirs(_)
        | Request::DescribeAcls(_)
        | Request::DescribeQuorum(_)
        | Request::ListPartitionReassignments(_)
        | Request::DescribeUserScramCredentials(_) => cluster(Describe),
        Request::CreateAcls(_)
        | Request::DeleteAcls(_)
        | Request::ElectLeaders(_)
        | Request::AlterPartitionReassignments(_)
        | Request::AlterReplicaLogDirs(_)
        | Request::UpdateFeatures(_)
        | Request::AlterUserScramCredentials(_) => cluster(Alter),
        Request::DescribeClientQuotas(_) | Request::ListConfigResources(_) => {
            cluster(DescribeConfigs)
        }
        Request::AlterClientQuotas(_) => cluster(AlterConfigs),

        Request::CreateStream(request) => match access.may_create(&request.name) {
            true => Ok(()),
            false => Err(ResponseError::TopicAuthorizationFailed),
        },
        Request::DescribeStream(request) => match &request.name {
            Some(name) => topic(Describe, name),
            None => stream(Describe, request.stream),
        },
        Request::GrowStream(request) => topic(Alter, &request.name),
        Request::DeleteStream(request) => topic(Delete, &request.name),
        Request::WriteChunks(request) => stream(Write, request.stream),
        Request::ReadChunks(request) => {
            each(&request.cursors, |cursor| listed(Read, cursor.stream))
        }
        Request::NextGroups(request) => {
            group(Read, &request.shared_group)?;
            stream(Read, request.stream)
        }
        Request::CommitCursors(request) => {
            group(Read, &request.shared_group)?;
            each(&request.cursors, |cursor| listed(Read, cursor.stream))
        }
        Request::ReleaseGroups(request) => {
            group(Read, &request.shared_group)?;
            stream(Read, request.stream)
        }
        Request::NextSegments(request) => stream(Describe, request.stream),
        Request::AvailableGroups(request) => stream(Describe, request.stream),
        Request::AvailableSegments(request) => stream(Describe, request.stream),
        // Objects need the same rights as topics of their names.
        Request::PutObject(request) => topic(Write, &request.name),
        Request::GetObject(request) => topic(Read, &request.name),
        Request::DeleteObject(request) => topic(Delete, &request.name),
        Request::GetKeys(request) => topic(Read, &request.stream),
        Request::ScanKeys(request) => topic(Read, &request.stream),
        Request::KeyHistory(request) => topic(Read, &request.stream),
        Request::PutKeys(request) => topic(Write, &request.stream),
        Request::WatchKeys(request) => topic(Read, &request.stream),
        Request::FindKeys(request) => topic(Read, &request.stream),
        Request::ChangeHold(request) => topic(Alter, &request.stream),
        Request::ListHolds(request) => topic(Describe, &request.stream),
        Request::Subscribe(request) => each(&request.sources, |source| {
            if let Some(asked) = &source.shared_group {
                group(Read, &asked.name)?;
                topic(Read, &asked.stream)?;
            }
            each(&source.lanes, |lane| topic(Read, &lane.stream))
        }),
        // The client's rights may have changed since it subscribed.
        Request::Receive(request) => {
            let Some(reads) = client.subscriptions.reads(request.subscription) else {
                return Ok(());
            };
            each(&reads.applications, |application| group(Read, application))?;
            each(&reads.streams, |stream| topic(Read, stream))
        }

        // Newer versions name several groups or keys, each of which is checked by itself.
        Request::OffsetFetch(_) | Request::FindCoordinator(_) => Ok(()),
        request => unreachable!("{:?} as a whole needs no right", request.api()),
    }
}

fn need(access: &Access, operation: Operation, resource: Resource<'_>) -> Checked {
    match access.may(operation, resource) {
        true => Ok(()),
        false => Err(denied(resource.kind)),
    }
}

fn each<T>(items: impl IntoIterator<Item = T>, check: impl Fn(T) -> Checked) -> Checked {
    items.into_iter().try_for_each(check)
}

/// Checks the heartbeat of a group that the broker assigns to: the group, and the topics that the
/// member wants to read.
fn heartbeat(access: &Access, group: &GroupId, topics: Option<&[TopicName]>) -> Checked {
    need(access, Read, Resource::group(group))?;
    each(topics.unwrap_or_default(), |name| {
        need(access, Describe, Resource::topic(name))
    })
}

/// Checks the heartbeat of a Kafka Streams group: the topics that the application reads, and those
/// that the broker creates for it.
fn streams_heartbeat(access: &Access, request: &StreamsGroupHeartbeatRequest) -> Checked {
    need(access, Read, Resource::group(&request.group_id))?;
    let topology = request.topology.iter();
    each(topology.flat_map(|it| &it.subtopologies), |part| {
        let internal = part.state_changelog_topics.iter();
        let internal = internal.chain(&part.repartition_source_topics);
        let names = part
            .source_topics
            .iter()
            .chain(internal.map(|topic| &topic.name));
        each(names, |name| need(access, Describe, Resource::topic(name)))
    })
}

/// Checks all partitions together: the coordinator adds all of them or none.
fn add_partitions(access: &Access, request: &AddPartitionsToTxnRequest) -> Checked {
    let topics = |topics: &[AddPartitionsToTxnTopic]| {
        each(topics, |topic| {
            need(access, Write, Resource::topic(&topic.name))
        })
    };
    let transaction = |id: &str| need(access, Write, Resource::transactional_id(id));
    if request.transactions.is_empty() {
        transaction(&request.v3_and_below_transactional_id)?;
        return topics(&request.v3_and_below_topics);
    }
    each(&request.transactions, |asked| {
        transaction(&asked.transactional_id)?;
        topics(&asked.topics)
    })
}

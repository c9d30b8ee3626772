//! Conversion between Kafka's messages of groups of Kafka Streams and the coordinator's requests and answers.

use std::sync::Arc;
use std::time::Duration;

use millstream_wire::StrBytes;
use millstream_wire::streams_group::{
    DescribedStreamsGroup as GroupMessage, DescribedStreamsMember, DescribedSubtopology,
    DescribedTopology, StreamsAssignment, StreamsEndpoint, StreamsEndpointPartitions,
    StreamsGroupDescribeResponse, StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse,
    StreamsKeyValue, StreamsStatus, StreamsSubtopology, StreamsTasks, StreamsTopicInfo,
    StreamsTopicPartitions, StreamsTopology,
};

use super::requests::{client_of, text};
use super::responses;
use crate::client::Client;
use crate::groups::{
    Copartition, DescribedStreamsGroup, Endpoint, EndpointPartitions, Epoch, GroupName,
    HeartbeatRefused, InstanceId, InternalTopic, MemberId, Partition, StreamsBeat,
    StreamsHeartbeat, StreamsMemberState, Subtopology, Tasks, TopicName, Topology,
};

/// How far a warm-up task may be behind, and the interval between members' reports of their tasks' progress: Kafka's
/// defaults. No warm-up tasks are assigned.
const ACCEPTABLE_RECOVERY_LAG: i32 = 10_000;
const TASK_OFFSET_INTERVAL_MS: i32 = 60_000;

pub fn heartbeat(client: &Client, request: &StreamsGroupHeartbeatRequest) -> StreamsHeartbeat {
    let count = |tasks: &Option<Vec<StreamsTasks>>| {
        let tasks = tasks.as_ref()?.iter();
        Some(tasks.map(|tasks| tasks.partitions.len()).sum())
    };
    let timeout = u64::try_from(request.rebalance_timeout_ms).ok();
    StreamsHeartbeat {
        group: GroupName::from(&*request.group_id),
        member: MemberId::from(&*request.member_id),
        epoch: Epoch(request.member_epoch),
        endpoint_epoch: request.endpoint_information_epoch,
        instance: request.instance_id.as_deref().map(InstanceId::from),
        rack: request.rack_id.as_ref().map(text),
        client: client_of(client),
        principal: client.access().principal().to_string().into(),
        rebalance_timeout: timeout.map(Duration::from_millis),
        topology: request.topology.as_ref().map(topology),
        owned: request.active_tasks.as_deref().map(tasks),
        standby: count(&request.standby_tasks),
        warmup: count(&request.warmup_tasks),
        process: request.process_id.as_ref().map(text),
        endpoint: request.user_endpoint.as_ref().map(|endpoint| Endpoint {
            host: text(&endpoint.host),
            port: endpoint.port,
        }),
        tags: request.client_tags.as_deref().map(pairs),
        shuts_down: request.shutdown_application,
    }
}

fn tasks(tasks: &[StreamsTasks]) -> Tasks {
    let tasks = tasks.iter().map(|tasks| {
        let partitions = tasks.partitions.iter().copied().map(Partition);
        (text(&tasks.subtopology_id), partitions.collect())
    });
    tasks.collect()
}

fn topology(topology: &StreamsTopology) -> Topology {
    let subtopologies = topology.subtopologies.iter();
    let subtopologies = subtopologies.map(|part| (text(&part.subtopology_id), subtopology(part)));
    Topology {
        epoch: topology.epoch,
        subtopologies: subtopologies.collect(),
    }
}

fn subtopology(part: &StreamsSubtopology) -> Subtopology {
    let copartitions = part.copartition_groups.iter().map(|group| Copartition {
        sources: group.source_topics.clone(),
        source_regexes: group.source_topic_regex.clone(),
        repartition_sources: group.repartition_source_topics.clone(),
    });
    Subtopology {
        sources: names(&part.source_topics),
        source_regexes: part.source_topic_regex.iter().map(text).collect(),
        changelogs: part.state_changelog_topics.iter().map(internal).collect(),
        repartition_sinks: names(&part.repartition_sink_topics),
        repartition_sources: part
            .repartition_source_topics
            .iter()
            .map(internal)
            .collect(),
        copartitions: copartitions.collect(),
    }
}

fn names(names: &[StrBytes]) -> Vec<TopicName> {
    names.iter().map(|name| TopicName::from(&**name)).collect()
}

fn internal(topic: &StreamsTopicInfo) -> InternalTopic {
    InternalTopic {
        name: TopicName::from(&*topic.name),
        partitions: topic.partitions,
        replication_factor: topic.replication_factor,
        settings: pairs(&topic.topic_configs),
    }
}

fn pairs(pairs: &[StreamsKeyValue]) -> Vec<(Arc<str>, Arc<str>)> {
    let pairs = pairs
        .iter()
        .map(|pair| (text(&pair.key), text(&pair.value)));
    pairs.collect()
}

pub fn beat(answer: Result<StreamsBeat, HeartbeatRefused>) -> StreamsGroupHeartbeatResponse {
    let beat = match answer {
        Ok(beat) => beat,
        Err(refused) => {
            return StreamsGroupHeartbeatResponse {
                error_code: refused.error.code(),
                error_message: Some(responses::text(&refused.reason)),
                ..StreamsGroupHeartbeatResponse::default()
            };
        }
    };
    let status = beat.status.iter().map(|(status, detail)| StreamsStatus {
        status_code: status.code(),
        status_detail: responses::text(detail),
    });
    let is_news = beat.tasks.is_some();
    let endpoints = beat.endpoints.as_deref();
    StreamsGroupHeartbeatResponse {
        throttle_time_ms: 0,
        error_code: 0,
        error_message: None,
        member_id: responses::text(&beat.member),
        member_epoch: beat.epoch.0,
        heartbeat_interval_ms: beat.heartbeat_interval.as_millis() as i32,
        acceptable_recovery_lag: ACCEPTABLE_RECOVERY_LAG,
        task_offset_interval_ms: TASK_OFFSET_INTERVAL_MS,
        status: Some(status.collect()),
        active_tasks: beat.tasks.as_ref().map(of_tasks),
        standby_tasks: is_news.then(Vec::new),
        warmup_tasks: is_news.then(Vec::new),
        endpoint_information_epoch: beat.endpoint_epoch,
        partitions_by_user_endpoint: endpoints.map(|all| all.iter().map(at_endpoint).collect()),
    }
}

fn of_tasks(tasks: &Tasks) -> Vec<StreamsTasks> {
    let tasks = tasks.iter().map(|(id, partitions)| StreamsTasks {
        subtopology_id: responses::text(id),
        partitions: partitions.iter().map(|partition| partition.0).collect(),
    });
    tasks.collect()
}

fn at_endpoint(at: &EndpointPartitions) -> StreamsEndpointPartitions {
    let partitions = at.partitions.iter();
    let partitions = partitions.map(|(topic, partitions)| StreamsTopicPartitions {
        topic: responses::text(topic),
        partitions: partitions.iter().map(|partition| partition.0).collect(),
    });
    StreamsEndpointPartitions {
        user_endpoint: of_endpoint(&at.endpoint),
        active_partitions: partitions.collect(),
        standby_partitions: Vec::new(),
    }
}

fn of_endpoint(endpoint: &Endpoint) -> StreamsEndpoint {
    StreamsEndpoint {
        host: responses::text(&endpoint.host),
        port: endpoint.port,
    }
}

pub fn described(groups: Vec<DescribedStreamsGroup>) -> StreamsGroupDescribeResponse {
    let groups = groups.into_iter().map(|group| GroupMessage {
        error_code: group.error.map_or(0, |error| error.code()),
        error_message: group.error.map(|error| responses::text(&error.to_string())),
        group_state: responses::text(group.state.as_str()),
        group_epoch: group.epoch.0,
        assignment_epoch: group.target_epoch.0,
        topology: group.topology.as_ref().map(described_topology),
        members: group.members.iter().map(described_member).collect(),
        ..GroupMessage::empty(responses::text(&group.group))
    });
    StreamsGroupDescribeResponse {
        throttle_time_ms: 0,
        groups: groups.collect(),
    }
}

fn described_topology(topology: &Topology) -> DescribedTopology {
    let of_names = |names: &[TopicName]| names.iter().map(|name| responses::text(name)).collect();
    let of_topics = |topics: &[InternalTopic]| topics.iter().map(of_internal).collect();
    let parts = topology.subtopologies.iter();
    let parts = parts.map(|(id, part)| DescribedSubtopology {
        subtopology_id: responses::text(id),
        source_topics: of_names(&part.sources),
        repartition_sink_topics: of_names(&part.repartition_sinks),
        state_changelog_topics: of_topics(&part.changelogs),
        repartition_source_topics: of_topics(&part.repartition_sources),
    });
    DescribedTopology {
        epoch: topology.epoch,
        subtopologies: Some(parts.collect()),
    }
}

fn of_internal(topic: &InternalTopic) -> StreamsTopicInfo {
    StreamsTopicInfo {
        name: responses::text(&topic.name),
        partitions: topic.partitions,
        replication_factor: topic.replication_factor,
        topic_configs: of_pairs(&topic.settings),
    }
}

fn of_pairs(pairs: &[(Arc<str>, Arc<str>)]) -> Vec<StreamsKeyValue> {
    let pairs = pairs.iter().map(|(key, value)| StreamsKeyValue {
        key: responses::text(key),
        value: responses::text(value),
    });
    pairs.collect()
}

fn described_member(member: &StreamsMemberState) -> DescribedStreamsMember {
    let assignment = |tasks| StreamsAssignment {
        active_tasks: of_tasks(tasks),
        ..StreamsAssignment::default()
    };
    DescribedStreamsMember {
        member_id: responses::text(&member.member),
        member_epoch: member.epoch.0,
        instance_id: member.instance.as_ref().map(|id| responses::text(id)),
        rack_id: member.rack.as_deref().map(responses::text),
        client_id: responses::text(&member.client.id),
        client_host: responses::text(&member.client.host),
        topology_epoch: member.topology_epoch,
        process_id: responses::text(&member.process),
        user_endpoint: member.endpoint.as_ref().map(of_endpoint),
        client_tags: of_pairs(&member.tags),
        task_offsets: Vec::new(),
        task_end_offsets: Vec::new(),
        assignment: assignment(&member.assigned),
        target_assignment: assignment(&member.target),
        is_classic: false,
    }
}

//! Groups of Kafka Streams: StreamsGroupHeartbeat, StreamsGroupDescribe.

use std::sync::Arc;
use std::time::Duration;

use millstream_wire::streams_group::{
    DescribedStreamsGroup as GroupMessage, DescribedStreamsMember, DescribedSubtopology,
    DescribedTopology, StreamsAssignment, StreamsEndpoint, StreamsEndpointPartitions,
    StreamsGroupDescribeRequest, StreamsGroupDescribeResponse, StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse, StreamsKeyValue, StreamsStatus, StreamsSubtopology,
    StreamsTasks, StreamsTopicInfo, StreamsTopicPartitions, StreamsTopology,
};
use millstream_wire::{StrBytes, messages};

use super::convert::{client_of, groups, sent, text};
use super::coordinate;
use crate::access::Access;
use crate::broker::Broker;
use crate::client::Client;
use crate::groups::{
    Copartition, DescribedStreamsGroup, Endpoint, EndpointPartitions, Epoch, GroupName,
    HeartbeatRefused, InstanceId, InternalTopic, MemberId, Partition, Request, StreamsBeat,
    StreamsHeartbeat, StreamsMemberState, Subtopology, Tasks, TopicName, Topology,
};
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Edit, Handle, Refusal, each, errors, messages, refuse_with_message};
use crate::requests::rights::{
    Check, Checked, GROUP_DENIED, group_operations, hide_groups, items, may_group, need_group,
    need_topic,
};
use crate::security::Operation;

/// How far a warm-up task may be behind, and the interval between members' reports of their tasks' progress: Kafka's
/// defaults. No warm-up tasks are assigned.
const ACCEPTABLE_RECOVERY_LAG: i32 = 10_000;
const TASK_OFFSET_INTERVAL_MS: i32 = 60_000;

/// Joins, keeps and leaves a group of Kafka Streams (KIP-1071).
impl Handle for StreamsGroupHeartbeatRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    /// The topics are those that the application reads, and those that the broker creates for it.
    fn check(&self, client: &Client, _: i16) -> Checked {
        need_group(client, Operation::Read, &self.group_id)?;
        let topology = self.topology.iter();
        let mut parts = topology.flat_map(|topology| &topology.subtopologies);
        parts.try_for_each(|part| {
            let internal = part.state_changelog_topics.iter();
            let internal = internal.chain(&part.repartition_source_topics);
            let sources = part.source_topics.iter();
            let mut names = sources.chain(internal.map(|topic| &topic.name));
            names.try_for_each(|name| need_topic(client, Operation::Describe, name))
        })
    }

    refuse_with_message!();
    errors!(error_code);
    messages!(error_message);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::Late
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        let asked = Ok(Request::StreamsHeartbeat(heartbeat(client, &self)));
        coordinate!(broker, version, self, asked, StreamsHeartbeat(answer) => beat(answer))
    }
}

/// Describes groups of Kafka Streams, their topologies and their members.
impl Handle for StreamsGroupDescribeRequest {
    const CHECKS: &'static [Check] = &[Check::Items, Check::Listed, Check::Operations];

    items! { groups:
        group_ids, GROUP_DENIED, |client, name| may_group(client, Operation::Describe, name);
    }
    hide_groups!(
        "The described group uses topics that the client is not authorized to describe.",
        |group, access| group.topology.iter().flat_map(topics_of),
        hide group.topology = None
    );
    group_operations!();

    fn refuse(&self, refusal: &Refusal) -> StreamsGroupDescribeResponse {
        StreamsGroupDescribeResponse {
            throttle_time_ms: 0,
            groups: each(&self.group_ids, |group| GroupMessage {
                error_code: refusal.code,
                error_message: refusal.message.clone(),
                ..GroupMessage::empty(group.clone())
            }),
        }
    }

    errors!(groups.error_code);
    messages!(groups.error_message);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let names = self.group_ids.iter().cloned().map(messages::GroupId);
        let names: Vec<messages::GroupId> = names.collect();
        let asked = Ok(Request::DescribeStreamsGroups(groups(&names)));
        coordinate!(broker, version, self, asked, DescribeStreamsGroups(answer) => described(answer))
    }
}

fn heartbeat(client: &Client, request: &StreamsGroupHeartbeatRequest) -> StreamsHeartbeat {
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

fn beat(answer: Result<StreamsBeat, HeartbeatRefused>) -> StreamsGroupHeartbeatResponse {
    let beat = match answer {
        Ok(beat) => beat,
        Err(refused) => {
            return StreamsGroupHeartbeatResponse {
                error_code: refused.error.code(),
                error_message: Some(sent(&refused.reason)),
                ..StreamsGroupHeartbeatResponse::default()
            };
        }
    };
    let status = beat.status.iter().map(|(status, detail)| StreamsStatus {
        status_code: status.code(),
        status_detail: sent(detail),
    });
    let is_news = beat.tasks.is_some();
    let endpoints = beat.endpoints.as_deref();
    StreamsGroupHeartbeatResponse {
        throttle_time_ms: 0,
        error_code: 0,
        error_message: None,
        member_id: sent(&beat.member),
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
        subtopology_id: sent(id),
        partitions: partitions.iter().map(|partition| partition.0).collect(),
    });
    tasks.collect()
}

fn at_endpoint(at: &EndpointPartitions) -> StreamsEndpointPartitions {
    let partitions = at.partitions.iter();
    let partitions = partitions.map(|(topic, partitions)| StreamsTopicPartitions {
        topic: sent(topic),
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
        host: sent(&endpoint.host),
        port: endpoint.port,
    }
}

fn described(groups: Vec<DescribedStreamsGroup>) -> StreamsGroupDescribeResponse {
    let groups = groups.into_iter().map(|group| GroupMessage {
        error_code: group.error.map_or(0, |error| error.code()),
        error_message: group.error.map(|error| sent(&error.to_string())),
        group_state: sent(group.state.as_str()),
        group_epoch: group.epoch.0,
        assignment_epoch: group.target_epoch.0,
        topology: group.topology.as_ref().map(described_topology),
        members: group.members.iter().map(described_member).collect(),
        ..GroupMessage::empty(sent(&group.group))
    });
    StreamsGroupDescribeResponse {
        throttle_time_ms: 0,
        groups: groups.collect(),
    }
}

fn described_topology(topology: &Topology) -> DescribedTopology {
    let of_names = |names: &[TopicName]| names.iter().map(|name| sent(name)).collect();
    let of_topics = |topics: &[InternalTopic]| topics.iter().map(of_internal).collect();
    let parts = topology.subtopologies.iter();
    let parts = parts.map(|(id, part)| DescribedSubtopology {
        subtopology_id: sent(id),
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

/// Returns the topics that an application reads and writes.
fn topics_of(topology: &DescribedTopology) -> impl Iterator<Item = &str> {
    let parts = topology.subtopologies.iter().flatten();
    parts.flat_map(|part| {
        let changelogs = part.state_changelog_topics.iter();
        let internal = changelogs.chain(&part.repartition_source_topics);
        let names = part
            .source_topics
            .iter()
            .chain(&part.repartition_sink_topics);
        let names = names.chain(internal.map(|topic| &topic.name));
        names.map(|name| &**name)
    })
}

fn of_internal(topic: &InternalTopic) -> StreamsTopicInfo {
    StreamsTopicInfo {
        name: sent(&topic.name),
        partitions: topic.partitions,
        replication_factor: topic.replication_factor,
        topic_configs: of_pairs(&topic.settings),
    }
}

fn of_pairs(pairs: &[(Arc<str>, Arc<str>)]) -> Vec<StreamsKeyValue> {
    let pairs = pairs.iter().map(|(key, value)| StreamsKeyValue {
        key: sent(key),
        value: sent(value),
    });
    pairs.collect()
}

fn described_member(member: &StreamsMemberState) -> DescribedStreamsMember {
    let assignment = |tasks| StreamsAssignment {
        active_tasks: of_tasks(tasks),
        ..StreamsAssignment::default()
    };
    DescribedStreamsMember {
        member_id: sent(&member.member),
        member_epoch: member.epoch.0,
        instance_id: member.instance.as_ref().map(|id| sent(id)),
        rack_id: member.rack.as_deref().map(sent),
        client_id: sent(&member.client.id),
        client_host: sent(&member.client.host),
        topology_epoch: member.topology_epoch,
        process_id: sent(&member.process),
        user_endpoint: member.endpoint.as_ref().map(of_endpoint),
        client_tags: of_pairs(&member.tags),
        task_offsets: Vec::new(),
        task_end_offsets: Vec::new(),
        assignment: assignment(&member.assigned),
        target_assignment: assignment(&member.target),
        is_classic: false,
    }
}

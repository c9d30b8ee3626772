//! Groups of KIP-848: ConsumerGroupHeartbeat, ConsumerGroupDescribe.

use std::sync::Arc;
use std::time::Duration;

use millstream_wire::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse, consumer_group_describe_response as describe_consumer,
    consumer_group_heartbeat_response as consumer_beat,
};
use millstream_wire::{ResponseError, Uuid};

use super::convert::{
    client_of, code, group, group_id, groups, instance, member, random_bytes, sent, text, topic,
    topic_name,
};
use super::{coordinate, need_heartbeat};
use crate::access::Access;
use crate::broker::Broker;
use crate::client::Client;
use crate::groups::{
    ConsumerBeat, ConsumerHeartbeat, ConsumerMember, DescribedConsumerGroup, Epoch,
    HeartbeatRefused, Partition, Request, TopicAssignment, TopicId,
};
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Edit, Handle, Refusal, each, errors, messages, refuse_with_message};
use crate::requests::rights::{
    Check, Checked, GROUP_DENIED, group_operations, hide_groups, hide_topics, items, may_group,
};
use crate::security::Operation;

/// Joins, keeps and leaves a consumer group (KIP-848).
impl Handle for ConsumerGroupHeartbeatRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        let topics = self.subscribed_topic_names.as_deref();
        need_heartbeat(client, &self.group_id, topics)
    }

    refuse_with_message!();
    errors!(error_code);
    messages!(error_message);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::Late
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        let asked = consumer_heartbeat(broker, client, version, &self);
        coordinate!(broker, version, self, asked, ConsumerHeartbeat(answer) => beat(answer))
    }
}

/// Describes consumer groups and their members.
impl Handle for ConsumerGroupDescribeRequest {
    const CHECKS: &'static [Check] = &[Check::Items, Check::Listed, Check::Operations];

    items! { groups:
        group_ids, GROUP_DENIED, |client, name| may_group(client, Operation::Describe, name);
    }
    hide_groups!(
        "The group has described topic(s) that the client is not authorized to describe.",
        |group, access| group.members.iter().flat_map(topics_of),
        otherwise hide_topics(
            &access,
            group.members.iter_mut().map(|member| &mut member.subscribed_topic_names)
        )
    );
    group_operations!();

    fn refuse(&self, refusal: &Refusal) -> ConsumerGroupDescribeResponse {
        ConsumerGroupDescribeResponse::default().with_groups(each(&self.group_ids, |group| {
            describe_consumer::DescribedGroup::default()
                .with_group_id(group.clone())
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
        }))
    }

    errors!(groups.error_code);
    messages!(groups.error_message);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let asked = Ok(Request::DescribeConsumerGroups(groups(&self.group_ids)));
        coordinate!(broker, version, self, asked, DescribeConsumerGroups(answer) => described_consumer(answer))
    }
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
        random: random_bytes(broker.random())?,
    }))
}

fn beat(answer: Result<ConsumerBeat, HeartbeatRefused>) -> ConsumerGroupHeartbeatResponse {
    let response = ConsumerGroupHeartbeatResponse::default();
    let beat = match answer {
        Ok(beat) => beat,
        Err(refused) => {
            return response
                .with_error_code(refused.error.code())
                .with_error_message(Some(sent(&refused.reason)));
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
        .with_member_id(Some(sent(&beat.member)))
        .with_member_epoch(beat.epoch.0)
        .with_heartbeat_interval_ms(beat.heartbeat_interval.as_millis() as i32)
        .with_assignment(assignment)
}

fn described_consumer(groups: Vec<DescribedConsumerGroup>) -> ConsumerGroupDescribeResponse {
    let groups = groups.into_iter().map(|group| {
        let message = group.error.map(|error| sent(&error.to_string()));
        describe_consumer::DescribedGroup::default()
            .with_error_code(code(group.error))
            .with_error_message(message)
            .with_group_id(group_id(&group.group))
            .with_group_state(sent(group.state.as_str()))
            .with_group_epoch(group.epoch.0)
            .with_assignment_epoch(group.target_epoch.0)
            .with_assignor_name(sent(&group.assignor))
            .with_members(group.members.iter().map(consumer_member).collect())
    });
    ConsumerGroupDescribeResponse::default().with_groups(groups.collect())
}

fn consumer_member(member: &ConsumerMember) -> describe_consumer::Member {
    describe_consumer::Member::default()
        .with_member_id(sent(&member.member))
        .with_instance_id(member.instance.as_ref().map(|id| sent(id)))
        .with_rack_id(member.rack.as_deref().map(sent))
        .with_member_epoch(member.epoch.0)
        .with_client_id(sent(&member.client.id))
        .with_client_host(sent(&member.client.host))
        .with_subscribed_topic_names(member.topics.iter().map(|name| topic_name(name)).collect())
        .with_subscribed_topic_regex(member.regex.as_deref().map(sent))
        .with_assignment(assignment(&member.assigned))
        .with_target_assignment(assignment(&member.target))
}

/// Returns the topics that a member has, or is to have.
fn topics_of(member: &describe_consumer::Member) -> impl Iterator<Item = &str> {
    let assignments = [&member.assignment, &member.target_assignment].into_iter();
    let assigned = assignments.flat_map(|assignment| &assignment.topic_partitions);
    assigned.map(|topic| &**topic.topic_name)
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

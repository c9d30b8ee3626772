//! Share groups and their members: ShareGroupHeartbeat, ShareGroupDescribe.

use std::sync::Arc;

use millstream_wire::Uuid;
use millstream_wire::messages::{
    ShareGroupDescribeRequest, ShareGroupDescribeResponse, ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse, share_group_describe_response as describe_share,
    share_group_heartbeat_response as share_beat,
};

use super::convert::{
    client_of, code, group, group_id, groups, member, sent, text, topic, topic_name,
};
use super::{coordinate, need_heartbeat};
use crate::access::Access;
use crate::broker::Broker;
use crate::client::Client;
use crate::groups::{
    DescribedShareGroup, Epoch, HeartbeatRefused, Request, ShareBeat, ShareHeartbeat, ShareMember,
};
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Edit, Handle, Refusal, each, errors, messages, refuse_with_message};
use crate::requests::rights::{
    Check, Checked, GROUP_DENIED, group_operations, hide_groups, hide_topics, items, may_group,
};
use crate::security::Operation;

/// Joins, keeps and leaves a share group (KIP-932).
impl Handle for ShareGroupHeartbeatRequest {
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
        let asked = Ok(share_heartbeat(client, &self));
        coordinate!(broker, version, self, asked, ShareHeartbeat(answer) => beat_of_share(answer))
    }
}

/// Describes share groups and their members.
impl Handle for ShareGroupDescribeRequest {
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

    fn refuse(&self, refusal: &Refusal) -> ShareGroupDescribeResponse {
        ShareGroupDescribeResponse::default().with_groups(each(&self.group_ids, |group| {
            describe_share::DescribedGroup::default()
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
        let asked = Ok(Request::DescribeShareGroups(groups(&self.group_ids)));
        coordinate!(broker, version, self, asked, DescribeShareGroups(answer) => described_share(answer))
    }
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

fn beat_of_share(answer: Result<ShareBeat, HeartbeatRefused>) -> ShareGroupHeartbeatResponse {
    let response = ShareGroupHeartbeatResponse::default();
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
            share_beat::TopicPartitions::default()
                .with_topic_id(Uuid::from_u128(topic.0))
                .with_partitions(partitions.iter().map(|partition| partition.0).collect())
        });
        share_beat::Assignment::default().with_topic_partitions(partitions.collect())
    });
    response
        .with_member_id(Some(sent(&beat.member)))
        .with_member_epoch(beat.epoch.0)
        .with_heartbeat_interval_ms(beat.heartbeat_interval.as_millis() as i32)
        .with_assignment(assignment)
}

fn described_share(groups: Vec<DescribedShareGroup>) -> ShareGroupDescribeResponse {
    let groups = groups.into_iter().map(|group| {
        let message = group.error.map(|error| sent(&error.to_string()));
        describe_share::DescribedGroup::default()
            .with_error_code(code(group.error))
            .with_error_message(message)
            .with_group_id(group_id(&group.group))
            .with_group_state(sent(group.state.as_str()))
            .with_group_epoch(group.epoch.0)
            .with_assignment_epoch(group.epoch.0)
            .with_assignor_name(sent(&group.assignor))
            .with_members(group.members.iter().map(share_member).collect())
    });
    ShareGroupDescribeResponse::default().with_groups(groups.collect())
}

/// Returns the topics that a member is to read.
fn topics_of(member: &describe_share::Member) -> impl Iterator<Item = &str> {
    let assigned = member.assignment.topic_partitions.iter();
    assigned.map(|topic| &**topic.topic_name)
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
        .with_member_id(sent(&member.member))
        .with_rack_id(member.rack.as_deref().map(sent))
        .with_member_epoch(member.epoch.0)
        .with_client_id(sent(&member.client.id))
        .with_client_host(sent(&member.client.host))
        .with_subscribed_topic_names(member.topics.iter().map(|name| topic_name(name)).collect())
        .with_assignment(assignment)
}

//! Settings, positions and the deletion of share groups.

use millstream_broker::GroupTopic;
use millstream_wire::ResponseError;
use millstream_wire::messages::alter_share_group_offsets_request::{
    AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
};
use millstream_wire::messages::delete_share_group_offsets_request::DeleteShareGroupOffsetsRequestTopic;
use millstream_wire::messages::{
    AlterShareGroupOffsetsRequest, ConsumerGroupHeartbeatRequest, DeleteGroupsRequest,
    DeleteShareGroupOffsetsRequest, DescribeGroupsRequest, FindCoordinatorRequest,
    JoinGroupRequest, ListGroupsRequest, ShareGroupDescribeRequest,
};

use super::member::*;
use crate::configs::{GROUP, set};
use crate::support::{Connection, ask, group_id, text, topic_name};

#[test]
fn settings_of_a_share_group_count_and_last_when_the_broker_starts_again() {
    let (node, mut client) = with_topic(1);
    for (setting, value) in [
        ("share.heartbeat.interval.ms", "2000"),
        ("share.session.timeout.ms", "7000"),
        ("share.record.lock.duration.ms", "2500"),
        ("share.delivery.count.limit", "2"),
    ] {
        set(&mut client, (GROUP, "g"), setting, value);
    }
    client.produce("t", 0, &["a"]);
    let node = node.restart();
    let mut client = node.connect();
    let joined = ask!(client, ShareGroupHeartbeat, 1, joining("a"));
    assert_eq!(joined.heartbeat_interval_ms, 2000);
    let mut member = Member::join(&node, "a");
    let request = member.request(Vec::new());
    let response = member.ask(request);
    assert_eq!(response.acquisition_lock_timeout_ms, 2500);
    // The group begins at the first record, as before the restart.
    assert_eq!(acquired(&response), [(0, 1)]);
    assert_eq!(member.acknowledge(vec![batch(0, 0, &[RELEASE])]), 0);
    assert_eq!(member.fetch(), [(0, 2)]);
    assert_eq!(member.acknowledge(vec![batch(0, 0, &[RELEASE])]), 0);
    assert_eq!(member.fetch(), [], "two deliveries are the limit");
}

#[test]
fn offsets_of_share_groups_are_described_altered_and_deleted() {
    let (node, mut client) = with_topic(2);
    for _ in 0..5 {
        client.produce("t", 0, &["a"]);
    }
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch().len(), 5);
    let alter = |client: &mut Connection, offset: i64| {
        let partition = AlterShareGroupOffsetsRequestPartition::default()
            .with_partition_index(0)
            .with_start_offset(offset);
        let unknown = partition.clone().with_partition_index(2);
        let topic = AlterShareGroupOffsetsRequestTopic::default()
            .with_topic_name(topic_name("t"))
            .with_partitions(vec![partition, unknown]);
        let request = AlterShareGroupOffsetsRequest::default()
            .with_group_id(group_id("g"))
            .with_topics(vec![topic]);
        ask!(client, AlterShareGroupOffsets, 0, request)
    };
    let non_empty = ResponseError::NonEmptyGroup.code();
    assert_eq!(alter(&mut client, 3).error_code, non_empty);
    assert_eq!(member.leave(), 0);
    drop(member);
    let altered = alter(&mut client, 3);
    assert_eq!(altered.error_code, 0);
    assert_eq!(altered.responses[0].topic_id, topic_id(&node));
    let errors = altered.responses[0].partitions.iter();
    let errors: Vec<i16> = errors.map(|partition| partition.error_code).collect();
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(errors, [0, unknown]);
    assert_eq!(start_offset(&mut client), 3);
    let node = node.restart();
    let mut client = node.connect();
    assert_eq!(start_offset(&mut client), 3);
    let mut member = Member::join(&node, "b");
    assert_eq!(member.fetch(), [(3, 1), (4, 1)]);
    assert_eq!(member.leave(), 0);
    drop(member);
    let delete = |client: &mut Connection, name: &str| {
        let topic =
            DeleteShareGroupOffsetsRequestTopic::default().with_topic_name(topic_name(name));
        let request = DeleteShareGroupOffsetsRequest::default()
            .with_group_id(group_id("g"))
            .with_topics(vec![topic]);
        ask!(client, DeleteShareGroupOffsets, 0, request).responses[0].error_code
    };
    assert_eq!(delete(&mut client, "none"), unknown);
    assert_eq!(delete(&mut client, "t"), 0);
    assert_eq!(delete(&mut client, "t"), unknown);
    assert_eq!(start_offset(&mut client), -1);
    let mut member = Member::join(&node, "c");
    assert_eq!(member.fetch().len(), 5, "it begins again");
}

#[test]
fn the_status_has_the_lags_of_share_groups() {
    let (node, mut client) = with_topic(2);
    client.produce("t", 0, &["a", "b", "c"]);
    client.produce("t", 1, &["d", "e"]);
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch().len(), 5);
    assert_eq!(member.acknowledge(vec![batch(0, 1, &[ACCEPT])]), 0);
    let groups = node.broker().status().groups;
    assert_eq!(groups.len(), 1);
    let expected = GroupTopic {
        stream: "t".to_owned(),
        partitions: 2,
        lag_records: 3,
    };
    assert_eq!(groups[0].topics, [expected]);
}

#[test]
fn altered_offsets_create_the_share_group() {
    let (node, mut client) = with_topic(1);
    client.produce("t", 0, &["a", "b", "c"]);
    let alter = |client: &mut Connection, topic: &str| {
        let partition = AlterShareGroupOffsetsRequestPartition::default().with_start_offset(1);
        let topic = AlterShareGroupOffsetsRequestTopic::default()
            .with_topic_name(topic_name(topic))
            .with_partitions(vec![partition]);
        let request = AlterShareGroupOffsetsRequest::default()
            .with_group_id(group_id("g"))
            .with_topics(vec![topic]);
        let response = ask!(client, AlterShareGroupOffsets, 0, request);
        let of_partition = response.responses[0].partitions[0].error_code;
        (response.error_code, of_partition)
    };
    let states = |client: &mut Connection| {
        let request = ShareGroupDescribeRequest::default().with_group_ids(vec![group_id("g")]);
        let group = ask!(client, ShareGroupDescribe, 1, request)
            .groups
            .remove(0);
        (group.error_code, group.group_state.to_string())
    };
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(alter(&mut client, "none"), (0, unknown));
    let not_found = ResponseError::GroupIdNotFound.code();
    assert_eq!(states(&mut client).0, not_found, "no offset was altered");
    assert_eq!(alter(&mut client, "t"), (0, 0));
    assert_eq!(states(&mut client), (0, "Empty".to_owned()));
    let node = node.restart();
    let mut client = node.connect();
    assert_eq!(states(&mut client), (0, "Empty".to_owned()));
    assert_eq!(start_offset(&mut client), 1);
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), [(1, 1), (2, 1)]);
}

#[test]
fn a_deleted_share_group_begins_anew_under_its_name() {
    let (node, mut client) = with_topic(1);
    client.produce("t", 0, &["a", "b"]);
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch().len(), 2);
    assert_eq!(member.acknowledge(vec![batch(0, 1, &[ACCEPT])]), 0);
    let delete = |client: &mut Connection| {
        let request = DeleteGroupsRequest::default().with_groups_names(vec![group_id("g")]);
        ask!(client, DeleteGroups, 2, request).results[0].error_code
    };
    assert_eq!(delete(&mut client), ResponseError::NonEmptyGroup.code());
    assert_eq!(member.leave(), 0);
    assert_eq!(delete(&mut client), 0);
    // Its session has ended with the group.
    let request = member.request(Vec::new());
    let gone = ResponseError::ShareSessionNotFound.code();
    assert_eq!(ask!(member.client, ShareFetch, 1, request).error_code, gone);
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), [(0, 1), (1, 1)]);
    let node = node.restart();
    assert_eq!(start_offset(&mut node.connect()), 0);
}

#[test]
fn a_group_of_one_type_refuses_requests_of_another() {
    let (node, mut client) = with_topic(1);
    let not_found = ResponseError::GroupIdNotFound.code();
    let _member = Member::join(&node, "a");
    let heartbeat = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id(text("b"))
        .with_rebalance_timeout_ms(1000)
        .with_topic_partitions(Some(Vec::new()))
        .with_subscribed_topic_names(Some(vec![topic_name("t")]));
    let refused = ask!(client, ConsumerGroupHeartbeat, 1, heartbeat.clone());
    assert_eq!(refused.error_code, not_found);
    let join = JoinGroupRequest::default()
        .with_group_id(group_id("g"))
        .with_session_timeout_ms(30_000)
        .with_protocol_type(text("consumer"));
    let inconsistent = ResponseError::InconsistentGroupProtocol.code();
    let refused = ask!(client, JoinGroup, 3, join).error_code;
    assert_eq!(refused, inconsistent);
    let request = DescribeGroupsRequest::default().with_groups(vec![group_id("g")]);
    let described = ask!(client, DescribeGroups, 6, request);
    assert_eq!(described.groups[0].error_code, not_found);

    let other = heartbeat.with_group_id(group_id("other"));
    assert_eq!(ask!(client, ConsumerGroupHeartbeat, 1, other).error_code, 0);
    let request = joining("a").with_group_id(group_id("other"));
    let refused = ask!(client, ShareGroupHeartbeat, 1, request);
    assert_eq!(refused.error_code, not_found);
    let request = ShareGroupDescribeRequest::default().with_group_ids(vec![
        group_id("g"),
        group_id("other"),
        group_id("none"),
    ]);
    let described = ask!(client, ShareGroupDescribe, 1, request);
    let errors: Vec<i16> = described
        .groups
        .iter()
        .map(|group| group.error_code)
        .collect();
    assert_eq!(errors, [0, not_found, not_found]);
    let group = &described.groups[0];
    assert_eq!(&*group.group_state, "Stable");
    assert_eq!(&*group.assignor_name, "simple");
    let assigned = &group.members[0].assignment.topic_partitions[0];
    assert_eq!(
        (&**assigned.topic_name, &assigned.partitions[..]),
        ("t", &[0][..])
    );

    let request = ListGroupsRequest::default().with_types_filter(vec![text("Share")]);
    let listed = ask!(client, ListGroups, 5, request).groups;
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (&**listed[0].group_id, &*listed[0].group_type),
        ("g", "share")
    );
    let request = FindCoordinatorRequest::default()
        .with_key_type(2)
        .with_coordinator_keys(vec![text("g:AAAAAAAAAAAAAAAAAAAAAQ:0")]);
    let found = ask!(client, FindCoordinator, 6, request);
    assert_eq!(found.coordinators[0].error_code, 0);
}

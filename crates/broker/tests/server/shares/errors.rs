//! Errors of share groups.

use millstream_wire::messages::DescribeShareGroupOffsetsRequest;
use millstream_wire::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
use millstream_wire::messages::share_fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use millstream_wire::{ResponseError, ShareFetchRequest, Uuid};

use super::member::*;
use crate::damage::{file_of, log_in};
use crate::support::{Node, ask, group_id, text};

#[test]
fn invalid_sessions_and_acknowledgements_get_kafkas_errors() {
    let (node, mut client) = with_topic(1);
    client.produce("t", 0, &["a", "b"]);
    let mut member = Member::join(&node, "a");
    let mut other = Member::join(&node, "b");
    let code = |error: ResponseError| error.code();
    let refused =
        |member: &mut Member, request| ask!(member.client, ShareFetch, 1, request).error_code;
    // Before its first request.
    let early = ShareFetchRequest {
        share_session_epoch: 1,
        ..member.request(Vec::new())
    };
    let not_found = code(ResponseError::ShareSessionNotFound);
    assert_eq!(refused(&mut member, early), not_found);
    member.epoch = 0;
    // A group and a member that do not exist.
    let request = member.request(Vec::new());
    let no_group = ShareFetchRequest {
        group_id: Some(group_id("none")),
        ..request.clone()
    };
    let unknown_group = code(ResponseError::GroupIdNotFound);
    assert_eq!(refused(&mut member, no_group), unknown_group);
    let no_member = ShareFetchRequest {
        member_id: Some(text("none")),
        ..request.clone()
    };
    let unknown_member = code(ResponseError::UnknownMemberId);
    assert_eq!(refused(&mut member, no_member), unknown_member);
    let no_name = ShareFetchRequest {
        member_id: None,
        ..request
    };
    let invalid = code(ResponseError::InvalidRequest);
    assert_eq!(refused(&mut member, no_name), invalid);
    // The first request acknowledges nothing.
    member.epoch = 1;
    let first = ShareFetchRequest {
        share_session_epoch: 0,
        ..member.request(vec![batch(0, 0, &[ACCEPT])])
    };
    assert_eq!(refused(&mut member, first), invalid);
    member.epoch = 0;
    assert_eq!(member.fetch(), [(0, 1), (1, 1)]);
    let repeated = ShareFetchRequest {
        share_session_epoch: 7,
        ..member.request(Vec::new())
    };
    let wrong_epoch = code(ResponseError::InvalidShareSessionEpoch);
    assert_eq!(refused(&mut member, repeated), wrong_epoch);
    member.epoch -= 1;

    assert_eq!(other.fetch(), []);
    let invalid_state = code(ResponseError::InvalidRecordState);
    assert_eq!(
        other.acknowledge(vec![batch(0, 0, &[ACCEPT])]),
        invalid_state
    );
    for (batches, expected) in [
        (vec![batch(1, 0, &[ACCEPT])], invalid),
        (vec![batch(0, 0, &[])], invalid),
        (vec![batch(0, 0, &[9])], invalid),
        (vec![batch(0, 1, &[1, 1, 1])], invalid),
        (vec![batch(1, 1, &[1]), batch(0, 0, &[1])], invalid),
        (vec![batch(0, 2, &[1])], invalid),
        (vec![batch(0, i64::MAX, &[1])], invalid),
        (vec![batch(0, 1, &[1]), batch(1, 1, &[1])], invalid_state),
        (vec![batch(0, 1, &[ACCEPT])], 0),
        (vec![batch(0, 1, &[ACCEPT])], 0),
    ] {
        assert_eq!(member.acknowledge(batches.clone()), expected, "{batches:?}");
    }
    // A topic and a partition that do not exist.
    let topic = FetchTopic::default()
        .with_topic_id(Uuid::from_u128(1))
        .with_partitions(vec![FetchPartition::default()]);
    let mut request = member.request(Vec::new());
    request.topics = vec![
        topic,
        FetchTopic::default()
            .with_topic_id(member.topic)
            .with_partitions(vec![FetchPartition::default().with_partition_index(9)]),
    ];
    let response = member.ask(request);
    let errors: Vec<i16> = partitions(&response)
        .map(|partition| partition.error_code)
        .collect();
    assert_eq!(errors.len(), 2);
    assert!(errors.contains(&code(ResponseError::UnknownTopicId)));
    assert!(errors.contains(&code(ResponseError::UnknownTopicOrPartition)));
    // A request may remove them from the session.
    let forgotten = |id: Uuid, partition: i32| {
        ForgottenTopic::default()
            .with_topic_id(id)
            .with_partitions(vec![partition])
    };
    let request = ShareFetchRequest {
        forgotten_topics_data: vec![forgotten(Uuid::from_u128(1), 0), forgotten(member.topic, 9)],
        ..member.request(Vec::new())
    };
    assert_eq!(acquired(&member.ask(request)), []);
    // The session ends.
    member.epoch = -1;
    let request = ShareFetchRequest {
        share_session_epoch: -1,
        topics: Vec::new(),
        ..member.request(Vec::new())
    };
    member.ask(request);
    let request = ShareFetchRequest {
        share_session_epoch: 3,
        ..member.request(Vec::new())
    };
    assert_eq!(refused(&mut member, request), not_found);
}

/// Starts a node again whose file of a stream has lost its second half.
fn restart_with_half(node: Node, stream: &str) -> Node {
    let folder = file_of(&node, stream);
    let dir = node.stop();
    let path = log_in(&folder);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    Node::on(dir, |_| {}, |_| {})
}

/// A node with 50 records, which a member has accepted.
fn with_accepted_records() -> (Node, Member) {
    let (node, mut client) = with_topic(1);
    let mut member = Member::join(&node, "a");
    for offset in 0..50 {
        client.produce("t", 0, &["a"]);
        assert_eq!(member.fetch(), [(offset, 1)]);
        assert_eq!(
            member.acknowledge(vec![batch(offset, offset, &[ACCEPT])]),
            0
        );
    }
    (node, member)
}

#[test]
fn records_are_refused_while_the_stream_of_share_states_is_truncated() {
    let (node, member) = with_accepted_records();
    let node = restart_with_half(node, "__shares");
    let mut member = Member {
        client: node.connect(),
        epoch: 0,
        ..member
    };
    let unavailable = ResponseError::CoordinatorNotAvailable.code();
    let request = member.request(Vec::new());
    let refused = ask!(member.client, ShareFetch, 1, request);
    assert_eq!(refused.error_code, unavailable, "no record comes again");
    let group = DescribeShareGroupOffsetsRequestGroup::default()
        .with_group_id(group_id("g"))
        .with_topics(None);
    let request = DescribeShareGroupOffsetsRequest::default().with_groups(vec![group]);
    let described = ask!(member.client, DescribeShareGroupOffsets, 0, request);
    assert_eq!(described.groups[0].error_code, unavailable);
    // The group is there, and all else is served.
    let staying = joining("a").with_member_epoch(1);
    let beat = ask!(member.client, ShareGroupHeartbeat, 1, staying);
    assert_eq!(beat.error_code, 0);
    assert_eq!(member.client.produce("t", 0, &["more"]), 50);
}

#[test]
fn a_share_group_keeps_its_position_while_its_topic_is_damaged() {
    let (node, member) = with_accepted_records();
    drop(member);
    let node = restart_with_half(node, "t");
    assert_eq!(start_offset(&mut node.connect()), 50);
}

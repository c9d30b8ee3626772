//! Share groups over the wire: the records that each member gets, their delivery counts, and the
//! state that survives a restart of the broker.

mod hostile;
mod member;
mod renewal;
mod scale;

use std::collections::BTreeMap;

use bytes::Bytes;
use millstream_base::{ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_record::{ChunkBuilder, Compression, EndMarker, Producer, TransactionEnd};
use millstream_wire::messages::alter_share_group_offsets_request::{
    AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
};
use millstream_wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use millstream_wire::messages::delete_share_group_offsets_request::DeleteShareGroupOffsetsRequestTopic;
use millstream_wire::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
use millstream_wire::messages::share_fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use millstream_wire::messages::{
    AlterShareGroupOffsetsRequest, ConsumerGroupHeartbeatRequest, DeleteGroupsRequest,
    DeleteRecordsRequest, DeleteShareGroupOffsetsRequest, DescribeGroupsRequest,
    DescribeShareGroupOffsetsRequest, FindCoordinatorRequest, JoinGroupRequest, ListGroupsRequest,
    ShareGroupDescribeRequest,
};
use millstream_wire::{ResponseError, ShareFetchRequest, Uuid};

use self::member::*;
use crate::configs::{GROUP, set};
use crate::damage::{file_of, log_in};
use crate::support::{Connection, Node, ask, group_id, text, topic_name, wait_until};

#[test]
fn each_record_goes_to_one_of_more_members_than_partitions() {
    let (node, mut client) = with_topic(1);
    let mut members: Vec<Member> = ["a", "b", "c"]
        .into_iter()
        .map(|id| Member::join(&node, id))
        .collect();
    // Their assignment is the same.
    let mut delivered: BTreeMap<i64, &str> = BTreeMap::new();
    for round in 0..4 {
        for _ in 0..3 {
            client.produce("t", 0, &["x"; 10]);
        }
        for member in &mut members {
            let request = ShareFetchRequest {
                max_records: 10,
                ..member.request(Vec::new())
            };
            let got = acquired(&member.ask(request));
            assert_eq!(got.len(), 10, "round {round}");
            for (offset, count) in &got {
                assert_eq!(delivered.insert(*offset, member.id), None);
                assert_eq!(*count, 1);
            }
            let (first, last) = (got[0].0, got[9].0);
            // Half of them with the next fetch, half in a request of their own.
            let request = ShareFetchRequest {
                max_records: 0,
                ..member.request(vec![batch(first, first + 4, &[ACCEPT])])
            };
            acquired(&member.ask(request));
            assert_eq!(
                member.acknowledge(vec![batch(first + 5, last, &[ACCEPT])]),
                0
            );
        }
    }
    assert_eq!(delivered.len(), 120);
    for member in &mut members {
        assert_eq!(member.fetch(), []);
    }
    assert_eq!(start_offset(&mut client), 120);
}

#[test]
fn released_records_come_again_until_their_last_delivery_and_rejected_ones_do_not() {
    let (node, mut client) = with_topic(1);
    let mut member = Member::join(&node, "a");
    client.produce("t", 0, &["a", "b", "c", "d"]);
    assert_eq!(member.fetch(), [(0, 1), (1, 1), (2, 1), (3, 1)]);
    let types = [ACCEPT, RELEASE, REJECT, RELEASE];
    assert_eq!(member.acknowledge(vec![batch(0, 3, &types)]), 0);
    for count in 2..=5 {
        assert_eq!(member.fetch(), [(1, count), (3, count)]);
        assert_eq!(start_offset(&mut client), 1);
        let batches = vec![batch(1, 1, &[RELEASE]), batch(3, 3, &[RELEASE])];
        assert_eq!(member.acknowledge(batches), 0);
    }
    assert_eq!(member.fetch(), []);
    assert_eq!(start_offset(&mut client), 4);
}

#[test]
fn what_a_member_held_whose_connection_ended_goes_to_one_that_waits() {
    let (node, mut client) = with_topic(1);
    let mut first = Member::join(&node, "a");
    let mut second = Member::join(&node, "b");
    client.produce("t", 0, &["a", "b"]);
    assert_eq!(first.fetch(), [(0, 1), (1, 1)]);
    assert_eq!(second.fetch(), []);
    second.begin_fetch();
    drop(first);
    assert_eq!(second.end_fetch(), [(0, 2), (1, 2)]);
}

#[test]
fn a_member_that_waits_is_woken_by_new_records_and_by_released_ones() {
    let (node, mut client) = with_topic(1);
    let mut first = Member::join(&node, "a");
    let mut second = Member::join(&node, "b");
    assert_eq!(second.fetch(), []);
    second.begin_fetch();
    client.produce("t", 0, &["a"]);
    assert_eq!(second.end_fetch(), [(0, 1)]);
    assert_eq!(first.fetch(), []);
    first.begin_fetch();
    assert_eq!(second.acknowledge(vec![batch(0, 0, &[RELEASE])]), 0);
    assert_eq!(first.end_fetch(), [(0, 2)]);
}

#[test]
fn a_lock_times_out_and_its_records_go_to_a_member_that_waits() {
    let (node, mut client) = with_topic(1);
    let lock = ("share.record.lock.duration.ms", "1000");
    from_beginning(&mut client, &[lock]);
    let mut first = Member::join(&node, "a");
    let mut second = Member::join(&node, "b");
    client.produce("t", 0, &["a"]);
    let request = first.request(Vec::new());
    let response = first.ask(request);
    assert_eq!(response.acquisition_lock_timeout_ms, 1000);
    assert_eq!(acquired(&response), [(0, 1)]);
    second.begin_fetch();
    assert_eq!(second.end_fetch(), [(0, 2)]);
    // It is too late, and the record is another member's.
    let invalid = ResponseError::InvalidRecordState.code();
    assert_eq!(first.acknowledge(vec![batch(0, 0, &[ACCEPT])]), invalid);
}

#[test]
fn acknowledged_records_never_come_again_and_delivery_counts_last_when_the_broker_starts_again() {
    let (node, mut client) = with_topic(1);
    let mut member = Member::join(&node, "a");
    client.produce("t", 0, &["x"; 10]);
    assert_eq!(member.fetch().len(), 10);
    let batches = vec![batch(0, 2, &[ACCEPT]), batch(5, 6, &[ACCEPT, REJECT])];
    assert_eq!(member.acknowledge(batches), 0);
    let node = node.restart();
    // It is a member still, and its session is gone.
    let mut again = Member {
        client: node.connect(),
        ..member
    };
    let request = again.request(Vec::new());
    let refused = ask!(again.client, ShareFetch, 1, request);
    let gone = ResponseError::ShareSessionNotFound.code();
    assert_eq!(refused.error_code, gone);
    again.epoch = 0;
    let left = [3, 4, 7, 8, 9].map(|offset| (offset, 2));
    assert_eq!(again.fetch(), left);
    assert_eq!(start_offset(&mut node.connect()), 3);
}

#[test]
fn aborted_records_and_markers_are_not_delivered_to_groups_that_read_what_is_committed() {
    let (node, mut client) = with_topic(1);
    let isolation = ("share.isolation.level", "read_committed");
    from_beginning(&mut client, &[isolation]);
    let lane = node.log().stream("t").unwrap().partition(0).unwrap();
    let producer = |sequence| Producer {
        id: ProducerId(7),
        epoch: ProducerEpoch(0),
        sequence: Sequence(sequence),
    };
    let chunk = |sequence| {
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.set_transactional(true);
        for _ in 0..2 {
            builder.push(Timestamp(1), None, Some(b"x"), &[]).unwrap();
        }
        Bytes::copy_from_slice(builder.finish(Some(producer(sequence))).unwrap())
    };
    let marker = |end| EndMarker {
        producer_id: ProducerId(7),
        producer_epoch: ProducerEpoch(0),
        end,
        coordinator_epoch: 0,
    };
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), []);
    // 0 and 1 are aborted by 2, 4 and 5 are committed by 6, 7 and 8 are open.
    lane.append(&chunk(0)).unwrap();
    lane.append_marker(&marker(TransactionEnd::Abort)).unwrap();
    client.produce("t", 0, &["outside"]);
    lane.append(&chunk(2)).unwrap();
    lane.append_marker(&marker(TransactionEnd::Commit)).unwrap();
    let appended = lane.append(&chunk(4)).unwrap();
    lane.wait_durable(appended.next_offset).unwrap();
    wait_until("it is stable", || lane.last_stable_offset().0 == 7);
    assert_eq!(member.fetch(), [(3, 1), (4, 1), (5, 1)]);
    assert_eq!(start_offset(&mut client), 3);
    assert_eq!(member.acknowledge(vec![batch(3, 5, &[ACCEPT])]), 0);
    assert_eq!(member.fetch(), []);
    let appended = lane.append_marker(&marker(TransactionEnd::Abort)).unwrap();
    lane.wait_durable(appended.next_offset).unwrap();
    assert_eq!(member.fetch(), []);
    client.produce("t", 0, &["last"]);
    assert_eq!(member.fetch(), [(10, 1)]);
    assert_eq!(start_offset(&mut client), 10);
}

#[test]
fn records_that_were_deleted_from_the_log_are_passed_over() {
    let (node, mut client) = with_topic(1);
    let mut member = Member::join(&node, "a");
    for _ in 0..4 {
        client.produce("t", 0, &["a", "b"]);
    }
    let request = ShareFetchRequest {
        max_records: 2,
        ..member.request(Vec::new())
    };
    assert_eq!(acquired(&member.ask(request)), [(0, 1), (1, 1)]);
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(0)
        .with_offset(5);
    let topic = DeleteRecordsTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    let deleted = ask!(client, DeleteRecords, 2, request);
    assert_eq!(deleted.topics[0].partitions[0].error_code, 0);
    assert_eq!(start_offset(&mut client), 5);
    assert_eq!(member.acknowledge(vec![batch(0, 3, &[ACCEPT])]), 0);
    assert_eq!(member.fetch(), [(5, 1), (6, 1), (7, 1)]);
}

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
fn no_more_records_are_in_flight_than_may_be() {
    let (node, mut client) = with_topic(1);
    let locks = ("share.partition.max.record.locks", "100");
    from_beginning(&mut client, &[locks]);
    let mut member = Member::join(&node, "a");
    for _ in 0..4 {
        client.produce("t", 0, &["x"; 40]);
    }
    assert_eq!(member.fetch().len(), 100);
    assert_eq!(member.fetch(), []);
    let mut other = Member::join(&node, "b");
    assert_eq!(other.fetch(), []);
    other.begin_fetch();
    assert_eq!(member.acknowledge(vec![batch(10, 14, &[ACCEPT])]), 0);
    let next: Vec<(i64, i16)> = (100..105).map(|offset| (offset, 1)).collect();
    assert_eq!(other.end_fetch(), next);
}

#[test]
fn sessions_and_acknowledgements_that_are_not_right_get_kafkas_errors() {
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
    let errors: Vec<i16> = partitions(&response).map(|told| told.error_code).collect();
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

#[test]
fn offsets_of_share_groups_are_told_moved_and_deleted() {
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
fn a_group_of_one_type_is_none_of_another() {
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

#[test]
fn all_partitions_have_a_member_and_all_members_a_partition() {
    let (node, _client) = with_topic(3);
    let mut all: Vec<Member> = Vec::new();
    for id in ["a", "b", "c", "d", "e"] {
        all.push(Member::join(&node, id));
        let request = ShareGroupDescribeRequest::default().with_group_ids(vec![group_id("g")]);
        let described = ask!(all[0].client, ShareGroupDescribe, 1, request);
        let members = described.groups[0].members.iter();
        let assigned: Vec<Vec<i32>> = members
            .map(|member| {
                let topics = member.assignment.topic_partitions.iter();
                topics.flat_map(|topic| topic.partitions.clone()).collect()
            })
            .collect();
        assert_eq!(assigned.len(), all.len());
        assert!(assigned.iter().all(|partitions| !partitions.is_empty()));
        let mut covered = assigned.concat();
        covered.sort_unstable();
        covered.dedup();
        assert_eq!(covered, [0, 1, 2]);
    }
    // A member that has not heard of it learns its new partitions and epoch with its next heartbeat.
    let staying = joining("a")
        .with_member_epoch(1)
        .with_subscribed_topic_names(None);
    let beat = ask!(all[0].client, ShareGroupHeartbeat, 1, staying.clone());
    assert_eq!((beat.error_code, beat.member_epoch), (0, 5));
    assert!(beat.assignment.is_some());
    let beat = ask!(
        all[0].client,
        ShareGroupHeartbeat,
        1,
        staying.clone().with_member_epoch(5)
    );
    assert_eq!((beat.error_code, beat.assignment), (0, None));
    let fenced = staying.with_member_epoch(4);
    let beat = ask!(all[0].client, ShareGroupHeartbeat, 1, fenced);
    assert_eq!(beat.error_code, ResponseError::FencedMemberEpoch.code());
}

#[test]
fn records_are_refused_while_the_stream_of_their_states_is_cut_short() {
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
    let folder = file_of(&node, "__shares");
    let dir = node.stop();
    let path = log_in(&folder);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();

    let node = Node::on(dir, |_| {}, |_| {});
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

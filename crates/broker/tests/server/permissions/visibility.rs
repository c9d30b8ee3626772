//! Lists and errors reveal only resources that the client may describe.

use bytes::Bytes;
use millstream_base::StreamId;
use millstream_broker::security::Operation;
use millstream_wire::messages::delete_topics_request::DeleteTopicState;
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use millstream_wire::messages::*;
use millstream_wire::native::*;
use millstream_wire::streams_group::StreamsGroupDescribeRequest;
use millstream_wire::{Request, ResponseError, Uuid};

use Operation::*;

use super::native_cases::native_cases;
use super::{CLUSTER, Case, case, group, topic, two_clients};
use crate::streams;
use crate::support::{
    Connection, ask, chunk, fetch_request, group_id, produce_request, text, topic_name,
};

/// Requests about a topic by its id, and about a stream by its id.
fn cases_by_id(topic_id: Uuid, stream: StreamId) -> Vec<Case> {
    let mut produced = produce_request("", 0, chunk(&["value"]));
    produced.topic_data[0].topic_id = topic_id;
    let mut fetched = fetch_request(&[("", 0, 0)]).with_max_wait_ms(0);
    fetched.topics[0].topic_id = topic_id;
    let requested = MetadataRequestTopic::default()
        .with_topic_id(topic_id)
        .with_name(None);
    let metadata = MetadataRequest::default().with_topics(Some(vec![requested]));
    let deleted = DeleteTopicState::default()
        .with_topic_id(topic_id)
        .with_name(None);
    let deleted = DeleteTopicsRequest::default().with_topics(vec![deleted]);
    let committed = OffsetCommitRequestTopic::default()
        .with_topic_id(topic_id)
        .with_partitions(vec![OffsetCommitRequestPartition::default()]);
    let committed = OffsetCommitRequest::default()
        .with_group_id(group_id("g"))
        .with_topics(vec![committed]);
    let offsets = OffsetFetchRequestTopics::default()
        .with_topic_id(topic_id)
        .with_partition_indexes(vec![0]);
    let offsets = OffsetFetchRequestGroup::default()
        .with_group_id(group_id("g"))
        .with_topics(Some(vec![offsets]));
    let offsets = OffsetFetchRequest::default().with_groups(vec![offsets]);
    let mut cases = vec![
        case(13, produced, [(Write, topic("t"))]),
        case(13, fetched, [(Read, topic("t"))]),
        case(12, metadata, [(Describe, topic("t"))]),
        case(6, deleted, [(Delete, topic("t"))]),
        case(10, committed, [(Read, group("g")), (Read, topic("t"))]),
        case(10, offsets, [(Read, group("g")), (Describe, topic("t"))]),
    ];
    let natively = native_cases(stream).into_iter();
    cases.extend(natively.filter(|case| match &case.request {
        Request::DescribeStream(request) => request.name.is_none(),
        Request::WriteChunks(_)
        | Request::ReadChunks(_)
        | Request::NextGroups(_)
        | Request::CommitCursors(_)
        | Request::ReleaseGroups(_)
        | Request::AvailableGroups(_)
        | Request::AvailableSegments(_)
        | Request::NextSegments(_) => true,
        _ => false,
    }));
    cases
}

#[test]
fn answers_do_not_reveal_existing_ids() {
    let (node, mut admin, mut alice) = two_clients();
    admin.create_topic("t", 1);
    admin.produce("t", 0, &["old"]);
    let stream = node.log().stream("t").unwrap();
    let ledger = node.log().stream("__security").unwrap();
    let (unknown_topic, unknown_stream) = (Uuid::from_u128(77), StreamId(77_777));
    let real = [stream, ledger].map(|stream| (stream.uuid(), stream.id()));
    for (topic_id, stream_id) in real {
        let there = cases_by_id(topic_id, stream_id);
        let missing = cases_by_id(unknown_topic, unknown_stream);
        for (there, missing) in there.into_iter().zip(missing) {
            let needs_group = there.rights.contains(&(Read, group("g")));
            if needs_group {
                admin.allow("alice", (Read, group("g")));
            }
            let api = there.request.api();
            let [there, missing] = [there, missing].map(|case| {
                let response = alice.ask(case.version, case.request);
                format!("{response:?}")
            });
            assert!(missing.contains("error_code: 100,"), "{api:?}: {missing}");
            let missing = missing
                .replace(&unknown_topic.to_string(), &topic_id.to_string())
                .replace(&format!("{unknown_stream:?}"), &format!("{stream_id:?}"));
            assert_eq!(there, missing, "{api:?}");
            admin.forbid_all();
        }
    }
    // It may know of the topic, and not use it.
    let (topic_id, stream_id) = real[0];
    for case in cases_by_id(topic_id, stream_id) {
        if case.rights.contains(&(Describe, topic("t"))) {
            continue;
        }
        admin.allow("alice", (Read, group("g")));
        admin.allow("alice", (Describe, topic("t")));
        let response = format!("{:?}", alice.ask(case.version, case.request));
        assert!(response.contains("error_code: 29,"), "{response}");
        admin.forbid_all();
    }
}

#[test]
fn lists_show_only_describable_resources() {
    let (_node, mut admin, mut alice) = two_clients();
    for name in ["mine", "others"] {
        admin.create_topic(name, 1);
        let commit = OffsetCommitRequestTopic::default()
            .with_name(topic_name(name))
            .with_partitions(vec![OffsetCommitRequestPartition::default()]);
        let request = OffsetCommitRequest::default()
            .with_group_id(group_id(name))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(vec![commit]);
        ask!(admin, OffsetCommit, 8, request);
    }
    let groups = |client: &mut Connection| -> Vec<String> {
        let listed = ask!(client, ListGroups, 5, ListGroupsRequest::default());
        let names = listed.groups.iter().map(|group| group.group_id.to_string());
        names.collect()
    };
    let streams = |client: &mut Connection| -> Vec<String> {
        let request = ListStreamsRequest {
            prefix: "".into(),
            after: None,
            streams_max: 10,
        };
        let listed = ask!(client, ListStreams, 0, request);
        listed
            .streams
            .iter()
            .map(|stream| stream.name.to_string())
            .collect()
    };
    assert_eq!((groups(&mut alice), streams(&mut alice)), (vec![], vec![]));
    admin.allow("alice", (Describe, group("mine")));
    admin.allow("alice", (Describe, topic("mine")));
    assert_eq!(groups(&mut alice), ["mine"]);
    assert_eq!(streams(&mut alice), ["mine"]);
    admin.allow("alice", (Describe, CLUSTER));
    assert_eq!(groups(&mut alice).len(), 2);
}

/// Members of a group have topics that the client may not know of, and name one that does not exist.
#[test]
fn descriptions_of_groups_do_not_reveal_topics() {
    let (_node, mut admin, mut alice) = two_clients();
    admin.create_topic("t", 1);
    let named = vec![topic_name("t"), topic_name("none")];
    let next = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id("next"))
        .with_member_id("m".into())
        .with_rebalance_timeout_ms(60_000)
        .with_subscribed_topic_names(Some(named.clone()))
        .with_topic_partitions(Some(Vec::new()));
    let shared = ShareGroupHeartbeatRequest::default()
        .with_group_id(group_id("shared"))
        .with_member_id("m".into())
        .with_subscribed_topic_names(Some(named));
    assert_eq!(ask!(admin, ConsumerGroupHeartbeat, 1, next).error_code, 0);
    assert_eq!(ask!(admin, ShareGroupHeartbeat, 1, shared).error_code, 0);
    let streams = streams::joining();
    assert_eq!(ask!(admin, StreamsGroupHeartbeat, 0, streams).error_code, 0);

    // By group: the error, and the number of members.
    let described = |client: &mut Connection| {
        let next = ConsumerGroupDescribeRequest::default().with_group_ids(vec![group_id("next")]);
        let next = ask!(client, ConsumerGroupDescribe, 1, next).groups;
        let shared = ShareGroupDescribeRequest::default().with_group_ids(vec![group_id("shared")]);
        let shared = ask!(client, ShareGroupDescribe, 1, shared).groups;
        let seen = [topic_name("t")];
        for member in &next[0].members {
            assert_eq!(member.subscribed_topic_names, seen);
        }
        for member in &shared[0].members {
            assert_eq!(member.subscribed_topic_names, seen);
        }
        let streams = StreamsGroupDescribeRequest {
            group_ids: vec![text("g")],
            include_authorized_operations: false,
        };
        let streams = ask!(client, StreamsGroupDescribe, 0, streams).groups;
        assert_eq!(streams[0].topology.is_some(), streams[0].error_code == 0);
        [
            (next[0].error_code, next[0].members.len()),
            (shared[0].error_code, shared[0].members.len()),
            (streams[0].error_code, streams[0].members.len()),
        ]
    };
    for name in ["next", "shared", "g"] {
        admin.allow("alice", (Describe, group(name)));
    }
    let denied = ResponseError::TopicAuthorizationFailed.code();
    assert_eq!(described(&mut alice), [(denied, 0); 3]);
    admin.allow("alice", (Describe, topic("t")));
    // An application has internal topics, too.
    assert_eq!(described(&mut alice), [(0, 1), (0, 1), (denied, 0)]);
    for name in ["r", "c"] {
        admin.allow("alice", (Describe, topic(name)));
    }
    assert_eq!(described(&mut alice), [(0, 1); 3]);
}

#[test]
fn a_page_of_a_list_has_as_many_describable_items_as_fit() {
    let (_node, mut admin, mut alice) = two_clients();
    for name in ["a", "b", "c", "y", "z"] {
        admin.create_topic(name, 1);
        let request = PutObjectRequest {
            name: text(name),
            start: 0,
            content: Bytes::from_static(b"content"),
            is_last: true,
        };
        assert_eq!(ask!(admin, PutObject, 0, request).error_code, 0);
    }
    for name in ["y", "z"] {
        admin.allow("alice", (Describe, topic(name)));
    }
    let mut pages = |max: u32| {
        let streams = ListStreamsRequest {
            prefix: "".into(),
            after: None,
            streams_max: max,
        };
        let listed = ask!(alice, ListStreams, 0, streams);
        let streams = listed.streams.iter().map(|stream| stream.name.to_string());
        let streams: (Vec<_>, _) = (streams.collect(), listed.has_more);
        let objects = ListObjectsRequest {
            prefix: "".into(),
            after: None,
            objects_max: max,
        };
        let listed = ask!(alice, ListObjects, 0, objects);
        let objects = listed.objects.iter().map(|object| object.name.to_string());
        assert_eq!((objects.collect(), listed.has_more), streams);
        streams
    };
    assert_eq!(pages(1), (vec!["y".to_owned()], true));
    assert_eq!(pages(2), (vec!["y".to_owned(), "z".to_owned()], false));
}

#[test]
fn a_regular_expression_of_a_group_matches_only_describable_topics() {
    let (node, mut admin, mut alice) = two_clients();
    for name in ["log-mine", "log-others"] {
        admin.create_topic(name, 1);
    }
    let id = |name| node.log().stream(name).unwrap().uuid();
    let (mine, others) = (id("log-mine"), id("log-others"));
    admin.allow("alice", (Read, group("g")));
    admin.allow("alice", (Describe, topic("log-mine")));
    let joining = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id("m".into())
        .with_rebalance_timeout_ms(60_000)
        .with_subscribed_topic_regex(Some("log-.*".into()))
        .with_topic_partitions(Some(Vec::new()));
    let joined = ask!(alice, ConsumerGroupHeartbeat, 1, joining.clone());
    assert_eq!(joined.error_code, 0, "{joined:?}");
    let topics = |assignment: Option<consumer_group_heartbeat_response::Assignment>| {
        let topics = assignment.unwrap_or_default().topic_partitions;
        topics
            .iter()
            .map(|topic| topic.topic_id)
            .collect::<Vec<_>>()
    };
    assert_eq!(topics(joined.assignment), [mine]);

    admin.allow("alice", (Describe, topic("log-others")));
    let mut epoch = joined.member_epoch;
    let mut beat = |owned: &[Uuid]| {
        let owned = owned.iter().map(|id| {
            consumer_group_heartbeat_request::TopicPartitions::default()
                .with_topic_id(*id)
                .with_partitions(vec![0])
        });
        let request = joining
            .clone()
            .with_member_epoch(epoch)
            .with_topic_partitions(Some(owned.collect()));
        let beat = ask!(alice, ConsumerGroupHeartbeat, 1, request);
        assert_eq!(beat.error_code, 0, "{beat:?}");
        epoch = beat.member_epoch;
        let mut topics = topics(beat.assignment);
        topics.sort();
        topics
    };
    let mut both = [mine, others];
    both.sort();
    assert_eq!(beat(&[mine]), both);
    admin.forbid_all();
    admin.allow("alice", (Read, group("g")));
    admin.allow("alice", (Describe, topic("log-others")));
    assert_eq!(beat(&both), [others]);
}

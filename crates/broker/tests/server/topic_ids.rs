//! Versions 10 of OffsetCommit and OffsetFetch, which name topics by their ids.

use millstream_broker::security::Operation::{Describe, Read};
use millstream_wire::messages::delete_topics_request::DeleteTopicState;
use millstream_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use millstream_wire::messages::offset_fetch_response::OffsetFetchResponseTopics;
use millstream_wire::messages::{DeleteTopicsRequest, OffsetCommitRequest, OffsetFetchRequest};
use millstream_wire::{ResponseError, Uuid};

use crate::damage::{file_of, log_in};
use crate::permissions::{group, topic, two_clients};
use crate::support::{Connection, Node, ask, group_id, text, topic_name};

const OF_NO_TOPIC: Uuid = Uuid::from_u128(77);
const OF_NO_OTHER_TOPIC: Uuid = Uuid::from_u128(78);

const UNKNOWN_ID: i16 = ResponseError::UnknownTopicId.code();
const DENIED: i16 = ResponseError::TopicAuthorizationFailed.code();

fn id_of(node: &Node, topic: &str) -> Uuid {
    node.log().stream(topic).unwrap().uuid()
}

/// Returns a commit without a member. Each topic has partitions with their offsets.
fn commit_request(topics: &[(Uuid, &[(i32, i64)])]) -> OffsetCommitRequest {
    let topics = topics.iter().map(|(id, offsets)| {
        let partitions = offsets.iter().map(|(index, offset)| {
            OffsetCommitRequestPartition::default()
                .with_partition_index(*index)
                .with_committed_offset(*offset)
        });
        OffsetCommitRequestTopic::default()
            .with_topic_id(*id)
            .with_partitions(partitions.collect())
    });
    OffsetCommitRequest::default()
        .with_group_id(group_id("g"))
        .with_topics(topics.collect())
}

/// Sends a commit; returns topic, partition and error of each answer in their order, and the number of topics.
fn commit(client: &mut Connection, request: OffsetCommitRequest) -> (Vec<(Uuid, i32, i16)>, usize) {
    let response = ask!(client, OffsetCommit, 10, request);
    let mut errors = Vec::new();
    for topic in &response.topics {
        let partitions = topic.partitions.iter();
        errors.extend(partitions.map(|partition| {
            let (index, error) = (partition.partition_index, partition.error_code);
            (topic.topic_id, index, error)
        }));
    }
    errors.sort();
    (errors, response.topics.len())
}

/// Returns the topics of the group "g" in an answer to a request that names these.
fn fetch_topics(
    client: &mut Connection,
    topics: Option<&[(Uuid, &[i32])]>,
) -> Vec<OffsetFetchResponseTopics> {
    let topics = topics.map(|topics| {
        let topics = topics.iter().map(|(id, partitions)| {
            OffsetFetchRequestTopics::default()
                .with_topic_id(*id)
                .with_partition_indexes(partitions.to_vec())
        });
        topics.collect()
    });
    let asked = OffsetFetchRequestGroup::default()
        .with_group_id(group_id("g"))
        .with_topics(topics);
    let request = OffsetFetchRequest::default().with_groups(vec![asked]);
    let mut response = ask!(client, OffsetFetch, 10, request);
    assert_eq!(response.groups[0].error_code, 0);
    response.groups.remove(0).topics
}

/// Returns topic, partition, offset and error of each answer, in the order of the request.
fn fetch(client: &mut Connection, topics: &[(Uuid, &[i32])]) -> Vec<(Uuid, i32, i64, i16)> {
    fetched(fetch_topics(client, Some(topics)))
}

/// Returns topic, partition, offset and error of each committed offset, in their order.
fn fetch_all(client: &mut Connection) -> Vec<(Uuid, i32, i64, i16)> {
    let mut all = fetched(fetch_topics(client, None));
    all.sort();
    all
}

fn fetched(topics: Vec<OffsetFetchResponseTopics>) -> Vec<(Uuid, i32, i64, i16)> {
    let mut offsets = Vec::new();
    for topic in topics {
        offsets.extend(topic.partitions.iter().map(|partition| {
            let (index, offset) = (partition.partition_index, partition.committed_offset);
            (topic.topic_id, index, offset, partition.error_code)
        }));
    }
    offsets
}

/// Returns the offset of partition 0 of topic "t", which the request names.
pub fn fetch_by_name(client: &mut Connection) -> (i64, i16) {
    let named = OffsetFetchRequestTopics::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(vec![0]);
    let group = OffsetFetchRequestGroup::default()
        .with_group_id(group_id("g"))
        .with_topics(Some(vec![named]));
    let request = OffsetFetchRequest::default().with_groups(vec![group]);
    let response = ask!(client, OffsetFetch, 9, request);
    let topic = &response.groups[0].topics[0];
    assert_eq!(&*topic.name.0, "t");
    let partition = &topic.partitions[0];
    (partition.committed_offset, partition.error_code)
}

/// Deletes topic "t".
pub fn delete_topic(client: &mut Connection) {
    let topic = DeleteTopicState::default().with_name(Some(topic_name("t")));
    let request = DeleteTopicsRequest::default().with_topics(vec![topic]);
    let deleted = ask!(client, DeleteTopics, 6, request);
    assert_eq!(deleted.responses[0].error_code, 0);
}

fn sorted<T: Ord>(mut items: Vec<T>) -> Vec<T> {
    items.sort();
    items
}

#[test]
fn offsets_are_committed_and_fetched_by_topic_id() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    client.create_topic("u", 1);
    let (t, u) = (id_of(&node, "t"), id_of(&node, "u"));
    let ledger = id_of(&node, "__groups");

    let request = commit_request(&[
        (t, &[(0, 7), (5, 1)]),
        (OF_NO_TOPIC, &[(0, 1), (1, 1)]),
        (Uuid::nil(), &[(0, 1)]),
        (ledger, &[(0, 1)]),
        (u, &[(0, 9)]),
    ]);
    let missing = ResponseError::UnknownTopicOrPartition.code();
    let expected = sorted(vec![
        (t, 0, 0),
        (t, 5, missing),
        (OF_NO_TOPIC, 0, UNKNOWN_ID),
        (OF_NO_TOPIC, 1, UNKNOWN_ID),
        (Uuid::nil(), 0, UNKNOWN_ID),
        (ledger, 0, UNKNOWN_ID),
        (u, 0, 0),
    ]);
    assert_eq!(commit(&mut client, request), (expected, 5));
    // The group is not involved where no topic is left.
    let request = commit_request(&[(OF_NO_TOPIC, &[(0, 1)])]);
    let expected = vec![(OF_NO_TOPIC, 0, UNKNOWN_ID)];
    assert_eq!(commit(&mut client, request), (expected, 1));

    let asked: [(Uuid, &[i32]); 6] = [
        (t, &[0, 1, 0]),
        (OF_NO_TOPIC, &[0]),
        (OF_NO_OTHER_TOPIC, &[0]),
        (Uuid::nil(), &[0]),
        (ledger, &[0]),
        (u, &[0]),
    ];
    let expected = [
        (t, 0, 7, 0),
        (t, 1, -1, 0),
        (OF_NO_TOPIC, 0, -1, UNKNOWN_ID),
        (OF_NO_OTHER_TOPIC, 0, -1, UNKNOWN_ID),
        (Uuid::nil(), 0, -1, UNKNOWN_ID),
        (ledger, 0, -1, UNKNOWN_ID),
        (u, 0, 9, 0),
    ];
    assert_eq!(fetch(&mut client, &asked), expected);
    let expected = sorted(vec![(t, 0, 7, 0), (u, 0, 9, 0)]);
    assert_eq!(fetch_all(&mut client), expected);

    // A client that names the topics gets the same offsets.
    assert_eq!(fetch_by_name(&mut client), (7, 0));
}

#[test]
fn errors_of_a_commit_by_id_have_the_ids() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let t = id_of(&node, "t");
    let topics: [(Uuid, &[(i32, i64)]); 2] = [(t, &[(0, 7)]), (OF_NO_TOPIC, &[(0, 7)])];
    let expected = |error: ResponseError| {
        let errors = sorted(vec![(t, 0, error.code()), (OF_NO_TOPIC, 0, UNKNOWN_ID)]);
        (errors, 2)
    };
    let of_member = commit_request(&topics)
        .with_member_id(text("m"))
        .with_generation_id_or_member_epoch(3);
    let refused = commit(&mut client, of_member);
    assert_eq!(refused, expected(ResponseError::GroupIdNotFound));
    let negative = commit_request(&[(t, &[(0, -1)]), (OF_NO_TOPIC, &[(0, 7)])]);
    let refused = commit(&mut client, negative);
    assert_eq!(refused, expected(ResponseError::OffsetOutOfRange));
}

#[test]
fn a_topic_that_was_deleted_and_made_again_has_other_offsets() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let old = id_of(&node, "t");
    let request = commit_request(&[(old, &[(0, 7)])]);
    assert_eq!(commit(&mut client, request).0, [(old, 0, 0)]);
    assert_eq!(fetch_all(&mut client), [(old, 0, 7, 0)]);

    delete_topic(&mut client);
    assert_eq!(fetch_all(&mut client), []);
    assert_eq!(
        fetch(&mut client, &[(old, &[0])]),
        [(old, 0, -1, UNKNOWN_ID)]
    );

    client.create_topic("t", 1);
    let new = id_of(&node, "t");
    let request = commit_request(&[(old, &[(0, 8)])]);
    assert_eq!(commit(&mut client, request).0, [(old, 0, UNKNOWN_ID)]);
    assert_eq!(
        fetch(&mut client, &[(old, &[0]), (new, &[0])]),
        [(old, 0, -1, UNKNOWN_ID), (new, 0, -1, 0)]
    );
    let request = commit_request(&[(old, &[(0, 9)]), (new, &[(0, 3)])]);
    let expected = sorted(vec![(old, 0, UNKNOWN_ID), (new, 0, 0)]);
    assert_eq!(commit(&mut client, request), (expected, 2));
    assert_eq!(fetch_all(&mut client), [(new, 0, 3, 0)]);
}

/// No request of the group tells the coordinator of the deletion.
#[test]
fn a_topic_that_was_deleted_around_a_restart_and_made_again_has_other_offsets() {
    for steps in [
        ["restart", "delete", "create"],
        ["delete", "restart", "create"],
        // As after a kill of the server before its coordinator stored the removal of the offsets.
        ["delete", "create", "restart"],
    ] {
        let mut node = Node::start();
        node.connect().create_topic("t", 1);
        let old = id_of(&node, "t");
        let request = commit_request(&[(old, &[(0, 7)])]);
        assert_eq!(commit(&mut node.connect(), request).0, [(old, 0, 0)]);
        for step in steps {
            match step {
                "restart" => node = node.restart(),
                "delete" => delete_topic(&mut node.connect()),
                _ => node.connect().create_topic("t", 1),
            }
        }
        let mut client = node.connect();
        let new = id_of(&node, "t");
        assert_eq!(fetch_by_name(&mut client), (-1, 0), "{steps:?}");
        assert_eq!(fetch(&mut client, &[(new, &[0])]), [(new, 0, -1, 0)]);
        assert_eq!(fetch_all(&mut client), [], "{steps:?}");
        let request = commit_request(&[(new, &[(0, 3)])]);
        assert_eq!(commit(&mut client, request).0, [(new, 0, 0)]);
        drop(client);

        let node = node.restart();
        let mut client = node.connect();
        assert_eq!(fetch_by_name(&mut client), (3, 0), "{steps:?}");
        assert_eq!(fetch_all(&mut client), [(new, 0, 3, 0)], "{steps:?}");
    }
}

#[test]
fn a_damaged_topic_has_its_offsets() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    client.produce("t", 0, &["value"]);
    let t = id_of(&node, "t");
    let request = commit_request(&[(t, &[(0, 1)])]);
    assert_eq!(commit(&mut client, request).0, [(t, 0, 0)]);
    drop(client);
    let folder = file_of(&node, "t");
    let dir = node.stop();
    let path = log_in(&folder);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();

    let node = Node::on(dir, |_| {}, |_| {});
    assert_eq!(node.log().stats().faulted_lanes, 1);
    let mut client = node.connect();
    assert_eq!(fetch_by_name(&mut client), (1, 0));
    assert_eq!(fetch_all(&mut client), [(t, 0, 1, 0)]);
}

#[test]
fn ids_of_topics_that_the_client_may_not_describe_are_unknown_to_it() {
    let (node, mut admin, mut alice) = two_clients();
    let [mine, seen, hidden] = ["mine", "seen", "hidden"].map(|name| {
        admin.create_topic(name, 1);
        id_of(&node, name)
    });
    let all: [(Uuid, &[(i32, i64)]); 4] = [
        (mine, &[(0, 7)]),
        (seen, &[(0, 7)]),
        (hidden, &[(0, 7)]),
        (OF_NO_TOPIC, &[(0, 7)]),
    ];
    commit(&mut admin, commit_request(&all));
    admin.allow("alice", (Read, group("g")));
    admin.allow("alice", (Read, topic("mine")));
    admin.allow("alice", (Describe, topic("seen")));

    let expected = sorted(vec![
        (mine, 0, 0),
        (seen, 0, DENIED),
        (hidden, 0, UNKNOWN_ID),
        (OF_NO_TOPIC, 0, UNKNOWN_ID),
    ]);
    assert_eq!(commit(&mut alice, commit_request(&all)), (expected, 4));
    let asked: [(Uuid, &[i32]); 4] = [
        (hidden, &[0]),
        (mine, &[0]),
        (OF_NO_TOPIC, &[0]),
        (seen, &[0]),
    ];
    let expected = [
        (hidden, 0, -1, UNKNOWN_ID),
        (mine, 0, 7, 0),
        (OF_NO_TOPIC, 0, -1, UNKNOWN_ID),
        (seen, 0, 7, 0),
    ];
    assert_eq!(fetch(&mut alice, &asked), expected);
    let expected = sorted(vec![(mine, 0, 7, 0), (seen, 0, 7, 0)]);
    assert_eq!(fetch_all(&mut alice), expected);
}

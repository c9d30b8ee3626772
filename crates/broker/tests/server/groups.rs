//! Consumer groups over the wire, and their state after a restart of the broker.

use bytes::Bytes;
use millstream_base::Offset;
use millstream_wire::messages::join_group_request::JoinGroupRequestProtocol;
use millstream_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use millstream_wire::messages::sync_group_request::SyncGroupRequestAssignment;
use millstream_wire::messages::{
    DescribeGroupsRequest, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, OffsetCommitRequest, OffsetFetchRequest, SyncGroupRequest,
};
use millstream_wire::{ApiKey, Response, ResponseError, StrBytes};

use crate::support::{Connection, Node, ask, group_id, text, topic_name, wait_until};

fn join_request(member: &StrBytes) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from_static(b"topics"));
    JoinGroupRequest::default()
        .with_group_id(group_id("g"))
        .with_session_timeout_ms(30_000)
        .with_rebalance_timeout_ms(30_000)
        .with_member_id(member.clone())
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol])
}

/// Joins the group as the only member, and is its leader.
fn join(client: &mut Connection) -> JoinGroupResponse {
    // The first answer has only the member's id.
    let first = ask!(client, JoinGroup, 5, join_request(&StrBytes::default()));
    assert_eq!(first.error_code, ResponseError::MemberIdRequired.code());
    let joined = ask!(client, JoinGroup, 5, join_request(&first.member_id));
    assert_eq!(joined.error_code, 0);
    assert_eq!(joined.leader, joined.member_id);
    joined
}

fn sync(client: &mut Connection, joined: &JoinGroupResponse) -> Bytes {
    let assignment = SyncGroupRequestAssignment::default()
        .with_member_id(joined.member_id.clone())
        .with_assignment(Bytes::from_static(b"partition 0"));
    let request = SyncGroupRequest::default()
        .with_group_id(group_id("g"))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone())
        .with_assignments(vec![assignment]);
    let synced = ask!(client, SyncGroup, 3, request);
    assert_eq!(synced.error_code, 0);
    synced.assignment
}

fn heartbeat(client: &mut Connection, joined: &JoinGroupResponse) -> i16 {
    let request = HeartbeatRequest::default()
        .with_group_id(group_id("g"))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone());
    ask!(client, Heartbeat, 3, request).error_code
}

fn commit(client: &mut Connection, joined: &JoinGroupResponse, offset: i64) -> i16 {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(0)
        .with_committed_offset(offset)
        .with_committed_metadata(Some(text("note")));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group_id("g"))
        .with_generation_id_or_member_epoch(joined.generation_id)
        .with_member_id(joined.member_id.clone())
        .with_topics(vec![topic]);
    let response = ask!(client, OffsetCommit, 7, request);
    response.topics[0].partitions[0].error_code
}

fn committed(client: &mut Connection) -> i64 {
    let topic = OffsetFetchRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(vec![0]);
    let request = OffsetFetchRequest::default()
        .with_group_id(group_id("g"))
        .with_topics(Some(vec![topic]));
    let response = ask!(client, OffsetFetch, 7, request);
    response.topics[0].partitions[0].committed_offset
}

#[test]
fn a_group_and_its_offsets_outlive_the_broker() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let joined = join(&mut client);
    assert_eq!(sync(&mut client, &joined), "partition 0");
    assert_eq!(heartbeat(&mut client, &joined), 0);
    assert_eq!(committed(&mut client), -1);
    assert_eq!(commit(&mut client, &joined, 41), 0);
    assert_eq!(commit(&mut client, &joined, 42), 0);
    let node = node.restart();
    let mut client = node.connect();
    assert_eq!(committed(&mut client), 42);
    // The member is still in the group.
    assert_eq!(heartbeat(&mut client, &joined), 0);
    assert_eq!(commit(&mut client, &joined, 43), 0);
    let request = LeaveGroupRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id(joined.member_id.clone());
    assert_eq!(ask!(client, LeaveGroup, 2, request).error_code, 0);
    let node = node.restart();
    let mut client = node.connect();
    let unknown = ResponseError::UnknownMemberId.code();
    assert_eq!(heartbeat(&mut client, &joined), unknown);
    assert_eq!(committed(&mut client), 43);
}

#[test]
fn a_new_member_makes_the_others_rejoin() {
    let node = Node::start();
    let (mut first, mut second) = (node.connect(), node.connect());
    let joined = join(&mut first);
    sync(&mut first, &joined);
    let required = ask!(second, JoinGroup, 5, join_request(&StrBytes::default()));
    second.send(5, join_request(&required.member_id));
    let in_progress = ResponseError::RebalanceInProgress.code();
    wait_until("the group is balanced anew", || {
        heartbeat(&mut first, &joined) == in_progress
    });
    let again = ask!(first, JoinGroup, 5, join_request(&joined.member_id));
    let Response::JoinGroup(other) = second.receive(ApiKey::JoinGroup, 5).1 else {
        panic!("it is an answer to that");
    };
    assert_eq!(again.generation_id, joined.generation_id + 1);
    assert_eq!(other.generation_id, again.generation_id);
    let members = again.members.len() + other.members.len();
    assert_eq!(members, 2, "the leader gets both members");
}

#[test]
fn commits_of_negative_offsets_are_refused() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let joined = join(&mut client);
    sync(&mut client, &joined);
    assert_eq!(commit(&mut client, &joined, 7), 0);
    let out_of_range = ResponseError::OffsetOutOfRange.code();
    for offset in [-1, i64::MIN] {
        assert_eq!(commit(&mut client, &joined, offset), out_of_range);
    }
    assert_eq!(committed(&mut client), 7);
}

#[test]
fn a_group_is_described_once_for_repeated_names() {
    let node = Node::start();
    let mut client = node.connect();
    let joined = join(&mut client);
    sync(&mut client, &joined);
    let names = vec![group_id("g"); 50_000];
    let request = DescribeGroupsRequest::default().with_groups(names);
    let described = ask!(client, DescribeGroups, 4, request);
    assert_eq!(described.groups.len(), 1);
    assert_eq!(described.groups[0].members.len(), 1);
    let topics = OffsetFetchRequestTopics::default().with_name(topic_name("t"));
    let group = OffsetFetchRequestGroup::default()
        .with_group_id(group_id("g"))
        .with_topics(Some(vec![topics]));
    let request = OffsetFetchRequest::default().with_groups(vec![group; 2]);
    let refused = ask!(client, OffsetFetch, 8, request);
    let invalid = ResponseError::InvalidRequest.code();
    assert_eq!(refused.groups[0].error_code, invalid);
}

#[test]
fn the_ledger_of_groups_is_compacted_during_commits() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 500);
    let joined = join(&mut client);
    let commit_all = |client: &mut Connection, offset: i64| {
        let partitions = (0..500).map(|partition| {
            OffsetCommitRequestPartition::default()
                .with_partition_index(partition)
                .with_committed_offset(offset)
                .with_committed_metadata(Some(text(&"x".repeat(1000))))
        });
        let topic = OffsetCommitRequestTopic::default()
            .with_name(topic_name("t"))
            .with_partitions(partitions.collect());
        let request = OffsetCommitRequest::default()
            .with_group_id(group_id("g"))
            .with_generation_id_or_member_epoch(joined.generation_id)
            .with_member_id(joined.member_id.clone())
            .with_topics(vec![topic]);
        let response = ask!(client, OffsetCommit, 7, request);
        let mut partitions = response.topics[0].partitions.iter();
        assert!(partitions.all(|partition| partition.error_code == 0));
    };
    sync(&mut client, &joined);
    let groups = node.log().internal_stream("__groups").unwrap();
    let partition = groups.partition(0).unwrap();
    let mut offset = 0;
    wait_until("the ledger is compacted", || {
        offset += 1;
        commit_all(&mut client, offset);
        partition.earliest_offset() > Offset(0)
    });
    drop((groups, partition));
    let node = node.restart();
    let mut client = node.connect();
    assert_eq!(committed(&mut client), offset);
    assert_eq!(heartbeat(&mut client, &joined), 0);
    commit_all(&mut client, offset + 1);
    assert_eq!(committed(&mut client), offset + 1);
}

#[test]
fn offsets_of_unknown_partitions_are_not_committed() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    client.create_topic("only-unknown", 1);
    let topic = |name: &str, partitions: &[i32]| {
        let partitions = partitions.iter().map(|partition| {
            OffsetCommitRequestPartition::default()
                .with_partition_index(*partition)
                .with_committed_offset(7)
        });
        OffsetCommitRequestTopic::default()
            .with_name(topic_name(name))
            .with_partitions(partitions.collect())
    };
    let mut commit = |topics| {
        let request = OffsetCommitRequest::default()
            .with_group_id(group_id("g"))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(topics);
        let response = ask!(client, OffsetCommit, 7, request);
        let mut errors: Vec<(String, i32, i16)> = Vec::new();
        for topic in &response.topics {
            let partitions = topic.partitions.iter();
            errors.extend(partitions.map(|partition| {
                let (index, error) = (partition.partition_index, partition.error_code);
                (topic.name.to_string(), index, error)
            }));
        }
        errors.sort();
        (response.topics.len(), errors)
    };
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let requested = vec![
        topic("t", &[-1, 0, 1, 2]),
        topic("none", &[0]),
        topic("only-unknown", &[1]),
        topic("__groups", &[0]),
    ];
    let answer = |name: &str, partition, error| (name.to_owned(), partition, error);
    let expected = vec![
        answer("__groups", 0, unknown),
        answer("none", 0, unknown),
        answer("only-unknown", 1, unknown),
        answer("t", -1, unknown),
        answer("t", 0, 0),
        answer("t", 1, 0),
        answer("t", 2, unknown),
    ];
    assert_eq!(commit(requested), (4, expected));
    // The remaining request is empty, so the group is not involved.
    let expected = vec![answer("none", 0, unknown)];
    assert_eq!(commit(vec![topic("none", &[0])]), (1, expected));
    let request = OffsetFetchRequest::default()
        .with_group_id(group_id("g"))
        .with_topics(None);
    let committed = ask!(client, OffsetFetch, 7, request);
    assert_eq!(committed.topics.len(), 1);
    assert_eq!(committed.topics[0].partitions.len(), 2);
}

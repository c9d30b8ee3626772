//! Authorization: every request needs the same rights as in Kafka, and a refused part of a request
//! does not hold up the rest.

mod group_cases;
mod native_cases;
mod requests;
mod topic_cases;
mod visibility;

use millstream_base::{Cursor, SegmentIndex, StreamId, StreamletIndex};
use millstream_broker::security::{Operation, Resource, ResourceType};
use millstream_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use millstream_wire::messages::create_acls_request::AclCreation;
use millstream_wire::messages::delete_acls_request::DeleteAclsFilter;
use millstream_wire::messages::delete_topics_request::DeleteTopicState;
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_wire::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use millstream_wire::messages::*;
use millstream_wire::native::*;
use millstream_wire::{Request, ResponseError};

use Operation::*;

use crate::logins::{ADMIN, guarded};
use crate::support::{
    Connection, Node, ask, chunk, fetch_request, group_id, produce_request, text, topic_name,
    values,
};

const ALICE: (&str, &str) = ("alice", "alice's secret");

pub type Right<'a> = (Operation, Resource<'a>);

pub const CLUSTER: Resource<'static> = Resource::CLUSTER;

pub fn topic(name: &str) -> Resource<'_> {
    Resource::topic(name)
}

pub fn group(name: &str) -> Resource<'_> {
    Resource::group(name)
}

fn transaction(name: &str) -> Resource<'_> {
    Resource::transactional_id(name)
}

fn resource_code(kind: ResourceType) -> i8 {
    match kind {
        ResourceType::Topic => 2,
        ResourceType::Group => 3,
        ResourceType::Cluster => 4,
        ResourceType::TransactionalId => 5,
    }
}

pub fn operation_code(operation: Operation) -> i8 {
    match operation {
        All => 2,
        Read => 3,
        Write => 4,
        Create => 5,
        Delete => 6,
        Alter => 7,
        Describe => 8,
        ClusterAction => 9,
        DescribeConfigs => 10,
        AlterConfigs => 11,
        IdempotentWrite => 12,
        TwoPhaseCommit => 15,
    }
}

impl Connection {
    pub fn allow(&mut self, user: &str, (operation, resource): Right<'_>) {
        let creation = AclCreation::default()
            .with_resource_type(resource_code(resource.kind))
            .with_resource_name(text(resource.name))
            .with_resource_pattern_type(3)
            .with_principal(text(&format!("User:{user}")))
            .with_host("*".into())
            .with_operation(operation_code(operation))
            .with_permission_type(3);
        let request = CreateAclsRequest::default().with_creations(vec![creation]);
        let created = ask!(self, CreateAcls, 3, request);
        assert_eq!(created.results[0].error_code, 0, "{created:?}");
    }

    pub fn forbid_all(&mut self) {
        let filter = DeleteAclsFilter::default()
            .with_resource_type_filter(1)
            .with_resource_name_filter(None)
            .with_pattern_type_filter(1)
            .with_principal_filter(None)
            .with_host_filter(None)
            .with_operation(1)
            .with_permission_type(1);
        let request = DeleteAclsRequest::default().with_filters(vec![filter]);
        let deleted = ask!(self, DeleteAcls, 3, request);
        assert_eq!(deleted.filter_results[0].error_code, 0, "{deleted:?}");
    }
}

/// Starts a server with the user alice, too; returns her connection, and that of the super user.
pub fn two_clients() -> (Node, Connection, Connection) {
    let node = guarded();
    let mut admin = node.connect().log_in(ADMIN);
    assert_eq!(admin.set_password(ALICE), 0);
    let alice = node.connect().log_in(ALICE);
    (node, admin, alice)
}

/// A request in a version, and the rights that it needs together.
struct Case {
    version: i16,
    request: Request,
    rights: Vec<Right<'static>>,
}

fn case(version: i16, request: impl Into<Request>, rights: impl Into<Vec<Right<'static>>>) -> Case {
    Case {
        version,
        request: request.into(),
        rights: rights.into(),
    }
}

#[test]
fn cursors_in_unknown_streams_do_not_hold_up_the_others() {
    let (node, mut admin, mut alice) = two_clients();
    let cursors = ["mine", "others"].map(|name| {
        admin.create_topic(name, 1);
        admin.produce(name, 0, &["value"]);
        let stream = node.log().stream(name).unwrap();
        let streamlet = StreamletIndex(0);
        let (first, _) = stream.available_groups(streamlet).unwrap().unwrap();
        stream.segment_cursor(streamlet, first, SegmentIndex(0))
    });
    let [mine, others] = cursors.map(Result::unwrap);
    let missing = Cursor {
        stream: StreamId(77_777),
        ..mine
    };
    admin.allow("alice", (Read, topic("mine")));
    let request = ReadChunksRequest {
        cursors: vec![others, mine, missing, mine, others],
        bytes_max: 1 << 20,
        bytes_min: 1 << 20,
        // No request waits for that: the unknown ones are answered at once.
        wait_ms_max: 3_600_000,
    };
    let read = ask!(alice, ReadChunks, 0, request);
    let answers = read.reads.iter();
    let answers = answers.map(|read| (read.error_code, read.next.stream, read.chunks.0.is_empty()));
    assert_eq!(
        answers.collect::<Vec<_>>(),
        [
            (100, others.stream, true),
            (0, mine.stream, false),
            (100, missing.stream, true),
            (0, mine.stream, false),
            (100, others.stream, true),
        ]
    );
}

#[test]
fn a_topic_is_not_deleted_by_name_with_the_right_to_another_id() {
    let (node, mut admin, mut alice) = two_clients();
    admin.create_topic("mine", 1);
    admin.create_topic("others", 1);
    admin.allow("alice", (Delete, topic("mine")));
    let both = DeleteTopicState::default()
        .with_name(Some(topic_name("others")))
        .with_topic_id(node.log().stream("mine").unwrap().uuid());
    let request = DeleteTopicsRequest::default().with_topics(vec![both]);
    let deleted = ask!(alice, DeleteTopics, 6, request);
    let invalid = ResponseError::InvalidRequest.code();
    assert_eq!(deleted.responses[0].error_code, invalid);
    assert!(node.log().stream("others").is_ok());
    assert!(node.log().stream("mine").is_ok());
}

#[test]
fn only_the_permitted_part_of_a_request_is_executed() {
    let (_node, mut admin, mut alice) = two_clients();
    for name in ["mine", "others"] {
        admin.create_topic(name, 1);
        admin.produce(name, 0, &["old"]);
    }
    admin.allow("alice", (Read, topic("mine")));
    admin.allow("alice", (Write, topic("mine")));
    let denied = ResponseError::TopicAuthorizationFailed.code();

    let mut request = produce_request("others", 0, chunk(&["new"]));
    let mine = produce_request("mine", 0, chunk(&["new"]));
    request.topic_data.extend(mine.topic_data);
    let produced = ask!(alice, Produce, 9, request.clone());
    let answers = produced.responses.iter();
    let mut errors: Vec<(String, i16)> = answers
        .map(|topic| {
            (
                topic.name.to_string(),
                topic.partition_responses[0].error_code,
            )
        })
        .collect();
    errors.sort();
    assert_eq!(errors, [("mine".into(), 0), ("others".into(), denied)]);

    let fetched = ask!(
        alice,
        Fetch,
        11,
        fetch_request(&[("others", 0, 0), ("mine", 0, 0)])
    );
    let partition = |topic: usize| &fetched.topics[topic].partitions[0];
    assert_eq!(
        (partition(0).error_code, partition(0).records.len()),
        (denied, 0)
    );
    assert_eq!(values(partition(1)), ["old", "new"]);

    // A list of everything shows only the topics that she may know of.
    let request = MetadataRequest::default().with_topics(None);
    let metadata = ask!(alice, Metadata, 12, request);
    let names = metadata
        .topics
        .iter()
        .map(|topic| topic.name.clone().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), [topic_name("mine")]);

    // Without an answer, closing the connection is the only way to report the error.
    let request = produce_request("others", 0, chunk(&["new"])).with_acks(0);
    alice.send(9, request);
    assert!(alice.receive_frame().is_none());
    assert_eq!(values(&admin.fetch("others", 0, 0)), ["old"]);
}

/// One denied topic refused the whole request.
#[test]
fn offsets_of_permitted_topics_are_deleted_beside_those_of_denied_ones() {
    let (_node, mut admin, mut alice) = two_clients();
    let names = ["mine", "others"];
    let committed = names.map(|name| {
        admin.create_topic(name, 1);
        OffsetCommitRequestTopic::default()
            .with_name(topic_name(name))
            .with_partitions(vec![
                OffsetCommitRequestPartition::default().with_committed_offset(7),
            ])
    });
    let request = OffsetCommitRequest::default()
        .with_group_id(group_id("g"))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(committed.into());
    ask!(admin, OffsetCommit, 8, request);
    admin.allow("alice", (Delete, group("g")));
    admin.allow("alice", (Read, topic("mine")));
    let deleted = names.map(|name| {
        OffsetDeleteRequestTopic::default()
            .with_name(topic_name(name))
            .with_partitions(vec![OffsetDeleteRequestPartition::default()])
    });
    let delete = |group, topics| {
        OffsetDeleteRequest::default()
            .with_group_id(group_id(group))
            .with_topics(topics)
    };
    let request = delete("g", deleted.to_vec());
    let answer = ask!(alice, OffsetDelete, 0, request);
    let denied = ResponseError::TopicAuthorizationFailed.code();
    let results = answer.topics.iter().map(|topic| {
        let [partition] = &topic.partitions[..] else {
            panic!("{topic:?}");
        };
        (topic.name.to_string(), partition.error_code)
    });
    assert_eq!(answer.error_code, 0);
    assert_eq!(
        results.collect::<Vec<_>>(),
        [("mine".to_owned(), 0), ("others".to_owned(), denied)]
    );
    let request = OffsetFetchRequest::default()
        .with_group_id(group_id("g"))
        .with_topics(None);
    let left = ask!(admin, OffsetFetch, 5, request).topics;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].name, topic_name("others"));

    // An error of the group stands alone, and does not show where no topic is permitted.
    admin.allow("alice", (Delete, group("none")));
    let answer = ask!(alice, OffsetDelete, 0, delete("none", deleted.to_vec()));
    assert_ne!(answer.error_code, 0);
    assert!(answer.topics.is_empty(), "{answer:?}");
    let [_, others] = deleted;
    let answer = ask!(alice, OffsetDelete, 0, delete("none", vec![others]));
    assert_eq!((answer.error_code, answer.topics.len()), (0, 1));
}

/// Every partition had the error of the denied one.
#[test]
fn a_transaction_with_a_denied_topic_gets_no_partition_and_each_its_own_error() {
    let (_node, mut admin, mut alice) = two_clients();
    admin.create_topic("mine", 1);
    admin.create_topic("others", 1);
    admin.allow("alice", (Write, transaction("x")));
    admin.allow("alice", (Write, topic("mine")));
    let id = || TransactionalId(text("x"));
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(id()))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id((-1).into())
        .with_producer_epoch(-1);
    let producer = ask!(alice, InitProducerId, 4, request);
    assert_eq!(producer.error_code, 0);
    let topics = ["mine", "others"].map(|name| {
        AddPartitionsToTxnTopic::default()
            .with_name(topic_name(name))
            .with_partitions(vec![0])
    });
    let of_old = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(id())
        .with_v3_and_below_producer_id(producer.producer_id)
        .with_v3_and_below_producer_epoch(producer.producer_epoch)
        .with_v3_and_below_topics(topics.to_vec());
    let of_old = ask!(alice, AddPartitionsToTxn, 3, of_old).results_by_topic_v3_and_below;
    let asked = AddPartitionsToTxnTransaction::default()
        .with_transactional_id(id())
        .with_producer_id(producer.producer_id)
        .with_producer_epoch(producer.producer_epoch);
    let both = AddPartitionsToTxnRequest::default()
        .with_transactions(vec![asked.clone().with_topics(topics.to_vec())]);
    let both = ask!(alice, AddPartitionsToTxn, 4, both).results_by_transaction;
    let denied = ResponseError::TopicAuthorizationFailed.code();
    let not_attempted = ResponseError::OperationNotAttempted.code();
    for results in [&of_old, &both[0].topic_results] {
        let codes = results.iter().map(|topic| {
            let partition = &topic.results_by_partition[0];
            (topic.name.to_string(), partition.partition_error_code)
        });
        assert_eq!(
            codes.collect::<Vec<_>>(),
            [
                ("mine".to_owned(), not_attempted),
                ("others".to_owned(), denied)
            ]
        );
    }
    // No partition was added.
    let [mine, _] = topics;
    let verify = AddPartitionsToTxnRequest::default()
        .with_transactions(vec![asked.with_verify_only(true).with_topics(vec![mine])]);
    let verified = ask!(alice, AddPartitionsToTxn, 4, verify).results_by_transaction;
    let partition = &verified[0].topic_results[0].results_by_partition[0];
    assert_ne!(partition.partition_error_code, 0);
}

#[test]
fn metadata_requests_do_not_create_topics_without_permission() {
    let (node, mut admin, mut alice) = two_clients();
    admin.allow("alice", (Describe, topic("wanted")));
    let named = MetadataRequestTopic::default().with_name(Some(topic_name("wanted")));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![named]))
        .with_allow_auto_topic_creation(true);
    let denied = ResponseError::TopicAuthorizationFailed.code();
    let metadata = ask!(alice, Metadata, 12, request.clone());
    assert_eq!(metadata.topics[0].error_code, denied);
    assert!(node.log().stream("wanted").is_err());
    admin.allow("alice", (Create, topic("wanted")));
    let metadata = ask!(alice, Metadata, 12, request);
    assert_eq!(metadata.topics[0].error_code, 0);
}

#[test]
fn a_fetch_session_returns_no_partition_after_its_right_is_revoked() {
    let (_node, mut admin, mut alice) = two_clients();
    admin.create_topic("t", 1);
    admin.produce("t", 0, &["one"]);
    admin.allow("alice", (Read, topic("t")));
    let request = fetch_request(&[("t", 0, 0)]).with_session_epoch(0);
    let fetched = ask!(alice, Fetch, 11, request);
    assert_eq!(values(&fetched.topics[0].partitions[0]), ["one"]);
    admin.forbid_all();
    let again = fetch_request(&[])
        .with_max_wait_ms(0)
        .with_session_id(fetched.session_id)
        .with_session_epoch(1);
    let fetched = ask!(alice, Fetch, 11, again.clone());
    let partition = &fetched.topics[0].partitions[0];
    let denied = ResponseError::TopicAuthorizationFailed.code();
    assert_eq!((partition.error_code, partition.records.len()), (denied, 0));
    admin.allow("alice", (Read, topic("t")));
    let fetched = ask!(alice, Fetch, 11, again.with_session_epoch(2));
    assert_eq!(values(&fetched.topics[0].partitions[0]), ["one"]);
}

#[test]
fn rules_survive_a_restart() {
    let (node, mut admin, _) = two_clients();
    admin.create_topic("t", 1);
    admin.allow("alice", (Write, topic("t")));
    let node = Node::on(node.stop(), |_| {}, crate::logins::guard);
    let mut alice = node.connect().log_in(ALICE);
    alice.produce("t", 0, &["x"]);
}

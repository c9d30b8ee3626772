//! Topics: created, grown and deleted, within the bounds of the node.

mod descriptions;
pub mod settings;

use millstream_log::{CLEANUP_POLICY, COMPACT, StreamConfig};
use millstream_wire::messages::create_partitions_request::CreatePartitionsTopic;
use millstream_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use millstream_wire::messages::delete_topics_request::DeleteTopicState;
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest,
};
use millstream_wire::{MetadataResponse, ResponseError};

use crate::support::{Connection, Node, ask, text, topic_name};

/// The type of a topic resource.
const TOPIC: i8 = 2;

fn metadata(client: &mut Connection, version: i16, names: &[&str]) -> MetadataResponse {
    let requested = names
        .iter()
        .map(|name| MetadataRequestTopic::default().with_name(Some(topic_name(name))));
    let request = MetadataRequest::default().with_topics(Some(requested.collect()));
    ask!(client, Metadata, version, request)
}

fn creatable(name: &str, partitions: i32) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(-1)
}

fn create(client: &mut Connection, topic: CreatableTopic) -> i16 {
    let request = CreateTopicsRequest::default().with_topics(vec![topic]);
    ask!(client, CreateTopics, 7, request).topics[0].error_code
}

#[test]
fn a_requested_topic_is_created_if_the_client_allows() {
    let node = Node::with(|config| config.partitions_default = 3);
    let mut client = node.connect();
    let made = metadata(&mut client, 9, &["t", "u"]);
    for topic in &made.topics {
        assert_eq!((topic.error_code, topic.partitions.len()), (0, 3));
    }
    // A client that only looks does not want the topic created.
    let requested = MetadataRequestTopic::default().with_name(Some(topic_name("v")));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![requested]))
        .with_allow_auto_topic_creation(false);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(
        ask!(client, Metadata, 9, request).topics[0].error_code,
        unknown
    );
    let node = Node::with(|config| config.auto_create_topics = false);
    let refused = metadata(&mut node.connect(), 9, &["t"]);
    assert_eq!(refused.topics[0].error_code, unknown);
}

#[test]
fn names_that_no_topic_can_have_are_refused() {
    let node = Node::start();
    let mut client = node.connect();
    let invalid = ResponseError::InvalidTopicException.code();
    let long = "x".repeat(250);
    for name in [
        "",
        ".",
        "..",
        "a b",
        "a/b",
        "ä",
        "__groups",
        "__transaction_state",
        &long,
    ] {
        assert_eq!(
            metadata(&mut client, 9, &[name]).topics[0].error_code,
            invalid,
            "{name}"
        );
        assert_eq!(create(&mut client, creatable(name, 1)), invalid, "{name}");
    }
    let all = MetadataRequest::default().with_topics(None);
    assert_eq!(ask!(client, Metadata, 9, all).topics.len(), 0);
    assert_eq!(create(&mut client, creatable(&long[1..], 1)), 0);
}

#[test]
fn topics_are_created_within_bounds() {
    let node = Node::start();
    let mut client = node.connect();
    let invalid = ResponseError::InvalidPartitions.code();
    for partitions in [0, -2, i32::MIN, 10_001, i32::MAX] {
        assert_eq!(create(&mut client, creatable("t", partitions)), invalid);
    }
    let two = creatable("t", 1).with_replication_factor(2);
    assert_eq!(
        create(&mut client, two),
        ResponseError::InvalidReplicationFactor.code()
    );
    for (name, value) in [("no.such.setting", "1"), ("retention.ms", "soon")] {
        let config = CreatableTopicConfig::default()
            .with_name(text(name))
            .with_value(Some(text(value)));
        let topic = creatable("t", 1).with_configs(vec![config]);
        assert_eq!(
            create(&mut client, topic),
            ResponseError::InvalidConfig.code()
        );
    }
    // The request only validates.
    let request = CreateTopicsRequest::default()
        .with_topics(vec![creatable("t", 1)])
        .with_validate_only(true);
    assert_eq!(
        ask!(client, CreateTopics, 7, request).topics[0].error_code,
        0
    );
    assert_eq!(create(&mut client, creatable("t", -1)), 0);
    let exists = ResponseError::TopicAlreadyExists.code();
    assert_eq!(create(&mut client, creatable("t", 1)), exists);
}

#[test]
fn topics_grow_and_never_shrink() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    let invalid = ResponseError::InvalidPartitions.code();
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    for (name, count, validate_only, error) in [
        ("t", 2, false, invalid),
        ("t", 1, false, invalid),
        ("t", -1, false, invalid),
        ("t", i32::MAX, false, invalid),
        ("u", 2, false, unknown),
        ("__groups", 2, false, unknown),
        ("t", 4, true, 0),
        ("t", 3, false, 0),
    ] {
        let topic = CreatePartitionsTopic::default()
            .with_name(topic_name(name))
            .with_count(count);
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![topic])
            .with_validate_only(validate_only);
        let response = ask!(client, CreatePartitions, 3, request);
        assert_eq!(response.results[0].error_code, error, "{name} {count}");
    }
    assert_eq!(
        metadata(&mut client, 9, &["t"]).topics[0].partitions.len(),
        3
    );
    assert_eq!(client.produce("t", 2, &["value"]), 0);
    assert_eq!(node.log().stream("__groups").unwrap().partition_count(), 1);
}

#[test]
fn a_topic_whose_partitions_come_in_sets_names_the_size_of_a_set() {
    let node = Node::start();
    let mut client = node.connect();
    let config = StreamConfig {
        lanes: 2,
        ..StreamConfig::default()
    };
    node.log().create_stream("t", config).unwrap();
    let topic = CreatePartitionsTopic::default()
        .with_name(topic_name("t"))
        .with_count(5);
    let request = CreatePartitionsRequest::default().with_topics(vec![topic]);
    let result = ask!(client, CreatePartitions, 3, request).results.remove(0);
    let invalid = ResponseError::InvalidPartitions.code();
    assert_eq!(result.error_code, invalid);
    let message = result.error_message.unwrap_or_default();
    assert!(message.contains("a multiple of 2, and not 5"), "{message}");
    assert!(!message.contains("lane"), "{message}");
}

#[test]
fn compacted_topics_get_no_more_partitions() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    let compact = [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())];
    let log = node.log();
    log.alter_stream("t", |config| config.settings.extend(compact))
        .unwrap();
    for validate_only in [true, false] {
        let topic = CreatePartitionsTopic::default()
            .with_name(topic_name("t"))
            .with_count(3);
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![topic])
            .with_validate_only(validate_only);
        let result = ask!(client, CreatePartitions, 3, request).results.remove(0);
        assert_eq!(
            result.error_code,
            ResponseError::InvalidPartitions.code(),
            "{validate_only}"
        );
        let message = result.error_message.unwrap_or_default();
        assert!(
            message.contains("millstream stream copy t NEW"),
            "{message}"
        );
    }
    assert_eq!(log.stream("t").unwrap().partition_count(), 2);
}

#[test]
fn a_topic_is_deleted_by_name_or_id() {
    let node = Node::start();
    let mut client = node.connect();
    let id = |name: &str| node.log().stream(name).unwrap().uuid();
    client.create_topic("t", 1);
    client.create_topic("u", 1);
    client.produce("t", 0, &["old"]);
    let by_name = DeleteTopicState::default().with_name(Some(topic_name("t")));
    let by_id = DeleteTopicState::default().with_topic_id(id("u"));
    let internal = DeleteTopicState::default().with_topic_id(id("__groups"));
    let internal_name = DeleteTopicState::default().with_name(Some(topic_name("__groups")));
    let states = vec![
        by_name.clone(),
        by_name,
        by_id.clone(),
        by_id,
        internal,
        internal_name,
    ];
    let request = DeleteTopicsRequest::default().with_topics(states);
    let response = ask!(client, DeleteTopics, 6, request);
    let errors: Vec<i16> = response
        .responses
        .iter()
        .map(|topic| topic.error_code)
        .collect();
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let unknown_id = ResponseError::UnknownTopicId.code();
    assert_eq!(errors, [0, unknown, 0, unknown_id, unknown_id, unknown]);
    // A new topic of the same name has none of its records, also for a client that used the old
    // one.
    client.create_topic("t", 1);
    assert_eq!(client.produce("t", 0, &["new"]), 0);
    assert!(node.log().stream("__groups").is_ok());
}

/// Each takes memory for as long as it exists: a few requests of some kilobytes used up all memory
/// of the machine.
#[test]
fn partitions_of_the_node_have_a_bound_over_all_topics_and_requests() {
    let bounded = |dir| Node::with_log(dir, |config| config.partitions_max = 100);
    let refused = ResponseError::PolicyViolation.code();
    let node = bounded(tempfile::tempdir().unwrap());
    let mut client = node.connect();
    let ask_for = |client: &mut Connection, names: [&str; 2], validate_only| {
        let topics = names.map(|name| creatable(name, 60));
        let request = CreateTopicsRequest::default()
            .with_topics(topics.to_vec())
            .with_validate_only(validate_only);
        let created = ask!(client, CreateTopics, 7, request).topics;
        let message = created[1].error_message.as_deref().unwrap_or_default();
        assert!(message.contains("partitions_max"), "{message}");
        [created[0].error_code, created[1].error_code]
    };
    assert_eq!(ask_for(&mut client, ["t", "u"], true), [0, refused]);
    assert_eq!(ask_for(&mut client, ["t", "u"], false), [0, refused]);
    let grow = |client: &mut Connection, count, validate_only| {
        let topic = CreatePartitionsTopic::default()
            .with_name(topic_name("t"))
            .with_count(count);
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![topic])
            .with_validate_only(validate_only);
        ask!(client, CreatePartitions, 3, request).results[0].error_code
    };
    for validate_only in [true, false] {
        assert_eq!(grow(&mut client, 101, validate_only), refused);
        assert_eq!(grow(&mut client, 99, validate_only), 0);
    }
    // A topic that is created on request, and an object.
    client.create_topic("v", 1);
    let requested = metadata(&mut client, 9, &["w"]);
    assert_eq!(requested.topics[0].error_code, refused);
    assert!(node.log().put_object("o", &mut &b"x"[..]).is_err());

    let node = bounded(node.stop());
    let mut client = node.connect();
    assert_eq!(ask_for(&mut client, ["w", "x"], false), [refused; 2]);
    node.log().delete_stream("t").unwrap();
    assert_eq!(ask_for(&mut client, ["w", "x"], false), [0, refused]);
    assert_eq!(node.log().stream("w").unwrap().partition_count(), 60);
    drop(client);

    // The rules allow fewer than there are: all of these are served.
    let node = Node::with_log(node.stop(), |config| config.partitions_max = 1);
    assert_eq!(node.connect().produce("w", 59, &["value"]), 0);
}

//! Topics: created, listed, changed and deleted; and the answers about the node.

use millstream_wire::messages::create_partitions_request::CreatePartitionsTopic;
use millstream_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use millstream_wire::messages::delete_topics_request::DeleteTopicState;
use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::describe_log_dirs_request::DescribableLogDirTopic;
use millstream_wire::messages::describe_topic_partitions_request::TopicRequest;
use millstream_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::metadata_response::MetadataResponse;
use millstream_wire::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DescribeClusterRequest,
    DescribeConfigsRequest, DescribeLogDirsRequest, DescribeTopicPartitionsRequest,
    FindCoordinatorRequest, IncrementalAlterConfigsRequest, MetadataRequest,
};
use millstream_wire::{ApiKey, ResponseError};

use crate::support::{Connection, Node, ask, text, topic_name};

/// The type of a topic resource.
const TOPIC: i8 = 2;

fn metadata(client: &mut Connection, version: i16, names: &[&str]) -> MetadataResponse {
    let asked = names
        .iter()
        .map(|name| MetadataRequestTopic::default().with_name(Some(topic_name(name))));
    let request = MetadataRequest::default().with_topics(Some(asked.collect()));
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

/// Sets a setting of a topic, or removes it; returns the error.
fn alter(client: &mut Connection, topic: &str, name: &str, value: Option<&str>) -> i16 {
    let config = AlterableConfig::default()
        .with_name(text(name))
        .with_config_operation(if value.is_some() { 0 } else { 1 })
        .with_value(value.map(text));
    let resource = AlterConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(topic))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    ask!(client, IncrementalAlterConfigs, 1, request).responses[0].error_code
}

/// Returns the value of a setting of a topic.
pub fn setting(client: &mut Connection, topic: &str, name: &str) -> Result<String, i16> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(topic))
        .with_configuration_keys(Some(vec![text(name)]));
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let response = ask!(client, DescribeConfigs, 4, request);
    let result = &response.results[0];
    match result.error_code {
        0 => Ok(result.configs[0].value.as_ref().unwrap().to_string()),
        error => Err(error),
    }
}

#[test]
fn a_topic_that_is_asked_for_is_made_if_that_is_wanted() {
    let node = Node::with(|config| config.partitions_default = 3);
    let mut client = node.connect();
    let made = metadata(&mut client, 9, &["t", "u"]);
    for topic in &made.topics {
        assert_eq!((topic.error_code, topic.partitions.len()), (0, 3));
    }
    // A client that only looks does not want the topic created.
    let asked = MetadataRequestTopic::default().with_name(Some(topic_name("v")));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![asked]))
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

/// Java's administrators do this: they send an empty name beside the id.
#[test]
fn topics_are_found_by_id_whatever_name_stands_beside_it() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let id = metadata(&mut client, 13, &["t"]).topics[0].topic_id;
    for name in [None, Some(topic_name(""))] {
        let asked = MetadataRequestTopic::default()
            .with_name(name)
            .with_topic_id(id);
        let request = MetadataRequest::default().with_topics(Some(vec![asked]));
        let found = ask!(client, Metadata, 13, request).topics[0].clone();
        assert_eq!(found.name, Some(topic_name("t")));
        assert_eq!(found.error_code, 0);
    }
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
fn every_version_of_metadata_is_answered() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    for version in ApiKey::Metadata.versions() {
        let response = metadata(&mut client, version, &["t", "a b"]);
        assert_eq!(response.brokers[0].port, i32::from(node.address().port()));
        assert_eq!(response.topics[0].partitions.len(), 2, "version {version}");
        let invalid = ResponseError::InvalidTopicException.code();
        assert_eq!(response.topics[1].error_code, invalid);
        let none = metadata(&mut client, version, &[]).topics.len();
        assert_eq!(none, usize::from(version == 0), "version {version}");
    }
}

#[test]
fn a_topic_is_told_once_however_often_it_is_named() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 10);
    // An answer for each repetition would be a thousand times the size of the request.
    let names = vec!["t"; 50_000];
    assert_eq!(metadata(&mut client, 9, &names).topics.len(), 1);
    let resource = DescribeConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text("t"))
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default().with_resources(vec![resource; 50_000]);
    assert_eq!(ask!(client, DescribeConfigs, 4, request).results.len(), 1);
    let topic = DescribableLogDirTopic::default()
        .with_topic(topic_name("t"))
        .with_partitions(vec![1, 1]);
    let request = DescribeLogDirsRequest::default().with_topics(Some(vec![topic; 50_000]));
    let response = ask!(client, DescribeLogDirs, 4, request);
    assert_eq!(response.results[0].topics.len(), 1);
    assert_eq!(response.results[0].topics[0].partitions.len(), 1);
    let topic = TopicRequest::default().with_name(topic_name("t"));
    let request = DescribeTopicPartitionsRequest::default()
        .with_topics(vec![topic; 50_000])
        .with_response_partition_limit(i32::MAX);
    assert_eq!(
        ask!(client, DescribeTopicPartitions, 0, request)
            .topics
            .len(),
        1
    );
}

#[test]
fn topics_are_described_page_by_page() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("a", 3);
    client.create_topic("b", 2);
    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let mut request =
            DescribeTopicPartitionsRequest::default().with_response_partition_limit(2);
        request.cursor = cursor.take();
        let page = ask!(client, DescribeTopicPartitions, 0, request);
        for topic in page.topics {
            let name = topic.name.unwrap().to_string();
            // Java's client fails where these lists are null.
            assert!(topic.partitions.iter().all(|partition| {
                partition.eligible_leader_replicas.is_some() && partition.last_known_elr.is_some()
            }));
            seen.extend(
                topic
                    .partitions
                    .iter()
                    .map(|partition| format!("{name}{}", partition.partition_index)),
            );
        }
        let Some(next) = page.next_cursor else {
            break;
        };
        cursor = Some(
            millstream_wire::messages::describe_topic_partitions_request::Cursor::default()
                .with_topic_name(next.topic_name)
                .with_partition_index(next.partition_index),
        );
    }
    assert_eq!(seen, ["a0", "a1", "a2", "b0", "b1"]);
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

#[test]
fn settings_are_changed_one_by_one() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let retention = "retention.ms";
    assert_eq!(setting(&mut client, "t", retention).unwrap(), "-1");
    assert_eq!(alter(&mut client, "t", retention, Some("5000")), 0);
    assert_eq!(
        alter(&mut client, "t", "retention.bytes", Some("100000")),
        0
    );
    assert_eq!(setting(&mut client, "t", retention).unwrap(), "5000");
    assert_eq!(
        node.log().stream("t").unwrap().config().retention_ms,
        Some(5000)
    );
    assert_eq!(alter(&mut client, "t", retention, None), 0);
    assert_eq!(setting(&mut client, "t", retention).unwrap(), "-1");
    assert_eq!(
        setting(&mut client, "t", "retention.bytes").unwrap(),
        "100000"
    );
    let invalid = ResponseError::InvalidConfig.code();
    for (name, value) in [
        (retention, "x"),
        (retention, "-2"),
        ("segment.bytes", "0"),
        ("cleanup.policy", "compact"),
        ("no.such.setting", "1"),
    ] {
        assert_eq!(
            alter(&mut client, "t", name, Some(value)),
            invalid,
            "{name}={value}"
        );
    }
    for value in [i64::MAX.to_string(), "14".to_owned()] {
        let code = alter(&mut client, "t", "segment.bytes", Some(&value));
        assert!([0, invalid].contains(&code), "{value}: {code}");
    }
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    for name in ["u", "__groups"] {
        assert_eq!(alter(&mut client, name, retention, Some("1")), unknown);
        assert_eq!(setting(&mut client, name, retention), Err(unknown));
    }
}

#[test]
fn the_smallest_chunk_size_is_kept_to() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    assert_eq!(
        alter(&mut client, "t", "max.message.bytes", Some("1000")),
        0
    );
    client.produce("t", 0, &["small"]);
    let large = "x".repeat(1000);
    let records = crate::support::chunk(&[&large]);
    let request = crate::support::produce_request("t", 0, records);
    let refused = ask!(client, Produce, 9, request);
    let error_code = refused.responses[0].partition_responses[0].error_code;
    assert_eq!(error_code, ResponseError::MessageTooLarge.code());
}

#[test]
fn what_partitions_hold_is_told() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    client.produce("t", 1, &["value"]);
    for version in ApiKey::DescribeLogDirs.versions() {
        let all = DescribeLogDirsRequest::default().with_topics(None);
        let response = ask!(client, DescribeLogDirs, version, all);
        let topics = &response.results[0].topics;
        assert_eq!(topics.len(), 1);
        let sizes = topics[0]
            .partitions
            .iter()
            .map(|partition| partition.partition_size);
        let sizes: Vec<i64> = sizes.collect();
        let bytes = crate::support::chunk(&["value"]).len() as i64;
        assert_eq!(sizes, [0, bytes], "version {version}");
    }
    let internal = DescribableLogDirTopic::default()
        .with_topic(topic_name("__groups"))
        .with_partitions(vec![0]);
    let request = DescribeLogDirsRequest::default().with_topics(Some(vec![internal]));
    let response = ask!(client, DescribeLogDirs, 4, request);
    assert_eq!(response.results[0].topics.len(), 0);
}

#[test]
fn this_broker_coordinates_groups_and_transactions_and_nothing_else() {
    let node = Node::start();
    let mut client = node.connect();
    let port = i32::from(node.address().port());
    for version in ApiKey::FindCoordinator.versions() {
        for key_type in [0, 1, 2, -1] {
            if version == 0 && key_type != 0 {
                continue;
            }
            let request = FindCoordinatorRequest::default().with_key_type(key_type);
            let request = match version {
                0..=3 => request.with_key(text("g")),
                _ => request.with_coordinator_keys(vec![text("g"), text("h")]),
            };
            let response = ask!(client, FindCoordinator, version, request);
            let (error_code, found) = match response.coordinators.first() {
                Some(first) => (first.error_code, first.port),
                None => (response.error_code, response.port),
            };
            let is_known = [0, 1].contains(&key_type);
            assert_eq!(error_code == 0, is_known, "{key_type} in version {version}");
            assert_eq!(found == port, is_known);
        }
    }
    let response = ask!(
        client,
        DescribeCluster,
        0,
        DescribeClusterRequest::default()
    );
    assert_eq!(response.brokers[0].port, port);
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
    let asked = metadata(&mut client, 9, &["w"]);
    assert_eq!(asked.topics[0].error_code, refused);
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

#[test]
fn a_new_topic_that_asks_for_compaction_keeps_every_record() {
    let node = Node::start();
    let mut client = node.connect();
    let mut create = |name: &str, policy: &'static str| {
        let configs = [("cleanup.policy", policy), ("retention.ms", "5000")];
        let configs = configs.map(|(name, value)| {
            let config = CreatableTopicConfig::default().with_name(text(name));
            config.with_value(Some(text(value)))
        });
        let topic = creatable(name, 1).with_configs(configs.to_vec());
        let request = CreateTopicsRequest::default().with_topics(vec![topic]);
        let mut created = ask!(client, CreateTopics, 5, request);
        let topic = created.topics.remove(0);
        let mut told = topic.configs.unwrap_or_default();
        told.retain(|config| configs_told(&config.name));
        told.sort_by(|one, other| one.name.cmp(&other.name));
        let told = told
            .into_iter()
            .map(|config| config.value.unwrap().to_string());
        (topic.error_code, told.collect::<Vec<String>>())
    };
    let told = |values: [&str; 2]| (0, values.map(str::to_owned).to_vec());
    assert_eq!(create("a", "compact"), told(["delete", "-1"]));
    assert_eq!(create("b", "compact,delete"), told(["delete", "5000"]));
    let invalid = ResponseError::InvalidConfig.code();
    assert_eq!(create("c", "compact,other").0, invalid);
    let retention = |name| node.log().stream(name).unwrap().config().retention_ms;
    assert_eq!((retention("a"), retention("b")), (None, Some(5000)));
}

fn configs_told(name: &str) -> bool {
    ["cleanup.policy", "retention.ms"].contains(&name)
}

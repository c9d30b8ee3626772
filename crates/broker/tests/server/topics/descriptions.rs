//! Descriptions of topics, of their partitions and of the node.

use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::describe_log_dirs_request::DescribableLogDirTopic;
use millstream_wire::messages::describe_topic_partitions_request::TopicRequest;
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::{
    DescribeClusterRequest, DescribeConfigsRequest, DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest, FindCoordinatorRequest, MetadataRequest,
};
use millstream_wire::{ApiKey, ResponseError};

use super::{TOPIC, metadata};
use crate::support::{Node, ask, text, topic_name};

/// Java's administrators do this: they send an empty name beside the id.
#[test]
fn topics_are_found_by_id_beside_an_empty_name() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let id = metadata(&mut client, 13, &["t"]).topics[0].topic_id;
    for name in [None, Some(topic_name(""))] {
        let requested = MetadataRequestTopic::default()
            .with_name(name)
            .with_topic_id(id);
        let request = MetadataRequest::default().with_topics(Some(vec![requested]));
        let found = ask!(client, Metadata, 13, request).topics[0].clone();
        assert_eq!(found.name, Some(topic_name("t")));
        assert_eq!(found.error_code, 0);
    }
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
fn a_topic_is_described_once_for_repeated_names() {
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
fn log_dirs_report_partition_sizes() {
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
        assert!(!response.results[0].is_cordoned);
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

//! Requests of one connection come into effect, and are answered, in their order.

use std::thread;
use std::time::Duration;

use millstream_wire::messages::create_topics_request::CreatableTopic;
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::{
    ApiVersionsRequest, CreateTopicsRequest, HeartbeatRequest, MetadataRequest,
};
use millstream_wire::{ApiKey, Response};

use crate::support::{Node, chunk, fetch_request, produce_request, topic_name, values};

#[test]
fn requests_that_are_sent_together_are_answered_in_their_order() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let mut sent = Vec::new();
    // More requests than the broker works on at once.
    for number in 0..100 {
        let id = match number % 3 {
            0 => client.send(9, produce_request("t", 0, chunk(&[&number.to_string()]))),
            1 => client.send(3, ApiVersionsRequest::default()),
            _ => client.send(4, HeartbeatRequest::default()),
        };
        sent.push((id, number));
    }
    let mut offset = 0;
    for (id, number) in sent {
        let (answered, response) = match number % 3 {
            0 => client.receive(ApiKey::Produce, 9),
            1 => client.receive(ApiKey::ApiVersions, 3),
            _ => client.receive(ApiKey::Heartbeat, 4),
        };
        assert_eq!(answered, id);
        if let Response::Produce(produced) = response {
            let produced = &produced.responses[0].partition_responses[0];
            assert_eq!((produced.error_code, produced.base_offset), (0, offset));
            offset += 1;
        }
    }
    assert_eq!(offset, 34);
}

#[test]
fn a_topic_exists_for_the_request_behind_the_one_that_creates_it() {
    let node = Node::with(|config| config.auto_create_topics = false);
    let mut client = node.connect();
    for round in 0..5 {
        let name = format!("t{round}");
        let topic = CreatableTopic::default()
            .with_name(topic_name(&name))
            .with_num_partitions(1)
            .with_replication_factor(1);
        let requested = MetadataRequestTopic::default().with_name(Some(topic_name(&name)));
        client.send(7, CreateTopicsRequest::default().with_topics(vec![topic]));
        client.send(
            9,
            MetadataRequest::default().with_topics(Some(vec![requested])),
        );
        client.send(9, produce_request(&name, 0, chunk(&["value"])));
        client.receive(ApiKey::CreateTopics, 7);
        let Response::Metadata(metadata) = client.receive(ApiKey::Metadata, 9).1 else {
            panic!("it is an answer to that");
        };
        assert_eq!(metadata.topics[0].error_code, 0);
        let Response::Produce(produced) = client.receive(ApiKey::Produce, 9).1 else {
            panic!("it is an answer to that");
        };
        let produced = &produced.responses[0].partition_responses[0];
        assert_eq!((produced.error_code, produced.base_offset), (0, 0));
    }
}

#[test]
fn a_request_after_a_waiting_fetch_is_executed_before_the_fetch_is_answered() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let fetch = client.send(11, fetch_request(&[("t", 0, 0)]));
    thread::sleep(Duration::from_millis(50));
    let produce = client.send(9, produce_request("t", 0, chunk(&["value"])));
    let (answered, response) = client.receive(ApiKey::Fetch, 11);
    assert_eq!(answered, fetch);
    let Response::Fetch(fetched) = response else {
        panic!("it is an answer to that");
    };
    assert_eq!(values(&fetched.topics[0].partitions[0]), ["value"]);
    assert_eq!(client.receive(ApiKey::Produce, 9).0, produce);
}

#[test]
fn a_client_that_shut_down_its_sending_side_is_answered() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let id = client.send(9, produce_request("t", 0, chunk(&["value"])));
    client.finish();
    assert_eq!(client.receive(ApiKey::Produce, 9).0, id);
    assert_eq!(client.receive_frame(), None);
}

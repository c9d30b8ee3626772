//! The memory of answers: bounded for all clients together, whether they read or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use millstream_wire::messages::{
    ApiVersionsRequest, DescribeAclsRequest, DescribeClientQuotasRequest, DescribeConfigsRequest,
    DescribeGroupsRequest, DescribeLogDirsRequest, DescribeTopicPartitionsRequest,
    DescribeTransactionsRequest, DescribeUserScramCredentialsRequest, ElectLeadersRequest, GroupId,
    ListConfigResourcesRequest, ListGroupsRequest, ListTransactionsRequest, MetadataRequest,
    OffsetFetchRequest, TransactionalId,
};
use millstream_wire::native::{DescribeStreamRequest, ListStreamsRequest};
use millstream_wire::{ApiKey, Request, Response};

use crate::support::{
    Connection, Node, TIME_MAX, ask, chunk, fetch_request, produce_request, resident_bytes,
    topic_name, wait_until,
};

/// The partitions of the topic `wide`, whose description has about 260 kB.
const WIDE: i32 = 10_000;

fn wide() -> MetadataRequest {
    let topic = MetadataRequestTopic::default().with_name(Some(topic_name("wide")));
    MetadataRequest::default().with_topics(Some(vec![topic]))
}

/// Starts a server alone with a topic of many partitions.
fn node_with_budget(bytes: usize) -> Node {
    let node = Node::alone(|config| config.answers_bytes_max = bytes);
    node.connect().create_topic("wide", WIDE);
    node.connect().create_topic("t", 1);
    node
}

fn answers_bytes(node: &Node) -> u64 {
    node.broker().status().answers_bytes
}

#[test]
fn answers_that_clients_do_not_read_stay_within_their_budget() {
    const BUDGET: usize = 8 << 20;
    const GREEDY: usize = 16;
    let node = node_with_budget(BUDGET);
    let mut client = node.connect();
    client.ask(9, wide());
    let before = resident_bytes();
    let is_over = Arc::new(AtomicBool::new(false));
    let most = Arc::new(AtomicU64::new(0));
    let watcher = thread::spawn({
        let (broker, is_over, most) = (
            Arc::clone(node.broker()),
            Arc::clone(&is_over),
            Arc::clone(&most),
        );
        move || {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(broker.status().answers_bytes, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    // More than a quarter of a gigabyte of answers, if they were all made.
    let mut greedy: Vec<Connection> = (0..GREEDY).map(|_| node.connect()).collect();
    for client in &mut greedy {
        for _ in 0..64 {
            client.send(9, wide());
        }
    }
    // Others are served: small answers at once, large ones when clients that do not read are gone.
    let started_at = Instant::now();
    for number in 0..100 {
        assert_eq!(client.produce("t", 0, &["value"]), number);
        assert_eq!(client.fetch("t", 0, number).high_watermark, number + 1);
    }
    assert!(started_at.elapsed() < Duration::from_secs(10));
    client.ask(9, wide());
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    drop(greedy);
    wait_until("the memory is free", || answers_bytes(&node) == 0);
    is_over.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
    let most = most.load(Ordering::Relaxed);
    assert!(most > 0 && most <= BUDGET as u64, "{most} bytes");
    let kept = resident_bytes().saturating_sub(before);
    assert!(kept < 48 << 20, "{kept} bytes more");
}

#[test]
fn slow_clients_get_all_answers_in_order() {
    // One large answer at a time.
    let node = node_with_budget(1 << 20);
    let slow: Vec<_> = (0..3)
        .map(|_| {
            let address = node.address();
            thread::spawn(move || {
                let mut client = Connection::to(address);
                let mut expected = Vec::new();
                for _ in 0..20 {
                    expected.push((client.send(9, wide()), ApiKey::Metadata, 9));
                    let produce = produce_request("t", 0, chunk(&["value"]));
                    expected.push((client.send(9, produce), ApiKey::Produce, 9));
                    let fetch = fetch_request(&[("t", 0, 0)]);
                    expected.push((client.send(11, fetch), ApiKey::Fetch, 11));
                    let list = ListGroupsRequest::default();
                    expected.push((client.send(3, list), ApiKey::ListGroups, 3));
                }
                for (number, (id, api, version)) in expected.into_iter().enumerate() {
                    if number % 8 == 0 {
                        // Slower than the broker.
                        thread::sleep(Duration::from_millis(20));
                    }
                    let (answered, response) = client.receive(api, version);
                    assert_eq!(answered, id);
                    if let Response::Metadata(response) = response {
                        assert_eq!(response.topics[0].partitions.len(), WIDE as usize);
                    }
                }
            })
        })
        .collect();
    for client in slow {
        client.join().unwrap();
    }
    wait_until("the memory is free", || answers_bytes(&node) == 0);
}

#[test]
fn clients_that_do_not_read_are_disconnected_when_others_need_the_memory() {
    let node = node_with_budget(1 << 20);
    let mut greedy = node.connect();
    for _ in 0..64 {
        greedy.send(9, wide());
    }
    let mut last = (0, Instant::now());
    wait_until("an answer is not read", || {
        let requests = node.broker().status().requests;
        let described = requests.iter().find(|it| it.api == ApiKey::Metadata);
        let count = described.map_or(0, |it| it.count);
        if count != last.0 {
            last = (count, Instant::now());
        }
        last.1.elapsed() > Duration::from_secs(1) && answers_bytes(&node) > 200_000
    });
    let started_at = Instant::now();
    let mut client = node.connect();
    client.ask(9, wide());
    // Much sooner than without another client that needs the memory.
    assert!(started_at.elapsed() < Duration::from_secs(20));
    let mut bytes = 0;
    while let Some(read) = greedy.receive_some() {
        bytes += read;
    }
    assert!(bytes < 16_000_000, "{bytes} bytes");
}

#[test]
fn a_client_that_never_reads_descriptions_is_disconnected() {
    let node = Node::alone(|config| config.write_stall_max = Duration::from_millis(500));
    node.connect().create_topic("wide", WIDE);
    let mut greedy = node.connect();
    for _ in 0..64 {
        greedy.send(9, wide());
    }
    wait_until("it is closed", || {
        let status = node.broker().status();
        status.answers_bytes == 0 && status.connections_failed == 1
    });
}

#[test]
fn answers_queued_behind_a_wait_free_memory_that_others_need() {
    let node = Node::alone(|config| config.answers_bytes_max = 64 << 10);
    let mut client = node.connect();
    client.create_topic("t", 1);
    let mut greedy = node.connect();
    let mut fetch = fetch_request(&[("t", 0, 0)]);
    fetch.max_wait_ms = i32::MAX;
    fetch.min_bytes = 1;
    greedy.send(11, fetch);
    for _ in 0..32 {
        greedy.send(3, ApiVersionsRequest::default());
    }
    let started_at = Instant::now();
    for _ in 0..10 {
        client.ask(3, ApiVersionsRequest::default());
    }
    assert!(started_at.elapsed() < TIME_MAX / 2);
}

/// Requests of all kinds whose answers may be large, in a version each.
fn large_kinds() -> Vec<(i16, Request)> {
    let group = || GroupId("g".into());
    let all_of = OffsetFetchRequestGroup::default()
        .with_group_id(group())
        .with_topics(None);
    vec![
        (9, wide().into()),
        (9, MetadataRequest::default().with_topics(None).into()),
        (
            0,
            DescribeTopicPartitionsRequest::default()
                .with_response_partition_limit(2000)
                .into(),
        ),
        (4, DescribeConfigsRequest::default().into()),
        (1, ListConfigResourcesRequest::default().into()),
        (
            4,
            DescribeLogDirsRequest::default().with_topics(None).into(),
        ),
        (
            5,
            DescribeGroupsRequest::default()
                .with_groups(vec![group()])
                .into(),
        ),
        (4, ListGroupsRequest::default().into()),
        (
            8,
            OffsetFetchRequest::default()
                .with_groups(vec![all_of])
                .into(),
        ),
        (3, acls().into()),
        (1, DescribeClientQuotasRequest::default().into()),
        (
            0,
            DescribeUserScramCredentialsRequest::default()
                .with_users(None)
                .into(),
        ),
        (1, ListTransactionsRequest::default().into()),
        (
            2,
            ElectLeadersRequest::default()
                .with_topic_partitions(None)
                .into(),
        ),
        (9, produce_request("t", 0, chunk(&["value"])).into()),
        (11, fetch_request(&[("t", 0, 0)]).into()),
        (0, describe_wide().into()),
        (0, list_streams().into()),
    ]
}

fn acls() -> DescribeAclsRequest {
    // Any resource, pattern, operation and permission.
    DescribeAclsRequest::default()
        .with_resource_type_filter(1)
        .with_resource_name_filter(None)
        .with_pattern_type_filter(1)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1)
}

fn describe_wide() -> DescribeStreamRequest {
    DescribeStreamRequest {
        name: Some("wide".into()),
        stream: millstream_base::StreamId(0),
        with_lanes: true,
    }
}

fn list_streams() -> ListStreamsRequest {
    ListStreamsRequest {
        prefix: "".into(),
        after: None,
        streams_max: u32::MAX,
    }
}

#[test]
fn a_budget_that_is_smaller_than_every_answer_serves_one_at_a_time() {
    let node = node_with_budget(1);
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let address = node.address();
            thread::spawn(move || {
                let mut client = Connection::to(address);
                for _ in 0..3 {
                    let kinds = large_kinds();
                    let sent: Vec<_> = kinds
                        .into_iter()
                        .map(|(version, request)| {
                            let api = request.api();
                            (client.send(version, request), api, version)
                        })
                        .collect();
                    for (id, api, version) in sent {
                        assert_eq!(client.receive(api, version).0, id, "{api:?}");
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    wait_until("the memory is free", || answers_bytes(&node) == 0);
}

#[test]
fn repeated_names_do_not_multiply_an_answer() {
    let node = Node::start();
    let mut client = node.connect();
    let partitions = vec![0; 1000];
    let topic = OffsetFetchRequestTopics::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(partitions.clone());
    let group = OffsetFetchRequestGroup::default()
        .with_group_id(GroupId("g".into()))
        .with_topics(Some(vec![topic.clone(), topic]));
    let request = OffsetFetchRequest::default().with_groups(vec![group]);
    let fetched = ask!(client, OffsetFetch, 8, request);
    let counts = fetched.groups[0].topics.iter();
    let counts: Vec<usize> = counts.map(|topic| topic.partitions.len()).collect();
    assert_eq!(counts, [1, 0]);
    let topic = OffsetFetchRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(partitions);
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId("g".into()))
        .with_topics(Some(vec![topic]));
    let fetched = ask!(client, OffsetFetch, 7, request);
    assert_eq!(fetched.topics[0].partitions.len(), 1);
    let ids = vec![TransactionalId("id".into()); 1000];
    let request = DescribeTransactionsRequest::default().with_transactional_ids(ids);
    let described = ask!(client, DescribeTransactions, 0, request);
    assert_eq!(described.transaction_states.len(), 1);
}

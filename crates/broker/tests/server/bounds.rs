//! Many connections, and greedy ones: memory is bounded, and others are served.

use std::thread;
use std::time::{Duration, Instant};

use millstream_wire::ResponseError;
use millstream_wire::messages::MetadataRequest;
use millstream_wire::native::UnsubscribeRequest;

use crate::push::{error, lanes, subscribe_request};
use crate::support::{Connection, Node, ask, fetch_request, resident_bytes, wait_until};

#[test]
fn silent_connections_cost_little_and_others_are_served() {
    const SILENT: usize = 2_000;
    let node = Node::alone(|_| {});
    let mut client = node.connect();
    client.create_topic("t", 1);
    let before = resident_bytes();
    let silent: Vec<Connection> = (0..SILENT).map(|_| node.connect()).collect();
    let started_at = Instant::now();
    for number in 0..100 {
        assert_eq!(client.produce("t", 0, &["value"]), number);
    }
    assert!(started_at.elapsed() < Duration::from_secs(30));
    let grown = resident_bytes().saturating_sub(before);
    // Memory for the clients' sides, tasks and buffers; other tests of this process use some, too.
    assert!(grown < 200 << 20, "{grown} bytes more");
    drop(silent);
}

/// Clients that do not read their answers must not use up the memory of others: neither that for
/// reading from disk nor that for appends.
#[test]
fn clients_that_never_read_do_not_delay_others() {
    const GREEDY: i32 = 64;
    let node = Node::alone(|_| {});
    let mut client = node.connect();
    client.create_topic("t", GREEDY);
    let large = "x".repeat(1 << 20);
    // Writes twice the size of the memory.
    for _ in 0..2 {
        for partition in 0..GREEDY {
            client.produce("t", partition, &[&large]);
        }
    }
    let greedy: Vec<Connection> = (0..GREEDY)
        .map(|partition| {
            let mut greedy = node.connect();
            for _ in 0..8 {
                greedy.send(11, fetch_request(&[("t", partition, 0)]));
            }
            greedy
        })
        .collect();
    // After this time the broker knows the clients that do not read.
    thread::sleep(Duration::from_secs(3));
    let started_at = Instant::now();
    for partition in 0..GREEDY {
        // The answer may be empty when memory is short; a client asks again.
        while client.fetch("t", partition, 0).records.is_empty() {
            assert!(
                started_at.elapsed() < Duration::from_secs(15),
                "{partition}"
            );
        }
        client.produce("t", partition, &[&large]);
    }
    assert!(started_at.elapsed() < Duration::from_secs(20));
    drop(greedy);
}

#[test]
fn a_client_that_never_reads_holds_bounded_memory_and_is_disconnected() {
    let node = Node::alone(|config| config.write_stall_max = Duration::from_millis(500));
    let mut client = node.connect();
    client.create_topic("t", 1);
    let large = "x".repeat(1 << 20);
    for _ in 0..8 {
        client.produce("t", 0, &[&large]);
    }
    let before = resident_bytes();
    let mut greedy = node.connect();
    let mut request = fetch_request(&[("t", 0, 0)]);
    request.topics[0].partitions[0].partition_max_bytes = i32::MAX;
    let fetch = greedy.frame(11, request);
    let metadata = greedy.frame(9, MetadataRequest::default());
    // Half a gigabyte of answers, if they were all made.
    for _ in 0..64 {
        if !greedy.try_send(&fetch) || !greedy.try_send(&metadata) {
            break;
        }
    }
    for number in 8..108 {
        assert_eq!(client.produce("t", 0, &["value"]), number);
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 200 << 20, "{grown} bytes more");
    wait_until("it is disconnected", || {
        node.broker().status().connections_failed == 1
    });
    // The bytes in the sockets may still be read.
    let mut bytes = 0;
    while let Some(read) = greedy.receive_some() {
        bytes += read;
    }
    assert!(bytes < 64 << 20, "{bytes} bytes");
}

/// Each of the 64 subscriptions of a connection could have as many.
#[test]
fn the_subscriptions_of_a_connection_have_65_536_partitions_together() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 4096);
    let many: Vec<(u32, u64)> = (0..4096).map(|partition| (partition, 0)).collect();
    let subscriptions: Vec<u32> = (0..16).map(|_| client.subscribe(lanes(&many))).collect();
    let request = subscribe_request(vec![lanes(&[(0, 0)])]);
    let refused = ask!(client, Subscribe, 0, request);
    assert_eq!(
        error(refused.error_code),
        Some(ResponseError::ThrottlingQuotaExceeded)
    );
    let why = refused.error_message.unwrap();
    assert!(why.contains("at most 65536 partitions"), "{why}");

    node.connect().subscribe(lanes(&many));
    let subscription = subscriptions[0];
    let ended = ask!(client, Unsubscribe, 0, UnsubscribeRequest { subscription });
    assert_eq!(ended.error_code, 0);
    client.subscribe(lanes(&many));
}

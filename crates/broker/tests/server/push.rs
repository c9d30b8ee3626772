//! Subscriptions over the network: each request for more is the credit for one answer.

mod rights;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{ByteSize, Offset, Timestamp};
use millstream_record::{ChunkBuilder, Chunks, Compression, Decompressor};
use millstream_wire::native::*;
use millstream_wire::{ApiKey, Response, ResponseError};

use crate::support::{Connection, Node, ask, produce_request, resident_bytes, text};

/// Returns a source that reads partitions of stream `t` from offsets on.
pub fn lanes(places: &[(u32, u64)]) -> SubscribedSource {
    let lanes = places.iter().map(|(partition, offset)| SubscribedLane {
        stream: "t".into(),
        partition: *partition,
        offset: Offset(*offset),
    });
    SubscribedSource {
        lanes: lanes.collect(),
        shared_group: None,
    }
}

pub fn of_shared_group(name: &str, consumer: &str) -> SubscribedSource {
    SubscribedSource {
        lanes: Vec::new(),
        shared_group: Some(SubscribedSharedGroup {
            stream: "t".into(),
            name: text(name),
            consumer: text(consumer),
        }),
    }
}

pub fn subscribe_request(sources: Vec<SubscribedSource>) -> SubscribeRequest {
    SubscribeRequest {
        sources,
        filter: None,
        bytes_max: 1 << 20,
        ahead_bytes: ByteSize(16 << 20),
        layout: 0,
    }
}

pub fn receive_request(subscription: u32) -> ReceiveRequest {
    ReceiveRequest {
        subscription,
        source: 0,
        bytes_max: 1 << 20,
    }
}

/// Returns place and value of the records in whole chunks.
pub fn values_of(place: u32, from: u64, bytes: &[u8]) -> Vec<(u32, String)> {
    let mut values = Vec::new();
    let mut decompressor = Decompressor::default();
    for chunk in Chunks::new(bytes) {
        for record in chunk.unwrap().records(&mut decompressor).unwrap() {
            let record = record.unwrap();
            if record.offset.0 >= from {
                let value = String::from_utf8(record.value.unwrap().to_vec()).unwrap();
                values.push((place, value));
            }
        }
    }
    values
}

pub fn error(code: i16) -> Option<ResponseError> {
    ResponseError::try_from_code(code)
}

impl Connection {
    pub fn subscribe(&mut self, source: SubscribedSource) -> u32 {
        let answer = ask!(self, Subscribe, 0, subscribe_request(vec![source]));
        assert_eq!((answer.error_code, answer.error_message), (0, None));
        answer.subscription
    }

    /// Receives the answer to the pending request.
    fn received(&mut self) -> ReceiveResponse {
        match self.receive(ApiKey::Receive, 0) {
            (_, Response::Receive(response)) => response,
            other => panic!("no answer to that: {other:?}"),
        }
    }

    fn received_values(&mut self) -> Vec<(u32, String)> {
        let response = self.received();
        assert_eq!(response.error_code, 0, "{response:?}");
        let delivered = response.delivered.iter();
        let values = delivered.flat_map(|delivered| {
            assert_eq!(delivered.error_code, 0, "{delivered:?}");
            let bytes: Vec<u8> = delivered.chunks.0.concat();
            values_of(delivered.lane, delivered.from.0, &bytes)
        });
        values.collect()
    }
}

fn value(place: u32, value: &str) -> (u32, String) {
    (place, value.to_owned())
}

#[test]
fn durable_records_are_pushed_to_waiting_receives() {
    let node = Node::start();
    let mut producer = node.connect();
    producer.create_topic("t", 2);
    producer.produce("t", 1, &["old", "a"]);
    let mut client = node.connect();
    let subscription = client.subscribe(lanes(&[(1, 1), (0, 0)]));
    for _ in 0..3 {
        client.send(0, receive_request(subscription));
    }
    assert_eq!(client.received_values(), [value(0, "a")]);
    producer.produce("t", 0, &["b"]);
    assert_eq!(client.received_values(), [value(1, "b")]);
    producer.produce("t", 1, &["c", "d"]);
    assert_eq!(client.received_values(), [value(0, "c"), value(0, "d")]);

    // Without credit the broker sends nothing, and loses nothing.
    producer.produce("t", 0, &["e"]);
    producer.produce("t", 0, &["f"]);
    client.send(0, receive_request(subscription));
    assert_eq!(client.received_values(), [value(1, "e"), value(1, "f")]);
}

#[test]
fn unsubscribing_answers_waiting_receives() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let subscription = client.subscribe(lanes(&[(0, 0)]));
    client.send(0, receive_request(subscription));
    client.send(0, receive_request(subscription));
    client.send(0, UnsubscribeRequest { subscription });
    for _ in 0..2 {
        let response = client.received();
        assert_eq!(
            error(response.error_code),
            Some(ResponseError::ResourceNotFound)
        );
    }
    assert!(matches!(
        client.receive(ApiKey::Unsubscribe, 0).1,
        Response::Unsubscribe(UnsubscribeResponse { error_code: 0, .. })
    ));
    let again = ask!(client, Receive, 0, receive_request(subscription));
    assert_eq!(
        error(again.error_code),
        Some(ResponseError::ResourceNotFound)
    );
}

#[test]
fn a_deleted_stream_is_reported() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let subscription = client.subscribe(lanes(&[(0, 0)]));
    client.send(0, receive_request(subscription));
    node.log().delete_stream("t").unwrap();
    let response = client.received();
    let delivered = &response.delivered[0];
    assert_eq!(
        error(delivered.error_code),
        Some(ResponseError::UnknownTopicOrPartition)
    );
    assert!(delivered.error_message.as_ref().unwrap().contains('t'));
}

/// The other consumer held no part of the stream, and waited for ever.
#[test]
fn a_deleted_stream_is_reported_to_all_consumers_of_a_shared_group() {
    let node = Node::start();
    let mut holder = node.connect();
    holder.create_topic("t", 1);
    holder.produce("t", 0, &["a"]);
    let mut other = node.connect();
    let (first, second) = (
        holder.subscribe(of_shared_group("words", "one")),
        other.subscribe(of_shared_group("words", "two")),
    );
    holder.send(0, receive_request(first));
    assert_eq!(holder.received_values(), [value(0, "a")]);
    holder.send(0, receive_request(first));
    other.send(0, receive_request(second));
    node.log().delete_stream("t").unwrap();
    for client in [&mut holder, &mut other] {
        let response = client.received();
        assert_eq!(
            error(response.delivered[0].error_code),
            Some(ResponseError::UnknownTopicOrPartition)
        );
    }
}

#[test]
fn a_removed_offset_is_reported_with_the_earliest() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    client.produce("t", 0, &["a", "b", "c"]);
    client.produce("t", 1, &["d"]);
    let partition = node.log().stream("t").unwrap().partition(0).unwrap();
    node.log().delete_before(&[(partition, Offset(2))])[0]
        .as_ref()
        .unwrap();
    let subscription = client.subscribe(lanes(&[(0, 0), (1, 0)]));
    let response = ask!(client, Receive, 0, receive_request(subscription));
    let [removed, other] = &response.delivered[..] else {
        panic!("{response:?}");
    };
    assert_eq!(
        error(removed.error_code),
        Some(ResponseError::OffsetOutOfRange)
    );
    assert_eq!((removed.lane, removed.next), (0, Offset(2)));
    let message = removed.error_message.as_ref().unwrap();
    assert!(message.contains("holds 2 up to 3"), "{message}");
    // The other subscriptions go on.
    assert_eq!(
        (other.lane, other.error_code, other.next),
        (1, 0, Offset(1))
    );
}

#[test]
fn invalid_subscriptions_are_refused_with_the_reason() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let mut refused = |request: SubscribeRequest| {
        let answer = ask!(client, Subscribe, 0, request);
        (
            error(answer.error_code),
            answer.error_message.unwrap().to_string(),
        )
    };
    let mut unknown = lanes(&[(0, 0)]);
    unknown.lanes[0].stream = "none".into();
    let cases = [
        (
            vec![unknown],
            ResponseError::UnknownTopicOrPartition,
            "none",
        ),
        (
            vec![lanes(&[(1, 0)])],
            ResponseError::UnknownTopicOrPartition,
            "partition 1",
        ),
        (vec![], ResponseError::InvalidRequest, "1 to 64 sources"),
        (
            vec![lanes(&[])],
            ResponseError::InvalidRequest,
            "either lanes or a shared group",
        ),
        (
            vec![lanes(&[(0, 0)]), lanes(&[(0, 0)])],
            ResponseError::InvalidRequest,
            "one source",
        ),
        (
            vec![lanes(&[(0, 0), (0, 1)])],
            ResponseError::InvalidRequest,
            "partition 0 of t twice",
        ),
        (
            vec![of_shared_group("words", "")],
            ResponseError::InvalidRequest,
            "consumer's name",
        ),
    ];
    for (sources, expected, why) in cases {
        let (error, message) = refused(subscribe_request(sources));
        assert_eq!(error, Some(expected), "{message}");
        assert!(message.contains(why), "{message}");
    }
    let mut request = subscribe_request(vec![lanes(&[(0, 0)])]);
    request.filter = Some("value is red".into());
    let (error, message) = refused(request);
    assert_eq!(error, Some(ResponseError::InvalidRequest));
    assert!(message.contains("column 7"), "{message}");

    // One connection may have this many, and no more.
    for _ in 0..64 {
        client.subscribe(lanes(&[(0, 0)]));
    }
    let answer = ask!(
        client,
        Subscribe,
        0,
        subscribe_request(vec![lanes(&[(0, 0)])])
    );
    assert!(
        answer
            .error_message
            .unwrap()
            .contains("at most 64 subscriptions")
    );
}

#[test]
fn a_filter_that_keeps_one_percent_moves_about_one_percent_of_the_bytes() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let mut stored = 0;
    for chunk in 0..50 {
        let mut builder = ChunkBuilder::new(Compression::None);
        for n in 0..200 {
            let key = if n % 100 == chunk % 100 {
                b"rare"
            } else {
                b"many"
            };
            builder
                .push(Timestamp(0), Some(key), Some(&[b'x'; 500]), &[])
                .unwrap();
        }
        let bytes = Bytes::copy_from_slice(builder.finish(None).unwrap());
        stored += bytes.len();
        ask!(client, Produce, 9, produce_request("t", 0, bytes));
    }
    let mut request = subscribe_request(vec![lanes(&[(0, 0)])]);
    request.filter = Some(r#"key = "rare""#.into());
    let subscription = ask!(client, Subscribe, 0, request).subscription;
    let (mut moved, mut count, mut next) = (0, 0, Offset(0));
    while next < Offset(10_000) {
        client.send(0, receive_request(subscription));
        let frame = client.receive_frame().unwrap();
        moved += frame.len();
        let (_, response) = millstream_wire::decode_response(ApiKey::Receive, 0, frame).unwrap();
        let Response::Receive(response) = response else {
            panic!("{response:?}");
        };
        for delivered in response.delivered {
            assert_eq!(delivered.from, next);
            next = delivered.next;
            count += values_of(0, 0, &delivered.chunks.0.concat()).len();
        }
    }
    assert_eq!(count, 100);
    assert!(moved * 100 < stored * 2, "{moved} of {stored}");
}

#[test]
fn subscribers_of_a_shared_group_take_over_uncommitted_records() {
    let node = Node::start();
    let mut one = node.connect();
    one.create_topic("t", 1);
    let first = one.subscribe(of_shared_group("words", "one"));
    one.produce("t", 0, &["a"]);
    one.send(0, receive_request(first));
    assert_eq!(one.received_values(), [value(0, "a")]);

    let mut two = node.connect();
    let second = two.subscribe(of_shared_group("words", "two"));
    two.send(0, receive_request(second));
    // The other consumer has the group, and goes before it has committed anything.
    one.produce("t", 0, &["b"]);
    drop(one);
    assert_eq!(two.received_values(), [value(0, "a"), value(0, "b")]);
}

/// When a client's machine had vanished, its request stayed open until there were records.
#[test]
fn an_idle_receive_is_answered_empty_and_may_be_repeated() {
    let node = Node::with(|config| config.idle_max = Duration::from_millis(1500));
    let mut client = node.connect();
    client.create_topic("t", 1);
    let subscription = client.subscribe(lanes(&[(0, 0)]));
    let answer = ask!(client, Receive, 0, receive_request(subscription));
    assert_eq!((answer.error_code, answer.delivered), (0, vec![]));
    client.send(0, receive_request(subscription));
    node.connect().produce("t", 0, &["a"]);
    let mut values = client.received_values();
    while values.is_empty() {
        // On a slow machine this one is answered empty, too, before the record is there.
        client.send(0, receive_request(subscription));
        values = client.received_values();
    }
    assert_eq!(values, [value(0, "a")]);
    assert!(
        client.is_broken(),
        "an idle connection without a request is closed"
    );
}

#[test]
fn a_stopping_server_answers_waiting_receives() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let subscription = client.subscribe(lanes(&[(0, 0)]));
    // Both arrive together, so the second one is there when the first is answered.
    let frames = [(); 2].map(|()| client.frame(0, receive_request(subscription)));
    client.send_bytes(&frames.concat());
    node.connect().produce("t", 0, &["a"]);
    assert_eq!(client.received_values(), [value(0, "a")]);
    let dir = node.stop();
    assert_eq!(client.received().delivered, []);
    drop(dir);
}

/// Each subscription retained its decompressed records: 15 KB of a producer took gigabytes of the
/// server, and blocked its threads.
#[test]
fn subscriptions_that_decompress_much_share_one_budget_and_hold_up_no_producer() {
    const CONNECTIONS: usize = 4;
    const SUBSCRIPTIONS: usize = 25;
    const BUDGET: u64 = 64 << 20;
    let node = Node::alone_with_log(|config| config.decompression = ByteSize(BUDGET));
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    producer.create_topic("other", 1);
    // 5 MB of records in some hundred bytes; only the last one matches.
    let mut last = Offset(0);
    for key in [None, None, None, Some(&b"wanted"[..])] {
        let mut builder = ChunkBuilder::new(Compression::Zstd);
        builder
            .push(Timestamp(1), None, Some(&vec![0; 5 << 20]), &[])
            .unwrap();
        builder
            .push(Timestamp(1), key, Some(b"value"), &[])
            .unwrap();
        let bomb = Bytes::copy_from_slice(builder.finish(None).unwrap());
        assert!(bomb.len() < 16 << 10);
        let produced = ask!(producer, Produce, 9, produce_request("t", 0, bomb));
        let produced = &produced.responses[0].partition_responses[0];
        assert_eq!(produced.error_code, 0);
        last = Offset(produced.base_offset as u64 + 1);
    }
    let before = resident_bytes();
    let mut subscribers: Vec<(Connection, Vec<u32>)> = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut client = node.connect();
        let subscriptions = (0..SUBSCRIPTIONS).map(|_| {
            let mut request = subscribe_request(vec![lanes(&[(0, 0)])]);
            request.filter = Some(r#"key = "wanted""#.into());
            let answer = ask!(client, Subscribe, 0, request);
            assert_eq!(answer.error_code, 0);
            answer.subscription
        });
        let subscriptions: Vec<u32> = subscriptions.collect();
        subscribers.push((client, subscriptions));
    }
    // All ask before any of them reads an answer.
    for (client, subscriptions) in &mut subscribers {
        for subscription in subscriptions {
            client.send(0, receive_request(*subscription));
        }
    }
    for number in 0..20 {
        assert_eq!(producer.produce("other", 0, &["value"]), number);
    }
    for (client, subscriptions) in &mut subscribers {
        // Answers come in the order of the requests.
        let mut waiting = VecDeque::from(std::mem::take(subscriptions));
        while let Some(subscription) = waiting.pop_front() {
            let received = client.received();
            assert_eq!(received.error_code, 0, "{received:?}");
            let is_last = received.delivered.iter().any(|delivered| {
                assert_eq!(delivered.error_code, 0, "{delivered:?}");
                delivered.next > last
            });
            if !is_last {
                client.send(0, receive_request(subscription));
                waiting.push_back(subscription);
            }
        }
    }
    let stats = node.log().stats();
    assert!(stats.decompression_peak_bytes > 10 << 20, "{stats:?}");
    assert!(stats.decompression_peak_bytes <= BUDGET, "{stats:?}");
    assert_eq!(stats.decompression_bytes, 0);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 250 << 20, "{grown} bytes more");
}

//! Quotas: the broker holds a client that sends or receives more than its quota, and reports the
//! throttle time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_base::{SystemDisk, Timestamp};
use millstream_log::SOCKET;
use millstream_sim::SimClock;
use millstream_wire::messages::alter_client_quotas_request::{EntityData, EntryData, OpData};
use millstream_wire::messages::describe_client_quotas_request::ComponentData;
use millstream_wire::messages::{
    AlterClientQuotasRequest, ApiVersionsRequest, DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
};
use millstream_wire::native::{GetObjectRequest, PutObjectRequest};
use millstream_wire::{ApiKey, Response, ResponseError};

use crate::logins::{ADMIN, connect_from, guarded};
use crate::support::{
    Connection, Node, ask, chunk, fetch_request, produce_request, text, wait_until,
};

const PRODUCED: &str = "producer_byte_rate";
const CONSUMED: &str = "consumer_byte_rate";
const CONNECTED: &str = "connection_creation_rate";

/// Returns a value that is a little larger than a megabyte in its record batch.
fn megabyte() -> String {
    "x".repeat(1 << 20)
}

fn entity(parts: &[(&'static str, Option<&'static str>)]) -> Vec<EntityData> {
    let parts = parts.iter().map(|(kind, name)| {
        EntityData::default()
            .with_entity_type(text(kind))
            .with_entity_name(name.map(text))
    });
    parts.collect()
}

/// Gives every client a quota for reading.
pub fn limit_reading(client: &mut Connection) {
    assert_eq!(set(client, &[("user", None)], CONSUMED, Some(1e6)), 0);
}

fn set(
    client: &mut Connection,
    parts: &[(&'static str, Option<&'static str>)],
    key: &'static str,
    value: Option<f64>,
) -> i16 {
    let change = OpData::default()
        .with_key(text(key))
        .with_value(value.unwrap_or_default())
        .with_remove(value.is_none());
    let entry = EntryData::default()
        .with_entity(entity(parts))
        .with_ops(vec![change]);
    let request = AlterClientQuotasRequest::default().with_entries(vec![entry]);
    let altered = ask!(client, AlterClientQuotas, 1, request);
    altered.entries[0].error_code
}

fn describe(client: &mut Connection, components: Vec<ComponentData>) -> Vec<String> {
    let request = DescribeClientQuotasRequest::default().with_components(components);
    let described: DescribeClientQuotasResponse = ask!(client, DescribeClientQuotas, 1, request);
    assert_eq!(described.error_code, 0);
    let entries = described.entries.unwrap();
    let entries = entries.iter().map(|entry| {
        let entity = entry.entity.iter().map(|part| {
            let name = part.entity_name.as_deref().unwrap_or("<default>");
            format!("{} {name}", &*part.entity_type)
        });
        let values = entry.values.iter();
        let values = values.map(|value| format!("{} {}", &*value.key, value.value));
        let words: Vec<String> = entity.chain(values).collect();
        words.join(", ")
    });
    entries.collect()
}

fn component(kind: &'static str, match_type: i8, name: Option<&'static str>) -> ComponentData {
    ComponentData::default()
        .with_entity_type(text(kind))
        .with_match_type(match_type)
        .with_match(name.map(text))
}

/// Sends a megabyte; returns for how long the broker holds the client.
fn produce(client: &mut Connection) -> Duration {
    let request = produce_request("t", 0, chunk(&[&megabyte()]));
    let response = ask!(client, Produce, 9, request);
    let partition = &response.responses[0].partition_responses[0];
    assert_eq!(partition.error_code, 0);
    Duration::from_millis(response.throttle_time_ms as u64)
}

#[test]
fn a_client_over_its_produce_quota_is_throttled_alone() {
    let node = Node::start();
    let mut admin = node.connect();
    admin.create_topic("t", 1);
    let rate = f64::from(1 << 20);
    let limited = [("client-id", Some("test"))];
    assert_eq!(set(&mut admin, &limited, PRODUCED, Some(rate)), 0);
    let mut other = node.connect();
    other.set_client_id("other");
    let mut client = node.connect();
    let started = Instant::now();
    let waits: Vec<Duration> = (0..4).map(|_| produce(&mut client)).collect();
    // One chunk is free after a rest, and the last one was answered without a wait.
    let took = started.elapsed();
    assert!(waits[1..].iter().all(|wait| !wait.is_zero()), "{waits:?}");
    let paid = took + waits[3];
    assert!(paid >= Duration::from_millis(2990), "took {took:?}");
    assert!(waits[3] < Duration::from_millis(1100), "{waits:?}");
    let started = Instant::now();
    for _ in 0..8 {
        assert_eq!(produce(&mut other), Duration::ZERO);
    }
    // With the quota, eight chunks would take seven seconds.
    assert!(started.elapsed() < Duration::from_secs(6), "others wait");
    // Other requests are answered when the hold is over.
    assert_eq!(client.produce("t", 0, &["small"]), 12);
    // Without a limit no client waits.
    assert_eq!(set(&mut admin, &limited, PRODUCED, None), 0);
    for _ in 0..4 {
        assert_eq!(produce(&mut client), Duration::ZERO);
    }
}

#[test]
fn connections_of_one_client_id_share_its_quota() {
    let node = Node::start();
    let mut admin = node.connect();
    admin.create_topic("t", 1);
    // Applies to each client id that has no quota of its own.
    let every = [("client-id", None)];
    assert_eq!(set(&mut admin, &every, PRODUCED, Some(1e6)), 0);
    let free = [("client-id", Some("free"))];
    assert_eq!(set(&mut admin, &free, PRODUCED, Some(1e12)), 0);
    let (mut first, mut second) = (node.connect(), node.connect());
    let started = Instant::now();
    let throttle = produce(&mut first) + produce(&mut second);
    // Time that has passed between the two counts, too.
    let paid = started.elapsed() + throttle;
    assert!(paid >= Duration::from_millis(1000), "paid {paid:?}");
    let mut own = node.connect();
    own.set_client_id("own");
    assert!(produce(&mut own) < Duration::from_millis(500));
    let mut free = node.connect();
    free.set_client_id("free");
    (0..3).for_each(|_| assert_eq!(produce(&mut free), Duration::ZERO));
}

/// Starts a node with a topic with three chunks of a megabyte each, and a client with a quota of
/// half a chunk per second.
fn with_limited_reader() -> (Node, Connection) {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    for _ in 0..3 {
        assert_eq!(produce(&mut client), Duration::ZERO);
    }
    let user = [("user", Some("ANONYMOUS"))];
    assert_eq!(set(&mut client, &user, CONSUMED, Some(5e5)), 0);
    (node, client)
}

#[test]
fn a_client_over_its_fetch_quota_is_throttled() {
    let (node, mut client) = with_limited_reader();
    let request = fetch_request(&[("t", 0, 0)]);
    let fetched = ask!(client, Fetch, 12, request.clone());
    assert_eq!(fetched.topics[0].partitions.len(), 1);
    let throttle = Duration::from_millis(fetched.throttle_time_ms as u64);
    assert!(
        throttle > Duration::from_secs(1),
        "throttled for {throttle:?}"
    );
    let started = Instant::now();
    client.send(12, request);
    let Response::Fetch(_) = client.receive(ApiKey::Fetch, 12).1 else {
        panic!("it is an answer to that");
    };
    assert!(started.elapsed() >= throttle.mul_f64(0.9));
    // Its writes are not limited.
    assert_eq!(produce(&mut node.connect()), Duration::ZERO);
}

#[test]
fn fetches_that_are_sent_together_are_charged_one_by_one() {
    let (_node, mut client) = with_limited_reader();
    let started = Instant::now();
    for offset in 0..3 {
        client.send(12, fetch_request(&[("t", 0, offset)]));
    }
    let mut paid = Duration::ZERO;
    for _ in 0..3 {
        let Response::Fetch(fetched) = client.receive(ApiKey::Fetch, 12).1 else {
            panic!("it is an answer to that");
        };
        assert!(started.elapsed() >= paid, "it is paid for {paid:?}");
        // One chunk of a megabyte comes: all three exceed the quota.
        assert!(fetched.topics[0].partitions[0].records.len() < 2_000_000);
        let throttle = Duration::from_millis(fetched.throttle_time_ms as u64);
        assert!(
            throttle > Duration::from_secs(1),
            "throttled for {throttle:?}"
        );
        paid += throttle.mul_f64(0.9);
    }
}

#[test]
fn the_throttle_time_covers_the_whole_debt() {
    let node = Node::start();
    let mut admin = node.connect();
    admin.create_topic("t", 1);
    let limited = [("client-id", Some("test"))];
    assert_eq!(set(&mut admin, &limited, PRODUCED, Some(1e4)), 0);
    let mut client = node.connect();
    let throttle = produce(&mut client);
    // A megabyte at ten kilobytes a second, one of which is free.
    assert!(
        throttle >= Duration::from_secs(103),
        "throttled for {throttle:?}"
    );
    // Another connection of the same name has the same debt.
    let mut again = node.connect();
    let request = produce_request("t", 0, chunk(&["small"]));
    let throttle = ask!(again, Produce, 9, request).throttle_time_ms;
    assert!(throttle >= 100_000, "throttled for {throttle:?}");
}

#[test]
fn requests_before_a_login_take_nothing_from_the_quota_of_their_client_id() {
    let node = guarded();
    let mut client = node.connect().log_in(ADMIN);
    client.create_topic("t", 1);
    let limited = [("client-id", Some("test"))];
    assert_eq!(set(&mut client, &limited, PRODUCED, Some(100.0)), 0);
    for _ in 0..5 {
        let mut stranger = node.connect();
        let request = produce_request("t", 0, chunk(&[&"x".repeat(800)]));
        let refused = ask!(stranger, Produce, 9, request);
        let refused = refused.responses[0].partition_responses[0].error_code;
        assert_eq!(refused, ResponseError::IllegalSaslState.code());
        assert!(stranger.is_closed());
    }
    // The bytes of the refused requests would be worth 40 seconds.
    let request = produce_request("t", 0, chunk(&["small"]));
    let throttle = ask!(client, Produce, 9, request).throttle_time_ms;
    assert!(throttle < 10_000, "throttled for {throttle} ms");
}

#[test]
fn a_producer_without_acknowledgements_is_throttled() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let limited = [("client-id", Some("test"))];
    assert_eq!(set(&mut client, &limited, PRODUCED, Some(2e6)), 0);
    let started = Instant::now();
    for _ in 0..5 {
        client.send(
            9,
            produce_request("t", 0, chunk(&[&megabyte()])).with_acks(0),
        );
    }
    assert_eq!(client.produce("t", 0, &["last"]), 5);
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(1400), "took {took:?}");
}

#[test]
fn objects_count_for_both_quotas() {
    let node = Node::start();
    let mut admin = node.connect();
    let limited = [("client-id", Some("test"))];
    let rate = f64::from(1 << 20);
    assert_eq!(set(&mut admin, &limited, PRODUCED, Some(rate)), 0);
    assert_eq!(set(&mut admin, &limited, CONSUMED, Some(rate)), 0);
    let mut writer = node.connect();
    let started = Instant::now();
    for number in 0..3 {
        let request = PutObjectRequest {
            name: text("object"),
            start: number << 20,
            content: megabyte().into(),
            is_last: number == 2,
        };
        let put = ask!(writer, PutObject, 0, request);
        assert_eq!(put.error_code, 0, "{put:?}");
    }
    // One part is free after a rest, and the last one was answered without a wait.
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(990), "took {took:?}");
    let mut reader = node.connect();
    let (started, mut read) = (Instant::now(), 0);
    while read < 3 << 20 {
        let request = GetObjectRequest {
            name: text("object"),
            start: read,
            bytes_max: u32::MAX,
        };
        let got = ask!(reader, GetObject, 0, request);
        assert_eq!(got.error_code, 0, "{got:?}");
        // No answer holds more than one second's worth.
        assert!((1..=1 << 20).contains(&got.content.size()));
        read += got.content.size() as u64;
    }
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(990), "took {took:?}");
}

#[test]
fn quotas_are_described_altered_and_persisted() {
    let node = Node::start();
    let mut client = node.connect();
    assert!(describe(&mut client, Vec::new()).is_empty());
    let app = [("user", Some("alice")), ("client-id", None)];
    assert_eq!(set(&mut client, &app, PRODUCED, Some(5.0)), 0);
    assert_eq!(set(&mut client, &app, CONSUMED, Some(6.0)), 0);
    assert_eq!(set(&mut client, &[("user", None)], CONSUMED, Some(7.0)), 0);
    let one = [("client-id", Some("app"))];
    assert_eq!(set(&mut client, &one, PRODUCED, Some(8.0)), 0);
    let node = node.restart();
    let mut client = node.connect();
    let of_app = "client-id app, producer_byte_rate 8";
    let of_users = "user <default>, consumer_byte_rate 7";
    let of_alice = "user alice, client-id <default>, producer_byte_rate 5, consumer_byte_rate 6";
    let all = describe(&mut client, Vec::new());
    assert_eq!(all, [of_app, of_users, of_alice]);
    let users = describe(&mut client, vec![component("user", 2, None)]);
    assert_eq!(users, [of_users, of_alice]);
    let default = describe(&mut client, vec![component("user", 1, None)]);
    assert_eq!(default, [of_users]);
    let exact = vec![component("client-id", 0, Some("app"))];
    assert_eq!(describe(&mut client, exact.clone()), [of_app]);
    // Matches only entities without other parts.
    let strict = DescribeClientQuotasRequest::default()
        .with_components(vec![component("client-id", 2, None)])
        .with_strict(true);
    let described = ask!(client, DescribeClientQuotas, 0, strict);
    assert_eq!(described.entries.unwrap().len(), 1);
    assert_eq!(set(&mut client, &one, PRODUCED, None), 0);
    assert!(describe(&mut client, exact).is_empty());
}

#[test]
fn connection_rates_are_described_altered_and_persisted() {
    let node = Node::start();
    let mut client = node.connect();
    let one = [("ip", Some("10.0.0.1"))];
    let other = [("ip", Some("::1"))];
    assert_eq!(set(&mut client, &one, CONNECTED, Some(5.0)), 0);
    // The same address, in its IPv6 form.
    let mapped = [("ip", Some("::ffff:10.0.0.1"))];
    assert_eq!(set(&mut client, &mapped, CONNECTED, Some(6.0)), 0);
    assert_eq!(set(&mut client, &other, CONNECTED, Some(7.0)), 0);
    assert_eq!(set(&mut client, &[("ip", None)], CONNECTED, Some(1e9)), 0);
    assert_eq!(set(&mut client, &[("user", None)], CONSUMED, Some(8.0)), 0);
    let node = node.restart();
    let mut client = node.connect();
    let of_default = "ip <default>, connection_creation_rate 1000000000";
    let of_one = "ip 10.0.0.1, connection_creation_rate 6";
    let of_other = "ip ::1, connection_creation_rate 7";
    let of_users = "user <default>, consumer_byte_rate 8";
    let all = describe(&mut client, Vec::new());
    assert_eq!(all, [of_users, of_default, of_one, of_other]);
    let ips = describe(&mut client, vec![component("ip", 2, None)]);
    assert_eq!(ips, [of_default, of_one, of_other]);
    let default = describe(&mut client, vec![component("ip", 1, None)]);
    assert_eq!(default, [of_default]);
    let exact = vec![component("ip", 0, Some("10.0.0.1"))];
    assert_eq!(describe(&mut client, exact.clone()), [of_one]);
    let users = describe(&mut client, vec![component("user", 2, None)]);
    assert_eq!(users, [of_users]);
    assert_eq!(set(&mut client, &one, CONNECTED, None), 0);
    assert_eq!(set(&mut client, &[("ip", None)], CONNECTED, None), 0);
    let node = node.restart();
    let ips = describe(&mut node.connect(), vec![component("ip", 2, None)]);
    assert_eq!(ips, [of_other]);
}

/// Returns how many connections from an address of this machine the broker serves before it refuses
/// one, at most `max`.
fn served(node: &Node, last: u8, max: usize) -> usize {
    let is_served = |_: &usize| {
        let mut client = connect_from(node, [127, 0, 0, last]);
        let frame = client.frame(3, ApiVersionsRequest::default());
        client.try_send(&frame) && client.receive_frame().is_some()
    };
    (0..max).take_while(is_served).count()
}

#[test]
fn an_address_that_connects_too_often_is_refused_for_a_while_and_others_are_not() {
    let clock = SimClock::new(Timestamp(1));
    let node = Node::simulated(Arc::new(SystemDisk), Arc::new(clock.clone()));
    let mut admin = node.connect();
    let limited = [("ip", Some("127.0.0.2"))];
    assert_eq!(set(&mut admin, &limited, CONNECTED, Some(2.0)), 0);
    // Ten seconds' worth may come at once.
    assert_eq!(served(&node, 2, 30), 20);
    assert_eq!(node.broker().status().connections_refused, 1);
    assert_eq!(served(&node, 3, 30), 30, "another address");
    clock.advance(Duration::from_millis(1500));
    assert_eq!(served(&node, 2, 30), 3);
    // Connections that are open go on.
    admin.create_topic("t", 1);
    // The default is for each address that has none of its own.
    assert_eq!(set(&mut admin, &[("ip", None)], CONNECTED, Some(1.0)), 0);
    assert_eq!(served(&node, 4, 30), 10);
    assert_eq!(served(&node, 5, 30), 10);
    assert_eq!(served(&node, 2, 30), 0);
    // Without a quota, every connection is served.
    assert_eq!(set(&mut admin, &limited, CONNECTED, None), 0);
    assert_eq!(set(&mut admin, &[("ip", None)], CONNECTED, None), 0);
    assert_eq!(served(&node, 2, 30), 30);
    assert_eq!(served(&node, 4, 30), 30);
}

#[test]
fn connection_rates_count_after_a_restart() {
    let node = Node::start();
    let limited = [("ip", Some("127.0.0.2"))];
    assert_eq!(set(&mut node.connect(), &limited, CONNECTED, Some(1.0)), 0);
    let node = node.restart();
    // Some more are served with time; a thousand would take a quarter of an hour.
    assert!((10..1000).contains(&served(&node, 2, 1000)));
}

/// The broker slows down a client that connects again at once.
#[test]
fn a_connection_over_the_rate_is_held_before_it_is_closed() {
    let clock = SimClock::new(Timestamp(1));
    let node = Node::simulated(Arc::new(SystemDisk), Arc::new(clock));
    let limited = [("ip", Some("127.0.0.2"))];
    assert_eq!(set(&mut node.connect(), &limited, CONNECTED, Some(1.0)), 0);
    assert_eq!(served(&node, 2, 10), 10);
    let started = Instant::now();
    let mut held = connect_from(&node, [127, 0, 0, 2]);
    assert_eq!(held.receive_frame(), None);
    assert!(started.elapsed() >= Duration::from_millis(990));
}

/// Each held connection takes a file descriptor, so a flood of them must not hold more than the
/// bound.
#[test]
fn connections_beyond_the_bound_on_held_ones_are_closed_at_once() {
    let clock = SimClock::new(Timestamp(1));
    let held_max = 3;
    let node = Node::simulated_with(Arc::new(SystemDisk), Arc::new(clock), |config| {
        config.held_connections_max = held_max;
    });
    let limited = [("ip", Some("127.0.0.2"))];
    assert_eq!(set(&mut node.connect(), &limited, CONNECTED, Some(1.0)), 0);
    assert_eq!(served(&node, 2, 10), 10);
    // On a busy machine the first connections may be closed before the last one is open.
    wait_until("the last connection is closed before the others", || {
        let mut held: Vec<Connection> = (0..held_max)
            .map(|_| connect_from(&node, [127, 0, 0, 2]))
            .collect();
        let mut beyond = connect_from(&node, [127, 0, 0, 2]);
        assert_eq!(beyond.receive_frame(), None);
        let are_open = held.iter_mut().all(Connection::is_open);
        held.iter_mut().for_each(|connection| {
            assert_eq!(connection.receive_frame(), None);
        });
        are_open
    });
}

#[test]
fn clients_of_the_local_socket_have_no_connection_rate() {
    let dir = tempfile::tempdir().unwrap();
    let socket_dir = dir.path().to_owned();
    let node = Node::on(dir, |_| {}, |config| config.local_socket = Some(socket_dir));
    let local = [("ip", Some("127.0.0.1"))];
    assert_eq!(set(&mut node.connect(), &local, CONNECTED, Some(1.0)), 0);
    for _ in 0..100 {
        let mut client = Connection::local(&node.dir().join(SOCKET));
        client.ask(3, ApiVersionsRequest::default());
    }
}

#[test]
fn quotas_with_invalid_values_or_entities_are_refused() {
    let node = Node::start();
    let mut client = node.connect();
    let invalid = ResponseError::InvalidRequest.code();
    let app = [("client-id", Some("app"))];
    for value in [0.0, -1.0, 0.5, 1e300, f64::NAN, f64::INFINITY] {
        assert_eq!(set(&mut client, &app, PRODUCED, Some(value)), invalid);
    }
    let unknown = "request_percentage";
    assert_eq!(set(&mut client, &app, unknown, Some(1.0)), invalid);
    let entities: [&[_]; 6] = [
        &[],
        &[("ip", Some("10.0.0.1"))],
        &[("ip", None), ("user", None)],
        &[("group", None)],
        &[("user", None), ("user", None)],
        &[("user", Some(""))],
    ];
    for parts in entities {
        assert_eq!(set(&mut client, parts, PRODUCED, Some(1.0)), invalid);
    }
    for components in [
        vec![component("group", 2, None)],
        vec![component("ip", 2, None), component("ip", 2, None)],
        vec![component("ip", 2, None), component("user", 2, None)],
        vec![component("client-id", 2, None), component("ip", 2, None)],
        vec![component("ip", 0, Some("localhost"))],
    ] {
        let request = DescribeClientQuotasRequest::default().with_components(components);
        let described = ask!(client, DescribeClientQuotas, 1, request);
        assert_eq!(described.error_code, invalid);
    }
    let address = [("ip", Some("10.0.0.1"))];
    for value in [0.0, -1.0, 0.5, 2_147_483_648.0, f64::NAN, f64::INFINITY] {
        assert_eq!(set(&mut client, &address, CONNECTED, Some(value)), invalid);
    }
    let entities: [&[_]; 5] = [
        &[("ip", Some("localhost"))],
        &[("ip", Some(""))],
        &[("user", None)],
        &[("ip", None), ("ip", None)],
        &[("ip", None), ("client-id", None)],
    ];
    for parts in entities {
        assert_eq!(set(&mut client, parts, CONNECTED, Some(1.0)), invalid);
    }
    // Twice, with validation only.
    let change = OpData::default().with_key(text(PRODUCED)).with_value(1.0);
    let entry = EntryData::default()
        .with_entity(entity(&app))
        .with_ops(vec![change]);
    let request = AlterClientQuotasRequest::default()
        .with_entries(vec![entry; 2])
        .with_validate_only(true);
    let altered = ask!(client, AlterClientQuotas, 1, request);
    let codes: Vec<i16> = altered
        .entries
        .iter()
        .map(|entry| entry.error_code)
        .collect();
    assert_eq!(codes, [0, invalid]);
    assert!(describe(&mut client, Vec::new()).is_empty());
}

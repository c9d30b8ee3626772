//! Invalid requests: the broker closes the connection, and other connections go on.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use millstream_wire::messages::ApiVersionsRequest;
use millstream_wire::{ApiKey, Response, ResponseError, decode_response};

use crate::logins::{ADMIN, guarded};
use crate::support::{Connection, Node, chunk, produce_request};

/// Sends bytes, and expects nothing but the end of the connection.
fn assert_closes(node: &Node, bytes: &[u8]) {
    let mut client = node.connect();
    client.send_bytes(bytes);
    assert_eq!(client.receive_frame(), None, "{bytes:?}");
}

#[test]
fn malformed_frames_close_only_their_connection() {
    let node = Node::start();
    let mut bystander = node.connect();
    bystander.create_topic("t", 1);
    assert_closes(&node, &i32::MAX.to_be_bytes());
    assert_closes(&node, &(-1_i32).to_be_bytes());
    assert_closes(&node, &i32::MIN.to_be_bytes());
    // Too short for a header.
    assert_closes(&node, &[0, 0, 0, 0]);
    assert_closes(&node, &[0, 0, 0, 3, 0, 18, 0]);
    // A request that does not exist, and one in a version that does not exist.
    assert_closes(&node, &[0, 0, 0, 10, 0x7f, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
    assert_closes(&node, &[0, 0, 0, 10, 0, 0, 0x7f, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(bystander.produce("t", 0, &["value"]), 0);
}

#[test]
fn random_bytes_close_only_their_connection() {
    let node = Node::start();
    let mut bystander = node.connect();
    bystander.create_topic("t", 1);
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..300 {
        let mut bytes: Vec<u8> = (0..random.usize(4..200)).map(|_| random.u8(..)).collect();
        if round % 2 == 0 {
            // The frame is whole, so that the broker parses its contents.
            let length = bytes.len() as u32 - 4;
            bytes[..4].copy_from_slice(&length.to_be_bytes());
        }
        let mut client = node.connect();
        client.send_bytes(&bytes);
        client.finish();
        while client.receive_frame().is_some() {}
    }
    assert_eq!(bystander.produce("t", 0, &["value"]), 0);
}

#[test]
fn requests_with_wrong_lengths_inside_store_nothing() {
    let node = Node::start();
    let mut bystander = node.connect();
    bystander.create_topic("t", 1);
    let mut random = fastrand::Rng::with_seed(11);
    let whole = bystander.frame(9, produce_request("t", 0, chunk(&["value"])));
    for cut in 5..whole.len() {
        let mut short = whole[..cut].to_vec();
        short[..4].copy_from_slice(&(cut as u32 - 4).to_be_bytes());
        let mut client = node.connect();
        client.send_bytes(&short);
        assert_eq!(client.receive_frame(), None, "cut at {cut}");
    }
    let records_at = whole.len() - chunk(&["value"]).len();
    for _ in 0..300 {
        let mut damaged = whole.to_vec();
        // Behind the lengths of the frame, and before the records, which have a checksum.
        damaged[random.usize(12..records_at)] = random.u8(..);
        let mut client = node.connect();
        client.send_bytes(&damaged);
        client.finish();
        while client.receive_frame().is_some() {}
    }
    // Where the damage was in the client's name, the request was whole.
    bystander.produce("t", 0, &["value"]);
}

#[test]
fn requests_before_a_malformed_frame_are_answered() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let mut sent = Vec::new();
    let mut last = 0;
    for _ in 0..3 {
        sent.extend_from_slice(&client.frame(9, produce_request("t", 0, chunk(&["value"]))));
        last += 1;
    }
    sent.extend_from_slice(&(-1_i32).to_be_bytes());
    client.send_bytes(&sent);
    for offset in 0..last {
        let Response::Produce(produced) = client.receive(ApiKey::Produce, 9).1 else {
            panic!("it is an answer to that");
        };
        let produced = &produced.responses[0].partition_responses[0];
        assert_eq!((produced.error_code, produced.base_offset), (0, offset));
    }
    assert_eq!(client.receive_frame(), None);
}

/// Returns a request without a body, with the number 7 and without a name.
fn bare_request(api_key: i16, version: i16) -> Vec<u8> {
    let mut bytes = 10_i32.to_be_bytes().to_vec();
    bytes.extend(api_key.to_be_bytes());
    bytes.extend(version.to_be_bytes());
    bytes.extend(7_i32.to_be_bytes());
    bytes.extend((-1_i16).to_be_bytes());
    bytes
}

/// Requests that no client can parse an answer to: their keys and versions.
const UNKNOWN: [(i16, i16); 11] = [
    // No request has these keys.
    (9999, 0),
    (-1, 0),
    // These were requests once, or are for controllers alone.
    (4, 0),
    (7, 3),
    (52, 0),
    (59, 0),
    // These are in other versions: Produce, Metadata, CreateTopics.
    (0, 2),
    (0, 99),
    (3, 99),
    (3, -1),
    (19, 1),
];

/// Sends ApiVersions in a version; returns the error of the answer, which comes in the oldest version and names the
/// supported versions.
fn ask_versions_in(client: &mut Connection, version: i16) -> i16 {
    client.send_bytes(&bare_request(18, version));
    let frame = client.receive_frame().unwrap();
    let (id, response) = decode_response(ApiKey::ApiVersions, 0, frame).unwrap();
    let Response::ApiVersions(response) = response else {
        panic!("it is an answer to that");
    };
    assert_eq!(id, 7, "version {version}");
    assert!(response.api_keys.len() > 40, "version {version}");
    response.error_code
}

/// The expected answers are those of a Kafka 4.3.1 broker.
#[test]
fn unknown_requests_and_versions_are_handled_as_by_kafka() {
    let node = Node::start();
    for (api_key, version) in UNKNOWN {
        assert_closes(&node, &bare_request(api_key, version));
    }
    // Only requests for the versions get an answer, in the oldest one.
    let unsupported = ResponseError::UnsupportedVersion.code();
    for (version, expected) in [(0, 0), (-1, unsupported), (99, unsupported)] {
        let error = ask_versions_in(&mut node.connect(), version);
        assert_eq!(error, expected, "version {version}");
    }
}

#[test]
fn unknown_requests_and_versions_are_answered_alike_before_and_after_a_login() {
    let node = guarded();
    for (api_key, version) in UNKNOWN {
        let request = bare_request(api_key, version);
        assert_closes(&node, &request);
        let mut client = node.connect().log_in(ADMIN);
        client.send_bytes(&request);
        assert_eq!(client.receive_frame(), None, "{api_key} in {version}");
    }
    let unsupported = ResponseError::UnsupportedVersion.code();
    let mut client = node.connect();
    assert_eq!(ask_versions_in(&mut client, 99), unsupported);
    // This request does not keep a client from its login, nor from going on after it.
    let mut client = client.log_in(ADMIN);
    assert_eq!(ask_versions_in(&mut client, 99), unsupported);
    client.create_topic("t", 1);
}

#[test]
fn an_unknown_version_of_api_versions_is_answered_with_the_supported_ones() {
    let node = Node::start();
    let mut client = node.connect();
    // Version 100, number 7, no name.
    client.send_bytes(&[0, 0, 0, 10, 0, 18, 0, 100, 0, 0, 0, 7, 255, 255]);
    let frame = client.receive_frame().unwrap();
    let (id, response) = decode_response(ApiKey::ApiVersions, 0, frame).unwrap();
    let Response::ApiVersions(response) = response else {
        panic!("it is an answer to that");
    };
    assert_eq!(id, 7);
    assert_eq!(
        response.error_code,
        ResponseError::UnsupportedVersion.code()
    );
    assert!(response.api_keys.len() > 40);
    // The client goes on with a version from the answer.
    client.ask(4, ApiVersionsRequest::default());
}

#[test]
fn a_connection_with_half_a_request_is_closed() {
    let node = Node::with(|config| config.read_stall_max = Duration::from_millis(300));
    let mut idle = node.connect();
    let mut client = node.connect();
    let frame = client.frame(9, produce_request("t", 0, chunk(&["value"])));
    client.send_bytes(&frame[..frame.len() / 2]);
    let started_at = Instant::now();
    assert_eq!(client.receive_frame(), None);
    assert!(started_at.elapsed() < Duration::from_secs(20));
    // A silent client stays connected.
    idle.create_topic("t", 1);
}

#[test]
fn memory_for_announced_requests_that_never_arrive_is_freed() {
    let node = Node::with(|config| config.requests_bytes_max = 1 << 20);
    let mut bystander = node.connect();
    bystander.create_topic("t", 1);
    let mut greedy: Vec<Connection> = (0..2).map(|_| node.connect()).collect();
    for client in &mut greedy {
        client.send_bytes(&(50_i32 << 20).to_be_bytes());
    }
    let started_at = Instant::now();
    for number in 0..100 {
        let sent_at = Instant::now();
        assert_eq!(bystander.produce("t", 0, &["value"]), number);
        // Small requests do not wait for the large ones, which are given up after five seconds.
        assert!(sent_at.elapsed() < Duration::from_secs(4));
    }
    for client in &mut greedy {
        assert_eq!(client.receive_frame(), None);
    }
    assert!(started_at.elapsed() < Duration::from_secs(25));
}

#[test]
fn a_request_that_trickles_in_is_given_up_once_others_need_its_memory() {
    let stall_max = Duration::from_secs(5);
    let node = Node::with(|config| {
        config.requests_bytes_max = 1 << 20;
        config.read_stall_max = stall_max;
    });
    let mut bystander = node.connect();
    bystander.create_topic("t", 1);
    let mut greedy = node.connect();
    greedy.send_bytes(&(50_i32 << 20).to_be_bytes());
    let mut trickle = || {
        thread::sleep(Duration::from_millis(20));
        greedy.try_send(&[0])
    };
    let began = Instant::now();
    while began.elapsed() < stall_max + Duration::from_secs(1) {
        assert!(trickle(), "it is closed before others need the memory");
    }
    thread::scope(|scope| {
        let large = "x".repeat(512 << 10);
        let produced = scope.spawn(move || bystander.produce("t", 0, &[&large]));
        while !produced.is_finished() {
            trickle();
        }
        assert_eq!(produced.join().unwrap(), 0);
    });
    assert_eq!(greedy.receive_frame(), None);
}

#[test]
fn a_silent_connection_is_closed_after_the_idle_timeout() {
    let node = Node::with(|config| config.idle_max = Duration::from_millis(300));
    let mut client = node.connect();
    let started_at = Instant::now();
    assert_eq!(client.receive_frame(), None);
    assert!(started_at.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_request_may_arrive_in_any_pieces() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let mut sent = Vec::new();
    for _ in 0..20 {
        sent.extend_from_slice(&client.frame(9, produce_request("t", 0, chunk(&["value"]))));
    }
    for piece in sent.chunks(7) {
        client.send_bytes(piece);
    }
    for _ in 0..20 {
        client.receive(ApiKey::Produce, 9);
    }
    assert_eq!(client.fetch("t", 0, 0).high_watermark, 20);
}

#[test]
fn connections_beyond_the_bound_are_closed_at_once() {
    let node = Node::with(|config| config.connections_max = 2);
    let mut first = node.connect();
    first.create_topic("t", 1);
    let mut second = node.connect();
    second.produce("t", 0, &["value"]);
    assert_eq!(node.connect().receive_frame(), None);
    drop(second);
    crate::support::wait_until("there is a place again", || {
        let mut third = node.connect();
        let frame = third.frame(3, ApiVersionsRequest::default());
        // The connection may close before or after this.
        third.try_send(&frame) && third.receive_frame().is_some()
    });
}

/// This client only shows that a reset connection harms no other client.
#[test]
fn a_reset_connection_harms_no_other_client() {
    let node = Node::start();
    let mut bystander = node.connect();
    bystander.create_topic("t", 1);
    for _ in 0..50 {
        let mut stream = TcpStream::connect(node.address()).unwrap();
        let frame = bystander.frame(9, produce_request("t", 0, chunk(&["value"])));
        stream.write_all(&frame[..frame.len() - 1]).unwrap();
    }
    assert_eq!(bystander.produce("t", 0, &["value"]), 0);
}

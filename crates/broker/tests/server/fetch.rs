//! Fetch: the size of answers, their time, and their partitions.

use std::thread;
use std::time::{Duration, Instant};

use millstream_base::Offset;
use millstream_log::{Arena, BLOCK_BYTES_MIN, BufferWriter, WINDOW_BYTES};
use millstream_pool::{Objective, Pool};
use millstream_wire::messages::FetchRequest;
use millstream_wire::{ApiKey, FetchResponse, Response, ResponseError};

use crate::support::{Connection, Node, ask, chunk, fetch_request, values};

/// How long a test waits to see that no answer comes.
const A_WHILE: Duration = Duration::from_millis(300);

fn fetch(client: &mut Connection, request: FetchRequest) -> FetchResponse {
    ask!(client, Fetch, 11, request)
}

/// Returns all values of an answer, in its order.
fn all_values(response: &FetchResponse) -> Vec<String> {
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    partitions.flat_map(values).collect()
}

#[test]
fn an_append_wakes_a_waiting_fetch() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    let mut producer = node.connect();
    let started_at = Instant::now();
    let id = client.send(11, fetch_request(&[("t", 0, 0), ("t", 1, 0)]));
    thread::sleep(A_WHILE);
    producer.produce("t", 1, &["value"]);
    let (answered, response) = client.receive(ApiKey::Fetch, 11);
    let waited = started_at.elapsed();
    assert_eq!(answered, id);
    let Response::Fetch(response) = response else {
        panic!("it is an answer to that");
    };
    assert_eq!(all_values(&response), ["value"]);
    assert!(
        waited >= A_WHILE && waited < Duration::from_secs(20),
        "{waited:?}"
    );
}

#[test]
fn a_fetch_counts_for_its_objective_from_the_moment_at_which_there_are_records() {
    let node = Node::with(|config| config.fetch_objective = Some(Objective::p99(A_WHILE)));
    let mut client = node.connect();
    client.create_topic("t", 1);
    let mut producer = node.connect();
    let request = fetch_request(&[("t", 0, 0)]);
    // One that finds no records does not count.
    let found = fetch(&mut client, request.clone().with_max_wait_ms(100));
    assert_eq!(all_values(&found), [""; 0]);
    let wait = 4 * A_WHILE;
    client.send(11, request.clone());
    thread::sleep(wait);
    producer.produce("t", 0, &["value"]);
    client.receive(ApiKey::Fetch, 11);
    fetch(&mut client, request);
    let views = Pool::of_process().objectives();
    let view = views.iter().find(|view| view.name == "broker/fetch");
    let view = view.expect("it has an objective");
    assert_eq!((view.answered, view.waiting), (2, 0), "{view:?}");
    let latency = view.latency_seconds.expect("two were answered");
    assert!(latency < wait.as_secs_f64(), "{view:?}");
}

#[test]
fn a_fetch_without_new_records_is_answered_after_its_wait() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let started_at = Instant::now();
    let response = fetch(
        &mut client,
        fetch_request(&[("t", 0, 0)]).with_max_wait_ms(300),
    );
    assert!(started_at.elapsed() >= A_WHILE);
    assert_eq!(all_values(&response), [""; 0]);
    assert_eq!(response.topics[0].partitions[0].high_watermark, 0);
    for max_wait_ms in [0, -1, i32::MIN] {
        fetch(
            &mut client,
            fetch_request(&[("t", 0, 0)]).with_max_wait_ms(max_wait_ms),
        );
    }
}

#[test]
fn a_fetch_waits_for_its_minimum_of_bytes() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let mut producer = node.connect();
    producer.produce("t", 0, &["first"]);
    let bytes = chunk(&["first"]).len() as i32;
    // The available records are not enough, and stay available.
    let request = fetch_request(&[("t", 0, 0)]).with_min_bytes(bytes + 1);
    let started_at = Instant::now();
    let response = fetch(&mut client, request.clone().with_max_wait_ms(300));
    assert_eq!(all_values(&response), ["first"]);
    assert!(started_at.elapsed() >= A_WHILE);
    client.send(11, request);
    thread::sleep(A_WHILE);
    producer.produce("t", 0, &["second"]);
    let Response::Fetch(response) = client.receive(ApiKey::Fetch, 11).1 else {
        panic!("it is an answer to that");
    };
    assert_eq!(all_values(&response), ["first", "second"]);
}

#[test]
fn a_minimum_above_the_byte_bound_does_not_delay_a_fetch() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    for value in ["a", "b", "c"] {
        client.produce("t", 0, &[value]);
    }
    let bytes = chunk(&["a"]).len() as i32;
    // Two chunks fit, and the request requires more bytes than they have.
    for min_bytes in [bytes * 2 + 1, i32::MAX] {
        let request = fetch_request(&[("t", 0, 0)])
            .with_max_bytes(bytes * 2 + 1)
            .with_min_bytes(min_bytes);
        let started_at = Instant::now();
        assert_eq!(all_values(&fetch(&mut client, request)), ["a", "b"]);
        assert!(started_at.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn the_first_chunk_is_returned_regardless_of_the_byte_bound() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    let large = "x".repeat(10_000);
    for partition in 0..2 {
        client.produce("t", partition, &[&large]);
        client.produce("t", partition, &["small"]);
    }
    for bytes_max in [1, 0, -1] {
        let mut request = fetch_request(&[("t", 0, 0), ("t", 1, 0)]).with_max_bytes(bytes_max);
        let whole = fetch(&mut client, request.clone());
        assert_eq!(all_values(&whole), [&*large], "{bytes_max} bytes at most");
        request.max_bytes = i32::MAX;
        request.topics.iter_mut().for_each(|topic| {
            topic.partitions[0].partition_max_bytes = bytes_max;
        });
        let partition = fetch(&mut client, request);
        assert_eq!(
            all_values(&partition),
            [&*large],
            "{bytes_max} of a partition"
        );
    }
}

#[test]
fn offsets_out_of_range_and_unknown_partitions_are_reported_at_once() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    client.produce("t", 0, &["value"]);
    let out_of_range = ResponseError::OffsetOutOfRange;
    let unknown = ResponseError::UnknownTopicOrPartition;
    for (topic, partition, offset, error) in [
        ("t", 0, 2, out_of_range),
        ("t", 0, i64::MAX, out_of_range),
        ("t", 0, -1, out_of_range),
        ("t", 0, i64::MIN, out_of_range),
        ("t", 1, 0, unknown),
        ("t", -1, 0, unknown),
        ("u", 0, 0, unknown),
        ("__groups", 0, 0, unknown),
    ] {
        let started_at = Instant::now();
        let response = fetch(&mut client, fetch_request(&[(topic, partition, offset)]));
        let error_code = response.topics[0].partitions[0].error_code;
        assert_eq!(error_code, error.code(), "{topic} {partition} {offset}");
        assert!(started_at.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn every_version_is_answered_with_records_and_with_errors() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    client.produce("t", 0, &["value"]);
    let id = node.log().stream("t").unwrap().uuid();
    for version in ApiKey::Fetch.versions() {
        let mut request = fetch_request(&[("t", 0, 0), ("t", 1, 0)]).with_isolation_level(1);
        if version >= 13 {
            request.topics.iter_mut().for_each(|topic| {
                topic.topic = Default::default();
                topic.topic_id = id;
            });
        }
        let response = ask!(client, Fetch, version, request);
        assert_eq!(all_values(&response), ["value"], "version {version}");
        let errors = response.topics.iter().flat_map(|topic| &topic.partitions);
        let errors: Vec<i16> = errors.map(|partition| partition.error_code).collect();
        let unknown = ResponseError::UnknownTopicOrPartition.code();
        assert_eq!(errors, [0, unknown], "version {version}");
    }
}

#[test]
fn a_partition_named_twice_in_a_fetch_is_answered_once() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    client.produce("t", 0, &["a"]);
    client.produce("t", 0, &["b"]);
    let response = fetch(&mut client, fetch_request(&[("t", 0, 0), ("t", 0, 1)]));
    assert_eq!(all_values(&response), ["b"]);
}

/// A fetch that found no memory waited for new records, and there were none.
#[test]
fn a_fetch_of_old_data_goes_on_soon_after_memory_for_it_is_free() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    client.produce("t", 0, &["old"]);
    node.log().evict();
    client.produce("t", 1, &["new"]);
    let lane = node.log().stream("t").unwrap().partition(0).unwrap();
    assert!(!lane.is_in_memory(Offset(0)));
    let pool = node.log().pool();
    let held = || pool.allocate(Arena::Windows, BLOCK_BYTES_MIN);
    let held: Vec<BufferWriter> = std::iter::from_fn(held).collect();
    // Records that were read are sent, however few they are.
    let started_at = Instant::now();
    let request = fetch_request(&[("t", 0, 0), ("t", 1, 0)]).with_min_bytes(i32::MAX);
    assert_eq!(all_values(&fetch(&mut client, request)), ["new"]);
    client.send(11, fetch_request(&[("t", 0, 0)]));
    thread::sleep(A_WHILE);
    drop(held);
    let Response::Fetch(response) = client.receive(ApiKey::Fetch, 11).1 else {
        panic!("it is an answer to that");
    };
    assert_eq!(all_values(&response), ["old"]);
    let waited = started_at.elapsed();
    assert!(
        waited >= A_WHILE && waited < Duration::from_secs(20),
        "{waited:?}"
    );
}

#[test]
fn answers_with_old_data_have_a_bound_while_clients_produce() {
    const CHUNKS: usize = 60;
    let node = Node::alone(|_| {});
    let mut client = node.connect();
    client.create_topic("old", 1);
    client.create_topic("new", 1);
    let long = "x".repeat(30_000);
    for number in 0..CHUNKS {
        client.produce("old", 0, &[&format!("{number}{long}")]);
    }
    // Then memory has none of it.
    let node = node.restart();
    let mut client = node.connect();
    let read = |client: &mut Connection, from: usize| {
        let mut request = fetch_request(&[("old", 0, from as i64)]);
        request.topics[0].partitions[0].partition_max_bytes = 16 << 20;
        let response = fetch(client, request);
        let values = all_values(&response).into_iter();
        let numbers = values.map(|value| value.trim_end_matches('x').to_owned());
        numbers.collect::<Vec<String>>()
    };
    let all: Vec<String> = (0..CHUNKS).map(|number| number.to_string()).collect();
    // The first answers of a connection are smaller: it may be slow.
    let is_whole = (0..50).any(|_| read(&mut client, 0) == all);
    assert!(is_whole, "not all in one answer");
    let mut got = Vec::new();
    while got.len() < CHUNKS {
        client.produce("new", 0, &["value"]);
        let some = read(&mut client, got.len());
        assert!(!some.is_empty() && some.len() * long.len() <= WINDOW_BYTES);
        got.extend(some);
    }
    assert_eq!(got, all);
    // Records in memory come in one answer.
    for number in 0..CHUNKS {
        client.produce("new", 0, &[&format!("{number}{long}")]);
    }
    let mut request = fetch_request(&[("new", 0, 0)]);
    request.topics[0].partitions[0].partition_max_bytes = 16 << 20;
    let response = fetch(&mut client, request);
    assert!(all_values(&response).len() > CHUNKS);
    thread::sleep(A_WHILE);
    assert_eq!(read(&mut client, 0), all);
}

//! Fetch sessions (KIP-227): their contents, their partial answers, and their end.

use std::time::{Duration, Instant};

use millstream_wire::messages::FetchRequest;
use millstream_wire::messages::fetch_request::ForgottenTopic;
use millstream_wire::{FetchResponse, FetchedPartition, ResponseError};

use crate::support::{Connection, Node, ask, fetch_request, topic_name, values};

/// The bound on the sessions of a broker.
const SESSIONS_MAX: usize = 1_000;

fn fetch(client: &mut Connection, request: FetchRequest) -> FetchResponse {
    ask!(client, Fetch, 11, request.with_max_wait_ms(0))
}

/// Begins a session; returns its id.
fn begin(client: &mut Connection, places: &[(&str, i32, i64)]) -> i32 {
    let response = fetch(client, fetch_request(places).with_session_epoch(0));
    assert_eq!(response.error_code, 0);
    assert_ne!(response.session_id, 0);
    response.session_id
}

/// Continues a session.
fn next(
    client: &mut Connection,
    id: i32,
    epoch: i32,
    places: &[(&str, i32, i64)],
) -> FetchResponse {
    let request = fetch_request(places);
    fetch(
        client,
        request.with_session_id(id).with_session_epoch(epoch),
    )
}

fn partitions(response: &FetchResponse) -> Vec<&FetchedPartition> {
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    partitions.collect()
}

#[test]
fn a_session_returns_only_changed_partitions() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 3);
    let places = [("t", 0, 0), ("t", 1, 0), ("t", 2, 0)];
    let first = fetch(&mut client, fetch_request(&places).with_session_epoch(0));
    assert_eq!(partitions(&first).len(), 3);
    let id = first.session_id;
    assert_eq!(partitions(&next(&mut client, id, 1, &[])).len(), 0);
    client.produce("t", 1, &["value"]);
    let response = next(&mut client, id, 2, &[]);
    let returned = partitions(&response);
    assert_eq!((returned.len(), returned[0].partition), (1, 1));
    assert_eq!(values(returned[0]), ["value"]);
    // The client has not read on, so the answer repeats the partition.
    assert_eq!(partitions(&next(&mut client, id, 3, &[])).len(), 1);
    assert_eq!(
        partitions(&next(&mut client, id, 4, &[("t", 1, 1)])).len(),
        0
    );
}

#[test]
fn forgotten_partitions_leave_the_session() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    let id = begin(&mut client, &[("t", 0, 0), ("t", 1, 0)]);
    client.produce("t", 0, &["forgotten"]);
    client.produce("t", 1, &["value"]);
    let forgotten = ForgottenTopic::default()
        .with_topic(topic_name("t"))
        .with_partitions(vec![0, 7]);
    let request = fetch_request(&[])
        .with_session_id(id)
        .with_session_epoch(1)
        .with_forgotten_topics_data(vec![forgotten]);
    let response = fetch(&mut client, request);
    let returned = partitions(&response);
    assert_eq!((returned.len(), returned[0].partition), (1, 1));
    // The request may name the partition again.
    let response = next(&mut client, id, 2, &[("t", 0, 0), ("t", 1, 1)]);
    assert_eq!(values(partitions(&response)[0]), ["forgotten"]);
}

#[test]
fn wrong_epochs_and_ids_are_refused() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let id = begin(&mut client, &[("t", 0, 0)]);
    let wrong_epoch = ResponseError::InvalidFetchSessionEpoch.code();
    let not_found = ResponseError::FetchSessionIdNotFound.code();
    for epoch in [2, i32::MAX, -2, i32::MIN] {
        assert_eq!(next(&mut client, id, epoch, &[]).error_code, wrong_epoch);
    }
    assert_eq!(next(&mut client, id, 1, &[]).error_code, 0);
    assert_eq!(next(&mut client, id, 1, &[]).error_code, wrong_epoch);
    assert_eq!(next(&mut client, id ^ 1, 1, &[]).error_code, not_found);
    assert_eq!(next(&mut client, 0, 1, &[]).error_code, not_found);
    assert_eq!(next(&mut client, -1, 1, &[]).error_code, not_found);
    // Ends the session.
    let last = next(&mut client, id, -1, &[("t", 0, 0)]);
    assert_eq!((last.error_code, last.session_id), (0, 0));
    assert_eq!(next(&mut client, id, 2, &[]).error_code, not_found);
}

#[test]
fn a_session_uses_either_names_or_ids() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let id = begin(&mut client, &[("t", 0, 0)]);
    let request = fetch_request(&[]).with_session_id(id).with_session_epoch(1);
    let refused = ask!(client, Fetch, 13, request.with_max_wait_ms(0));
    assert_eq!(
        refused.error_code,
        ResponseError::FetchSessionTopicIdError.code()
    );
}

#[test]
fn the_least_recently_used_session_is_evicted() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let first = begin(&mut client, &[("t", 0, 0)]);
    let second = begin(&mut client, &[("t", 0, 0)]);
    for _ in 2..SESSIONS_MAX {
        begin(&mut client, &[("t", 0, 0)]);
    }
    assert_eq!(next(&mut client, first, 1, &[]).error_code, 0);
    begin(&mut client, &[("t", 0, 0)]);
    assert_eq!(next(&mut client, first, 2, &[]).error_code, 0);
    let not_found = ResponseError::FetchSessionIdNotFound.code();
    assert_eq!(next(&mut client, second, 1, &[]).error_code, not_found);
}

#[test]
fn earlier_partitions_do_not_starve_later_ones() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 3);
    let places = [("t", 0, 0), ("t", 1, 0), ("t", 2, 0)];
    for partition in 0..3 {
        client.produce("t", partition, &["value"]);
    }
    // There is room for one chunk, and the client does not read on.
    let first = fetch_request(&places)
        .with_session_epoch(0)
        .with_max_bytes(1);
    let response = fetch(&mut client, first);
    let mut given = vec![response.clone()];
    for epoch in 1..6 {
        let request = fetch_request(&[]).with_session_id(response.session_id);
        given.push(fetch(
            &mut client,
            request.with_session_epoch(epoch).with_max_bytes(1),
        ));
    }
    let given: Vec<i32> = given
        .iter()
        .map(|response| {
            let returned = partitions(response);
            let mut full = returned
                .iter()
                .filter(|returned| !returned.records.is_empty());
            full.next().unwrap().partition
        })
        .collect();
    assert_eq!(given, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_session_finds_a_topic_created_later() {
    let node = Node::start();
    let mut client = node.connect();
    let first = fetch(
        &mut client,
        fetch_request(&[("t", 0, 0)]).with_session_epoch(0),
    );
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(partitions(&first)[0].error_code, unknown);
    // The error is repeated for as long as it lasts, and at once.
    let started_at = Instant::now();
    let request = fetch_request(&[])
        .with_session_id(first.session_id)
        .with_session_epoch(1);
    let second = ask!(client, Fetch, 11, request);
    assert_eq!(partitions(&second)[0].error_code, unknown);
    assert!(started_at.elapsed() < Duration::from_secs(20));
    for epoch in [2, 4] {
        client.create_topic("t", 1);
        client.produce("t", 0, &["value"]);
        let found = next(&mut client, first.session_id, epoch, &[]);
        assert_eq!(values(partitions(&found)[0]), ["value"]);
        // The next topic of this name is another one.
        node.log().delete_stream("t").unwrap();
        let gone = next(&mut client, first.session_id, epoch + 1, &[]);
        assert_eq!(partitions(&gone)[0].error_code, unknown);
    }
}

#[test]
fn a_session_refuses_invalid_topic_names() {
    let node = Node::start();
    let mut client = node.connect();
    let name = "x".repeat(10_000);
    let request = fetch_request(&[(&name, 0, 0)]);
    let refused = fetch(&mut client, request.clone().with_session_epoch(0));
    assert_eq!(
        refused.error_code,
        ResponseError::InvalidTopicException.code()
    );
    // Without a session the broker keeps no state.
    let response = fetch(&mut client, request);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(partitions(&response)[0].error_code, unknown);
}

//! The newest versions: renewed locks (KIP-1222), fetches with a strict bound (KIP-1206), and the lag (KIP-1226).

use std::sync::Arc;
use std::time::Duration;

use millstream_base::{SystemDisk, Timestamp};
use millstream_sim::SimClock;
use millstream_wire::messages::share_fetch_request::AcknowledgementBatch;
use millstream_wire::{ResponseError, ShareFetchRequest};

use super::member::*;
use crate::support::{Connection, Node, ask};

const RENEW: i8 = 4;

/// Half of the default lock, and a moment.
const OVER_HALF_A_LOCK: Duration = Duration::from_secs(16);

/// A node with a topic and a clock that only the test moves.
fn with_clock() -> (Node, Connection, Arc<SimClock>) {
    let clock = Arc::new(SimClock::new(Timestamp(1)));
    let (node, client) = topic_on(Node::simulated(Arc::new(SystemDisk), clock.clone()), 1);
    (node, client, clock)
}

fn join(node: &Node, id: &'static str) -> Member {
    let member = Member::join(node, id);
    Member {
        version: 2,
        ..member
    }
}

/// Acknowledges records with a fetch; returns the error.
fn renew_with_fetch(member: &mut Member, batches: Vec<AcknowledgementBatch>) -> i16 {
    let request = ShareFetchRequest {
        is_renew_ack: true,
        min_bytes: 0,
        max_bytes: 0,
        max_records: 0,
        ..member.request(batches)
    };
    let response = member.ask(request);
    assert_eq!(response.acquisition_lock_timeout_ms, 30_000);
    let partition = &response.topics[0].partitions[0];
    assert!(partition.acquired.is_empty(), "it fetches nothing");
    partition.acknowledge_error_code
}

#[test]
fn a_renewed_lock_outlasts_its_first_duration() {
    let (node, mut client, clock) = with_clock();
    let (mut member, mut other) = (join(&node, "a"), join(&node, "b"));
    client.produce("t", 0, &["a", "b", "c"]);
    assert_eq!(member.fetch(), [(0, 1), (1, 1), (2, 1)]);
    assert_eq!(other.fetch(), []);
    clock.advance(OVER_HALF_A_LOCK);
    let types = [RENEW, ACCEPT];
    assert_eq!(member.acknowledge(vec![batch(0, 1, &types)]), 0);
    clock.advance(OVER_HALF_A_LOCK);
    // The record that was not renewed is another member's now.
    assert_eq!(other.fetch(), [(2, 2)]);
    let renewed = renew_with_fetch(&mut member, vec![batch(0, 0, &[RENEW])]);
    assert_eq!(renewed, 0);
    clock.advance(OVER_HALF_A_LOCK);
    assert_eq!(other.fetch(), []);
    assert_eq!(member.acknowledge(vec![batch(0, 0, &[ACCEPT])]), 0);
    assert_eq!(start_offset(&mut client), 2);
    // Too late.
    clock.advance(2 * OVER_HALF_A_LOCK);
    let invalid_state = ResponseError::InvalidRecordState.code();
    let late = other.acknowledge(vec![batch(2, 2, &[RENEW])]);
    assert_eq!(late, invalid_state);
    assert_eq!(member.fetch(), [(2, 3)]);
}

#[test]
fn renewals_that_are_not_allowed_get_kafkas_errors_and_change_nothing() {
    let (node, mut client) = with_topic(1);
    let mut member = join(&node, "a");
    client.produce("t", 0, &["a"]);
    assert_eq!(member.fetch(), [(0, 1)]);
    let renewal = || vec![batch(0, 0, &[RENEW])];
    let invalid = ResponseError::InvalidRequest.code();
    // The older version does not know the type.
    member.version = 1;
    assert_eq!(member.acknowledge(renewal()), invalid);
    member.version = 2;
    // The request does not announce it.
    let response = {
        let request = ShareFetchRequest {
            max_records: 0,
            ..member.request(renewal())
        };
        member.ask(request)
    };
    let error = response.topics[0].partitions[0].acknowledge_error_code;
    assert_eq!(error, invalid);
    // It fetches at the same time.
    let request = ShareFetchRequest {
        is_renew_ack: true,
        ..member.request(renewal())
    };
    let refused = ask!(member.client, ShareFetch, 2, request);
    assert_eq!(refused.error_code, invalid);
    member.epoch -= 1;
    let request = ShareFetchRequest {
        share_acquire_mode: 2,
        ..member.request(Vec::new())
    };
    let refused = ask!(member.client, ShareFetch, 2, request);
    assert_eq!(refused.error_code, invalid);
    member.epoch -= 1;
    // The group's settings forbid it.
    from_beginning(&mut client, &[("share.renew.acknowledge.enable", "false")]);
    let invalid_state = ResponseError::InvalidRecordState.code();
    assert_eq!(member.acknowledge(renewal()), invalid_state);
    assert_eq!(member.acknowledge(vec![batch(0, 0, &[ACCEPT])]), 0);
    from_beginning(&mut client, &[("share.renew.acknowledge.enable", "true")]);
    client.produce("t", 0, &["b"]);
    assert_eq!(member.fetch(), [(1, 1)]);
    assert_eq!(member.acknowledge(vec![batch(1, 1, &[RENEW])]), 0);
}

#[test]
fn a_fetch_with_a_limit_of_records_gets_no_more_even_of_a_batch() {
    let (node, mut client) = with_topic(1);
    let mut member = join(&node, "a");
    client.produce("t", 0, &["x"; 10]);
    client.produce("t", 0, &["x"; 10]);
    let mut got = |share_acquire_mode: i8| {
        let request = ShareFetchRequest {
            share_acquire_mode,
            max_records: 6,
            ..member.request(Vec::new())
        };
        let offsets = acquired(&member.ask(request)).into_iter();
        offsets.map(|(offset, _)| offset).collect::<Vec<i64>>()
    };
    assert_eq!(got(1), [0, 1, 2, 3, 4, 5]);
    assert_eq!(got(1), [6, 7, 8, 9, 10, 11]);
    // Without it the rest of the batch comes along.
    assert_eq!(got(0), [12, 13, 14, 15, 16, 17, 18, 19]);
}

#[test]
fn the_lag_counts_the_records_that_are_not_finished() {
    let (node, mut client) = with_topic(1);
    let mut member = join(&node, "a");
    client.produce("t", 0, &["x"; 10]);
    client.produce("t", 0, &["x"; 10]);
    let mut lag = || {
        let described = described(&mut client);
        described.map(|partition| (partition.start_offset, partition.lag))
    };
    assert_eq!(lag(), None);
    let request = ShareFetchRequest {
        max_records: 10,
        ..member.request(Vec::new())
    };
    assert_eq!(acquired(&member.ask(request)).len(), 10);
    assert_eq!(lag(), Some((0, 20)));
    assert_eq!(member.acknowledge(vec![batch(2, 4, &[ACCEPT])]), 0);
    assert_eq!(lag(), Some((0, 17)));
    assert_eq!(member.acknowledge(vec![batch(0, 1, &[ACCEPT])]), 0);
    assert_eq!(lag(), Some((5, 15)));
}

//! Events around records in flight: topics, groups and transactions that end, a full disk, repeated
//! requests.

use std::sync::Arc;

use bytes::Bytes;
use millstream_base::{ProducerEpoch, ProducerId, Sequence, SystemClock, Timestamp};
use millstream_record::{ChunkBuilder, Compression, EndMarker, Producer, TransactionEnd};
use millstream_sim::SimDisk;
use millstream_wire::messages::create_partitions_request::CreatePartitionsTopic;
use millstream_wire::messages::delete_topics_request::DeleteTopicState;
use millstream_wire::messages::{
    CreatePartitionsRequest, DeleteGroupsRequest, DeleteTopicsRequest,
};
use millstream_wire::{ResponseError, ShareFetchRequest};

use super::member::*;
use crate::configs::{GROUP, set};
use crate::support::{Node, ask, group_id, produce_request, topic_name, wait_until};

#[test]
fn a_topic_that_was_deleted_and_made_again_begins_without_records_in_flight() {
    let (node, mut client) = with_topic(1);
    let mut member = Member::join(&node, "a");
    client.produce("t", 0, &["old", "old"]);
    assert_eq!(member.fetch(), [(0, 1), (1, 1)]);
    let state = DeleteTopicState::default().with_name(Some(topic_name("t")));
    let request = DeleteTopicsRequest::default().with_topics(vec![state]);
    let deleted = ask!(client, DeleteTopics, 6, request);
    assert_eq!(deleted.responses[0].error_code, 0);
    client.create_topic("t", 1);
    client.produce("t", 0, &["new"]);
    let unknown = ResponseError::UnknownTopicId.code();
    assert_eq!(member.acknowledge(vec![batch(0, 1, &[ACCEPT])]), unknown);
    assert_eq!(start_offset(&mut client), -1);
    let mut other = Member::join(&node, "b");
    assert_eq!(other.fetch(), [(0, 1)]);
    let node = node.restart();
    assert_eq!(start_offset(&mut node.connect()), 0);
}

#[test]
fn a_member_gets_the_records_of_partitions_that_are_added_to_its_topic() {
    let (node, mut client) = with_topic(1);
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), []);
    let topic = CreatePartitionsTopic::default()
        .with_name(topic_name("t"))
        .with_count(3);
    let request = CreatePartitionsRequest::default().with_topics(vec![topic]);
    let grown = ask!(client, CreatePartitions, 3, request);
    assert_eq!(grown.results[0].error_code, 0);
    client.produce("t", 2, &["a", "b"]);
    let staying = joining("a")
        .with_member_epoch(1)
        .with_subscribed_topic_names(None);
    let beat = ask!(client, ShareGroupHeartbeat, 1, staying);
    let assigned = beat.assignment.expect("another assignment");
    assert_eq!(assigned.topic_partitions[0].partitions, [0, 1, 2]);
    let session = Member::join(&node, "b");
    let topics = {
        let mut all = Member {
            epoch: 0,
            ..session
        };
        all.request(Vec::new()).topics
    };
    let request = ShareFetchRequest {
        topics,
        ..member.request(Vec::new())
    };
    assert_eq!(acquired(&member.ask(request)), [(0, 1), (1, 1)]);
}

#[test]
fn a_fetch_that_waits_ends_with_its_group_and_takes_no_record() {
    let (node, mut client) = with_topic(1);
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), []);
    member.begin_fetch();
    let leaving = joining("a")
        .with_member_epoch(-1)
        .with_subscribed_topic_names(None);
    let left = ask!(client, ShareGroupHeartbeat, 1, leaving);
    assert_eq!(left.error_code, 0);
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group_id("g")]);
    let deleted = ask!(client, DeleteGroups, 2, request);
    assert_eq!(deleted.results[0].error_code, 0);
    assert_eq!(member.end_fetch(), []);
    client.produce("t", 0, &["a"]);
    let mut other = Member::join(&node, "b");
    assert_eq!(other.fetch(), [(0, 1)]);
}

#[test]
fn records_whose_transaction_is_aborted_while_they_are_in_flight_do_not_come_again() {
    let (node, mut client) = with_topic(1);
    let partition = node.log().stream("t").unwrap().partition(0).unwrap();
    let mut builder = ChunkBuilder::new(Compression::None);
    builder.set_transactional(true);
    for _ in 0..2 {
        builder.push(Timestamp(1), None, Some(b"x"), &[]).unwrap();
    }
    let producer = Producer {
        id: ProducerId(7),
        epoch: ProducerEpoch(0),
        sequence: Sequence(0),
    };
    let chunk = Bytes::copy_from_slice(builder.finish(Some(producer)).unwrap());
    let appended = partition.append(&chunk).unwrap();
    partition.wait_durable(appended.next_offset).unwrap();
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), [(0, 1), (1, 1)]);
    let isolation = "share.isolation.level";
    set(&mut client, (GROUP, "g"), isolation, "read_committed");
    assert_eq!(member.acknowledge(vec![batch(0, 1, &[RELEASE])]), 0);
    assert_eq!(member.fetch(), [], "the transaction is open");
    let marker = EndMarker {
        producer_id: ProducerId(7),
        producer_epoch: ProducerEpoch(0),
        end: TransactionEnd::Abort,
        coordinator_epoch: 0,
    };
    let appended = partition.append_marker(&marker).unwrap();
    partition.wait_durable(appended.next_offset).unwrap();
    wait_until("it is stable", || partition.last_stable_offset().0 == 3);
    assert_eq!(member.fetch(), []);
    client.produce("t", 0, &["outside"]);
    assert_eq!(member.fetch(), [(3, 1)]);
    assert_eq!(start_offset(&mut client), 3);
}

#[test]
fn a_repeated_request_of_a_session_counts_once() {
    let (node, mut client) = with_topic(1);
    let mut member = Member::join(&node, "a");
    client.produce("t", 0, &["a"]);
    assert_eq!(member.fetch(), [(0, 1)]);
    let release = member.request(vec![batch(0, 0, &[RELEASE])]);
    assert_eq!(acquired(&member.ask(release.clone())), [(0, 2)]);
    let replayed = ask!(member.client, ShareFetch, 1, release);
    let wrong_epoch = ResponseError::InvalidShareSessionEpoch.code();
    assert_eq!(replayed.error_code, wrong_epoch);
    assert_eq!(member.acknowledge(vec![batch(0, 0, &[ACCEPT])]), 0);
    assert_eq!(start_offset(&mut client), 1);
}

#[test]
fn many_invalid_acknowledgements_change_nothing() {
    let (node, mut client) = with_topic(1);
    let mut member = Member::join(&node, "a");
    client.produce("t", 0, &["x"; 100]);
    assert_eq!(member.fetch().len(), 100);
    let invalid = ResponseError::InvalidRequest.code();
    let invalid_state = ResponseError::InvalidRecordState.code();
    for (batches, expected) in [
        (vec![batch(0, 99, &[ACCEPT; 500_000])], invalid),
        (vec![batch(0, 99, &[ACCEPT]); 100_000], invalid),
        (vec![batch(5, 5, &[ACCEPT]); 100_000], invalid_state),
        (
            (0..100)
                .rev()
                .map(|at| batch(at, at, &[ACCEPT]))
                .collect::<Vec<_>>(),
            invalid,
        ),
    ] {
        assert_eq!(member.acknowledge(batches), expected);
    }
    let lag = described(&mut client).map(|partition| partition.lag);
    assert_eq!(lag, Some(100));
    let one_by_one = (0..100).map(|at| batch(at, at, &[ACCEPT])).collect();
    assert_eq!(member.acknowledge(one_by_one), 0);
    assert_eq!(start_offset(&mut client), 100);
}

#[test]
fn an_acknowledgement_that_the_full_disk_does_not_take_changes_nothing() {
    let disk = Arc::new(SimDisk::new(7));
    let node = Node::simulated(disk.clone(), Arc::new(SystemClock::default()));
    let (node, mut client) = topic_on(node, 1);
    let mut member = Member::join(&node, "a");
    client.produce("t", 0, &["a", "b"]);
    assert_eq!(member.fetch(), [(0, 1), (1, 1)]);
    disk.set_capacity(0);
    let large = "x".repeat(256 << 10);
    let is_full = || node.log().stats().disk_full;
    wait_until("the disk is full", || {
        let chunk = crate::support::chunk(&[&large]);
        ask!(client, Produce, 9, produce_request("t", 0, chunk));
        is_full()
    });
    let before = described(&mut client).map(|partition| partition.start_offset);
    assert_eq!(before, Some(0));
    let storage = ResponseError::KafkaStorageError.code();
    for kind in [ACCEPT, RELEASE, REJECT] {
        let refused = member.acknowledge(vec![batch(0, 1, &[kind])]);
        assert_eq!(refused, storage);
    }
    assert_eq!(start_offset(&mut client), 0);
    // The member still holds the records, and its next acknowledgement counts.
    disk.set_capacity(u64::MAX);
    wait_until("there is room", || !is_full());
    assert_eq!(member.acknowledge(vec![batch(0, 1, &[ACCEPT])]), 0);
    assert_eq!(start_offset(&mut client), 2);
}

//! Share groups over the wire: the records that each member gets, their delivery counts, and the
//! state that survives a restart of the broker.

mod administration;
mod errors;
mod hostile;
mod letters;
mod member;
mod order;
mod renewal;
mod scale;
mod transactions;

use std::collections::BTreeMap;

use bytes::Bytes;
use millstream_base::{ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_record::{ChunkBuilder, Compression, EndMarker, Producer, TransactionEnd};
use millstream_wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use millstream_wire::messages::{DeleteRecordsRequest, ShareGroupDescribeRequest};
use millstream_wire::{ResponseError, ShareFetchRequest};

use self::member::*;
use crate::support::{ask, group_id, topic_name, wait_until};

#[test]
fn each_record_goes_to_one_of_more_members_than_partitions() {
    let (node, mut client) = with_topic(1);
    let mut members: Vec<Member> = ["a", "b", "c"]
        .into_iter()
        .map(|id| Member::join(&node, id))
        .collect();
    // Their assignment is the same.
    let mut delivered: BTreeMap<i64, &str> = BTreeMap::new();
    for round in 0..4 {
        for _ in 0..3 {
            client.produce("t", 0, &["x"; 10]);
        }
        for member in &mut members {
            let request = ShareFetchRequest {
                max_records: 10,
                ..member.request(Vec::new())
            };
            let got = acquired(&member.ask(request));
            assert_eq!(got.len(), 10, "round {round}");
            for (offset, count) in &got {
                assert_eq!(delivered.insert(*offset, member.id), None);
                assert_eq!(*count, 1);
            }
            let (first, last) = (got[0].0, got[9].0);
            // Half of them with the next fetch, half in a request of their own.
            let request = ShareFetchRequest {
                max_records: 0,
                ..member.request(vec![batch(first, first + 4, &[ACCEPT])])
            };
            acquired(&member.ask(request));
            assert_eq!(
                member.acknowledge(vec![batch(first + 5, last, &[ACCEPT])]),
                0
            );
        }
    }
    assert_eq!(delivered.len(), 120);
    for member in &mut members {
        assert_eq!(member.fetch(), []);
    }
    assert_eq!(start_offset(&mut client), 120);
}

#[test]
fn released_records_come_again_until_their_last_delivery_and_rejected_ones_do_not() {
    let (node, mut client) = with_topic(1);
    let mut member = Member::join(&node, "a");
    client.produce("t", 0, &["a", "b", "c", "d"]);
    assert_eq!(member.fetch(), [(0, 1), (1, 1), (2, 1), (3, 1)]);
    let types = [ACCEPT, RELEASE, REJECT, RELEASE];
    assert_eq!(member.acknowledge(vec![batch(0, 3, &types)]), 0);
    for count in 2..=5 {
        assert_eq!(member.fetch(), [(1, count), (3, count)]);
        assert_eq!(start_offset(&mut client), 1);
        let batches = vec![batch(1, 1, &[RELEASE]), batch(3, 3, &[RELEASE])];
        assert_eq!(member.acknowledge(batches), 0);
    }
    assert_eq!(member.fetch(), []);
    assert_eq!(start_offset(&mut client), 4);
}

#[test]
fn records_of_a_closed_connection_go_to_a_waiting_member() {
    let (node, mut client) = with_topic(1);
    let mut first = Member::join(&node, "a");
    let mut second = Member::join(&node, "b");
    client.produce("t", 0, &["a", "b"]);
    assert_eq!(first.fetch(), [(0, 1), (1, 1)]);
    assert_eq!(second.fetch(), []);
    second.begin_fetch();
    drop(first);
    assert_eq!(second.end_fetch(), [(0, 2), (1, 2)]);
}

#[test]
fn a_member_that_waits_is_woken_by_new_records_and_by_released_ones() {
    let (node, mut client) = with_topic(1);
    let mut first = Member::join(&node, "a");
    let mut second = Member::join(&node, "b");
    assert_eq!(second.fetch(), []);
    second.begin_fetch();
    client.produce("t", 0, &["a"]);
    assert_eq!(second.end_fetch(), [(0, 1)]);
    assert_eq!(first.fetch(), []);
    first.begin_fetch();
    assert_eq!(second.acknowledge(vec![batch(0, 0, &[RELEASE])]), 0);
    assert_eq!(first.end_fetch(), [(0, 2)]);
}

#[test]
fn a_lock_times_out_and_its_records_go_to_a_member_that_waits() {
    let (node, mut client) = with_topic(1);
    let lock = ("share.record.lock.duration.ms", "1000");
    from_beginning(&mut client, &[lock]);
    let mut first = Member::join(&node, "a");
    let mut second = Member::join(&node, "b");
    client.produce("t", 0, &["a"]);
    let request = first.request(Vec::new());
    let response = first.ask(request);
    assert_eq!(response.acquisition_lock_timeout_ms, 1000);
    assert_eq!(acquired(&response), [(0, 1)]);
    second.begin_fetch();
    assert_eq!(second.end_fetch(), [(0, 2)]);
    // It is too late, and the record is another member's.
    let invalid = ResponseError::InvalidRecordState.code();
    assert_eq!(first.acknowledge(vec![batch(0, 0, &[ACCEPT])]), invalid);
}

#[test]
fn acknowledged_records_never_come_again_and_delivery_counts_last_when_the_broker_starts_again() {
    let (node, mut client) = with_topic(1);
    let mut member = Member::join(&node, "a");
    client.produce("t", 0, &["x"; 10]);
    assert_eq!(member.fetch().len(), 10);
    let batches = vec![batch(0, 2, &[ACCEPT]), batch(5, 6, &[ACCEPT, REJECT])];
    assert_eq!(member.acknowledge(batches), 0);
    let node = node.restart();
    // It is a member still, and its session is gone.
    let mut again = Member {
        client: node.connect(),
        ..member
    };
    let request = again.request(Vec::new());
    let refused = ask!(again.client, ShareFetch, 1, request);
    let gone = ResponseError::ShareSessionNotFound.code();
    assert_eq!(refused.error_code, gone);
    again.epoch = 0;
    let left = [3, 4, 7, 8, 9].map(|offset| (offset, 2));
    assert_eq!(again.fetch(), left);
    assert_eq!(start_offset(&mut node.connect()), 3);
}

#[test]
fn read_committed_groups_get_neither_aborted_records_nor_markers() {
    let (node, mut client) = with_topic(1);
    let isolation = ("share.isolation.level", "read_committed");
    from_beginning(&mut client, &[isolation]);
    let partition = node.log().stream("t").unwrap().partition(0).unwrap();
    let producer = |sequence| Producer {
        id: ProducerId(7),
        epoch: ProducerEpoch(0),
        sequence: Sequence(sequence),
    };
    let chunk = |sequence| {
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.set_transactional(true);
        for _ in 0..2 {
            builder.push(Timestamp(1), None, Some(b"x"), &[]).unwrap();
        }
        Bytes::copy_from_slice(builder.finish(Some(producer(sequence))).unwrap())
    };
    let marker = |end| EndMarker {
        producer_id: ProducerId(7),
        producer_epoch: ProducerEpoch(0),
        end,
        coordinator_epoch: 0,
    };
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), []);
    // 0 and 1 are aborted by 2, 4 and 5 are committed by 6, 7 and 8 are open.
    partition.append(&chunk(0)).unwrap();
    partition
        .append_marker(&marker(TransactionEnd::Abort))
        .unwrap();
    client.produce("t", 0, &["outside"]);
    partition.append(&chunk(2)).unwrap();
    partition
        .append_marker(&marker(TransactionEnd::Commit))
        .unwrap();
    let appended = partition.append(&chunk(4)).unwrap();
    partition.wait_durable(appended.next_offset).unwrap();
    wait_until("it is stable", || partition.last_stable_offset().0 == 7);
    assert_eq!(member.fetch(), [(3, 1), (4, 1), (5, 1)]);
    assert_eq!(start_offset(&mut client), 3);
    assert_eq!(member.acknowledge(vec![batch(3, 5, &[ACCEPT])]), 0);
    assert_eq!(member.fetch(), []);
    let appended = partition
        .append_marker(&marker(TransactionEnd::Abort))
        .unwrap();
    partition.wait_durable(appended.next_offset).unwrap();
    assert_eq!(member.fetch(), []);
    client.produce("t", 0, &["last"]);
    assert_eq!(member.fetch(), [(10, 1)]);
    assert_eq!(start_offset(&mut client), 10);
}

#[test]
fn records_deleted_from_the_log_are_skipped() {
    let (node, mut client) = with_topic(1);
    let mut member = Member::join(&node, "a");
    for _ in 0..4 {
        client.produce("t", 0, &["a", "b"]);
    }
    let request = ShareFetchRequest {
        max_records: 2,
        ..member.request(Vec::new())
    };
    assert_eq!(acquired(&member.ask(request)), [(0, 1), (1, 1)]);
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(0)
        .with_offset(5);
    let topic = DeleteRecordsTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    let deleted = ask!(client, DeleteRecords, 2, request);
    assert_eq!(deleted.topics[0].partitions[0].error_code, 0);
    assert_eq!(start_offset(&mut client), 5);
    assert_eq!(member.acknowledge(vec![batch(0, 3, &[ACCEPT])]), 0);
    assert_eq!(member.fetch(), [(5, 1), (6, 1), (7, 1)]);
}

#[test]
fn records_in_flight_stay_within_the_limit() {
    let (node, mut client) = with_topic(1);
    let locks = ("share.partition.max.record.locks", "100");
    from_beginning(&mut client, &[locks]);
    let mut member = Member::join(&node, "a");
    for _ in 0..4 {
        client.produce("t", 0, &["x"; 40]);
    }
    assert_eq!(member.fetch().len(), 100);
    assert_eq!(member.fetch(), []);
    let mut other = Member::join(&node, "b");
    assert_eq!(other.fetch(), []);
    other.begin_fetch();
    assert_eq!(member.acknowledge(vec![batch(10, 14, &[ACCEPT])]), 0);
    let next: Vec<(i64, i16)> = (100..105).map(|offset| (offset, 1)).collect();
    assert_eq!(other.end_fetch(), next);
}

#[test]
fn each_partition_has_a_member_and_each_member_a_partition() {
    let (node, _client) = with_topic(3);
    let mut all: Vec<Member> = Vec::new();
    for id in ["a", "b", "c", "d", "e"] {
        all.push(Member::join(&node, id));
        let request = ShareGroupDescribeRequest::default().with_group_ids(vec![group_id("g")]);
        let described = ask!(all[0].client, ShareGroupDescribe, 1, request);
        let members = described.groups[0].members.iter();
        let assigned: Vec<Vec<i32>> = members
            .map(|member| {
                let topics = member.assignment.topic_partitions.iter();
                topics.flat_map(|topic| topic.partitions.clone()).collect()
            })
            .collect();
        assert_eq!(assigned.len(), all.len());
        assert!(assigned.iter().all(|partitions| !partitions.is_empty()));
        let mut covered = assigned.concat();
        covered.sort_unstable();
        covered.dedup();
        assert_eq!(covered, [0, 1, 2]);
    }
    // A member that has not heard of it learns its new partitions and epoch with its next heartbeat.
    let staying = joining("a")
        .with_member_epoch(1)
        .with_subscribed_topic_names(None);
    let beat = ask!(all[0].client, ShareGroupHeartbeat, 1, staying.clone());
    assert_eq!((beat.error_code, beat.member_epoch), (0, 5));
    assert!(beat.assignment.is_some());
    let beat = ask!(
        all[0].client,
        ShareGroupHeartbeat,
        1,
        staying.clone().with_member_epoch(5)
    );
    assert_eq!((beat.error_code, beat.assignment), (0, None));
    let fenced = staying.with_member_epoch(4);
    let beat = ask!(all[0].client, ShareGroupHeartbeat, 1, fenced);
    assert_eq!(beat.error_code, ResponseError::FencedMemberEpoch.code());
}

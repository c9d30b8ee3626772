//! Groups that get the records of a key in order: `share.order=key`.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_base::SystemClock;
use millstream_record::Compression;
use millstream_sim::SimDisk;
use millstream_wire::messages::DeleteRecordsRequest;
use millstream_wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use millstream_wire::messages::share_fetch_request::AcknowledgementBatch;
use millstream_wire::{ResponseError, ShareFetchRequest};

use super::member::*;
use crate::support::{
    Connection, Node, ask, chunk, keyed_chunk, produce_request, topic_name, wait_until,
};

const ORDER: (&str, &str) = ("share.order", "key");
const NO_ORDER: (&str, &str) = ("share.order", "none");

/// Appends a chunk of records with these keys; `-` is none.
fn produce(client: &mut Connection, keys: &str, compression: Compression) {
    let keys: Vec<String> = keys.chars().map(String::from).collect();
    let records = keys
        .iter()
        .map(|key| ((key != "-").then_some(key.as_str()), "x"));
    let records = keyed_chunk(&records.collect::<Vec<_>>(), compression);
    let produced = ask!(client, Produce, 9, produce_request("t", 0, records));
    let partition = &produced.responses[0].partition_responses[0];
    assert_eq!(partition.error_code, 0, "{produced:?}");
}

fn ordered(keys: &str, settings: &[(&str, &str)]) -> (Node, Connection) {
    let (node, mut client) = with_topic(1);
    from_beginning(&mut client, settings);
    produce(&mut client, keys, Compression::Zstd);
    (node, client)
}

fn one(offset: i64, kind: i8) -> Vec<AcknowledgementBatch> {
    vec![batch(offset, offset, &[kind])]
}

#[test]
fn a_record_waits_for_the_earlier_ones_of_its_key_and_a_waiting_member_gets_it_then() {
    let (node, mut client) = ordered("aab-a", &[ORDER]);
    let mut first = Member::join(&node, "a");
    let mut second = Member::join(&node, "b");
    assert_eq!(first.fetch(), [(0, 1), (2, 1), (3, 1)]);
    assert_eq!(second.fetch(), []);
    second.begin_fetch();
    assert_eq!(first.acknowledge(one(0, ACCEPT)), 0);
    assert_eq!(second.end_fetch(), [(1, 1)]);
    // A released record comes again before the later one.
    assert_eq!(second.acknowledge(one(1, RELEASE)), 0);
    assert_eq!(first.fetch(), [(1, 2)]);
    first.begin_fetch();
    drop(second);
    produce(&mut client, "c", Compression::None);
    assert_eq!(first.end_fetch(), [(5, 1)]);
    assert_eq!(first.acknowledge(one(1, REJECT)), 0);
    assert_eq!(first.fetch(), [(4, 1)]);
    assert_eq!(first.acknowledge(vec![batch(2, 5, &[ACCEPT])]), 0);
    assert_eq!(start_offset(&mut client), 6);
}

#[test]
fn records_of_a_member_that_ends_come_again_in_order() {
    let (node, _client) = ordered("aaa", &[ORDER]);
    let mut first = Member::join(&node, "a");
    let mut second = Member::join(&node, "b");
    assert_eq!(first.fetch(), [(0, 1)]);
    assert_eq!(second.fetch(), []);
    second.begin_fetch();
    drop(first);
    assert_eq!(second.end_fetch(), [(0, 2)]);
}

#[test]
fn a_lock_that_times_out_for_the_last_time_lets_the_next_record_go() {
    let settings = [
        ORDER,
        ("share.record.lock.duration.ms", "1000"),
        ("share.delivery.count.limit", "2"),
    ];
    let (node, _client) = ordered("aa", &settings);
    let mut first = Member::join(&node, "a");
    let mut second = Member::join(&node, "b");
    assert_eq!(first.fetch(), [(0, 1)]);
    assert_eq!(second.fetch(), []);
    second.begin_fetch();
    assert_eq!(second.end_fetch(), [(0, 2)]);
    first.begin_fetch();
    assert_eq!(first.end_fetch(), [(1, 1)]);
}

#[test]
fn the_order_outlasts_a_restart() {
    let (node, _client) = ordered("abab-", &[ORDER]);
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), [(0, 1), (1, 1), (4, 1)]);
    assert_eq!(member.acknowledge(one(1, ACCEPT)), 0);
    assert_eq!(member.fetch(), [(3, 1)]);
    let node = node.restart();
    let mut again = Member {
        client: node.connect(),
        epoch: 0,
        ..member
    };
    assert_eq!(again.fetch(), [(0, 2), (3, 2), (4, 2)]);
    assert_eq!(again.acknowledge(one(0, ACCEPT)), 0);
    assert_eq!(again.fetch(), [(2, 1)]);
}

#[test]
fn a_group_changes_its_order_while_records_are_out() {
    let (node, mut client) = ordered("aaa", &[]);
    let mut first = Member::join(&node, "a");
    let mut second = Member::join(&node, "b");
    assert_eq!(first.fetch(), [(0, 1), (1, 1), (2, 1)]);
    from_beginning(&mut client, &[ORDER]);
    assert_eq!(first.acknowledge(one(0, RELEASE)), 0);
    assert_eq!(second.fetch(), []);
    assert_eq!(first.acknowledge(one(1, ACCEPT)), 0);
    assert_eq!(second.fetch(), []);
    assert_eq!(first.acknowledge(one(2, RELEASE)), 0);
    assert_eq!(second.fetch(), [(0, 2)]);
    // A member that waits follows the change back.
    assert_eq!(first.fetch(), []);
    first.begin_fetch();
    from_beginning(&mut client, &[NO_ORDER]);
    assert_eq!(first.end_fetch(), [(2, 2)]);
}

#[test]
fn deleted_records_do_not_block_later_ones_of_their_key() {
    let (node, mut client) = ordered("aab", &[ORDER]);
    let mut first = Member::join(&node, "a");
    let mut second = Member::join(&node, "b");
    assert_eq!(first.fetch(), [(0, 1), (2, 1)]);
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(0)
        .with_offset(1);
    let topic = DeleteRecordsTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    let deleted = ask!(client, DeleteRecords, 2, request);
    assert_eq!(deleted.topics[0].partitions[0].error_code, 0);
    assert_eq!(second.fetch(), [(1, 1)]);
}

#[test]
fn a_hot_key_leaves_room_for_others_within_the_limit() {
    let hot = "a".repeat(90) + "bcdefghijk" + &"-".repeat(60);
    let (node, mut client) = ordered(&hot, &[ORDER, ("share.partition.max.record.locks", "100")]);
    let mut member = Member::join(&node, "a");
    let mut expected = vec![(0, 1)];
    expected.extend((90..100).map(|offset| (offset, 1)));
    assert_eq!(member.fetch(), expected);
    assert_eq!(member.acknowledge(vec![batch(90, 99, &[ACCEPT])]), 0);
    let expected: Vec<(i64, i16)> = (100..110).map(|offset| (offset, 1)).collect();
    assert_eq!(member.fetch(), expected);
    assert_eq!(start_offset(&mut client), 0);
}

#[test]
fn an_acknowledgement_that_the_full_disk_does_not_take_keeps_the_order() {
    let disk = Arc::new(SimDisk::new(7));
    let node = Node::simulated(disk.clone(), Arc::new(SystemClock::default()));
    let (node, mut client) = topic_on(node, 1);
    from_beginning(&mut client, &[ORDER]);
    produce(&mut client, "aab", Compression::Zstd);
    let mut first = Member::join(&node, "a");
    let mut second = Member::join(&node, "b");
    assert_eq!(first.fetch(), [(0, 1), (2, 1)]);
    disk.set_capacity(0);
    let large = "x".repeat(256 << 10);
    let is_full = || node.log().stats().disk_full;
    wait_until("the disk is full", || {
        let chunk = chunk(&[&large]);
        ask!(client, Produce, 9, produce_request("t", 0, chunk));
        is_full()
    });
    let storage = ResponseError::KafkaStorageError.code();
    assert_eq!(first.acknowledge(one(0, ACCEPT)), storage);
    disk.set_capacity(u64::MAX);
    wait_until("there is room", || !is_full());
    let got = second.fetch();
    assert!(got.iter().all(|(offset, _)| *offset > 2), "{got:?}");
    assert_eq!(first.acknowledge(one(0, ACCEPT)), 0);
    assert_eq!(second.fetch()[0], (1, 1));
}

#[test]
fn records_arrive_in_the_order_of_their_key_while_some_are_released() {
    const RECORDS: usize = 3_000;
    let (node, mut client) = with_topic(1);
    from_beginning(
        &mut client,
        &[
            ORDER,
            ("share.partition.max.record.locks", "200"),
            ("share.delivery.count.limit", "10"),
        ],
    );
    let mut rng = fastrand::Rng::with_seed(7);
    let mut keys = Vec::new();
    while keys.len() < RECORDS {
        let count = rng.usize(1..60);
        let chunk: String = (0..count)
            .map(|_| b"-abcdefghijklmnop"[rng.usize(..17)] as char)
            .collect();
        let codecs = [
            Compression::None,
            Compression::Lz4,
            Compression::Zstd,
            Compression::Gzip,
        ];
        produce(&mut client, &chunk, codecs[rng.usize(..4)]);
        keys.extend(chunk.chars());
    }
    let mut members = ["a", "b", "c", "d"].map(|id| Member::join(&node, id));
    let mut held: Vec<Vec<(i64, i16)>> = vec![Vec::new(); members.len()];
    let mut finished = vec![false; keys.len()];
    let mut out: BTreeMap<char, i64> = BTreeMap::new();
    for round in 0.. {
        assert!(
            round < 100_000,
            "{} are left",
            finished.iter().filter(|done| !**done).count()
        );
        if finished.iter().all(|done| *done) {
            break;
        }
        let of = rng.usize(..members.len());
        let mut batches = Vec::new();
        for (offset, count) in std::mem::take(&mut held[of]) {
            let kind = match rng.u8(..5) {
                0 if count < 10 => RELEASE,
                _ => ACCEPT,
            };
            finished[offset as usize] = kind == ACCEPT;
            out.retain(|_, other| *other != offset);
            batches.push(batch(offset, offset, &[kind]));
        }
        let request = ShareFetchRequest {
            share_acquire_mode: rng.i8(0..2),
            max_records: rng.i32(1..40),
            ..members[of].request(batches)
        };
        let mut member_version_2 = |request| {
            members[of].version = 2;
            members[of].ask(request)
        };
        for (offset, count) in acquired(&member_version_2(request)) {
            let key = keys[offset as usize];
            let mut earlier = (0..offset as usize).filter(|at| keys[*at] == key);
            assert!(
                key == '-' || earlier.all(|at| finished[at]),
                "{offset} came too early"
            );
            if key != '-' {
                assert_eq!(
                    out.insert(key, offset),
                    None,
                    "two records of {key} are out"
                );
            }
            held[of].push((offset, count));
        }
    }
    assert_eq!(start_offset(&mut client), keys.len() as i64);
}

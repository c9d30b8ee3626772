//! Topics that keep the last record of each key refuse records without a key.

use std::sync::Arc;

use bytes::Bytes;
use millstream_base::{ByteSize, SystemClock};
use millstream_log::{CLEANUP_POLICY, COMPACT, Durability, StreamConfig};
use millstream_record::Compression;
use millstream_sim::SimDisk;
use millstream_wire::ResponseError;
use millstream_wire::messages::DeleteRecordsRequest;
use millstream_wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use millstream_wire::messages::produce_response::PartitionProduceResponse;
use millstream_wire::native::{KeyCondition, KeyToPut, PutKeysRequest, StoredKey};

use crate::support::{
    Connection, Node, ask, keyed_chunk, produce_request, topic_name, values, wait_until,
};

fn produce(
    client: &mut Connection,
    version: i16,
    topic: &str,
    keys: &[Option<&str>],
    compression: Compression,
) -> PartitionProduceResponse {
    let records: Vec<_> = keys.iter().map(|key| (*key, "value")).collect();
    let request = produce_request(topic, 0, keyed_chunk(&records, compression));
    let produced = ask!(client, Produce, version, request);
    produced.responses[0].partition_responses[0].clone()
}

fn compacted() -> (Node, Connection) {
    compacted_as("table")
}

fn compacted_as(name: &str) -> (Node, Connection) {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic(name, 1);
    let policy = ("cleanup.policy".to_owned(), "compact".to_owned());
    node.log()
        .alter_stream(name, |config| config.settings.extend([policy]))
        .unwrap();
    (node, client)
}

#[test]
fn the_answer_names_the_topic_and_the_record_without_a_key() {
    let (_node, mut client) = compacted();
    for compression in Compression::ALL {
        for version in [9, 8] {
            let keys = [Some("a"), None, Some("b"), None];
            let refused = produce(&mut client, version, "table", &keys, compression);
            assert_eq!(refused.error_code, ResponseError::InvalidRecord.code());
            assert_eq!(refused.base_offset, -1);
            let message = refused.error_message.as_deref().unwrap();
            assert!(message.contains("record 1 "), "{message}");
            assert!(message.contains("stream table "), "{message}");
            let records = refused.record_errors.iter();
            let records = records.map(|record| record.batch_index);
            assert_eq!(records.collect::<Vec<_>>(), [1, 3], "version {version}");
        }
        let refused = produce(&mut client, 7, "table", &[None], compression);
        assert_eq!(refused.error_code, ResponseError::InvalidRecord.code());
    }
    let stored = produce(&mut client, 9, "table", &[Some("a")], Compression::Lz4);
    assert_eq!((stored.error_code, stored.base_offset), (0, 0));
    assert_eq!(stored.record_errors, []);
}

#[test]
fn only_missing_keys_in_compacted_topics_get_record_errors() {
    let (_node, mut client) = compacted();
    client.create_topic("plain", 1);
    let stored = produce(&mut client, 9, "plain", &[None], Compression::Zstd);
    assert_eq!((stored.error_code, stored.base_offset), (0, 0));

    // The server reads the records of compressed batches, too.
    let mut records = keyed_chunk(&[(Some("key"), "value")], Compression::Lz4).to_vec();
    let last = records.len() - 1;
    records[last - 10] ^= 0xff;
    let crc = millstream_base::crc32c(&records[21..]);
    records[17..21].copy_from_slice(&crc.to_be_bytes());
    let request = produce_request("table", 0, records.into());
    let produced = ask!(client, Produce, 9, request);
    let refused = &produced.responses[0].partition_responses[0];
    assert_eq!(refused.error_code, ResponseError::InvalidRecord.code());
    assert_eq!(refused.record_errors, []);
}

#[test]
fn an_answer_names_at_most_a_hundred_records() {
    let (_node, mut client) = compacted();
    let keys = [None; 60];
    let records: Vec<_> = keys.iter().map(|key| (*key, "value")).collect();
    let mut request = produce_request("table", 0, keyed_chunk(&records, Compression::Zstd));
    let partition = request.topic_data[0].partition_data[0].clone();
    let again = [partition.clone(), partition];
    request.topic_data[0].partition_data.extend(again);
    let produced = ask!(client, Produce, 9, request);
    let partitions = produced.responses[0].partition_responses.iter();
    let named = partitions.map(|partition| {
        assert_eq!(partition.error_code, ResponseError::InvalidRecord.code());
        partition.record_errors.len()
    });
    assert_eq!(named.collect::<Vec<_>>(), [60, 40, 0]);
}

#[test]
fn a_long_error_answer_is_complete_for_one_and_many_partitions() {
    let name = "n".repeat(249);
    let (node, mut client) = compacted_as(&name);
    let records = [(None, "value"); 150];
    let mut request = produce_request(&name, 0, keyed_chunk(&records, Compression::Zstd));
    request.topic_data[0].topic_id = node.log().stream(&name).unwrap().uuid();
    let partition = request.topic_data[0].partition_data[0].clone();
    for partitions in [1, 20] {
        request.topic_data[0].partition_data = vec![partition.clone(); partitions];
        for version in [9, 13] {
            let produced = ask!(client, Produce, version, request.clone());
            let answered = &produced.responses[0].partition_responses;
            assert_eq!(answered.len(), partitions);
            assert_eq!(answered[0].record_errors.len(), 100);
            let message = answered[partitions - 1].error_message.as_deref();
            assert!(message.unwrap().contains(&name), "{message:?}");
        }
    }
}

#[test]
fn delete_records_is_refused_on_a_topic_without_retention() {
    let (node, mut client) = compacted();
    for _ in 0..3 {
        produce(&mut client, 9, "table", &[Some("a")], Compression::None);
    }
    let policy = ResponseError::PolicyViolation.code();
    assert_eq!(delete_before(&mut client, "table", 2), (policy, -1));
    let both = ("cleanup.policy".to_owned(), "compact,delete".to_owned());
    node.log()
        .alter_stream("table", |config| config.settings.extend([both]))
        .unwrap();
    assert_eq!(delete_before(&mut client, "table", 2), (0, 2));
}

#[test]
fn a_topic_is_compacted_while_it_is_served() {
    let (node, mut client) = compacted();
    let due = [
        ("min.cleanable.dirty.ratio", "0.1"),
        ("file.delete.delay.ms", "0"),
    ];
    let alter = |config: &mut StreamConfig| {
        (config.segment, config.group_segments) = (ByteSize(64 << 10), 1);
        let due = due.map(|(name, value)| (name.to_owned(), value.to_owned()));
        config.settings.extend(due);
    };
    node.log().alter_stream("table", alter).unwrap();
    let (records, keys) = (400, 10);
    for n in 0..records {
        let (key, value) = (
            format!("{}", n % keys),
            format!("{n} {}", "v".repeat(1_000)),
        );
        let chunk = keyed_chunk(&[(Some(&key), &value)], Compression::None);
        let produced = ask!(client, Produce, 9, produce_request("table", 0, chunk));
        let stored = &produced.responses[0].partition_responses[0];
        assert_eq!((stored.error_code, stored.base_offset), (0, n));
    }
    let stats = || node.log().stats().compaction;
    let is_compacted = || {
        let info = node.log().stream("table").unwrap().info();
        let compaction = info.partitions[0].compaction.clone();
        compaction.is_some_and(|stats| stats.compacted_to.0 > 300)
    };
    wait_until("the topic is compacted", is_compacted);
    let fetched = client.fetch("table", 0, 0);
    assert_eq!((fetched.error_code, fetched.high_watermark), (0, records));
    let numbers: Vec<i64> = values(&fetched)
        .iter()
        .map(|value| value.split(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(numbers.len() < 150, "{} records", numbers.len());
    assert!(numbers.is_sorted());
    assert!(numbers.ends_with(&(records - keys..records).collect::<Vec<_>>()));
    // A fetch from an offset without a record gets the next one.
    let next = values(&client.fetch("table", 0, numbers[0] - 1));
    assert!(
        next[0].starts_with(&format!("{} ", numbers[0])),
        "{}",
        next[0]
    );
    assert_eq!((stats().failed, stats().failing_partitions), (0, 0));
    assert!(stats().bytes_after < stats().bytes_before);
}

fn delete_before(client: &mut Connection, topic: &str, offset: i64) -> (i16, i64) {
    let partition = DeleteRecordsPartition::default().with_offset(offset);
    let topic = DeleteRecordsTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(60_000);
    let deleted = ask!(client, DeleteRecords, 2, request);
    let deleted = &deleted.topics[0].partitions[0];
    (deleted.error_code, deleted.low_watermark)
}

/// Puts a large value, with or without a condition that holds.
fn put_large(client: &mut Connection, key: &str, condition: KeyCondition) -> StoredKey {
    let entry = KeyToPut {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Some(vec![b'x'; 256 << 10].into()),
        condition,
        ..KeyToPut::default()
    };
    let request = PutKeysRequest {
        stream: "s".into(),
        entries: vec![entry],
        all_or_none: false,
    };
    ask!(client, PutKeys, 0, request).entries.remove(0)
}

#[test]
fn a_put_stored_before_the_disk_fills_reports_that_it_may_take_effect() {
    let disk = Arc::new(SimDisk::new(7));
    let node = Node::simulated(disk.clone(), Arc::new(SystemClock::default()));
    let config = StreamConfig {
        durability: Durability::Sync,
        settings: [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into(),
        ..StreamConfig::default()
    };
    node.log().create_stream("s", config).unwrap();
    let mut client = node.connect();
    let is_full = || node.log().stats().disk_full;
    let refused_message = |stored: StoredKey| {
        assert_eq!(stored.error_code, ResponseError::KafkaStorageError.code());
        stored.error_message.unwrap().to_string()
    };
    for condition in [KeyCondition::None, KeyCondition::Absent] {
        let mut keys = (0..10_000).map(|n| format!("{condition:?} {n}"));
        let mut refuse_one = |client: &mut Connection| {
            disk.set_capacity(0);
            let refused = keys.find_map(|key| {
                let stored = put_large(client, &key, condition);
                (stored.error_code != 0).then_some(stored)
            });
            wait_until("the disk is full", is_full);
            refused_message(refused.expect("the disk has no room"))
        };
        let make_room = || {
            disk.set_capacity(u64::MAX);
            wait_until("there is room", || !is_full());
        };
        let is_told = |message: String| message.contains("the write may take effect");
        let mut tries = 0;
        while !is_told(refuse_one(&mut client)) {
            // The disk was full before: nothing was stored.
            make_room();
            tries += 1;
            assert!(tries < 20);
        }
        let later = format!("{condition:?} later");
        let refused = put_large(&mut client, &later, condition);
        assert!(!is_told(refused_message(refused)), "it is not stored");
        make_room();
        let stored = put_large(&mut client, &later, condition);
        assert_eq!(stored.error_code, 0, "{stored:?}");
    }
}

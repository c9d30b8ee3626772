//! Settings of topics: their values, and their effect on chunks and records.

use std::time::Duration;

use millstream_base::Timestamp;
use millstream_log::{KeyChange, KeyCondition, NewValue};
use millstream_record::{Chunk, Compression, Decompressor};
use millstream_wire::ResponseError;
use millstream_wire::messages::alter_configs_request;
use millstream_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_wire::messages::{AlterConfigsRequest, BrokerId, ListOffsetsRequest};

use super::{
    APPEND, DELETE, SET, SUBTRACT, TOPIC, alter, alter_all, compressed, create, describe, produce,
    set, stored, value, values,
};
use crate::support::{Connection, Node, ask, text, topic_name};

#[test]
fn every_topic_setting_of_kafka_is_accepted_and_shown() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    // The settings of an operator with Kafka experience; none of them requires more than one broker
    // can do.
    let settings = [
        ("cleanup.policy", "delete"),
        ("compression.gzip.level", "9"),
        ("compression.lz4.level", "12"),
        ("compression.type", "uncompressed"),
        ("compression.zstd.level", "-7"),
        ("delete.retention.ms", "1"),
        ("errors.deadletterqueue.group.enable", "true"),
        ("file.delete.delay.ms", "0"),
        ("flush.messages", "1"),
        ("flush.ms", "1000"),
        ("follower.replication.throttled.replicas", "*"),
        ("index.interval.bytes", "1024"),
        ("leader.replication.throttled.replicas", "0:1"),
        ("local.retention.bytes", "5"),
        ("local.retention.ms", "5"),
        ("max.compaction.lag.ms", "100"),
        ("max.message.bytes", "1048588"),
        ("message.timestamp.after.max.ms", "3600000"),
        ("message.timestamp.before.max.ms", "9223372036854775807"),
        ("message.timestamp.type", "LogAppendTime"),
        ("min.cleanable.dirty.ratio", "0.1"),
        ("min.compaction.lag.ms", "10"),
        ("min.insync.replicas", "1"),
        ("preallocate", "TRUE"),
        ("remote.log.copy.disable", "true"),
        ("remote.log.delete.on.disable", "true"),
        ("remote.storage.enable", "false"),
        ("retention.bytes", "1000000"),
        ("retention.ms", "604800000"),
        ("segment.bytes", "1073741824"),
        ("segment.index.bytes", "4096"),
        ("segment.jitter.ms", "5"),
        ("segment.ms", "1000"),
        ("unclean.leader.election.enable", "true"),
    ];
    for (name, value) in settings {
        set(&mut client, (TOPIC, "t"), name, value);
    }
    assert_eq!(create(&mut client, "made", &settings), 0);
    for topic in ["t", "made"] {
        let all = describe(&mut client, (TOPIC, topic)).configs;
        assert_eq!(
            all.len(),
            settings.len() + 4,
            "ours are millstream.durability and those that begin with millstream.keyed"
        );
        for (name, value) in settings {
            let found = all.iter().find(|config| *config.name == *name).unwrap();
            let shown = found.value.as_ref().unwrap();
            assert_eq!(
                shown.to_lowercase(),
                value.to_lowercase(),
                "{topic}: {name}"
            );
            assert_eq!(found.config_source, 1, "{name} is the topic's own");
            assert!(
                found.documentation.is_some() && found.config_type > 0,
                "{name}"
            );
        }
    }
    for (name, _) in settings {
        assert_eq!(alter(&mut client, (TOPIC, "t"), (name, DELETE, "")).0, 0);
        let (_, source) = self::value(&mut client, (TOPIC, "t"), name);
        assert_eq!(source, 5, "{name} has its default");
    }
}

#[test]
fn settings_of_topics_are_refused_where_their_values_make_no_sense() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let invalid = ResponseError::InvalidConfig.code();
    for (name, value, why) in [
        ("retention.mss", "1", "did you mean retention.ms?"),
        ("message.format.version", "3.0", "no setting"),
        ("retention.ms", "x", "whole number from -1"),
        ("retention.ms", "-2", "whole number from -1"),
        ("flush.messages", "0", "whole number from 1"),
        ("segment.bytes", "10", "from 1048576"),
        ("segment.bytes", "3000000000", "2147483647"),
        ("compression.type", "brotli", "gzip"),
        ("compression.gzip.level", "0", "-1"),
        ("cleanup.policy", "", "no policy"),
        ("cleanup.policy", "none", "compact, delete"),
        ("min.insync.replicas", "2", "one broker"),
        ("remote.storage.enable", "true", "no remote storage"),
        ("preallocate", "yes", "true nor false"),
        (
            "millstream.keyed.clock",
            "later",
            "millstream.keyed.clock: \"later\" is neither wall nor a whole number",
        ),
        ("millstream.keyed.clock", "1.5", "from -9223372036854775807"),
        (
            "leader.replication.throttled.replicas",
            "x",
            "partition:broker",
        ),
    ] {
        let (error, message) = alter(&mut client, (TOPIC, "t"), (name, SET, value));
        assert_eq!(error, invalid, "{name}={value}");
        assert!(message.contains(why), "{name}={value}: {message}");
        assert_eq!(create(&mut client, "u", &[(name, value)]), invalid);
    }
    let lags = [
        ("min.compaction.lag.ms", SET, "10"),
        ("max.compaction.lag.ms", SET, "5"),
    ];
    assert_eq!(alter_all(&mut client, (TOPIC, "t"), &lags).0, invalid);

    let place = (TOPIC, "t");
    assert_eq!(
        alter(&mut client, place, ("cleanup.policy", APPEND, "delete")).0,
        0
    );
    assert_eq!(
        alter(&mut client, place, ("cleanup.policy", SUBTRACT, "compact")).0,
        0
    );
    let none = alter(&mut client, place, ("cleanup.policy", SUBTRACT, "delete"));
    assert_eq!(none.0, invalid);
    assert_eq!(
        alter(&mut client, place, ("cleanup.policy", APPEND, "compact")).0,
        0
    );
    assert_eq!(
        value(&mut client, place, "cleanup.policy"),
        ("delete,compact".to_owned(), 1)
    );
    assert_eq!(
        alter(&mut client, place, ("retention.ms", APPEND, "5")).0,
        invalid
    );
    assert_eq!(
        alter(&mut client, place, ("retention.mss", DELETE, "")).0,
        0
    );
    let replicas = "leader.replication.throttled.replicas";
    for (operation, items, expected) in [
        (APPEND, "0:1", "0:1"),
        (APPEND, "1:1,0:1", "0:1,1:1"),
        (SUBTRACT, "0:1,7:7", "1:1"),
    ] {
        assert_eq!(alter(&mut client, place, (replicas, operation, items)).0, 0);
        assert_eq!(value(&mut client, place, replicas).0, expected);
    }

    let malformed = ResponseError::InvalidRequest.code();
    let twice = [("retention.ms", SET, "1"), ("retention.ms", SET, "2")];
    assert_eq!(alter_all(&mut client, place, &twice).0, malformed);
    assert_eq!(
        alter(&mut client, place, ("retention.ms", 9, "1")).0,
        malformed
    );
    assert_eq!(
        alter(&mut client, (TOPIC, ""), ("retention.ms", SET, "1")).0,
        malformed
    );
    assert_eq!(
        alter(&mut client, (99, "t"), ("retention.ms", SET, "1")).0,
        malformed
    );
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(
        alter(&mut client, (TOPIC, "u"), ("retention.ms", SET, "1")).0,
        unknown
    );
}

#[test]
fn the_clock_of_a_compacted_topic_takes_effect_at_once_and_survives_a_restart() {
    let node = Node::start();
    let mut client = node.connect();
    let (place, clock) = ((TOPIC, "t"), "millstream.keyed.clock");
    let compact = [("cleanup.policy", "compact")];
    assert_eq!(create(&mut client, "t", &compact), 0);
    assert_eq!(value(&mut client, place, clock), ("wall".to_owned(), 5));
    let put = KeyChange {
        key: b"k",
        condition: KeyCondition::Any,
        value: NewValue::Put(b"v"),
        ttl: Some(Duration::from_millis(1_000)),
        secondary: &[],
    };
    set(&mut client, place, clock, " 5000 ");
    assert_eq!(value(&mut client, place, clock), ("5000".to_owned(), 1));
    let partition = node.log().stream("t").unwrap().partition(0).unwrap();
    let changed = partition.change(&[put]).unwrap();
    partition.wait_durable(changed.answer_at).unwrap();
    let is_there = |node: &Node| node.log().stream("t").unwrap().get(b"k").unwrap().is_some();
    assert!(is_there(&node));
    set(&mut client, place, clock, "6000");
    assert!(!is_there(&node));
    set(&mut client, place, clock, "5999");
    assert!(is_there(&node));
    set(&mut client, place, clock, "6000");
    drop((client, partition));
    let node = node.restart();
    let mut client = node.connect();
    assert_eq!(value(&mut client, place, clock), ("6000".to_owned(), 1));
    assert!(!is_there(&node));
    // By the wall clock, it has ended long ago.
    assert_eq!(alter(&mut client, place, (clock, DELETE, "")).0, 0);
    assert_eq!(value(&mut client, place, clock), ("wall".to_owned(), 5));
    assert!(!is_there(&node));
}

/// The older request replaces all settings, except for the one that is fixed at the creation of a topic.
#[test]
fn settings_are_replaced_as_a_whole() {
    let node = Node::start();
    let mut client = node.connect();
    assert_eq!(
        create(&mut client, "t", &[("millstream.durability", "written")]),
        0
    );
    let place = (TOPIC, "t");
    set(&mut client, place, "retention.ms", "5000");
    set(&mut client, place, "flush.ms", "7");
    let config = alter_configs_request::AlterableConfig::default()
        .with_name(text("flush.messages"))
        .with_value(Some(text("3")));
    let resource = alter_configs_request::AlterConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text("t"))
        .with_configs(vec![config]);
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    let response = ask!(client, AlterConfigs, 2, request);
    assert_eq!(response.responses[0].error_code, 0);
    assert_eq!(
        value(&mut client, place, "retention.ms"),
        ("-1".to_owned(), 5)
    );
    assert_eq!(value(&mut client, place, "flush.ms").1, 5);
    assert_eq!(
        value(&mut client, place, "flush.messages"),
        ("3".to_owned(), 1)
    );
    let durability = value(&mut client, place, "millstream.durability");
    assert_eq!(durability, ("written".to_owned(), 1));
    // Nor can it be changed alone.
    let invalid = ResponseError::InvalidConfig.code();
    for (operation, other) in [(SET, "sync"), (DELETE, "")] {
        let change = ("millstream.durability", operation, other);
        let (error, message) = alter(&mut client, place, change);
        assert_eq!(error, invalid, "{message}");
    }
    let durability = value(&mut client, place, "millstream.durability");
    assert_eq!(durability, ("written".to_owned(), 1));
}

#[test]
fn chunks_are_stored_with_the_codec_that_their_topic_asks_for() {
    let node = Node::start();
    let mut client = node.connect();
    let codecs = ["uncompressed", "gzip", "snappy", "lz4", "zstd"];
    for (wanted, name) in Compression::ALL.into_iter().zip(codecs) {
        assert_eq!(create(&mut client, name, &[("compression.type", name)]), 0);
        for sent in Compression::ALL {
            let chunk = compressed(sent, &[1000, 2000]);
            assert_eq!(produce(&mut client, name, chunk).0, 0, "{sent} to {name}");
        }
        let chunks = stored(&node, name);
        assert_eq!(chunks.len(), Compression::ALL.len());
        let expected = values(&compressed(Compression::None, &[1000, 2000]));
        for chunk in &chunks {
            let header = *Chunk::parse(chunk).unwrap().header();
            assert_eq!(header.attributes.compression(), wanted, "{name}");
            assert_eq!(values(chunk), expected, "{name}");
        }
    }
    // Records that come with the codec already are stored byte for byte, except for their offsets.
    let chunk = compressed(Compression::Zstd, &[5]);
    assert_eq!(produce(&mut client, "zstd", chunk.clone()).0, 0);
    assert_eq!(stored(&node, "zstd").last().unwrap()[21..], chunk[21..]);
    // A damaged chunk is refused before anything is made of it.
    let mut damaged = compressed(Compression::Zstd, &[5]);
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    let (error, ..) = produce(&mut client, "gzip", damaged);
    assert_eq!(error, ResponseError::CorruptMessage.code());
}

#[test]
fn log_append_time_replaces_timestamps_of_records() {
    let node = Node::start();
    let mut client = node.connect();
    let log_append = [("message.timestamp.type", "LogAppendTime")];
    assert_eq!(create(&mut client, "t", &log_append), 0);
    let before = node.log().clock().now().0;
    let (error, offset, time) = produce(&mut client, "t", compressed(Compression::Lz4, &[5, 7]));
    assert_eq!((error, offset), (0, 0));
    assert!(
        (before..=node.log().clock().now().0).contains(&time),
        "{time}"
    );
    let chunks = stored(&node, "t");
    let chunk = Chunk::parse(&chunks[0]).unwrap();
    let mut decompressor = Decompressor::default();
    for record in chunk.records(&mut decompressor).unwrap() {
        assert_eq!(record.unwrap().timestamp, Timestamp(time));
    }
    let by_time = |client: &mut Connection, time: i64| {
        let partition = ListOffsetsPartition::default().with_timestamp(time);
        let topic = ListOffsetsTopic::default()
            .with_name(topic_name("t"))
            .with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(vec![topic]);
        let found = ask!(client, ListOffsets, 7, request);
        let found = &found.topics[0].partitions[0];
        (found.offset, found.timestamp)
    };
    assert_eq!(
        by_time(&mut client, 6),
        (0, time),
        "its own time does not count"
    );
    assert_eq!(by_time(&mut client, time + 60_000), (-1, -1));

    // The setting applies from the next chunk on.
    set(
        &mut client,
        (TOPIC, "t"),
        "message.timestamp.type",
        "CreateTime",
    );
    assert_eq!(
        produce(&mut client, "t", compressed(Compression::None, &[9])),
        (0, 2, -1)
    );
}

#[test]
fn records_outside_the_timestamp_bounds_of_a_topic_are_refused() {
    let node = Node::start();
    let mut client = node.connect();
    let bounds = [
        ("message.timestamp.before.max.ms", "60000"),
        ("message.timestamp.after.max.ms", "60000"),
    ];
    assert_eq!(create(&mut client, "t", &bounds), 0);
    let invalid = ResponseError::InvalidTimestamp.code();
    for compression in [Compression::None, Compression::Zstd] {
        let now = node.log().clock().now().0;
        let mut produce =
            |times: &[i64]| produce(&mut client, "t", compressed(compression, times)).0;
        assert_eq!(produce(&[now - 1_000, now + 1_000]), 0);
        // A record without a time is accepted.
        assert_eq!(produce(&[now, -1]), 0);
        assert_eq!(produce(&[now, now - 600_000, now]), invalid);
        assert_eq!(produce(&[now + 600_000]), invalid);
    }
    // The time of the append is always within the bounds.
    set(
        &mut client,
        (TOPIC, "t"),
        "message.timestamp.type",
        "LogAppendTime",
    );
    assert_eq!(
        produce(&mut client, "t", compressed(Compression::None, &[5])).0,
        0
    );
    assert_eq!(stored(&node, "t").len(), 5);
}

//! Settings of topics, of the broker, of groups, of log lines and of subscriptions to metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use millstream_base::Timestamp;
use millstream_broker::{LogLevel, LogLevels, ROOT};
use millstream_record::{Chunk, ChunkBuilder, Compression, Decompressor};
use millstream_wire::messages::alter_configs_request;
use millstream_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use millstream_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use millstream_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_wire::messages::{
    AlterConfigsRequest, BrokerId, CreateTopicsRequest, DescribeConfigsRequest,
    IncrementalAlterConfigsRequest, ListConfigResourcesRequest, ListOffsetsRequest,
};
use millstream_wire::{ResponseError, StrBytes};

use crate::support::{Connection, Node, ask, chunk, produce_request, text, topic_name};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
pub const GROUP: i8 = 32;

/// The id of the broker of these tests.
const ID: &str = "1";

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// Changes settings of a resource: each by its name, an operation and a value. Returns the error and its message.
fn alter_all(
    client: &mut Connection,
    (kind, name): (i8, &str),
    changes: &[(&str, i8, &str)],
) -> (i16, String) {
    let configs = changes.iter().map(|(setting, operation, value)| {
        AlterableConfig::default()
            .with_name(text(setting))
            .with_config_operation(*operation)
            .with_value((*operation != DELETE).then(|| text(value)))
    });
    let resource = AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configs(configs.collect());
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let response = ask!(client, IncrementalAlterConfigs, 1, request);
    let response = &response.responses[0];
    let message = response.error_message.as_ref().map(StrBytes::to_string);
    (response.error_code, message.unwrap_or_default())
}

fn alter(client: &mut Connection, place: (i8, &str), change: (&str, i8, &str)) -> (i16, String) {
    alter_all(client, place, &[change])
}

/// Changes settings that must be changeable.
pub fn set(client: &mut Connection, place: (i8, &str), setting: &str, value: &str) {
    let altered = alter(client, place, (setting, SET, value));
    assert_eq!(altered, (0, String::new()), "{place:?} {setting}={value}");
}

fn describe(client: &mut Connection, (kind, name): (i8, &str)) -> DescribeConfigsResult {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true)
        .with_include_documentation(true);
    ask!(client, DescribeConfigs, 4, request).results.remove(0)
}

/// Returns a setting of a resource, by its name.
fn described(
    client: &mut Connection,
    place: (i8, &str),
    setting: &str,
) -> DescribeConfigsResourceResult {
    let configs = describe(client, place).configs.into_iter();
    let mut found = configs.filter(|config| *config.name == *setting);
    found
        .next()
        .unwrap_or_else(|| panic!("{place:?} has no {setting}"))
}

/// Returns the value of a setting, and its source.
fn value(client: &mut Connection, place: (i8, &str), setting: &str) -> (String, i8) {
    let described = described(client, place, setting);
    (
        described.value.unwrap().to_string(),
        described.config_source,
    )
}

/// Returns all values of a setting, by source, name and value, the most important first.
fn synonyms(
    client: &mut Connection,
    place: (i8, &str),
    setting: &str,
) -> Vec<(i8, String, String)> {
    let synonyms = described(client, place, setting).synonyms.into_iter();
    let synonyms = synonyms.map(|synonym| {
        let value = synonym.value.unwrap().to_string();
        (synonym.source, synonym.name.to_string(), value)
    });
    synonyms.collect()
}

/// Creates a topic with one partition and these settings; returns the error.
fn create(client: &mut Connection, name: &str, settings: &[(&str, &str)]) -> i16 {
    let configs = settings.iter().map(|(name, value)| {
        CreatableTopicConfig::default()
            .with_name(text(name))
            .with_value(Some(text(value)))
    });
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(1)
        .with_replication_factor(-1)
        .with_configs(configs.collect());
    let request = CreateTopicsRequest::default().with_topics(vec![topic]);
    ask!(client, CreateTopics, 7, request).topics[0].error_code
}

/// Returns the records of a topic's only partition.
fn stored(node: &Node, topic: &str) -> Vec<Vec<u8>> {
    let lane = node.log().stream(topic).unwrap().partition(0).unwrap();
    let fetched = lane.fetch(
        lane.earliest_offset(),
        lane.high_watermark(),
        1 << 20,
        millstream_log::AtLeast::OneChunk,
    );
    let pieces = fetched.unwrap().pieces.into_iter();
    let mut chunks = Vec::new();
    for piece in pieces {
        for chunk in millstream_record::Chunks::new(&piece) {
            chunks.push(chunk.unwrap().bytes().to_vec());
        }
    }
    chunks
}

/// Produces a chunk to a topic's only partition; returns the error, the offset and the time of the append.
fn produce(client: &mut Connection, topic: &str, chunk: Vec<u8>) -> (i16, i64, i64) {
    let response = ask!(client, Produce, 9, produce_request(topic, 0, chunk.into()));
    let partition = &response.responses[0].partition_responses[0];
    let time = partition.log_append_time_ms;
    (partition.error_code, partition.base_offset, time)
}

fn compressed(compression: Compression, timestamps: &[i64]) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(compression);
    for timestamp in timestamps {
        let value = format!("value of {timestamp}").repeat(20);
        builder
            .push(
                Timestamp(*timestamp),
                Some(b"key"),
                Some(value.as_bytes()),
                &[],
            )
            .unwrap();
    }
    builder.finish(None).unwrap().to_vec()
}

/// Returns the values of a chunk's records.
fn values(chunk: &[u8]) -> Vec<Vec<u8>> {
    let mut decompressor = Decompressor::default();
    let chunk = Chunk::parse(chunk).unwrap();
    let records = chunk.records(&mut decompressor).unwrap();
    records
        .map(|record| record.unwrap().value.unwrap().to_vec())
        .collect()
}

#[test]
fn every_setting_of_kafkas_topics_is_taken_and_shown() {
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
            settings.len() + 1,
            "ours is millstream.durability"
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
        ("cleanup.policy", "", "only delete"),
        ("cleanup.policy", "none", "compact, delete"),
        ("min.insync.replicas", "2", "one broker"),
        ("remote.storage.enable", "true", "no remote storage"),
        ("preallocate", "yes", "true nor false"),
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
    // A new topic with this policy keeps every record; one that has its retention already does not.
    for policy in ["compact", "delete,compact"] {
        let change = ("cleanup.policy", SET, policy);
        let (error, message) = alter(&mut client, (TOPIC, "t"), change);
        assert_eq!(error, invalid);
        assert!(message.contains("does not compact yet"), "{message}");
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

/// The older request replaces all settings, except for the one that a topic keeps for ever.
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
fn records_get_the_time_of_their_append_where_the_topic_says_so() {
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
fn records_of_other_times_are_refused_where_the_topic_bounds_them() {
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

#[test]
fn the_broker_is_described_as_kafkas_tools_expect() {
    let node = Node::with(|config| config.partitions_default = 3);
    let mut client = node.connect();
    let all = describe(&mut client, (BROKER, ID));
    assert_eq!(all.error_code, 0);
    let values: BTreeMap<String, DescribeConfigsResourceResult> = all
        .configs
        .into_iter()
        .map(|config| (config.name.to_string(), config))
        .collect();
    let value = |name: &str| {
        let config = values
            .get(name)
            .unwrap_or_else(|| panic!("there is no {name}"));
        (
            config.value.as_ref().unwrap().to_string(),
            config.read_only,
            config.config_source,
        )
    };
    assert_eq!(value("node.id"), (ID.to_owned(), true, 4));
    assert_eq!(value("broker.id").0, ID);
    assert_eq!(value("num.partitions"), ("3".to_owned(), true, 4));
    assert_eq!(
        value("auto.create.topics.enable"),
        ("true".to_owned(), true, 5)
    );
    assert!(value("listeners").0.starts_with("PLAINTEXT://127.0.0.1:"));
    assert!(value("advertised.listeners").0.starts_with("PLAINTEXT://"));
    assert_eq!(value("log.dirs").0, node.log().dir().display().to_string());
    assert_eq!(value("log.retention.ms"), ("-1".to_owned(), false, 5));
    assert_eq!(value("group.consumer.session.timeout.ms").0, "45000");
    for config in values.values() {
        assert!(
            config.config_type > 0 && config.documentation.is_some(),
            "{:?}",
            config.name
        );
    }
    // There are no settings for all brokers yet; and there is no other broker.
    assert_eq!(describe(&mut client, (BROKER, "")).configs.len(), 0);
    let malformed = ResponseError::InvalidRequest.code();
    for name in ["77", "x"] {
        assert_eq!(describe(&mut client, (BROKER, name)).error_code, malformed);
        let altered = alter(&mut client, (BROKER, name), ("log.retention.ms", SET, "1"));
        assert_eq!(altered.0, malformed);
    }
}

#[test]
fn defaults_of_topics_are_changed_while_the_broker_runs_and_are_kept() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    assert_eq!(create(&mut client, "own", &[("retention.ms", "-1")]), 0);
    set(&mut client, (BROKER, ""), "log.retention.ms", "100000");
    set(&mut client, (BROKER, ID), "log.retention.ms", "200000");
    set(&mut client, (BROKER, ""), "message.max.bytes", "1000");
    set(&mut client, (BROKER, ""), "compression.type", "zstd");
    let expected = [
        (2, "log.retention.ms", "200000"),
        (3, "log.retention.ms", "100000"),
        (5, "log.retention.ms", "-1"),
    ]
    .map(|(source, name, value)| (source, name.to_owned(), value.to_owned()));
    assert_eq!(
        synonyms(&mut client, (TOPIC, "t"), "retention.ms"),
        expected
    );
    assert_eq!(
        synonyms(&mut client, (BROKER, ID), "log.retention.ms"),
        expected
    );
    let all = describe(&mut client, (BROKER, "")).configs;
    assert_eq!(all.len(), 3, "those alone that are set for all brokers");
    assert_eq!(
        value(&mut client, (TOPIC, "own"), "retention.ms"),
        ("-1".to_owned(), 1)
    );
    let too_large = ResponseError::MessageTooLarge.code();
    let check = |node: &Node, client: &mut Connection| {
        let large = chunk(&[&"x".repeat(2_000)]).to_vec();
        assert_eq!(produce(client, "t", large).0, too_large);
        assert_eq!(
            produce(client, "t", compressed(Compression::None, &[1])).0,
            0
        );
        let last = stored(node, "t").pop().unwrap();
        let header = *Chunk::parse(&last).unwrap().header();
        assert_eq!(header.attributes.compression(), Compression::Zstd);
    };
    check(&node, &mut client);

    drop(client);
    let dir = node.stop();
    let node = Node::on(dir, |_| {}, |_| {});
    let mut client = node.connect();
    assert_eq!(
        synonyms(&mut client, (TOPIC, "t"), "retention.ms"),
        expected
    );
    check(&node, &mut client);
    for name in [
        "log.retention.ms",
        "message.max.bytes",
        "compression.type",
        "node.id",
        "x",
    ] {
        for broker in ["", ID] {
            assert_eq!(
                alter(&mut client, (BROKER, broker), (name, DELETE, "")).0,
                0
            );
        }
    }
    assert_eq!(
        value(&mut client, (TOPIC, "t"), "retention.ms"),
        ("-1".to_owned(), 5)
    );
    let large = chunk(&[&"x".repeat(2_000)]).to_vec();
    assert_eq!(produce(&mut client, "t", large).0, 0);
}

#[test]
fn settings_of_the_broker_that_cannot_change_are_refused_as_kafka_does() {
    let node = Node::start();
    let mut client = node.connect();
    let malformed = ResponseError::InvalidRequest.code();
    for broker in ["", ID] {
        for (name, value, why) in [
            ("node.id", "5", "cannot be changed"),
            ("num.partitions", "3", "cannot be changed"),
            ("auto.create.topics.enable", "false", "cannot be changed"),
            ("log.segment.bytes", "1048576", "cannot be changed"),
            ("log.dirs", "/x", "cannot be changed"),
            ("message.max.bytes", "x", "whole number"),
            ("log.cleanup.policy", "compact", "does not compact"),
            ("log.retention.mss", "1", "did you mean log.retention.ms?"),
        ] {
            let (error, message) = alter(&mut client, (BROKER, broker), (name, SET, value));
            assert_eq!(error, malformed, "{name}={value}");
            assert!(message.contains(why), "{name}={value}: {message}");
        }
        // As kafka-reassign-partitions does with --throttle.
        set(
            &mut client,
            (BROKER, broker),
            "leader.replication.throttled.rate",
            "5",
        );
    }
}

#[test]
fn settings_of_the_broker_without_effect_are_kept_shown_and_checked() {
    let node = Node::start();
    let mut client = node.connect();
    let relogin = "sasl.kerberos.min.time.before.relogin";
    set(&mut client, (BROKER, ID), relogin, "58000");
    set(&mut client, (BROKER, ""), "num.io.threads", "16");
    let malformed = ResponseError::InvalidRequest.code();
    for (name, value, why) in [
        ("num.io.threads", "0", "num.io.threads"),
        ("log.cleaner.io.buffer.load.factor", "2", "0 to 1"),
        ("num.io.thread", "8", "did you mean num.io.threads?"),
        // The broker would have to enforce this one.
        ("max.connections", "1", "cannot be changed"),
    ] {
        let (error, message) = alter(&mut client, (BROKER, ID), (name, SET, value));
        assert_eq!(error, malformed, "{name}={value}");
        assert!(message.contains(why), "{name}={value}: {message}");
    }
    let node = node.restart();
    let mut client = node.connect();
    let described = describe(&mut client, (BROKER, ID)).configs;
    let found = |name: &str| {
        let config = described.iter().find(|config| &*config.name == name);
        let config = config.unwrap_or_else(|| panic!("there is no {name}"));
        let documentation = config.documentation.as_ref().unwrap();
        assert!(documentation.starts_with("Has no effect"), "{name}");
        (config.value.as_ref().unwrap().to_string(), config.read_only)
    };
    assert_eq!(found(relogin), ("58000".to_owned(), false));
    assert_eq!(found("num.io.threads"), ("16".to_owned(), false));
    assert_eq!(found("background.threads"), ("10".to_owned(), false));
}

#[test]
fn settings_of_groups_count_and_are_kept() {
    let node = Node::start();
    let mut client = node.connect();
    let place = (GROUP, "g");
    let heartbeat = |client: &mut Connection| {
        let beat = millstream_wire::messages::ConsumerGroupHeartbeatRequest::default()
            .with_group_id(millstream_wire::messages::GroupId(text("g")))
            .with_member_id(text("m"))
            .with_member_epoch(0)
            .with_rebalance_timeout_ms(10_000)
            .with_subscribed_topic_names(Some(vec![topic_name("t")]))
            .with_topic_partitions(Some(Vec::new()));
        let response = ask!(client, ConsumerGroupHeartbeat, 1, beat);
        assert_eq!(response.error_code, 0, "{response:?}");
        response.heartbeat_interval_ms
    };
    assert_eq!(heartbeat(&mut client), 5_000);
    set(&mut client, place, "consumer.heartbeat.interval.ms", "7000");
    set(
        &mut client,
        place,
        "share.auto.offset.reset",
        "by_duration:PT1H",
    );
    assert_eq!(heartbeat(&mut client), 7_000);
    let invalid = ResponseError::InvalidConfig.code();
    for (name, value) in [
        ("consumer.session.timeout.ms", "500"),
        ("consumer.session.timeout.ms", "7000"),
        ("consumer.heartbeat.interval.ms", "45000"),
        ("share.isolation.level", "foo"),
        ("share.auto.offset.reset", "none"),
        ("consumer.session.timeout.ms", "x"),
        ("consumer.session.timeout.ms", ""),
        ("consumer.sesion.timeout.ms", "50000"),
        ("nope", "1"),
    ] {
        let altered = alter(&mut client, place, (name, SET, value));
        assert_eq!(altered.0, invalid, "{name}={value}");
    }
    let malformed = ResponseError::InvalidRequest.code();
    assert_eq!(describe(&mut client, (GROUP, "")).error_code, malformed);
    let shown = synonyms(&mut client, place, "consumer.heartbeat.interval.ms");
    let expected = [
        (8, "consumer.heartbeat.interval.ms", "7000"),
        (5, "group.consumer.heartbeat.interval.ms", "5000"),
    ]
    .map(|(source, name, value)| (source, name.to_owned(), value.to_owned()));
    assert_eq!(shown, expected);

    drop(client);
    let node = Node::on(node.stop(), |_| {}, |_| {});
    let mut client = node.connect();
    assert_eq!(heartbeat(&mut client), 7_000);
    assert_eq!(
        alter(
            &mut client,
            place,
            ("consumer.heartbeat.interval.ms", DELETE, "")
        )
        .0,
        0
    );
    assert_eq!(heartbeat(&mut client), 5_000);
}

#[test]
fn subscriptions_to_metrics_are_kept_and_all_that_has_settings_is_listed() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let place = (CLIENT_METRICS, "m");
    set(&mut client, place, "metrics", "a.b,c");
    set(
        &mut client,
        place,
        "match",
        "client_id=a.*,client_software_name=java",
    );
    assert_eq!(alter(&mut client, place, ("metrics", APPEND, "d")).0, 0);
    assert_eq!(
        value(&mut client, place, "metrics"),
        ("a.b,c,d".to_owned(), 7)
    );
    let invalid = ResponseError::InvalidConfig.code();
    for (name, value) in [
        ("match", "foo=a"),
        ("match", "client_id"),
        ("interval.ms", "50"),
        ("interval.ms", "x"),
        ("intervall.ms", "5000"),
    ] {
        assert_eq!(alter(&mut client, place, (name, SET, value)).0, invalid);
    }
    let malformed = ResponseError::InvalidRequest.code();
    assert_eq!(
        describe(&mut client, (CLIENT_METRICS, "")).error_code,
        malformed
    );
    set(
        &mut client,
        (GROUP, "g"),
        "consumer.session.timeout.ms",
        "50000",
    );

    let list = |client: &mut Connection, version: i16, kinds: &[i8]| {
        let request = ListConfigResourcesRequest::default().with_resource_types(kinds.to_vec());
        let listed = ask!(client, ListConfigResources, version, request);
        let resources = listed.config_resources.into_iter();
        let resources = resources.map(|it| (it.resource_type, it.resource_name.to_string()));
        (listed.error_code, resources.collect::<Vec<_>>())
    };
    let named = |kind, name: &str| (kind, name.to_owned());
    let all = [
        named(TOPIC, "t"),
        named(BROKER, ID),
        named(LOGGER, ID),
        named(CLIENT_METRICS, "m"),
        named(GROUP, "g"),
    ];
    assert_eq!(list(&mut client, 1, &[]), (0, all.to_vec()));
    assert_eq!(list(&mut client, 1, &[GROUP]), (0, vec![named(GROUP, "g")]));
    assert_eq!(
        list(&mut client, 0, &[]),
        (0, vec![named(CLIENT_METRICS, "m")])
    );
    let unsupported = ResponseError::UnsupportedVersion.code();
    assert_eq!(list(&mut client, 1, &[99]).0, unsupported);

    for name in ["metrics", "match"] {
        assert_eq!(alter(&mut client, place, (name, DELETE, "")).0, 0);
    }
    assert_eq!(list(&mut client, 0, &[]), (0, vec![]));
}

/// Log lines of a program that has one target beside the root.
#[derive(Default)]
struct OneTarget(Mutex<(Option<LogLevel>, Option<LogLevel>)>);

impl LogLevels for OneTarget {
    fn levels(&self) -> Vec<(&'static str, Option<LogLevel>)> {
        let (own, root) = *self.0.lock().unwrap();
        vec![("target", own.or(root)), (ROOT, root)]
    }

    fn set(&self, target: &str, level: Option<LogLevel>) {
        let mut levels = self.0.lock().unwrap();
        match target {
            ROOT => levels.1 = level,
            _ => levels.0 = level,
        }
    }
}

#[test]
fn levels_of_log_lines_are_shown_and_changed() {
    let node = Node::start();
    node.broker().set_log_levels(Arc::<OneTarget>::default());
    let mut client = node.connect();
    let place = (LOGGER, ID);
    assert_eq!(value(&mut client, place, "target"), ("OFF".to_owned(), 6));
    set(&mut client, place, ROOT, "WARN");
    set(&mut client, place, "target", "DEBUG");
    assert_eq!(value(&mut client, place, "target").0, "DEBUG");
    assert_eq!(value(&mut client, place, ROOT).0, "WARN");
    assert_eq!(alter(&mut client, place, ("target", DELETE, "")).0, 0);
    assert_eq!(value(&mut client, place, "target").0, "WARN");
    let (malformed, invalid) = (ResponseError::InvalidRequest, ResponseError::InvalidConfig);
    for (change, error) in [
        ((ROOT, DELETE, ""), malformed),
        (("target", APPEND, "INFO"), malformed),
        (("target", SET, "LOUD"), invalid),
        (("targte", SET, "INFO"), invalid),
    ] {
        assert_eq!(
            alter(&mut client, place, change).0,
            error.code(),
            "{change:?}"
        );
    }
    // All changes of a request are made, or none.
    let changes = [(ROOT, SET, "ERROR"), ("lost", SET, "INFO")];
    assert_eq!(alter_all(&mut client, place, &changes).0, invalid.code());
    assert_eq!(value(&mut client, place, ROOT).0, "WARN");
    assert_eq!(
        describe(&mut client, (LOGGER, "9")).error_code,
        malformed.code()
    );
}

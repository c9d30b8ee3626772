//! Settings of the broker, the defaults of topics among them.

use std::collections::BTreeMap;

use millstream_record::{Chunk, Compression};
use millstream_wire::ResponseError;
use millstream_wire::messages::describe_configs_response::DescribeConfigsResourceResult;

use super::{
    BROKER, DELETE, ID, SET, TOPIC, alter, compressed, create, describe, produce, set, stored,
    synonyms, value,
};
use crate::support::{Connection, Node, chunk};

#[test]
fn the_broker_is_described_as_kafka_tools_expect() {
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
fn defaults_of_topics_change_at_runtime_and_survive_a_restart() {
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
fn changes_of_read_only_broker_settings_are_refused_as_by_kafka() {
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
            ("log.cleanup.policy", "none", "compact, delete"),
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
fn settings_without_effect_are_checked_persisted_and_shown() {
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

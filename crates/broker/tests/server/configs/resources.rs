//! Settings of groups, of subscriptions to metrics and of log lines.

use std::sync::{Arc, Mutex};

use millstream_broker::{LogLevel, LogLevels, ROOT};
use millstream_wire::ResponseError;
use millstream_wire::messages::ListConfigResourcesRequest;

use super::{
    APPEND, BROKER, CLIENT_METRICS, DELETE, GROUP, ID, LOGGER, SET, TOPIC, alter, alter_all,
    describe, set, synonyms, value,
};
use crate::support::{Connection, Node, ask, text, topic_name};

#[test]
fn settings_of_groups_apply_and_survive_a_restart() {
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
fn subscriptions_to_metrics_survive_a_restart_and_all_resources_are_listed() {
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
        ("match", "client_id=("),
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

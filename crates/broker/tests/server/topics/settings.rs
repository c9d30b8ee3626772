//! Settings of topics that change one by one, and at their creation.

use millstream_record::Compression;
use millstream_wire::ResponseError;
use millstream_wire::messages::create_topics_request::CreatableTopicConfig;
use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use millstream_wire::messages::{
    AlterConfigsRequest, CreateTopicsRequest, DescribeConfigsRequest,
    IncrementalAlterConfigsRequest, alter_configs_request,
};

use super::{TOPIC, creatable};
use crate::support::{Connection, Node, ask, keyed_chunk, produce_request, text};

/// Sets a setting of a topic, or removes it; returns the error.
fn alter(client: &mut Connection, topic: &str, name: &str, value: Option<&str>) -> i16 {
    let config = AlterableConfig::default()
        .with_name(text(name))
        .with_config_operation(if value.is_some() { 0 } else { 1 })
        .with_value(value.map(text));
    let resource = AlterConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(topic))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    ask!(client, IncrementalAlterConfigs, 1, request).responses[0].error_code
}

/// Returns the value of a setting of a topic.
pub fn setting(client: &mut Connection, topic: &str, name: &str) -> Result<String, i16> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(topic))
        .with_configuration_keys(Some(vec![text(name)]));
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let response = ask!(client, DescribeConfigs, 4, request);
    let result = &response.results[0];
    match result.error_code {
        0 => Ok(result.configs[0].value.as_ref().unwrap().to_string()),
        error => Err(error),
    }
}

#[test]
fn settings_are_changed_one_by_one() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let retention = "retention.ms";
    assert_eq!(setting(&mut client, "t", retention).unwrap(), "-1");
    assert_eq!(alter(&mut client, "t", retention, Some("5000")), 0);
    assert_eq!(
        alter(&mut client, "t", "retention.bytes", Some("100000")),
        0
    );
    assert_eq!(setting(&mut client, "t", retention).unwrap(), "5000");
    assert_eq!(
        node.log().stream("t").unwrap().config().retention_ms,
        Some(5000)
    );
    assert_eq!(alter(&mut client, "t", retention, None), 0);
    assert_eq!(setting(&mut client, "t", retention).unwrap(), "-1");
    assert_eq!(
        setting(&mut client, "t", "retention.bytes").unwrap(),
        "100000"
    );
    let invalid = ResponseError::InvalidConfig.code();
    for (name, value) in [
        (retention, "x"),
        (retention, "-2"),
        ("segment.bytes", "0"),
        ("no.such.setting", "1"),
    ] {
        assert_eq!(
            alter(&mut client, "t", name, Some(value)),
            invalid,
            "{name}={value}"
        );
    }
    for value in [i64::MAX.to_string(), "14".to_owned()] {
        let code = alter(&mut client, "t", "segment.bytes", Some(&value));
        assert!([0, invalid].contains(&code), "{value}: {code}");
    }
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    for name in ["u", "__groups"] {
        assert_eq!(alter(&mut client, name, retention, Some("1")), unknown);
        assert_eq!(setting(&mut client, name, retention), Err(unknown));
    }
}

#[test]
fn the_smallest_chunk_size_bound_is_enforced() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    assert_eq!(
        alter(&mut client, "t", "max.message.bytes", Some("1000")),
        0
    );
    client.produce("t", 0, &["small"]);
    let large = "x".repeat(1000);
    let records = crate::support::chunk(&[&large]);
    let request = crate::support::produce_request("t", 0, records);
    let refused = ask!(client, Produce, 9, request);
    let error_code = refused.responses[0].partition_responses[0].error_code;
    assert_eq!(error_code, ResponseError::MessageTooLarge.code());
}

#[test]
fn a_cleanup_policy_is_stored_and_shown_as_given_for_new_and_old_topics() {
    let node = Node::start();
    let mut client = node.connect();
    let mut create = |name: &str, policy: &'static str| {
        let configs = [("cleanup.policy", policy), ("retention.ms", "5000")];
        let configs = configs.map(|(name, value)| {
            let config = CreatableTopicConfig::default().with_name(text(name));
            config.with_value(Some(text(value)))
        });
        let topic = creatable(name, 1).with_configs(configs.to_vec());
        let request = CreateTopicsRequest::default().with_topics(vec![topic]);
        let mut created = ask!(client, CreateTopics, 5, request);
        let topic = created.topics.remove(0);
        let mut reported = topic.configs.unwrap_or_default();
        reported.retain(|config| ["cleanup.policy", "retention.ms"].contains(&&*config.name));
        reported.sort_by(|one, other| one.name.cmp(&other.name));
        let reported = reported
            .into_iter()
            .map(|config| config.value.unwrap().to_string());
        (topic.error_code, reported.collect::<Vec<String>>())
    };
    let reported = |values: [&str; 2]| (0, values.map(str::to_owned).to_vec());
    assert_eq!(create("a", "compact"), reported(["compact", "5000"]));
    assert_eq!(
        create("b", "compact,delete"),
        reported(["compact,delete", "5000"])
    );
    let invalid = ResponseError::InvalidConfig.code();
    assert_eq!(create("c", "compact,other").0, invalid);
    client.create_topic("c", 1);
    client.create_topic("d", 1);
    let policy = "cleanup.policy";
    assert_eq!(alter(&mut client, "c", policy, Some("compact")), 0);
    replace(&mut client, "d", policy, "delete,compact");

    drop(client);
    let node = node.restart();
    let mut client = node.connect();
    // Kafka Connect refuses to start unless its topics show this.
    for (topic, expected) in [
        ("a", "compact"),
        ("b", "compact,delete"),
        ("c", "compact"),
        ("d", "delete,compact"),
    ] {
        assert_eq!(setting(&mut client, topic, policy).unwrap(), expected);
    }
    assert_eq!(setting(&mut client, "a", "retention.ms").unwrap(), "5000");
    assert_eq!(alter(&mut client, "a", policy, None), 0);
    assert_eq!(setting(&mut client, "a", policy).unwrap(), "delete");
}

/// Gives a topic one setting instead of all that it has, as AlterConfigs does.
fn replace(client: &mut Connection, topic: &str, name: &'static str, value: &'static str) {
    let config = alter_configs_request::AlterableConfig::default()
        .with_name(text(name))
        .with_value(Some(text(value)));
    let resource = alter_configs_request::AlterConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(topic))
        .with_configs(vec![config]);
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    assert_eq!(
        ask!(client, AlterConfigs, 2, request).responses[0].error_code,
        0
    );
}

#[test]
fn retention_does_not_delete_records_of_topics_that_are_only_compacted() {
    const POLICIES: [&str; 2] = ["compact", "compact,delete"];
    let mut node = Node::start();
    let mut client = node.connect();
    for policy in POLICIES {
        client.create_topic(policy_topic(policy), 1);
        for (name, value) in [
            ("cleanup.policy", policy),
            ("retention.ms", "1"),
            ("retention.bytes", "1"),
        ] {
            let altered = alter(&mut client, policy_topic(policy), name, Some(value));
            assert_eq!(altered, 0, "{name}");
        }
    }
    for run in 1..3 {
        for policy in POLICIES {
            let chunk = keyed_chunk(&[(Some("key"), "old")], Compression::None);
            let request = produce_request(policy_topic(policy), 0, chunk);
            let produced = ask!(client, Produce, 9, request);
            assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
        }
        node.log().persist();
        node.log().apply_retention().unwrap();
        let earliest = |policy| {
            let stream = node.log().stream(policy_topic(policy)).unwrap();
            stream.partition(0).unwrap().earliest_offset().0
        };
        assert_eq!(POLICIES.map(earliest), [0, run], "run {run}");
        drop(client);
        node = node.restart();
        client = node.connect();
    }
    // From now on retention counts.
    let policy = Some("delete");
    assert_eq!(alter(&mut client, "compact", "cleanup.policy", policy), 0);
    node.log().apply_retention().unwrap();
    let lane = node.log().stream("compact").unwrap().partition(0).unwrap();
    assert_eq!(lane.earliest_offset().0, 2);
}

fn policy_topic(policy: &str) -> &'static str {
    match policy {
        "compact" => "compact",
        _ => "both",
    }
}

//! The settings that the broker was started with. Administrators see them, and cannot change them.

use std::time::Duration;

use crate::broker::Broker;
use crate::configs::setting::Setting;
use crate::configs::tables::topics::GROUP_BYTES_DEFAULT;
use crate::configs::value::Values;
use crate::shares::DEAD_LETTERS_PREFIX;

/// A setting that the broker was started with.
pub struct StartedSetting {
    pub setting: Setting,
    /// Returns its value.
    pub value: fn(&Broker) -> String,
}

const fn started(
    name: &'static str,
    values: Values,
    default: &'static str,
    documentation: &'static str,
    value: fn(&Broker) -> String,
) -> StartedSetting {
    StartedSetting {
        setting: Setting::new(name, values, default, documentation),
        value,
    }
}

const ANY: Values = Values::List(&[]);
const COUNT: Values = Values::Int(0, i32::MAX);

/// All settings that the broker was started with, by their names.
pub const SETTINGS: [StartedSetting; 36] = [
    started(
        "advertised.listeners",
        ANY,
        "",
        "The addresses that the broker announces to clients.",
        |broker| listeners(broker).1,
    ),
    started(
        "auto.create.topics.enable",
        Values::Boolean,
        "true",
        "Whether a topic that a client asks for is created if there is none.",
        |broker| broker.config().auto_create_topics.to_string(),
    ),
    started(
        "broker.id",
        COUNT,
        "",
        "The broker's id, as older clients call it.",
        id,
    ),
    started(
        "connections.max.idle.ms",
        Values::Long(0),
        "600000",
        "A connection that is silent for longer is closed.",
        |broker| millis(broker.config().idle_max),
    ),
    started(
        "default.replication.factor",
        COUNT,
        "1",
        "There is one broker, so each partition has one replica.",
        |_| "1".to_owned(),
    ),
    started(
        "delete.topic.enable",
        Values::Boolean,
        "true",
        "Topics can be deleted.",
        |_| "true".to_owned(),
    ),
    started(
        "errors.deadletterqueue.auto.create.topics.enable",
        Values::Boolean,
        "false",
        "Topics for dead letters are not created by themselves.",
        |_| "false".to_owned(),
    ),
    started(
        "errors.deadletterqueue.topic.name.prefix",
        ANY,
        DEAD_LETTERS_PREFIX,
        "The names of topics for dead letters begin with this.",
        |_| DEAD_LETTERS_PREFIX.to_owned(),
    ),
    started(
        "fetch.max.bytes",
        COUNT,
        "57671680",
        "The most bytes of records in one answer to a fetch.",
        |broker| int_of(broker.config().fetch_bytes_max),
    ),
    started(
        "group.consumer.assignors",
        ANY,
        "uniform,range",
        "How the broker assigns partitions to members of consumer groups.",
        |_| "uniform,range".to_owned(),
    ),
    started(
        "group.consumer.heartbeat.interval.ms",
        COUNT,
        "5000",
        "How often a member of a consumer group sends a heartbeat, unless the group has a setting of its own.",
        |broker| millis(broker.config().groups.consumer_heartbeat_interval),
    ),
    started(
        "group.consumer.session.timeout.ms",
        COUNT,
        "45000",
        "How long a member of a consumer group may be silent, unless the group has a setting of its own.",
        |broker| millis(broker.config().groups.consumer_session_timeout),
    ),
    started(
        "group.initial.rebalance.delay.ms",
        COUNT,
        "3000",
        "How long the first members of an empty group wait for others.",
        |broker| millis(broker.config().groups.initial_rebalance_delay),
    ),
    started(
        "group.max.session.timeout.ms",
        COUNT,
        "1800000",
        "The longest session timeout that a member of a classic group may ask for.",
        |broker| millis(broker.config().groups.session_timeout_max),
    ),
    started(
        "group.max.size",
        COUNT,
        "5000",
        "The most members of a group.",
        |broker| int_of(broker.config().groups.members_max),
    ),
    started(
        "group.min.session.timeout.ms",
        COUNT,
        "6000",
        "The shortest session timeout that a member of a classic group may ask for.",
        |broker| millis(broker.config().groups.session_timeout_min),
    ),
    started(
        "listener.security.protocol.map",
        Values::Text,
        "",
        "The protocol of each listener.",
        |broker| listeners(broker).2,
    ),
    started(
        "listeners",
        ANY,
        "",
        "The addresses that the broker serves.",
        |broker| listeners(broker).0,
    ),
    started(
        "log.cleaner.io.max.bytes.per.second",
        Values::Rate,
        "67108864",
        "How many bytes compaction reads and writes in a second at most.",
        |broker| broker.log().compaction_rate().0.to_string(),
    ),
    started("log.dir", ANY, "", "The data directory.", dir),
    started("log.dirs", ANY, "", "The data directory.", dir),
    started(
        "log.retention.check.interval.ms",
        Values::Long(0),
        "10000",
        "How often retention looks for groups to remove.",
        |_| "10000".to_owned(),
    ),
    started(
        "log.retention.hours",
        Values::Int(-1, i32::MAX),
        "-1",
        "Records are retained for ever unless the topic, or log.retention.ms, sets a bound.",
        |_| "-1".to_owned(),
    ),
    started(
        "log.segment.bytes",
        COUNT,
        GROUP_BYTES_DEFAULT,
        "The size of a group of segments, for topics without a size of their own.",
        |_| GROUP_BYTES_DEFAULT.to_owned(),
    ),
    started(
        "max.connections",
        COUNT,
        "20000",
        "Connections at the same time; further ones are closed at once.",
        |broker| int_of(broker.config().connections_max),
    ),
    started("node.id", COUNT, "", "The broker's id.", id),
    started(
        "num.partitions",
        COUNT,
        "1",
        "Partitions of topics that are created without a number.",
        |broker| broker.config().partitions_default.to_string(),
    ),
    started(
        "offset.metadata.max.bytes",
        COUNT,
        "4096",
        "The longest text that is committed with an offset.",
        |broker| int_of(broker.config().groups.offset_metadata_max),
    ),
    started(
        "offsets.retention.check.interval.ms",
        Values::Long(0),
        "600000",
        "The interval between searches for expired offsets.",
        |broker| millis(broker.config().groups.offsets_retention_check_interval),
    ),
    started(
        "offsets.retention.minutes",
        COUNT,
        "10080",
        "How long committed offsets are retained after the group has become empty.",
        |broker| (broker.config().groups.offsets_retention.as_secs() / 60).to_string(),
    ),
    started(
        "process.roles",
        ANY,
        "",
        "The node is broker and controller in one.",
        |_| "broker,controller".to_owned(),
    ),
    started(
        "queued.max.request.bytes",
        Values::Long(-1),
        "536870912",
        "The most memory of all requests in progress. Beyond it, connections wait.",
        |broker| broker.config().requests_bytes_max.to_string(),
    ),
    started(
        "remote.log.storage.system.enable",
        Values::Boolean,
        "false",
        "There is no remote storage.",
        |_| "false".to_owned(),
    ),
    started(
        "sasl.enabled.mechanisms",
        ANY,
        "",
        "How clients can log in.",
        mechanisms,
    ),
    started(
        "socket.request.max.bytes",
        COUNT,
        "104857600",
        "The largest request.",
        |broker| int_of(broker.config().request_bytes_max),
    ),
    started(
        "super.users",
        Values::Text,
        "",
        "The users that may do everything, regardless of the access rules.",
        super_users,
    ),
];

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

fn int_of(number: usize) -> String {
    i32::try_from(number).unwrap_or(i32::MAX).to_string()
}

fn id(broker: &Broker) -> String {
    broker.config().node_id.to_string()
}

fn dir(broker: &Broker) -> String {
    broker.log().dir().display().to_string()
}

fn mechanisms(broker: &Broker) -> String {
    let mechanisms = broker.security().mechanisms();
    let names: Vec<&str> = mechanisms.iter().map(|it| it.name()).collect();
    names.join(",")
}

fn super_users(broker: &Broker) -> String {
    let users = broker.config().security.super_users.iter();
    let users: Vec<String> = users.map(ToString::to_string).collect();
    users.join(";")
}

/// The listeners, their advertised addresses, and the protocol of each, as Kafka writes them. A listener has the name of
/// its protocol, with a number if several have the same one.
fn listeners(broker: &Broker) -> (String, String, String) {
    let config = broker.config();
    let mut names: Vec<String> = Vec::new();
    let (mut served, mut advertised, mut protocols) = (Vec::new(), Vec::new(), Vec::new());
    for (number, listener) in config.listeners.iter().enumerate() {
        let protocol = config.protocol(listener).name();
        let name = match names.iter().any(|name| name == protocol) {
            true => format!("{protocol}_{}", number + 1),
            false => protocol.to_owned(),
        };
        served.push(format!("{name}://{}", listener.address));
        advertised.push(match &listener.advertised {
            Some((host, 0)) => format!("{name}://{host}:{}", listener.address.port()),
            Some((host, port)) => format!("{name}://{host}:{port}"),
            None => format!("{name}://{}", listener.address),
        });
        protocols.push(format!("{name}:{protocol}"));
        names.push(name);
    }
    (served.join(","), advertised.join(","), protocols.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_of_its_setting_and_names_are_in_order() {
        for StartedSetting { setting, .. } in &SETTINGS {
            if !setting.default.is_empty() {
                let read = setting.read(setting.default);
                assert_eq!(read, Ok(setting.default.to_owned()));
            }
        }
        let names = SETTINGS.iter().map(|started| started.setting.name);
        assert!(names.is_sorted());
    }
}

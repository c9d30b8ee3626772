//! The settings that the broker was started with. Administrators see them, and cannot change them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use millstream_base::ByteSize;
use millstream_log::{LogConfig, POOL_BYTES_MIN};
use millstream_wire::messages::describe_configs_response::DescribeConfigsResourceResult;

use crate::broker::Broker;
use crate::config::BrokerConfig;
use crate::configs::setting::{DescribeOptions, Found, Setting, Source};
use crate::configs::tables::topics::GROUP_BYTES_DEFAULT;
use crate::configs::value::Values;
use crate::shares::DEAD_LETTERS_PREFIX;

/// A setting that the broker was started with.
pub struct StartedSetting {
    pub name: &'static str,
    values: Values,
    documentation: &'static str,
    value: Value,
}

/// The value of a setting that the broker was started with.
enum Value {
    /// Every broker has this value.
    Fixed(&'static str),
    /// The config holds it. The default is that of a new config.
    Config(fn(&BrokerConfig) -> String),
    /// The broker itself knows it.
    Own {
        value: fn(&Broker) -> String,
        /// Returns an empty text if there is no default.
        default: fn() -> String,
    },
}

impl StartedSetting {
    /// Describes the setting. The source of its value is the start unless the value is the default.
    pub fn describe(
        &self,
        broker: &Broker,
        options: &DescribeOptions,
    ) -> DescribeConfigsResourceResult {
        let (value, default) = (self.value(broker), self.default());
        let found = |source, value| Found {
            source,
            name: self.name,
            value,
        };
        let mut all = Vec::new();
        if value != default {
            all.push(found(Source::Started, value));
        }
        if !default.is_empty() || all.is_empty() {
            all.push(found(Source::Default, default));
        }
        let setting = Setting::new(self.name, self.values, "", self.documentation);
        setting.describe(&all, options).with_read_only(true)
    }

    fn value(&self, broker: &Broker) -> String {
        match self.value {
            Value::Fixed(value) => value.to_owned(),
            Value::Config(value) => value(broker.config()),
            Value::Own { value, .. } => value(broker),
        }
    }

    /// Returns the default, or an empty text if there is none.
    fn default(&self) -> String {
        match self.value {
            Value::Fixed(value) => value.to_owned(),
            Value::Config(value) => {
                let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                value(&BrokerConfig::new(any))
            }
            Value::Own { default, .. } => default(),
        }
    }
}

/// Returns the documentation of the broker's setting with this name of Kafka's. `None` if the broker is not started with
/// it.
pub fn started_documentation(name: &str) -> Option<&'static str> {
    let mut settings = SETTINGS.iter();
    let setting = settings.find(|setting| setting.name == name)?;
    Some(setting.documentation)
}

const fn fixed(
    name: &'static str,
    values: Values,
    documentation: &'static str,
    value: &'static str,
) -> StartedSetting {
    StartedSetting {
        name,
        values,
        documentation,
        value: Value::Fixed(value),
    }
}

const fn config(
    name: &'static str,
    values: Values,
    documentation: &'static str,
    value: fn(&BrokerConfig) -> String,
) -> StartedSetting {
    StartedSetting {
        name,
        values,
        documentation,
        value: Value::Config(value),
    }
}

/// A setting without a default.
const fn own(
    name: &'static str,
    values: Values,
    documentation: &'static str,
    value: fn(&Broker) -> String,
) -> StartedSetting {
    StartedSetting {
        name,
        values,
        documentation,
        value: Value::Own {
            value,
            default: String::new,
        },
    }
}

const ANY: Values = Values::List(&[]);
const COUNT: Values = Values::Int(0, i32::MAX);

/// All settings that the broker was started with, by their names.
pub const SETTINGS: [StartedSetting; 36] = [
    own(
        "advertised.listeners",
        ANY,
        "The addresses that the broker announces to clients.",
        |broker| listeners(broker).1,
    ),
    config(
        "auto.create.topics.enable",
        Values::Boolean,
        "Whether the broker creates a missing topic when a client asks for it.",
        |config| config.auto_create_topics.to_string(),
    ),
    own(
        "broker.id",
        COUNT,
        "The broker's id, as older clients call it.",
        id,
    ),
    config(
        "connections.max.idle.ms",
        Values::Long(0),
        "A connection that is silent for longer is closed.",
        |config| millis(config.idle_max),
    ),
    fixed(
        "default.replication.factor",
        COUNT,
        "There is one broker, so each partition has one replica.",
        "1",
    ),
    fixed(
        "delete.topic.enable",
        Values::Boolean,
        "Topics can be deleted.",
        "true",
    ),
    fixed(
        "errors.deadletterqueue.auto.create.topics.enable",
        Values::Boolean,
        "Topics for dead letters are not created by themselves.",
        "false",
    ),
    fixed(
        "errors.deadletterqueue.topic.name.prefix",
        ANY,
        "The names of topics for dead letters begin with this.",
        DEAD_LETTERS_PREFIX,
    ),
    config(
        "fetch.max.bytes",
        COUNT,
        "The most bytes of records in one answer to a fetch.",
        |config| int_of(config.fetch_bytes_max),
    ),
    fixed(
        "group.consumer.assignors",
        ANY,
        "How the broker assigns partitions to members of consumer groups.",
        "uniform,range",
    ),
    config(
        "group.consumer.heartbeat.interval.ms",
        COUNT,
        "How often a member of a consumer group sends a heartbeat, unless the group has a setting of its own.",
        |config| millis(config.groups.consumer_heartbeat_interval),
    ),
    config(
        "group.consumer.session.timeout.ms",
        COUNT,
        "How long a member of a consumer group may be silent, unless the group has a setting of its own.",
        |config| millis(config.groups.consumer_session_timeout),
    ),
    config(
        "group.initial.rebalance.delay.ms",
        COUNT,
        "How long the first members of an empty group wait for others to join.",
        |config| millis(config.groups.initial_rebalance_delay),
    ),
    config(
        "group.max.session.timeout.ms",
        COUNT,
        "The longest session timeout that a member of a classic group may ask for.",
        |config| millis(config.groups.session_timeout_max),
    ),
    config(
        "group.max.size",
        COUNT,
        "The most members of a group.",
        |config| int_of(config.groups.members_max),
    ),
    config(
        "group.min.session.timeout.ms",
        COUNT,
        "The shortest session timeout that a member of a classic group may ask for.",
        |config| millis(config.groups.session_timeout_min),
    ),
    own(
        "listener.security.protocol.map",
        Values::Text,
        "The protocol of each listener.",
        |broker| listeners(broker).2,
    ),
    own(
        "listeners",
        ANY,
        "The addresses that the broker serves.",
        |broker| listeners(broker).0,
    ),
    StartedSetting {
        name: "log.cleaner.io.max.bytes.per.second",
        values: Values::Rate,
        documentation: "How many bytes compaction reads and writes in a second at most.",
        value: Value::Own {
            value: |broker| broker.log().compaction_rate().0.to_string(),
            default: || {
                let config = LogConfig::with_pool("", ByteSize(POOL_BYTES_MIN));
                config.compaction_rate.0.to_string()
            },
        },
    },
    own("log.dir", ANY, "The data directory.", dir),
    own("log.dirs", ANY, "The data directory.", dir),
    fixed(
        "log.retention.check.interval.ms",
        Values::Long(0),
        "How often retention looks for groups to remove.",
        "10000",
    ),
    fixed(
        "log.retention.hours",
        Values::Int(-1, i32::MAX),
        "Records are retained for ever unless the topic, or log.retention.ms, sets a bound.",
        "-1",
    ),
    fixed(
        "log.segment.bytes",
        COUNT,
        "The size of a group of segments, for topics without a size of their own.",
        GROUP_BYTES_DEFAULT,
    ),
    config(
        "max.connections",
        COUNT,
        "Connections at the same time; further ones are closed at once.",
        |config| int_of(config.connections_max),
    ),
    own(
        "node.id",
        COUNT,
        "The id under which clients see this node.",
        id,
    ),
    config(
        "num.partitions",
        COUNT,
        "Partitions of topics that clients create without a partition count.",
        |config| config.partitions_default.to_string(),
    ),
    config(
        "offset.metadata.max.bytes",
        COUNT,
        "The longest text that is committed with an offset.",
        |config| int_of(config.groups.offset_metadata_max),
    ),
    config(
        "offsets.retention.check.interval.ms",
        Values::Long(0),
        "The interval between searches for expired offsets.",
        |config| millis(config.groups.offsets_retention_check_interval),
    ),
    config(
        "offsets.retention.minutes",
        COUNT,
        "How long committed offsets are retained after the group has become empty.",
        |config| (config.groups.offsets_retention.as_secs() / 60).to_string(),
    ),
    own(
        "process.roles",
        ANY,
        "The node is broker and controller in one.",
        |_| "broker,controller".to_owned(),
    ),
    config(
        "queued.max.request.bytes",
        Values::Long(-1),
        "The most memory of all requests in progress. Beyond it, connections wait.",
        |config| config.requests_bytes_max.to_string(),
    ),
    fixed(
        "remote.log.storage.system.enable",
        Values::Boolean,
        "There is no remote storage.",
        "false",
    ),
    own(
        "sasl.enabled.mechanisms",
        ANY,
        "How clients can log in.",
        mechanisms,
    ),
    config(
        "socket.request.max.bytes",
        COUNT,
        "The largest request.",
        |config| int_of(config.request_bytes_max),
    ),
    own(
        "super.users",
        Values::Text,
        "Users with all rights, whatever the access rules say: names separated by `;`.",
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
        for setting in &SETTINGS {
            let default = setting.default();
            if !default.is_empty() {
                assert_eq!(setting.values.read(&default), Ok(default));
            }
        }
        assert!(SETTINGS.iter().map(|setting| setting.name).is_sorted());
    }
}

//! The settings that the broker was started with. Administrators see them, and cannot change them.

use std::time::Duration;

use super::setting::Setting;
use super::value::Values;
use crate::broker::Broker;
use crate::config::BrokerConfig;

/// A default of topics that does not change while the broker runs: the log takes the size of groups from the topic
/// itself.
pub const GROUP_BYTES: &str = "log.segment.bytes";

/// A setting that the broker was started with, and its value.
pub struct Fixed {
    pub setting: Setting,
    pub value: String,
}

/// The settings that the broker was started with.
pub fn fixed(broker: &Broker) -> Vec<Fixed> {
    let config = broker.config();
    let groups = &config.groups;
    let mut all = Vec::new();
    let mut put = |name, values, default, documentation, value: String| {
        let setting = Setting {
            name,
            values,
            default,
            documentation,
        };
        all.push(Fixed { setting, value });
    };
    let (flag, any) = (Values::Boolean, Values::List(&[]));
    let (int, long) = (Values::Int(0, i32::MAX), Values::Long(0));
    let millis = |duration: Duration| duration.as_millis().to_string();
    let int_of = |number: usize| i32::try_from(number).unwrap_or(i32::MAX).to_string();
    let id = config.node_id.to_string();
    put("node.id", int, "", "The broker's id.", id.clone());
    put(
        "broker.id",
        int,
        "",
        "The broker's id, as older clients call it.",
        id,
    );
    put(
        "process.roles",
        any,
        "",
        "The node is broker and controller in one.",
        "broker,controller".to_owned(),
    );
    let (listeners, advertised, protocols) = listeners(config);
    put(
        "listeners",
        any,
        "",
        "The addresses that the broker serves.",
        listeners,
    );
    put(
        "advertised.listeners",
        any,
        "",
        "The addresses that clients are told to connect to.",
        advertised,
    );
    put(
        "listener.security.protocol.map",
        Values::Text,
        "",
        "The protocol of each listener.",
        protocols,
    );
    let dir = broker.log().dir().display().to_string();
    put("log.dirs", any, "", "The data directory.", dir.clone());
    put("log.dir", any, "", "The data directory.", dir);
    put(
        "auto.create.topics.enable",
        flag,
        "true",
        "Whether a topic that a client asks for is created if there is none.",
        config.auto_create_topics.to_string(),
    );
    put(
        "delete.topic.enable",
        flag,
        "true",
        "Topics can be deleted.",
        "true".to_owned(),
    );
    put(
        "num.partitions",
        int,
        "1",
        "Partitions of topics that are created without a number.",
        config.partitions_default.to_string(),
    );
    put(
        "default.replication.factor",
        int,
        "1",
        "There is one broker, so each partition has one replica.",
        "1".to_owned(),
    );
    put(
        GROUP_BYTES,
        int,
        "134217728",
        "The size of a group of segments, for topics without a size of their own.",
        "134217728".to_owned(),
    );
    put(
        "log.retention.hours",
        Values::Int(-1, i32::MAX),
        "-1",
        "Records are kept for ever unless the topic, or log.retention.ms, sets a bound.",
        "-1".to_owned(),
    );
    put(
        "log.retention.check.interval.ms",
        long,
        "10000",
        "How often retention looks for groups to remove.",
        "10000".to_owned(),
    );
    put(
        "socket.request.max.bytes",
        int,
        "104857600",
        "The largest request.",
        int_of(config.request_bytes_max),
    );
    put(
        "queued.max.request.bytes",
        Values::Long(-1),
        "536870912",
        "The most memory of all requests in progress. Beyond it, connections wait.",
        config.requests_bytes_max.to_string(),
    );
    put(
        "fetch.max.bytes",
        int,
        "57671680",
        "The most bytes of records in one answer to a fetch.",
        int_of(config.fetch_bytes_max),
    );
    put(
        "connections.max.idle.ms",
        long,
        "600000",
        "A connection that is silent for longer is closed.",
        millis(config.idle_max),
    );
    put(
        "max.connections",
        int,
        "20000",
        "Connections at the same time; further ones are closed at once.",
        int_of(config.connections_max),
    );
    put(
        "group.initial.rebalance.delay.ms",
        int,
        "3000",
        "How long the first members of an empty group wait for others.",
        millis(groups.initial_rebalance_delay),
    );
    put(
        "group.min.session.timeout.ms",
        int,
        "6000",
        "The shortest session timeout that a member of a classic group may ask for.",
        millis(groups.session_timeout_min),
    );
    put(
        "group.max.session.timeout.ms",
        int,
        "1800000",
        "The longest session timeout that a member of a classic group may ask for.",
        millis(groups.session_timeout_max),
    );
    put(
        "group.max.size",
        int,
        "5000",
        "The most members of a group.",
        int_of(groups.members_max),
    );
    put(
        "group.consumer.session.timeout.ms",
        int,
        "45000",
        "How long a member of a consumer group may be silent, unless the group has a setting of its own.",
        millis(groups.consumer_session_timeout),
    );
    put(
        "group.consumer.heartbeat.interval.ms",
        int,
        "5000",
        "How often a member of a consumer group sends a heartbeat, unless the group has a setting of its own.",
        millis(groups.consumer_heartbeat_interval),
    );
    put(
        "group.consumer.assignors",
        any,
        "uniform,range",
        "How the broker assigns partitions to members of consumer groups.",
        "uniform,range".to_owned(),
    );
    put(
        "offsets.retention.minutes",
        int,
        "10080",
        "How long committed offsets are kept after the group has become empty.",
        (groups.offsets_retention.as_secs() / 60).to_string(),
    );
    put(
        "offsets.retention.check.interval.ms",
        long,
        "600000",
        "The interval between searches for expired offsets.",
        millis(groups.offsets_retention_check_interval),
    );
    put(
        "offset.metadata.max.bytes",
        int,
        "4096",
        "The longest text that is committed with an offset.",
        int_of(groups.offset_metadata_max),
    );
    let mechanisms: Vec<&str> = broker
        .security()
        .mechanisms()
        .iter()
        .map(|it| it.name())
        .collect();
    put(
        "sasl.enabled.mechanisms",
        any,
        "",
        "How clients can log in.",
        mechanisms.join(","),
    );
    let users: Vec<String> = config
        .security
        .super_users
        .iter()
        .map(ToString::to_string)
        .collect();
    put(
        "super.users",
        Values::Text,
        "",
        "The users that may do everything, regardless of the access rules.",
        users.join(";"),
    );
    put(
        "remote.log.storage.system.enable",
        flag,
        "false",
        "There is no remote storage.",
        "false".to_owned(),
    );
    all.sort_by_key(|fixed| fixed.setting.name);
    all
}

/// The listeners, their advertised addresses, and the protocol of each, as Kafka writes them. A listener has the name of
/// its protocol, with a number if several have the same one.
fn listeners(config: &BrokerConfig) -> (String, String, String) {
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

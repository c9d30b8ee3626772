//! All settings of groups.

use std::str::FromStr;
use std::time::Duration;

use crate::configs::setting::Setting;
use crate::configs::value::Values;
use crate::groups::{Config, GroupConfig};
use crate::shares::{DEAD_LETTERS_PREFIX, Isolation, OffsetReset, Order, ShareSettings};

/// A setting of groups.
pub struct GroupSetting {
    pub setting: Setting,
    /// The setting that the broker was started with, for groups without a setting of their own.
    pub of_broker: Option<OfBroker>,
    /// The setting that this one must be less than.
    pub less_than: Option<&'static str>,
    pub reader: Reader,
}

/// A setting that the broker was started with, in milliseconds.
pub struct OfBroker {
    pub name: &'static str,
    pub value: fn(&Config) -> Duration,
}

/// The reader of a setting, and how it takes a valid value.
pub enum Reader {
    /// There is none: the broker stores and shows the value.
    None,
    /// The coordinator of the group.
    Coordinator(fn(&mut GroupConfig, Duration)),
    /// The records of a share group.
    Shares(fn(&mut ShareSettings, &str)),
}

impl GroupSetting {
    /// The coordinator reads it. Without it, the broker's own setting counts.
    const fn coordinator(
        mut self,
        name: &'static str,
        value: fn(&Config) -> Duration,
        put: fn(&mut GroupConfig, Duration),
    ) -> GroupSetting {
        self.of_broker = Some(OfBroker { name, value });
        self.reader = Reader::Coordinator(put);
        self
    }

    const fn shares(mut self, put: fn(&mut ShareSettings, &str)) -> GroupSetting {
        self.reader = Reader::Shares(put);
        self
    }

    const fn less_than(mut self, other: &'static str) -> GroupSetting {
        self.less_than = Some(other);
        self
    }
}

const fn group(
    name: &'static str,
    values: Values,
    default: &'static str,
    documentation: &'static str,
) -> GroupSetting {
    GroupSetting {
        setting: Setting::new(name, values, default, documentation),
        of_broker: None,
        less_than: None,
        reader: Reader::None,
    }
}

const CONSUMER_SESSION: &str = "consumer.session.timeout.ms";
const SHARE_SESSION: &str = "share.session.timeout.ms";
const STREAMS_SESSION: &str = "streams.session.timeout.ms";

const READ_COMMITTED: &str = "read_committed";
const BY_KEY: &str = "key";

/// The least time between heartbeats, so that members do not keep the broker busy with them.
const HEARTBEAT_MS_MIN: i32 = 1_000;
const SESSION_MS_MIN: i32 = 6_000;
const SESSION_MS_MAX: i32 = 1_800_000;

const SESSION: Values = Values::Int(SESSION_MS_MIN, SESSION_MS_MAX);
const HEARTBEAT: Values = Values::Int(HEARTBEAT_MS_MIN, SESSION_MS_MAX);
const OWN_PACE: &str =
    "Has no effect: the broker assigns when members join, leave or change their subscription.";

/// All settings of groups, by their names.
pub const SETTINGS: [GroupSetting; 20] = [
    group(
        "consumer.assignment.interval.ms",
        Values::Int(0, i32::MAX),
        "1000",
        OWN_PACE,
    ),
    group(
        "consumer.heartbeat.interval.ms",
        HEARTBEAT,
        "5000",
        "How often a member of a consumer group sends a heartbeat; less than the session timeout.",
    )
    .coordinator(
        "group.consumer.heartbeat.interval.ms",
        |started| started.consumer_heartbeat_interval,
        |own, value| own.consumer_heartbeat_interval = Some(value),
    )
    .less_than(CONSUMER_SESSION),
    group(
        CONSUMER_SESSION,
        SESSION,
        "45000",
        "How long a member of a consumer group may be silent before its partitions go to others. Counts for each member from its next heartbeat on.",
    )
    .coordinator(
        "group.consumer.session.timeout.ms",
        |started| started.consumer_session_timeout,
        |own, value| own.consumer_session_timeout = Some(value),
    ),
    group(
        "errors.deadletterqueue.copy.record.enable",
        Values::Boolean,
        "false",
        "Whether a dead letter of a share group has key, value and headers of its record.",
    )
    .shares(|own, value| own.copies_dead_records = value.eq_ignore_ascii_case("true")),
    group(
        "errors.deadletterqueue.topic.name",
        Values::Checked(check_dead_letter_topic),
        "",
        "The topic for a dead letter of each record that a share group rejects or that was delivered too often; empty for none. The name begins with dlq. and the topic has errors.deadletterqueue.group.enable=true.",
    )
    .shares(|own, value| own.dead_letter_topic = Some(value.to_owned()).filter(|name| !name.is_empty())),
    group(
        "share.assignment.interval.ms",
        Values::Int(0, i32::MAX),
        "1000",
        OWN_PACE,
    ),
    group(
        "share.auto.offset.reset",
        Values::Checked(check_offset_reset),
        "latest",
        "Where a share group without a position begins: latest, earliest, or by_duration: and a duration of ISO 8601.",
    )
    .shares(|own, value| {
        own.offset_reset = OffsetReset::parse(value).unwrap_or(own.offset_reset);
    }),
    group(
        "share.delivery.count.limit",
        Values::Int(2, 10),
        "5",
        "How often a record is delivered to a share group before it is archived.",
    )
    .shares(|own, value| own.deliveries_max = number(value, own.deliveries_max)),
    group(
        "share.heartbeat.interval.ms",
        HEARTBEAT,
        "5000",
        "How often a member of a share group sends a heartbeat; less than the session timeout.",
    )
    .coordinator(
        "group.share.heartbeat.interval.ms",
        |started| started.share_heartbeat_interval,
        |own, value| own.share_heartbeat_interval = Some(value),
    )
    .less_than(SHARE_SESSION),
    group(
        "share.isolation.level",
        Values::Choice(&[READ_COMMITTED, "read_uncommitted"]),
        "read_uncommitted",
        "Whether a share group reads records of transactions before they are committed.",
    )
    .shares(|own, value| {
        own.isolation = match value {
            READ_COMMITTED => Isolation::ReadCommitted,
            _ => Isolation::ReadUncommitted,
        };
    }),
    group(
        "share.order",
        Values::Choice(&[BY_KEY, "none"]),
        "none",
        "Which records of a partition a share group gets in order: none, or with key those with the same key. The next record of a key is delivered when all earlier ones are finished.",
    )
    .shares(|own, value| {
        own.order = match value {
            BY_KEY => Order::Key,
            _ => Order::None,
        };
    }),
    group(
        "share.partition.max.record.locks",
        Values::Int(100, 10_000),
        "2000",
        "How many records of a partition members of a share group may hold together.",
    )
    .shares(|own, value| own.record_locks_max = number(value, own.record_locks_max)),
    group(
        "share.record.lock.duration.ms",
        Values::Int(1_000, 60_000),
        "30000",
        "How long a member of a share group holds a record before another one may get it.",
    )
    .shares(|own, value| {
        let default = own.record_lock.as_millis() as u64;
        own.record_lock = Duration::from_millis(number(value, default));
    }),
    group(
        "share.renew.acknowledge.enable",
        Values::Boolean,
        "true",
        "Whether a member of a share group may extend the time for which it holds a record.",
    )
    .shares(|own, value| own.may_renew = value.eq_ignore_ascii_case("true")),
    group(
        SHARE_SESSION,
        SESSION,
        "45000",
        "How long a member of a share group may be silent before its records go to others.",
    )
    .coordinator(
        "group.share.session.timeout.ms",
        |started| started.share_session_timeout,
        |own, value| own.share_session_timeout = Some(value),
    ),
    group(
        "streams.assignment.interval.ms",
        Values::Int(0, i32::MAX),
        "1000",
        OWN_PACE,
    ),
    group(
        "streams.heartbeat.interval.ms",
        HEARTBEAT,
        "5000",
        "How often a member of a group of Kafka Streams sends a heartbeat; less than the session timeout.",
    )
    .coordinator(
        "group.streams.heartbeat.interval.ms",
        |started| started.streams_heartbeat_interval,
        |own, value| own.streams_heartbeat_interval = Some(value),
    )
    .less_than(STREAMS_SESSION),
    group(
        "streams.initial.rebalance.delay.ms",
        Values::Int(0, i32::MAX),
        "3000",
        "Has no effect: the first member gets its tasks at once.",
    ),
    group(
        "streams.num.standby.replicas",
        Values::Int(0, 2),
        "0",
        "Has no effect: no standby tasks are assigned.",
    ),
    group(
        STREAMS_SESSION,
        SESSION,
        "45000",
        "How long a member of a group of Kafka Streams may be silent before its tasks go to others. Counts for each member from its next heartbeat on.",
    )
    .coordinator(
        "group.streams.session.timeout.ms",
        |started| started.streams_session_timeout,
        |own, value| own.streams_session_timeout = Some(value),
    ),
];

/// Parses a number that the change of the setting has validated.
fn number<T: FromStr>(value: &str, default: T) -> T {
    value.parse().unwrap_or(default)
}

/// Checks the name of a topic for dead letters.
fn check_dead_letter_topic(name: &str) -> Result<(), String> {
    match name.is_empty() || name.starts_with(DEAD_LETTERS_PREFIX) {
        true => Ok(()),
        false => Err(format!(
            "{name:?} does not begin with {DEAD_LETTERS_PREFIX}, as the broker's errors.deadletterqueue.topic.name.prefix asks"
        )),
    }
}

/// Checks a start position of a share group.
fn check_offset_reset(text: &str) -> Result<(), String> {
    match OffsetReset::parse(text) {
        Some(_) => Ok(()),
        None => Err(format!(
            "{text:?} is neither latest nor earliest nor by_duration: and a duration such as P1DT2H3M4S"
        )),
    }
}

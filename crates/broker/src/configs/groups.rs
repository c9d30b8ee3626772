//! The settings of groups.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::change::{Changes, Own, apply};
use super::setting::{Found, Refused, Setting, Source};
use super::store::{ConfigStore, Kind};
use super::value::Values;
use crate::groups;
use crate::groups::config::GROUP_NAME_BYTES_MAX;
use crate::shares::{Isolation, OffsetReset, ShareSettings};

const CONSUMER_SESSION: &str = "consumer.session.timeout.ms";
const CONSUMER_HEARTBEAT: &str = "consumer.heartbeat.interval.ms";
const SHARE_SESSION: &str = "share.session.timeout.ms";
const SHARE_HEARTBEAT: &str = "share.heartbeat.interval.ms";
const SHARE_RESET: &str = "share.auto.offset.reset";
const SHARE_ISOLATION: &str = "share.isolation.level";
const SHARE_LOCK_DURATION: &str = "share.record.lock.duration.ms";
const SHARE_DELIVERIES: &str = "share.delivery.count.limit";
const SHARE_LOCKS: &str = "share.partition.max.record.locks";
const SHARE_RENEWALS: &str = "share.renew.acknowledge.enable";
const STREAMS_SESSION: &str = "streams.session.timeout.ms";
const STREAMS_HEARTBEAT: &str = "streams.heartbeat.interval.ms";
const READ_COMMITTED: &str = "read_committed";

/// The least time between heartbeats, so that members do not keep the broker busy with them.
const HEARTBEAT_MS_MIN: i32 = 1_000;
const SESSION_MS_MIN: i32 = 6_000;
const SESSION_MS_MAX: i32 = 1_800_000;

const fn setting(
    name: &'static str,
    values: Values,
    default: &'static str,
    documentation: &'static str,
) -> Setting {
    Setting {
        name,
        values,
        default,
        documentation,
    }
}

const SESSION: Values = Values::Int(SESSION_MS_MIN, SESSION_MS_MAX);
const HEARTBEAT: Values = Values::Int(HEARTBEAT_MS_MIN, SESSION_MS_MAX);
const OWN_PACE: &str =
    "Has no effect: the broker assigns when members join, leave or change their subscription.";

/// All settings of groups, by their names.
const SETTINGS: [Setting; 17] = [
    setting(
        "consumer.assignment.interval.ms",
        Values::Int(0, i32::MAX),
        "1000",
        OWN_PACE,
    ),
    setting(
        CONSUMER_HEARTBEAT,
        HEARTBEAT,
        "5000",
        "How often a member of a consumer group sends a heartbeat; less than the session timeout.",
    ),
    setting(
        CONSUMER_SESSION,
        SESSION,
        "45000",
        "How long a member of a consumer group may be silent before its partitions go to others. Counts for each member from its next heartbeat on.",
    ),
    setting(
        "share.assignment.interval.ms",
        Values::Int(0, i32::MAX),
        "1000",
        OWN_PACE,
    ),
    setting(
        SHARE_RESET,
        Values::Checked(check_offset_reset),
        "latest",
        "Where a share group without a position begins: latest, earliest, or by_duration: and a duration of ISO 8601.",
    ),
    setting(
        SHARE_DELIVERIES,
        Values::Int(2, 10),
        "5",
        "How often a record is delivered to a share group before it is archived.",
    ),
    setting(
        SHARE_HEARTBEAT,
        HEARTBEAT,
        "5000",
        "How often a member of a share group sends a heartbeat; less than the session timeout.",
    ),
    setting(
        SHARE_ISOLATION,
        Values::Choice(&[READ_COMMITTED, "read_uncommitted"]),
        "read_uncommitted",
        "Whether a share group reads records of transactions before they are committed.",
    ),
    setting(
        SHARE_LOCKS,
        Values::Int(100, 10_000),
        "2000",
        "How many records of a partition members of a share group may hold together.",
    ),
    setting(
        SHARE_LOCK_DURATION,
        Values::Int(1_000, 60_000),
        "30000",
        "How long a member of a share group holds a record before another one may get it.",
    ),
    setting(
        SHARE_RENEWALS,
        Values::Boolean,
        "true",
        "Whether a member of a share group may extend the time for which it holds a record.",
    ),
    setting(
        SHARE_SESSION,
        SESSION,
        "45000",
        "How long a member of a share group may be silent before its records go to others.",
    ),
    setting(
        "streams.assignment.interval.ms",
        Values::Int(0, i32::MAX),
        "1000",
        OWN_PACE,
    ),
    setting(
        STREAMS_HEARTBEAT,
        HEARTBEAT,
        "5000",
        "How often a member of a group of Kafka Streams sends a heartbeat; less than the session timeout.",
    ),
    setting(
        "streams.initial.rebalance.delay.ms",
        Values::Int(0, i32::MAX),
        "3000",
        "Has no effect: the first member gets its tasks at once.",
    ),
    setting(
        "streams.num.standby.replicas",
        Values::Int(0, 2),
        "0",
        "Has no effect: no standby tasks are assigned.",
    ),
    setting(
        STREAMS_SESSION,
        SESSION,
        "45000",
        "How long a member of a group of Kafka Streams may be silent before its tasks go to others. Counts for each member from its next heartbeat on.",
    ),
];

/// Checks a start position of a share group.
fn check_offset_reset(text: &str) -> Result<(), String> {
    match OffsetReset::parse(text) {
        Some(_) => Ok(()),
        None => Err(format!(
            "{text:?} is neither latest nor earliest nor by_duration: and a duration such as P1DT2H3M4S"
        )),
    }
}

/// All settings of groups.
pub fn settings() -> impl Iterator<Item = &'static Setting> + Clone {
    SETTINGS.iter()
}

/// The values found for a setting of a group, most important first.
pub fn found(own: &Own, of_broker: &groups::Config, setting: &'static Setting) -> Vec<Found> {
    let mut found = Vec::new();
    if let Some(value) = own.get(setting.name) {
        found.push(Found {
            source: Source::Group,
            name: setting.name,
            value: value.clone(),
        });
    }
    let (name, started) = match setting.name {
        CONSUMER_SESSION => (
            "group.consumer.session.timeout.ms",
            Some(of_broker.consumer_session_timeout),
        ),
        CONSUMER_HEARTBEAT => (
            "group.consumer.heartbeat.interval.ms",
            Some(of_broker.consumer_heartbeat_interval),
        ),
        SHARE_SESSION => (
            "group.share.session.timeout.ms",
            Some(of_broker.share_session_timeout),
        ),
        SHARE_HEARTBEAT => (
            "group.share.heartbeat.interval.ms",
            Some(of_broker.share_heartbeat_interval),
        ),
        STREAMS_SESSION => (
            "group.streams.session.timeout.ms",
            Some(of_broker.streams_session_timeout),
        ),
        STREAMS_HEARTBEAT => (
            "group.streams.heartbeat.interval.ms",
            Some(of_broker.streams_heartbeat_interval),
        ),
        name => (name, None),
    };
    let default = Found {
        name,
        ..setting.found_by_default()
    };
    let started = started.map(|value| value.as_millis().to_string());
    if let Some(value) = started.filter(|value| *value != setting.default) {
        found.push(Found {
            source: Source::Started,
            value,
            ..default.clone()
        });
    }
    found.push(default);
    found
}

/// Refuses a name that no group can have.
pub fn check_name(name: &str) -> Result<(), Refused> {
    match name.len() {
        0 => Err(Refused::request(
            "a group has a name: there are no settings of all groups",
        )),
        1..=GROUP_NAME_BYTES_MAX => Ok(()),
        _ => Err(Refused::request("the group's name is too long")),
    }
}

/// Changes settings of a group; the group need not exist yet. Passes the settings now in force to `use_changed`.
///
/// # Errors
/// When a setting does not exist, or a value is not valid for it or conflicts with another one.
pub fn alter(
    store: &ConfigStore,
    of_broker: &groups::Config,
    name: &str,
    changes: &Changes<'_>,
    validate_only: bool,
    use_changed: impl FnOnce(groups::GroupConfig, ShareSettings),
) -> Result<(), Refused> {
    check_name(name)?;
    let change = |own: &mut Own| {
        for (setting, change) in changes {
            let find = |name: &str| Setting::named(settings(), "groups", name);
            apply(own, setting, *change, find, |setting| {
                setting.default.to_owned()
            })?;
        }
        check(own, of_broker)
    };
    store.change(Kind::Group, name, validate_only, change, |own| {
        use_changed(group_config(own), share_settings(own));
    })
}

/// Checks that members have time for a heartbeat.
fn check(own: &Own, of_broker: &groups::Config) -> Result<(), Refused> {
    let pairs = [
        (CONSUMER_HEARTBEAT, CONSUMER_SESSION),
        (SHARE_HEARTBEAT, SHARE_SESSION),
        (STREAMS_HEARTBEAT, STREAMS_SESSION),
    ];
    for (heartbeat, session) in pairs {
        let value = |name: &str| {
            let setting = settings().find(|setting| setting.name == name)?;
            let found = found(own, of_broker, setting).into_iter().next()?;
            found.value.parse::<u64>().ok()
        };
        if value(heartbeat) >= value(session) {
            return Err(Refused::invalid(format!(
                "{heartbeat} must be less than {session}"
            )));
        }
    }
    Ok(())
}

/// Converts a group's own settings for its coordinator.
fn group_config(own: &Own) -> groups::GroupConfig {
    let duration = |name| {
        let value = own.get(name).and_then(|value| value.parse().ok());
        value.map(Duration::from_millis)
    };
    groups::GroupConfig {
        consumer_session_timeout: duration(CONSUMER_SESSION),
        consumer_heartbeat_interval: duration(CONSUMER_HEARTBEAT),
        share_session_timeout: duration(SHARE_SESSION),
        share_heartbeat_interval: duration(SHARE_HEARTBEAT),
        streams_session_timeout: duration(STREAMS_SESSION),
        streams_heartbeat_interval: duration(STREAMS_HEARTBEAT),
    }
}

/// Converts a group's own settings for the records of a share group. The change that set them has validated them.
fn share_settings(own: &Own) -> ShareSettings {
    fn number<T: FromStr>(own: &Own, name: &str) -> Option<T> {
        own.get(name).and_then(|value| value.parse().ok())
    }
    let default = ShareSettings::default();
    let offset_reset = own.get(SHARE_RESET).map(|value| OffsetReset::parse(value));
    let isolation = match own.get(SHARE_ISOLATION).map(String::as_str) {
        Some(READ_COMMITTED) => Isolation::ReadCommitted,
        _ => Isolation::ReadUncommitted,
    };
    let record_lock = number(own, SHARE_LOCK_DURATION).map(Duration::from_millis);
    ShareSettings {
        offset_reset: offset_reset.flatten().unwrap_or(default.offset_reset),
        isolation,
        record_lock: record_lock.unwrap_or(default.record_lock),
        deliveries_max: number(own, SHARE_DELIVERIES).unwrap_or(default.deliveries_max),
        record_locks_max: number(own, SHARE_LOCKS).unwrap_or(default.record_locks_max),
        may_renew: own.get(SHARE_RENEWALS).map_or(default.may_renew, |value| {
            value.eq_ignore_ascii_case("true")
        }),
    }
}

/// Converts the stored settings of all groups for the coordinator.
pub fn group_configs(store: &ConfigStore) -> BTreeMap<groups::GroupName, groups::GroupConfig> {
    of_all(store, group_config)
}

/// Converts the stored settings of all groups for their records, in case they are share groups.
pub fn all_share_settings(store: &ConfigStore) -> BTreeMap<groups::GroupName, ShareSettings> {
    of_all(store, share_settings)
}

fn of_all<T>(store: &ConfigStore, read: impl Fn(&Own) -> T) -> BTreeMap<groups::GroupName, T> {
    let names = store.names(Kind::Group).into_iter();
    let settings = names.map(|name| {
        let read = read(&store.own(Kind::Group, &name));
        (groups::GroupName::from(name), read)
    });
    settings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_of_its_setting_and_names_are_in_order() {
        for setting in settings() {
            assert_eq!(
                setting.read(setting.default),
                Ok(setting.default.to_owned())
            );
        }
        assert!(settings().map(|setting| setting.name).is_sorted());
    }

    #[test]
    fn a_heartbeat_fits_into_a_session() {
        let of_broker = groups::Config::default();
        let own = |heartbeat: &str, session: &str| {
            Own::from([
                (CONSUMER_HEARTBEAT.to_owned(), heartbeat.to_owned()),
                (CONSUMER_SESSION.to_owned(), session.to_owned()),
            ])
        };
        assert!(check(&own("5999", "6000"), &of_broker).is_ok());
        assert!(check(&own("6000", "6000"), &of_broker).is_err());
        let alone = Own::from([(CONSUMER_HEARTBEAT.to_owned(), "45000".to_owned())]);
        assert!(check(&alone, &of_broker).is_err());
    }
}

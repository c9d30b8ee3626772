//! The settings of groups: their values, and the checks of changes.

use std::collections::BTreeMap;
use std::time::Duration;

use super::change::{Changes, Own, apply};
use super::setting::{Found, Refused, Setting, Source};
use super::store::{ConfigStore, Kind};
use super::tables::groups::{GroupSetting, Reader, SETTINGS};
use crate::groups;
use crate::groups::config::GROUP_NAME_BYTES_MAX;
use crate::shares::ShareSettings;

/// All settings of groups, each with the values found for it.
pub fn all(
    own: &Own,
    of_broker: &groups::Config,
) -> impl Iterator<Item = (&'static Setting, Vec<Found>)> {
    let settings = SETTINGS.iter();
    settings.map(|group| (&group.setting, found(own, of_broker, group)))
}

fn settings() -> impl Iterator<Item = &'static Setting> + Clone {
    SETTINGS.iter().map(|group| &group.setting)
}

/// The values found for a setting of a group, most important first.
fn found(own: &Own, of_broker: &groups::Config, group: &GroupSetting) -> Vec<Found> {
    let setting = &group.setting;
    let mut found = Vec::new();
    if let Some(value) = own.get(setting.name) {
        found.push(Found {
            source: Source::Group,
            name: setting.name,
            value: value.clone(),
        });
    }
    let Some(started) = &group.of_broker else {
        found.push(setting.found_by_default());
        return found;
    };
    let default = Found {
        name: started.name,
        ..setting.found_by_default()
    };
    let value = (started.value)(of_broker).as_millis().to_string();
    if value != setting.default {
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
    let value = |group: &GroupSetting| {
        let found = found(own, of_broker, group).into_iter().next()?;
        found.value.parse::<u64>().ok()
    };
    for group in &SETTINGS {
        let bound = SETTINGS
            .iter()
            .find(|other| group.less_than == Some(other.setting.name));
        if let Some(bound) = bound
            && value(group) >= value(bound)
        {
            return Err(Refused::invalid(format!(
                "{} must be less than {}",
                group.setting.name, bound.setting.name
            )));
        }
    }
    Ok(())
}

/// Converts a group's own settings for its coordinator. The change that set them has validated them.
fn group_config(own: &Own) -> groups::GroupConfig {
    let mut config = groups::GroupConfig::default();
    for (group, value) in set(own) {
        if let Reader::Coordinator(put) = group.reader
            && let Ok(millis) = value.parse()
        {
            put(&mut config, Duration::from_millis(millis));
        }
    }
    config
}

/// Converts a group's own settings for the records of a share group. The change that set them has validated them.
fn share_settings(own: &Own) -> ShareSettings {
    let mut settings = ShareSettings::default();
    for (group, value) in set(own) {
        if let Reader::Shares(put) = group.reader {
            put(&mut settings, value);
        }
    }
    settings
}

/// The settings that a group has of its own, with their values.
fn set(own: &Own) -> impl Iterator<Item = (&'static GroupSetting, &str)> {
    let settings = SETTINGS.iter();
    settings.filter_map(|group| Some((group, own.get(group.setting.name)?.as_str())))
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
                (
                    "consumer.heartbeat.interval.ms".to_owned(),
                    heartbeat.to_owned(),
                ),
                ("consumer.session.timeout.ms".to_owned(), session.to_owned()),
            ])
        };
        assert!(check(&own("5999", "6000"), &of_broker).is_ok());
        assert!(check(&own("6000", "6000"), &of_broker).is_err());
        let alone = Own::from([(
            "consumer.heartbeat.interval.ms".to_owned(),
            "45000".to_owned(),
        )]);
        assert!(check(&alone, &of_broker).is_err());
    }
}

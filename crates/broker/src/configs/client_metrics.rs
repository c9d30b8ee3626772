//! Subscriptions to metrics of clients. The broker stores and shows them, but asks no client for metrics.

use super::change::{Changes, Own, apply};
use super::setting::{Found, Refused, Setting, Source};
use super::store::{ConfigStore, Kind};
use super::value::{Values, items_of};

const INTERVAL: &str = "interval.ms";
const MATCH: &str = "match";

/// The selectors that a subscription may match clients by.
const MATCHED: [&str; 6] = [
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
];

const NOT_ASKED: &str = "Is kept, and has no effect: this server does not ask clients for metrics.";

/// All settings of a subscription, by their names.
const SETTINGS: [Setting; 3] = [
    Setting {
        name: INTERVAL,
        values: Values::Int(100, 3_600_000),
        default: "300000",
        documentation: NOT_ASKED,
    },
    Setting {
        name: MATCH,
        values: Values::List(&[]),
        default: "",
        documentation: NOT_ASKED,
    },
    Setting {
        name: "metrics",
        values: Values::List(&[]),
        default: "",
        documentation: NOT_ASKED,
    },
];

/// All settings of a subscription.
pub fn settings() -> impl Iterator<Item = &'static Setting> + Clone {
    SETTINGS.iter()
}

/// The values found for a setting, most important first.
pub fn found(own: &Own, setting: &'static Setting) -> Vec<Found> {
    let value = own.get(setting.name).map(|value| Found {
        source: Source::ClientMetrics,
        name: setting.name,
        value: value.clone(),
    });
    value
        .into_iter()
        .chain([setting.found_by_default()])
        .collect()
}

/// Refuses a name that no subscription can have.
pub fn check_name(name: &str) -> Result<(), Refused> {
    match name.is_empty() {
        true => Err(Refused::request("a subscription to metrics has a name")),
        false => Ok(()),
    }
}

/// Changes a subscription. Its first setting creates it; the removal of its last setting deletes it.
///
/// # Errors
/// When a setting does not exist, or a value is not valid for it.
pub fn alter(
    store: &ConfigStore,
    name: &str,
    changes: &Changes<'_>,
    validate_only: bool,
) -> Result<(), Refused> {
    check_name(name)?;
    let change = |own: &mut Own| {
        for (setting, change) in changes {
            let find = |name: &str| Setting::named(settings(), "subscriptions to metrics", name);
            apply(own, setting, *change, find, |setting| {
                setting.default.to_owned()
            })?;
        }
        check(own)
    };
    store.change(Kind::ClientMetrics, name, validate_only, change, |_| {})
}

fn check(own: &Own) -> Result<(), Refused> {
    let patterns = own.get(MATCH).map_or("", String::as_str);
    for pattern in items_of(patterns) {
        let named = pattern.split_once('=').map(|(name, _)| name.trim());
        if !named.is_some_and(|name| MATCHED.contains(&name)) {
            return Err(Refused::invalid(format!(
                "{MATCH}: {pattern:?} is no pattern: it begins with one of {} and =",
                MATCHED.join(", ")
            )));
        }
    }
    Ok(())
}

//! Subscriptions to metrics of clients. The broker stores and shows them, but asks no client for metrics.

use super::change::{Changes, Own, apply};
use super::setting::{Found, Refused, Setting, Source};
use super::store::{ConfigStore, Kind};
use super::tables::client_metrics::SETTINGS;

/// All settings of a subscription, each with the values found for it.
pub fn all(own: &Own) -> impl Iterator<Item = (&'static Setting, Vec<Found>)> {
    SETTINGS
        .iter()
        .map(|setting| (setting, found(own, setting)))
}

/// The values found for a setting, most important first.
fn found(own: &Own, setting: &Setting) -> Vec<Found> {
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
            let find = |name: &str| Setting::named(&SETTINGS, "subscriptions to metrics", name);
            apply(own, setting, *change, find, |setting| {
                setting.default.to_owned()
            })?;
        }
        Ok(())
    };
    store.change(Kind::ClientMetrics, name, validate_only, change, |_| {})
}

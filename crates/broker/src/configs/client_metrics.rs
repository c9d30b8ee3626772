//! Subscriptions to metrics of clients.

use std::time::Duration;

use regex::Regex;

use super::change::{Changes, Own, apply};
use super::setting::{Found, Refused, Setting, Source};
use super::store::{ConfigStore, Kind};
use super::tables::client_metrics::{self, SETTINGS};
use super::value::items_of;

/// The default of `interval.ms`.
pub const INTERVAL_DEFAULT: Duration = Duration::from_millis(client_metrics::INTERVAL_DEFAULT_MS);

/// A subscription, ready to be compared with clients.
pub struct Subscription {
    /// The time between two reports of a client.
    pub interval: Duration,
    /// The beginnings of the names of the metrics.
    pub metrics: Vec<String>,
    /// The attributes by which it chooses clients, each with the pattern of the value.
    patterns: Vec<(&'static str, Regex)>,
}

impl Subscription {
    /// Reads a subscription. Returns `None` if a pattern does not compile any more: it chooses no client.
    fn new(own: &Own) -> Option<Subscription> {
        let value = |name: &str| own.get(name).map_or("", String::as_str);
        let interval_ms = value("interval.ms").parse().ok();
        let patterns = items_of(value("match"));
        let patterns = patterns.iter().map(|text| client_metrics::pattern(text));
        Some(Subscription {
            interval: interval_ms.map_or(INTERVAL_DEFAULT, Duration::from_millis),
            metrics: items_of(value("metrics"))
                .into_iter()
                .map(str::to_owned)
                .collect(),
            patterns: patterns.collect::<Result<_, String>>().ok()?,
        })
    }

    /// Returns whether all patterns match the client with these attributes.
    pub fn chooses(&self, attributes: &[(&str, String)]) -> bool {
        self.patterns.iter().all(|(selector, pattern)| {
            let mut found = attributes.iter().filter(|(name, _)| name == selector);
            found.any(|(_, value)| pattern.is_match(value))
        })
    }
}

/// Returns the stored subscriptions.
pub fn subscriptions(store: &ConfigStore) -> Vec<Subscription> {
    let names = store.names(Kind::ClientMetrics);
    let names = names.iter();
    let found = names.filter_map(|name| Subscription::new(&store.own(Kind::ClientMetrics, name)));
    found.collect()
}

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

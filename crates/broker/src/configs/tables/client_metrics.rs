//! All settings of subscriptions to metrics of clients.

use regex::Regex;

use crate::configs::setting::Setting;
use crate::configs::value::{Values, items_of};
use crate::pattern::compile;

/// The selectors that a subscription may match clients by.
const SELECTORS: [&str; 6] = [
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
];

/// The default of `interval.ms`.
pub const INTERVAL_DEFAULT_MS: u64 = 300_000;

/// All settings of a subscription, by their names.
pub const SETTINGS: [Setting; 3] = [
    Setting::new(
        "interval.ms",
        Values::Int(100, 3_600_000),
        "300000",
        "The time between two reports of a client, in milliseconds.",
    ),
    Setting::new(
        "match",
        Values::List(&[]),
        "",
        "The clients that report: all those whose attributes match the patterns, for example client_id=app-.*; all clients without patterns.",
    )
    .refusing(refuse_patterns),
    Setting::new(
        "metrics",
        Values::List(&[]),
        "",
        "The beginnings of the names of the metrics that clients report, or * for all.",
    ),
];

fn refuse_patterns(patterns: &str) -> Option<String> {
    let patterns = items_of(patterns);
    patterns.iter().find_map(|text| pattern(text).err())
}

/// Reads a pattern: a selector, `=` and a regular expression that has to match the whole value.
///
/// # Errors
/// When it is something else; the error quotes it.
pub fn pattern(text: &str) -> Result<(&'static str, Regex), String> {
    let parts = text.split_once('=');
    let found = parts.and_then(|(selector, regex)| {
        let selector = SELECTORS.into_iter().find(|it| *it == selector.trim())?;
        Some((selector, regex.trim()))
    });
    let Some((selector, regex)) = found else {
        return Err(format!(
            "{text:?} is no pattern: it begins with one of {} and =",
            SELECTORS.join(", ")
        ));
    };
    match compile(regex) {
        Ok(regex) => Ok((selector, regex)),
        Err(error) => Err(format!("{text:?} is no pattern: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_has_one_default() {
        assert_eq!(SETTINGS[0].default, INTERVAL_DEFAULT_MS.to_string());
    }
}

//! All settings of subscriptions to metrics of clients.

use crate::configs::setting::Setting;
use crate::configs::value::{Values, items_of};

/// The selectors that a subscription may match clients by.
const SELECTORS: [&str; 6] = [
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
];

const NO_EFFECT: &str = "Has no effect: this server does not ask clients for metrics.";

/// All settings of a subscription, by their names.
pub const SETTINGS: [Setting; 3] = [
    Setting::new(
        "interval.ms",
        Values::Int(100, 3_600_000),
        "300000",
        NO_EFFECT,
    ),
    Setting::new("match", Values::List(&[]), "", NO_EFFECT).refusing(refuse_patterns),
    Setting::new("metrics", Values::List(&[]), "", NO_EFFECT),
];

fn refuse_patterns(patterns: &str) -> Option<String> {
    let is_pattern = |pattern: &&str| {
        let selector = pattern.split_once('=').map(|(selector, _)| selector.trim());
        selector.is_some_and(|selector| SELECTORS.contains(&selector))
    };
    let patterns = items_of(patterns);
    let pattern = patterns.iter().find(|pattern| !is_pattern(pattern))?;
    Some(format!(
        "{pattern:?} is no pattern: it begins with one of {} and =",
        SELECTORS.join(", ")
    ))
}

//! Warnings at the first start after an upgrade.

use std::path::Path;
use std::sync::Arc;

use crate::settings::compaction::is_compacted;
use crate::settings::defaults::{CLEANUP_POLICY, COMPACT};
use crate::stream::{StreamKind, StreamState};

/// The number of streams that a warning names.
const NAMED_STREAMS_MAX: usize = 100;

/// Warns that streams are compacted from now on: earlier versions stored this wish, and kept every record.
pub fn warn_of_compaction(dir: &Path, streams: &[Arc<StreamState>]) {
    let is_compacted = |stream: &&Arc<StreamState>| {
        stream.kind == StreamKind::Stream && is_compacted(&stream.shared.config.read().settings)
    };
    let compacted = streams.iter().filter(is_compacted);
    let names: Vec<&str> = compacted
        .map(|stream| stream.shared.name.as_str())
        .collect();
    if !names.is_empty() {
        tracing::warn!(dir = %dir.display(),
            "streams with {CLEANUP_POLICY}={COMPACT} are compacted from now on, so only the newest record of each key stays: {}",
            listed(names));
    }
}

/// Returns the names in their order, the first ones if they are many.
fn listed(mut names: Vec<&str>) -> String {
    names.sort_unstable();
    let more = names.len().saturating_sub(NAMED_STREAMS_MAX);
    names.truncate(NAMED_STREAMS_MAX);
    let listed = names.join(", ");
    match more {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_of_names_ends_with_the_number_of_the_others() {
        assert_eq!(listed(vec!["b", "a"]), "a, b");
        let names: Vec<String> = (0..102).map(|n| format!("{n:03}")).collect();
        let listed = listed(names.iter().map(String::as_str).rev().collect());
        assert!(listed.starts_with("000, 001, "), "{listed}");
        assert!(listed.ends_with("098, 099 and 2 more"), "{listed}");
    }
}

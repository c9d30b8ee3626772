//! Settings of the node for streams that have none of their own.

use std::collections::BTreeMap;

use millstream_base::ByteSize;

use crate::settings::config::StreamConfig;

/// The setting of a stream's own retention time, also where that is for ever.
pub const RETENTION_MS: &str = "retention.ms";
/// The same for how much it keeps.
pub const RETENTION_BYTES: &str = "retention.bytes";

/// The setting for the treatment of old records.
pub const CLEANUP_POLICY: &str = "cleanup.policy";
/// The policy of streams whose old records are removed by retention.
pub const DELETE: &str = "delete";
/// The policy of keyed streams: each record needs a key and is found by it, groups are small, and only the last record of
/// each key stays.
pub const COMPACT: &str = "compact";

/// Returns whether a stream with these settings is only compacted: retention removes none of its records.
pub fn is_without_retention(settings: &BTreeMap<String, String>) -> bool {
    let policy = settings.get(CLEANUP_POLICY);
    policy.is_some_and(|policy| has_policy(policy, COMPACT) && !has_policy(policy, DELETE))
}

/// Returns whether a value of `cleanup.policy` contains one of the policies.
pub fn has_policy(policy: &str, wanted: &str) -> bool {
    policy.split(',').any(|item| item.trim() == wanted)
}

/// Settings of users' streams that have none of their own. By default there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamDefaults {
    /// See [`StreamConfig::retention_ms`].
    pub retention_ms: Option<u64>,
    /// See [`StreamConfig::retention`].
    pub retention: Option<ByteSize>,
    /// See [`StreamConfig::chunk_bytes_max`].
    pub chunk_bytes_max: Option<ByteSize>,
    /// Further settings that the log reads: see [`StreamConfig::settings`].
    pub settings: BTreeMap<String, String>,
}

impl StreamDefaults {
    /// Returns the settings that a stream with these of its own has.
    pub fn complete(&self, mut config: StreamConfig) -> StreamConfig {
        let is_own = |name: &str| config.settings.contains_key(name);
        if config.retention_ms.is_none() && !is_own(RETENTION_MS) {
            config.retention_ms = self.retention_ms;
        }
        if config.retention.is_none() && !is_own(RETENTION_BYTES) {
            config.retention = self.retention;
        }
        config.chunk_bytes_max = config.chunk_bytes_max.or(self.chunk_bytes_max);
        for (name, value) in &self.settings {
            let own = config.settings.entry(name.clone());
            own.or_insert_with(|| value.clone());
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_policy_compact_alone_disables_retention() {
        for (policy, expected) in [
            (Some("compact"), true),
            (Some("delete"), false),
            (Some("compact,delete"), false),
            (Some("delete, compact"), false),
            (None, false),
        ] {
            let policy = policy.map(|policy| (CLEANUP_POLICY.to_owned(), policy.to_owned()));
            let settings = policy.into_iter().collect();
            assert_eq!(is_without_retention(&settings), expected, "{settings:?}");
        }
    }

    #[test]
    fn a_streams_settings_override_the_defaults_also_with_no_bound() {
        let defaults = StreamDefaults {
            retention_ms: Some(5),
            retention: Some(ByteSize(6)),
            chunk_bytes_max: Some(ByteSize(700)),
            settings: BTreeMap::from([("compression.type".to_owned(), "lz4".to_owned())]),
        };
        let bare = defaults.complete(StreamConfig::default());
        assert_eq!(
            (bare.retention_ms, bare.retention),
            (Some(5), Some(ByteSize(6)))
        );
        assert_eq!(bare.chunk_bytes_max, Some(ByteSize(700)));
        assert_eq!(bare.settings, defaults.settings);

        let for_ever =
            [RETENTION_MS, RETENTION_BYTES].map(|name| (name.to_owned(), "-1".to_owned()));
        let own = StreamConfig {
            settings: for_ever.into(),
            chunk_bytes_max: Some(ByteSize(900)),
            ..StreamConfig::default()
        };
        let own = defaults.complete(own);
        assert_eq!((own.retention_ms, own.retention), (None, None));
        assert_eq!(own.chunk_bytes_max, Some(ByteSize(900)));
    }
}

//! The settings of compacted streams, under the names that Kafka gives them.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Timestamp;

use crate::keys::expiry::{KEYED_CLOCK, KeyedClock, TTL};
use crate::keys::secondary::name::{SECONDARY, SecondaryName, names_of};
use crate::settings::defaults::{CLEANUP_POLICY, COMPACT, has_policy, is_without_retention};

/// How long a record stays at least before it may be compacted, in milliseconds.
pub const COMPACTION_LAG_MIN: &str = "min.compaction.lag.ms";
/// How long a record waits at most before it is compacted, in milliseconds.
pub const COMPACTION_LAG_MAX: &str = "max.compaction.lag.ms";
/// The share of a partition's bytes behind the last compaction that makes it due for the next one.
pub const DIRTY_RATIO_MIN: &str = "min.cleanable.dirty.ratio";
/// How long a tombstone stays after its first compaction, in milliseconds.
pub const DELETE_RETENTION: &str = "delete.retention.ms";
/// How long files that compaction replaced stay, in milliseconds.
pub const FILE_DELETE_DELAY: &str = "file.delete.delay.ms";

/// The largest group of a compacted stream. A start reads the keys of the open group, and compaction rewrites whole
/// groups, so both are quick with small ones.
pub const KEYED_GROUP_BYTES_MAX: u64 = 16 << 20;

/// Returns whether a stream with these settings keeps the last record of each key. Then each record needs a key.
pub fn is_compacted(settings: &BTreeMap<String, String>) -> bool {
    let policy = settings.get(CLEANUP_POLICY);
    policy.is_some_and(|policy| has_policy(policy, COMPACT))
}

/// Returns how long values live that name no end of their own: see [`TTL`].
pub fn ttl(settings: &BTreeMap<String, String>) -> Option<Duration> {
    let ms = number::<i64>(settings, TTL)?;
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// Returns the clock that the ends of values are compared with: see [`KEYED_CLOCK`]. A value without a meaning counts as the
/// default: the server checks values before it stores them.
pub fn keyed_clock(settings: &BTreeMap<String, String>) -> KeyedClock {
    let clock = settings.get(KEYED_CLOCK);
    let clock = clock.and_then(|clock| clock.parse().ok());
    clock.unwrap_or_default()
}

/// Returns the indexes of secondary keys of a stream: see [`SECONDARY`].
pub fn secondary(settings: &BTreeMap<String, String>) -> Arc<[SecondaryName]> {
    settings
        .get(SECONDARY)
        .map_or_else(Arc::default, |names| names_of(names))
}

/// When a compacted stream is compacted, and how long its tombstones and replaced files stay. The defaults are Kafka's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compaction {
    /// A record stays for at least this long: [`COMPACTION_LAG_MIN`].
    pub lag_min: Duration,
    /// A record waits for at most this long; `None` for no bound: [`COMPACTION_LAG_MAX`].
    pub lag_max: Option<Duration>,
    /// From 0 to 1: [`DIRTY_RATIO_MIN`].
    pub dirty_ratio_min: f64,
    /// See [`DELETE_RETENTION`].
    pub delete_retention: Duration,
    /// See [`FILE_DELETE_DELAY`].
    pub file_delete_delay: Duration,
    /// Whether groups are joined that need no rewrite otherwise. Not where retention removes groups, since a joined one goes
    /// only with its newest record.
    pub joins: bool,
}

impl Default for Compaction {
    fn default() -> Self {
        Compaction {
            lag_min: Duration::ZERO,
            lag_max: None,
            dirty_ratio_min: 0.5,
            delete_retention: Duration::from_secs(24 * 60 * 60),
            file_delete_delay: Duration::from_secs(60),
            joins: true,
        }
    }
}

impl Compaction {
    /// Reads the settings of a stream; `None` where it is not compacted. A value without a meaning counts as the default:
    /// the server checks values before it stores them.
    pub fn of(settings: &BTreeMap<String, String>) -> Option<Compaction> {
        if !is_compacted(settings) {
            return None;
        }
        let default = Compaction::default();
        let milliseconds =
            |name| number::<i64>(settings, name).and_then(|ms| u64::try_from(ms).ok());
        let duration = |name| milliseconds(name).map(Duration::from_millis);
        let is_bound = |lag: &Duration| lag.as_millis() < i64::MAX as u128;
        Some(Compaction {
            lag_min: duration(COMPACTION_LAG_MIN).unwrap_or(default.lag_min),
            lag_max: duration(COMPACTION_LAG_MAX).filter(is_bound),
            dirty_ratio_min: number(settings, DIRTY_RATIO_MIN)
                .filter(|ratio| (0.0..=1.0).contains(ratio))
                .unwrap_or(default.dirty_ratio_min),
            delete_retention: duration(DELETE_RETENTION).unwrap_or(default.delete_retention),
            file_delete_delay: duration(FILE_DELETE_DELAY).unwrap_or(default.file_delete_delay),
            joins: is_without_retention(settings),
        })
    }
}

impl Compaction {
    /// Returns the time of the newest records that may be compacted. Without a lag, records of the future may be, too.
    pub(crate) fn newest_max(&self, now: Timestamp) -> Timestamp {
        if self.lag_min.is_zero() {
            return Timestamp(i64::MAX);
        }
        let lag_min = i64::try_from(self.lag_min.as_millis()).unwrap_or(i64::MAX);
        Timestamp(now.0.saturating_sub(lag_min))
    }
}

fn number<T: FromStr>(settings: &BTreeMap<String, String>, name: &str) -> Option<T> {
    settings.get(name)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(settings: &[(&str, &str)]) -> Option<Compaction> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Compaction::of(&settings.iter().map(owned).collect())
    }

    #[test]
    fn streams_are_compacted_if_their_policy_says_so() {
        for (policy, expected) in [
            ("compact", true),
            ("delete, compact", true),
            ("compact,delete", true),
            ("delete", false),
            ("compacted", false),
            ("", false),
        ] {
            assert_eq!(
                of(&[(CLEANUP_POLICY, policy)]).is_some(),
                expected,
                "{policy:?}"
            );
        }
        assert_eq!(of(&[(COMPACTION_LAG_MIN, "1")]), None);
        let joins = |policy| of(&[(CLEANUP_POLICY, policy)]).unwrap().joins;
        assert!(joins("compact") && !joins("compact,delete"));
    }

    #[test]
    fn each_setting_is_read_and_invalid_values_count_as_the_default() {
        let compact = (CLEANUP_POLICY, COMPACT);
        assert_eq!(of(&[compact]), Some(Compaction::default()));
        let all = [
            compact,
            (COMPACTION_LAG_MIN, "5"),
            (COMPACTION_LAG_MAX, "60000"),
            (DIRTY_RATIO_MIN, "0.25"),
            (DELETE_RETENTION, "0"),
            (FILE_DELETE_DELAY, "7"),
        ];
        let expected = Compaction {
            lag_min: Duration::from_millis(5),
            lag_max: Some(Duration::from_secs(60)),
            dirty_ratio_min: 0.25,
            delete_retention: Duration::ZERO,
            file_delete_delay: Duration::from_millis(7),
            joins: true,
        };
        assert_eq!(of(&all), Some(expected));
        let unbounded = [compact, (COMPACTION_LAG_MAX, "9223372036854775807")];
        assert_eq!(of(&unbounded), Some(Compaction::default()));
        let senseless = [
            compact,
            (COMPACTION_LAG_MIN, "-1"),
            (COMPACTION_LAG_MAX, "soon"),
            (DIRTY_RATIO_MIN, "NaN"),
            (DELETE_RETENTION, ""),
        ];
        assert_eq!(of(&senseless), Some(Compaction::default()));
    }
}

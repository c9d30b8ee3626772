//! The settings of a share group.

use std::time::Duration;

/// How the broker treats the records of a share group. The defaults are Kafka's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareSettings {
    /// `share.auto.offset.reset`: where a group begins that has no position.
    pub offset_reset: OffsetReset,
    /// `share.isolation.level`: which records members get.
    pub isolation: Isolation,
    /// `share.record.lock.duration.ms`: for how long a member has an acquired record for itself.
    pub record_lock: Duration,
    /// `share.delivery.count.limit`: how often a record is delivered before it is archived.
    pub deliveries_max: u16,
    /// `share.partition.max.record.locks`: how many records of a partition may be in flight.
    pub record_locks_max: u64,
}

/// Where a group begins that has no position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetReset {
    /// Behind the last record.
    Latest,
    /// At the first record.
    Earliest,
    /// At the first record that is no older.
    ByDuration(Duration),
}

/// Which records members get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// All that are durable.
    ReadUncommitted,
    /// Those of committed transactions, and those outside of transactions.
    ReadCommitted,
}

impl Default for ShareSettings {
    fn default() -> Self {
        ShareSettings {
            offset_reset: OffsetReset::Latest,
            isolation: Isolation::ReadUncommitted,
            record_lock: Duration::from_secs(30),
            deliveries_max: 5,
            record_locks_max: 2000,
        }
    }
}

/// Why a value does not suit a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, but must be {expected}")]
pub struct BadShareSetting {
    name: &'static str,
    value: String,
    expected: &'static str,
}

impl ShareSettings {
    /// All settings with their values, by Kafka's names.
    pub fn values(&self) -> [(&'static str, String); 5] {
        let reset = match self.offset_reset {
            OffsetReset::Latest => "latest".to_owned(),
            OffsetReset::Earliest => "earliest".to_owned(),
            OffsetReset::ByDuration(age) => format!("by_duration:PT{}S", age.as_secs_f64()),
        };
        let isolation = match self.isolation {
            Isolation::ReadUncommitted => "read_uncommitted",
            Isolation::ReadCommitted => "read_committed",
        };
        [
            ("share.auto.offset.reset", reset),
            ("share.isolation.level", isolation.to_owned()),
            (
                "share.record.lock.duration.ms",
                self.record_lock.as_millis().to_string(),
            ),
            (
                "share.delivery.count.limit",
                self.deliveries_max.to_string(),
            ),
            (
                "share.partition.max.record.locks",
                self.record_locks_max.to_string(),
            ),
        ]
    }

    /// Changes a setting. `None` if no setting of share groups has this name.
    pub fn set(&mut self, name: &str, value: &str) -> Option<Result<(), BadShareSetting>> {
        let (name, expected, is_set) = match name {
            "share.auto.offset.reset" => (
                "share.auto.offset.reset",
                "latest, earliest or by_duration: with a duration as P1DT2H3M4.5S",
                put(&mut self.offset_reset, parse_reset(value)),
            ),
            "share.isolation.level" => (
                "share.isolation.level",
                "read_uncommitted or read_committed",
                put(
                    &mut self.isolation,
                    match value {
                        "read_uncommitted" => Some(Isolation::ReadUncommitted),
                        "read_committed" => Some(Isolation::ReadCommitted),
                        _ => None,
                    },
                ),
            ),
            "share.record.lock.duration.ms" => (
                "share.record.lock.duration.ms",
                "a number of milliseconds from 1000 to 60000",
                put(
                    &mut self.record_lock,
                    parse_in(value, 1_000..=60_000).map(Duration::from_millis),
                ),
            ),
            "share.delivery.count.limit" => (
                "share.delivery.count.limit",
                "a number from 2 to 10",
                put(
                    &mut self.deliveries_max,
                    parse_in(value, 2..=10).map(|count| count as u16),
                ),
            ),
            "share.partition.max.record.locks" => (
                "share.partition.max.record.locks",
                "a number from 100 to 10000",
                put(&mut self.record_locks_max, parse_in(value, 100..=10_000)),
            ),
            _ => return None,
        };
        let bad = || BadShareSetting {
            name,
            value: value.to_owned(),
            expected,
        };
        Some(is_set.ok_or_else(bad))
    }
}

fn put<T>(setting: &mut T, value: Option<T>) -> Option<()> {
    *setting = value?;
    Some(())
}

fn parse_in(value: &str, range: std::ops::RangeInclusive<u64>) -> Option<u64> {
    value.parse().ok().filter(|number| range.contains(number))
}

fn parse_reset(value: &str) -> Option<OffsetReset> {
    match value {
        "latest" => Some(OffsetReset::Latest),
        "earliest" => Some(OffsetReset::Earliest),
        _ => {
            let age = value.strip_prefix("by_duration:")?;
            parse_duration(age).map(OffsetReset::ByDuration)
        }
    }
}

/// Parses a duration of ISO 8601, as `P1DT2H3M4.5S`.
fn parse_duration(text: &str) -> Option<Duration> {
    let rest = text.strip_prefix('P')?;
    let (days, time) = match rest.split_once('T') {
        Some((_, "")) => return None,
        Some((days, time)) => (days, time),
        None => (rest, ""),
    };
    let mut seconds = 0.0;
    let mut parts = 0;
    for (mut left, units) in [
        (days, &[('D', 86_400.0)][..]),
        (time, &[('H', 3600.0), ('M', 60.0), ('S', 1.0)][..]),
    ] {
        for (unit, length) in units {
            if let Some((number, behind)) = left.split_once(*unit) {
                let is_number = |c: char| c.is_ascii_digit() || (c == '.' && *unit == 'S');
                if number.is_empty() || !number.chars().all(is_number) {
                    return None;
                }
                seconds += number.parse::<f64>().ok()? * length;
                parts += 1;
                left = behind;
            }
        }
        if !left.is_empty() {
            return None;
        }
    }
    if parts == 0 {
        return None;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_takes_its_own_value_and_none_out_of_bounds() {
        let mut settings = ShareSettings::default();
        for (name, value) in ShareSettings::default().values() {
            assert_eq!(settings.set(name, &value), Some(Ok(())), "{name}");
        }
        assert_eq!(settings, ShareSettings::default());
        for (name, value) in [
            ("share.auto.offset.reset", "none"),
            ("share.auto.offset.reset", "by_duration:1s"),
            ("share.auto.offset.reset", "by_duration:P"),
            ("share.auto.offset.reset", "by_duration:PT"),
            ("share.auto.offset.reset", "by_duration:PT1"),
            ("share.isolation.level", "serializable"),
            ("share.record.lock.duration.ms", "999"),
            ("share.record.lock.duration.ms", "60001"),
            ("share.delivery.count.limit", "1"),
            ("share.partition.max.record.locks", "-1"),
        ] {
            let refused = settings.set(name, value).unwrap().unwrap_err().to_string();
            assert!(
                refused.starts_with(&format!("{name} is {value}")),
                "{refused}"
            );
        }
        assert_eq!(settings, ShareSettings::default());
        assert_eq!(settings.set("retention.ms", "1"), None);
        let age = "by_duration:P1DT2H3M4.5S";
        assert_eq!(settings.set("share.auto.offset.reset", age), Some(Ok(())));
        let seconds = 86_400.0 + 2.0 * 3600.0 + 3.0 * 60.0 + 4.5;
        let age = Duration::from_secs_f64(seconds);
        assert_eq!(settings.offset_reset, OffsetReset::ByDuration(age));
    }
}

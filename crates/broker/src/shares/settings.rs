//! The settings of a share group.

use std::time::Duration;

/// The names of topics for dead letters begin with this: Kafka's default of `errors.deadletterqueue.topic.name.prefix`.
pub const DEAD_LETTERS_PREFIX: &str = "dlq.";

/// The setting of topics that allows dead letters in them.
pub const DEAD_LETTERS_ENABLE: &str = "errors.deadletterqueue.group.enable";

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
    /// `share.renew.acknowledge.enable`: whether a member may keep a record for longer than one lock.
    pub may_renew: bool,
    /// `share.order`: which records wait for others.
    pub order: Order,
    /// `errors.deadletterqueue.topic.name`: the topic for the dead letters of records that are rejected or delivered too
    /// often, if the group has one (KIP-1191).
    pub dead_letter_topic: Option<String>,
    /// `errors.deadletterqueue.copy.record.enable`: whether a dead letter has key, value and headers of its record.
    pub copies_dead_records: bool,
}

/// Which records of a share-partition wait for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// None, as in Kafka.
    None,
    /// A record waits until all earlier ones with its key are finished.
    Key,
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
    /// Records of committed transactions, and records outside of transactions.
    ReadCommitted,
}

impl ShareSettings {
    /// `record_lock` as responses carry it.
    pub fn record_lock_ms(&self) -> i32 {
        i32::try_from(self.record_lock.as_millis()).unwrap_or(i32::MAX)
    }
}

impl Default for ShareSettings {
    fn default() -> Self {
        ShareSettings {
            offset_reset: OffsetReset::Latest,
            isolation: Isolation::ReadUncommitted,
            record_lock: Duration::from_secs(30),
            deliveries_max: 5,
            record_locks_max: 2000,
            may_renew: true,
            order: Order::None,
            dead_letter_topic: None,
            copies_dead_records: false,
        }
    }
}

impl OffsetReset {
    /// Parses a value of `share.auto.offset.reset`: `latest`, `earliest`, or `by_duration:` with a duration of ISO 8601.
    pub fn parse(text: &str) -> Option<OffsetReset> {
        match text {
            "latest" => Some(OffsetReset::Latest),
            "earliest" => Some(OffsetReset::Earliest),
            _ => {
                let age = text.strip_prefix("by_duration:")?;
                parse_duration(age).map(OffsetReset::ByDuration)
            }
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
    fn durations_need_their_units_in_order_and_only_seconds_have_fractions() {
        let seconds = 86_400.0 + 2.0 * 3600.0 + 3.0 * 60.0 + 4.5;
        for (text, expected) in [
            ("latest", Some(OffsetReset::Latest)),
            ("earliest", Some(OffsetReset::Earliest)),
            ("none", None),
            ("by_duration:PT1H", after(3600.0)),
            ("by_duration:P1DT2H3M4.5S", after(seconds)),
            ("by_duration:P3D", after(3.0 * 86_400.0)),
            ("by_duration:1s", None),
            ("by_duration:P", None),
            ("by_duration:PT", None),
            ("by_duration:PT1", None),
            ("by_duration:PT1M1H", None),
            ("by_duration:PT1.5H", None),
            ("by_duration:PT.S", None),
            ("by_duration:PT1..5S", None),
            ("by_duration:P99999999999999999999D", None),
            ("by_duration:", None),
        ] {
            assert_eq!(OffsetReset::parse(text), expected, "{text}");
        }
    }

    fn after(seconds: f64) -> Option<OffsetReset> {
        Some(OffsetReset::ByDuration(Duration::from_secs_f64(seconds)))
    }
}

//! The terms of a filter.

use std::cmp::Ordering;

use memchr::memmem::Finder;
use millstream_base::Timestamp;

use crate::{ChunkHeader, Record, TimestampType};

/// A condition on a record.
#[derive(Debug, Clone)]
pub(super) enum Term {
    Key(Test),
    Value(Test),
    SecondaryKey { name: Vec<u8>, test: Test },
    Time(TimeTest),
}

impl Term {
    pub(super) fn of_key(comparison: Comparison, with: &[u8]) -> Term {
        Term::Key(Test::Order(comparison, with.to_vec()))
    }

    #[inline]
    pub(super) fn matches(&self, record: &Record<'_>) -> bool {
        match self {
            Term::Key(test) => record.key.is_some_and(|key| test.holds(key)),
            Term::Value(test) => record.value.is_some_and(|value| test.holds(value)),
            Term::SecondaryKey { name, test } => record
                .secondary_keys()
                .any(|(other, key)| other == name && test.holds(key)),
            Term::Time(test) => test.holds(record.timestamp),
        }
    }

    /// Whether the header proves that no record of the chunk matches.
    pub(super) fn rules_out(&self, header: &ChunkHeader) -> bool {
        match self {
            Term::Time(test) => test.rules_out(header),
            Term::Key(_) | Term::Value(_) | Term::SecondaryKey { .. } => false,
        }
    }
}

/// A condition on bytes.
#[derive(Debug, Clone)]
pub(super) enum Test {
    Equals(Vec<u8>),
    StartsWith(Vec<u8>),
    Contains(Box<Finder<'static>>),
    /// Compares the order of bytes.
    Order(Comparison, Vec<u8>),
}

impl Test {
    #[inline]
    fn holds(&self, bytes: &[u8]) -> bool {
        match self {
            Test::Equals(all) => bytes == all,
            Test::StartsWith(start) => bytes.starts_with(start),
            Test::Contains(part) => part.find(bytes).is_some(),
            Test::Order(comparison, with) => comparison.holds(bytes.cmp(with)),
        }
    }
}

/// A condition on a record's time.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimeTest {
    pub(super) comparison: Comparison,
    pub(super) time: Timestamp,
}

/// A comparison with a time, or with bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Comparison {
    Before,
    BeforeOrAt,
    AtOrAfter,
    After,
}

impl Comparison {
    #[inline]
    fn holds(self, order: Ordering) -> bool {
        match self {
            Comparison::Before => order.is_lt(),
            Comparison::BeforeOrAt => order.is_le(),
            Comparison::AtOrAfter => order.is_ge(),
            Comparison::After => order.is_gt(),
        }
    }
}

impl TimeTest {
    #[inline]
    fn holds(self, time: Timestamp) -> bool {
        self.comparison.holds(time.cmp(&self.time))
    }

    /// Whether the header rules out all records. A header bounds its records' times only from above. If its
    /// largest time is before the first record's, the producer has not filled it in, and it rules out nothing.
    fn rules_out(self, header: &ChunkHeader) -> bool {
        let is_bound = match header.attributes.timestamp_type() {
            TimestampType::LogAppend => true,
            TimestampType::Create => {
                matches!(self.comparison, Comparison::AtOrAfter | Comparison::After)
                    && header.base_timestamp <= header.max_timestamp
            }
        };
        is_bound && !self.holds(header.max_timestamp)
    }
}

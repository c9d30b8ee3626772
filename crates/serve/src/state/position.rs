//! Positions of a flow in the partitions that it reads, as texts: `<stream>/<partition>=<offset>, …`. All records before
//! the offsets count as read.

use std::collections::BTreeMap;
use std::fmt;

use millstream_flow::Position;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// The partitions that a position has at most: clients bound the size of headers.
pub const PARTITIONS_MAX: usize = 100;

/// The characters of names and keys that are encoded in headers, besides those that are not ASCII.
const ENCODED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'%')
    .add(b'"')
    .add(b',')
    .add(b'=')
    .add(b'/')
    .add(b'&')
    .add(b'+')
    .add(b'#');

/// Encodes a name or a key for a header.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// The next offset of each partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offsets(BTreeMap<(String, u32), u64>);

impl Offsets {
    /// Returns those of some ranks: of a partition the least one.
    pub fn of<'a>(positions: impl Iterator<Item = &'a Position>) -> Offsets {
        let mut offsets = BTreeMap::new();
        for position in positions {
            let partition = (position.stream.clone(), position.partition);
            let known = offsets.entry(partition).or_insert(position.next);
            *known = position.next.min(*known);
        }
        Offsets(offsets)
    }

    /// Parses a text, which may have spaces around each partition; `None` if it is none, or has too many partitions.
    pub fn parse(text: &str) -> Option<Offsets> {
        let mut offsets = BTreeMap::new();
        for part in text.split(',') {
            let (partition, next) = part.trim().rsplit_once('=')?;
            let (stream, partition) = partition.rsplit_once('/')?;
            let stream = percent_decode_str(stream).decode_utf8().ok()?;
            let place = (stream.into_owned(), number(partition)?);
            let twice = offsets.insert(place, number(next)?);
            if twice.is_some() || offsets.len() > PARTITIONS_MAX {
                return None;
            }
        }
        Some(Offsets(offsets))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns those of `wanted` that are not reached here.
    pub fn missing(&self, wanted: &Offsets) -> Offsets {
        let wanted = wanted.0.iter();
        let missing = wanted.filter(|(partition, next)| self.0.get(*partition) < Some(*next));
        Offsets(missing.map(|(at, next)| (at.clone(), *next)).collect())
    }

    /// Returns those of `wanted` whose partition has no offset here.
    pub fn unknown(&self, wanted: &Offsets) -> Offsets {
        let wanted = wanted.0.iter();
        let unknown = wanted.filter(|(partition, _)| !self.0.contains_key(*partition));
        Offsets(unknown.map(|(at, next)| (at.clone(), *next)).collect())
    }
}

impl fmt::Display for Offsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, ((stream, partition), next)) in self.0.iter().enumerate() {
            let comma = if place > 0 { ", " } else { "" };
            write!(f, "{comma}{}/{partition}={next}", encoded(stream))?;
        }
        Ok(())
    }
}

/// Parses digits, without a sign.
fn number<N: std::str::FromStr>(text: &str) -> Option<N> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(stream: &str, partition: u32, next: u64) -> Position {
        Position {
            stream: stream.to_owned(),
            partition,
            next,
            end: None,
        }
    }

    fn parse(text: &str) -> Offsets {
        Offsets::parse(text).unwrap_or_else(|| panic!("{text:?} is no position"))
    }

    #[test]
    fn a_text_has_the_least_offset_of_each_partition_and_round_trips() {
        let all = [
            position("b, c", 0, 7),
            position("a", 10, 3),
            position("a", 2, 9),
            position("a", 2, 8),
        ];
        let offsets = Offsets::of(all.iter());
        let text = offsets.to_string();
        assert_eq!(text, "a/2=8, a/10=3, b%2C%20c/0=7");
        assert_eq!(parse(&text), offsets);
        assert_eq!(parse("a/2=8,a/10=3 , b%2C%20c/0=7"), offsets);
        assert!(!offsets.is_empty());
    }

    #[test]
    fn texts_that_are_no_positions_are_refused() {
        for text in [
            "",
            ",",
            "a",
            "a/0",
            "a=1",
            "a/=1",
            "a/0=",
            "a/0=-1",
            "a/+0=1",
            "a/0=1,",
            "a/0=1,a/0=2",
            "a/4294967296=1",
            "a/0=18446744073709551616",
            "%FF/0=1",
        ] {
            assert_eq!(Offsets::parse(text), None, "{text:?}");
        }
        let many = |count: usize| {
            let parts: Vec<_> = (0..count).map(|it| format!("a/{it}=1")).collect();
            Offsets::parse(&parts.join(","))
        };
        assert!(many(PARTITIONS_MAX).is_some());
        assert_eq!(many(PARTITIONS_MAX + 1), None);
    }

    #[test]
    fn offsets_that_are_not_reached_are_missing() {
        let here = parse("a/0=5, a/1=0, b/0=7");
        let missing = |wanted: &str| here.missing(&parse(wanted)).to_string();
        assert_eq!(missing("a/0=5, b/0=6"), "");
        assert_eq!(missing("a/0=6, b/0=6, c/0=0"), "a/0=6, c/0=0");
        let unknown = |wanted: &str| here.unknown(&parse(wanted)).to_string();
        assert_eq!(unknown("a/0=9, a/2=1, c/0=0"), "a/2=1, c/0=0");
    }
}

//! The lives of values: a value may end at a time, from which on its key is absent.
//!
//! The end of a value follows from its record alone: the header [`EXPIRES`] names it, or else the record's time and the stream's
//! setting [`TTL`] do. Look-ups and conditions compare it with the clock, so nothing happens at the end of a value. Later
//! compaction makes a tombstone of its record: see [`Ends`].

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_record::{Header, Record};

/// The header of a record that names the end of its value, in decimal milliseconds since 1970. A value with another text in it
/// has no end.
pub const EXPIRES: &str = "millstream.expires";

/// How long values live that name no end of their own, from their record's time on, in milliseconds; for ever by default.
pub const TTL: &str = "millstream.keyed.ttl.ms";

/// As much of a record as the end of its value depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    pub timestamp: Timestamp,
    /// The end that the record names.
    pub expires: Option<Timestamp>,
}

impl Life {
    pub fn of(record: &Record<'_>) -> Life {
        Life {
            timestamp: record.timestamp,
            expires: expires_of(record),
        }
    }

    /// Returns when the value ends in a stream whose values live so long. One without a time has no end.
    pub fn end(&self, ttl: Option<Duration>) -> Option<Timestamp> {
        let of_stream = || match ttl {
            Some(ttl) if self.timestamp.0 >= 0 => Some(later(self.timestamp, ttl)),
            _ => None,
        };
        self.expires.or_else(of_stream)
    }

    /// Returns whether the value has ended.
    pub fn is_over(&self, ttl: Option<Duration>, now: Timestamp) -> bool {
        self.end(ttl).is_some_and(|end| end <= now)
    }
}

/// Returns the end that a record names. Of several headers the last one counts.
pub fn expires_of(record: &Record<'_>) -> Option<Timestamp> {
    let headers = record.headers();
    let named = headers.filter(|header| header.name == EXPIRES.as_bytes());
    let text = std::str::from_utf8(named.last()?.value?).ok()?;
    text.parse().ok().map(Timestamp)
}

/// Returns the text of the header [`EXPIRES`] for a value that lives so long from a time on.
pub fn end_text(from: Timestamp, ttl: Duration) -> String {
    later(from, ttl).0.to_string()
}

/// Returns the header with such a text.
pub fn end_header(text: &str) -> Header<'_> {
    Header {
        name: EXPIRES.as_bytes(),
        value: Some(text.as_bytes()),
    }
}

/// Returns the time so much later, at most the last one.
pub fn later(time: Timestamp, wait: Duration) -> Timestamp {
    let wait = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
    Timestamp(time.0.saturating_add(wait))
}

/// The most different ends that [`Ends`] keeps apart.
const ENDS_MAX: usize = 1_024;

/// A rewrite of a group for ended values alone makes at least this part of its bytes free, or all that ever end.
const ENDED_PART: u64 = 4;

/// The ends of a group's values, to tell when a rewrite of the group is worth its cost. A rewrite for each value that ends would
/// write a group again and again.
#[derive(Debug, Default)]
pub struct Ends {
    /// The bytes of the records whose values end in the same stretch of 2^`shift` milliseconds, by the last one of it.
    bytes: BTreeMap<i64, u64>,
    shift: u32,
    all_bytes: u64,
    /// Whether there is a value that names no end, and has one if the stream's setting says so.
    has_endless: bool,
}

impl Ends {
    /// Adds a record of so many bytes.
    pub fn add(&mut self, record: &Record<'_>, bytes: u32) {
        self.all_bytes += u64::from(bytes);
        match expires_of(record) {
            _ if record.value.is_none() => {}
            // One without a time never ends.
            None => self.has_endless |= record.timestamp.0 >= 0,
            Some(end) => {
                *self.bytes.entry(last_of(end.0, self.shift)).or_default() += u64::from(bytes);
                while self.bytes.len() > ENDS_MAX {
                    self.shift += 1;
                    let ends = std::mem::take(&mut self.bytes);
                    for (end, bytes) in ends {
                        *self.bytes.entry(last_of(end, self.shift)).or_default() += bytes;
                    }
                }
            }
        }
    }

    /// Returns when so many values have ended that a rewrite is worth it; `None` if none ever ends by its own record.
    pub fn due_at(&self) -> Option<Timestamp> {
        let mut ended = 0;
        let mut ends = self.bytes.iter().map(|(end, bytes)| {
            ended += bytes;
            (*end, ended)
        });
        let due = ends.find(|(_, ended)| ended.saturating_mul(ENDED_PART) >= self.all_bytes);
        let last = self.bytes.keys().next_back().copied();
        due.map(|(end, _)| end).or(last).map(Timestamp)
    }

    /// Whether there is a value that names no end, and has one if the stream's setting says so.
    pub fn has_endless(&self) -> bool {
        self.has_endless
    }
}

/// The last number of the stretch of 2^`shift` numbers that `number` is in.
fn last_of(number: i64, shift: u32) -> i64 {
    match shift {
        63.. => i64::MAX,
        _ => number | ((1 << shift) - 1),
    }
}

#[cfg(test)]
mod tests {
    use millstream_base::Offset;
    use millstream_record::{Chunk, ChunkBuilder, Compression, Decompressor, set_base_offset};

    use super::*;

    /// Adds a record of so many bytes whose header says this.
    fn add(ends: &mut Ends, value: Option<&str>, bytes: u32) {
        let mut builder = ChunkBuilder::new(Compression::None);
        let header = value.map(end_header);
        builder
            .push(Timestamp(0), Some(b"k"), Some(b"v"), header.as_slice())
            .unwrap();
        let mut bytes_of = builder.finish(None).unwrap().to_vec();
        set_base_offset(&mut bytes_of, Offset(0));
        let chunk = Chunk::parse(&bytes_of).unwrap();
        let mut decompressor = Decompressor::default();
        for record in chunk.records(&mut decompressor).unwrap() {
            ends.add(&record.unwrap(), bytes);
        }
    }

    #[test]
    fn a_rewrite_is_due_when_it_makes_a_quarter_free_or_all_have_ended() {
        let due = |records: &[(Option<&str>, u32)]| {
            let mut ends = Ends::default();
            for (end, bytes) in records {
                add(&mut ends, *end, *bytes);
            }
            (ends.due_at().map(|at| at.0), ends.has_endless())
        };
        assert_eq!(due(&[]), (None, false));
        assert_eq!(due(&[(None, 10), (Some("soon"), 5)]), (None, true));
        assert_eq!(due(&[(Some("7"), 1)]), (Some(7), false));
        // The others never end.
        assert_eq!(
            due(&[(Some("7"), 1), (Some("5"), 1), (None, 98)]),
            (Some(7), true)
        );
        assert_eq!(
            due(&[(Some("9"), 24), (Some("7"), 1), (None, 75)]),
            (Some(9), true)
        );
        assert_eq!(
            due(&[(Some("9"), 50), (Some("7"), 25), (None, 25)]),
            (Some(7), true)
        );
    }

    #[test]
    fn many_different_ends_are_kept_apart_as_well_as_memory_allows() {
        let mut ends = Ends::default();
        for n in 0..20_000 {
            add(&mut ends, Some(&(1_000_000 + 50 * n).to_string()), 10);
        }
        assert!(ends.bytes.len() <= ENDS_MAX);
        let due = ends.due_at().unwrap().0;
        let right = 1_000_000 + 50 * 5_000;
        assert!((right - 50..right + 2_048).contains(&due), "{due}");
        for end in [i64::MIN, i64::MAX, -1, 0] {
            add(&mut ends, Some(&end.to_string()), 10);
        }
        assert!(ends.bytes.len() <= ENDS_MAX);
        assert_eq!(ends.bytes.values().sum::<u64>(), ends.all_bytes);
    }
}

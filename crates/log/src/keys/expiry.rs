//! The expiry of a group's values, which determines when compaction can remove something.
//!
//! The end of a value follows from its record, which may [name](millstream_record::EXPIRES) it, and the stream's setting [`TTL`]. Look-ups and conditions compare it with the stream's clock ([`KEYED_CLOCK`]), so nothing happens at the end of a value. Later
//! compaction makes a tombstone of its record, or drops it: see [`Ends`].

use std::collections::BTreeMap;
use std::str::FromStr;

use millstream_base::Timestamp;
use millstream_record::{Life, Record};

/// The lifetime of values without an expiry of their own, from their record's time on, in milliseconds; for ever by default.
pub const TTL: &str = "millstream.keyed.ttl.ms";

/// The clock that the ends of a stream's values are compared with: [`WALL_CLOCK`], which is the default, or a number of
/// milliseconds. This number is the time until the stream's owner sets another one, which counts at once. Compaction drops
/// values that have ended by it without tombstones. If a lower number is set, look-ups find those values again that
/// compaction has not dropped.
pub const KEYED_CLOCK: &str = "millstream.keyed.clock";

/// The value of [`KEYED_CLOCK`] for the wall clock.
pub const WALL_CLOCK: &str = "wall";

/// The smallest number of [`KEYED_CLOCK`]: only a value that ends at it, or before it, has ended.
pub const KEYED_CLOCK_MIN: Timestamp = Timestamp(i64::MIN + 1);

/// The clock of a stream's values, as its setting [`KEYED_CLOCK`] says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeyedClock {
    /// The wall clock.
    #[default]
    Wall,
    /// This time, which is not before [`KEYED_CLOCK_MIN`].
    At(Timestamp),
}

impl KeyedClock {
    /// Returns the time that the ends of values are compared with.
    pub fn now(self, wall: impl FnOnce() -> Timestamp) -> Timestamp {
        match self {
            KeyedClock::Wall => wall(),
            KeyedClock::At(time) => time,
        }
    }
}

impl FromStr for KeyedClock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == WALL_CLOCK {
            return Ok(KeyedClock::Wall);
        }
        let time = text.parse().ok().map(Timestamp);
        match time.filter(|time| *time >= KEYED_CLOCK_MIN) {
            Some(time) => Ok(KeyedClock::At(time)),
            None => Err(format!(
                "{text:?} is neither {WALL_CLOCK} nor a whole number of milliseconds from {} on",
                KEYED_CLOCK_MIN.0
            )),
        }
    }
}

/// The most different ends that [`Ends`] keeps apart.
const ENDS_MAX: usize = 1_024;

/// A rewrite of a group only for expired values frees at least this part of its bytes, or all bytes that ever expire.
const ENDED_PART: u64 = 4;

/// The times of expiry of a group's values, from which follows when a rewrite of the group is worth its cost. A rewrite for
/// each value that expires would write a group again and again.
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
    /// Adds a record of `bytes` bytes.
    pub fn add(&mut self, record: &Record<'_>, bytes: u32) {
        self.all_bytes += u64::from(bytes);
        if record.value.is_none() {
            return;
        }
        let life = Life::of(record);
        self.has_endless |= life.follows_stream();
        let Some(end) = life.expires else {
            return;
        };
        *self.bytes.entry(last_of(end.0, self.shift)).or_default() += u64::from(bytes);
        while self.bytes.len() > ENDS_MAX {
            self.shift += 1;
            let ends = std::mem::take(&mut self.bytes);
            for (end, bytes) in ends {
                *self.bytes.entry(last_of(end, self.shift)).or_default() += bytes;
            }
        }
    }

    /// Returns when enough values have expired to make a rewrite worth it; `None` if no record names an expiry.
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
    use millstream_record::{
        Chunk, ChunkBuilder, Compression, Decompressor, end_header, set_base_offset,
    };

    use super::*;

    /// Adds a record of `bytes` bytes whose expiry header is `value`.
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
    fn a_clock_is_the_wall_clock_or_a_number_of_milliseconds() {
        let of = |text: &str| text.parse::<KeyedClock>();
        assert_eq!(of("wall"), Ok(KeyedClock::Wall));
        for time in [0, 7, -7, i64::MAX, KEYED_CLOCK_MIN.0] {
            let at = Ok(KeyedClock::At(Timestamp(time)));
            assert_eq!(of(&format!(" {time} ")), at);
        }
        for refused in ["", "Wall", "1.5", "1e3", "now", "-9223372036854775808"] {
            let why = of(refused).unwrap_err();
            let expected = format!(
                "{refused:?} is neither wall nor a whole number of milliseconds from -9223372036854775807 on"
            );
            assert_eq!(why, expected);
        }
        let wall = || Timestamp(5);
        assert_eq!(KeyedClock::Wall.now(wall), Timestamp(5));
        assert_eq!(KeyedClock::At(Timestamp(3)).now(wall), Timestamp(3));
    }

    #[test]
    fn a_rewrite_is_due_when_a_quarter_of_the_bytes_or_all_values_have_expired() {
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
    fn expiry_times_are_tracked_as_precisely_as_the_memory_allows() {
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

//! The position of a watch of keys, as a text that clients store.

use std::fmt;
use std::str::FromStr;

use crate::checksum::crc32c;
use crate::ids::Offset;

/// The first byte of the bytes.
const FORMAT: u8 = 1;

/// The bytes of the format, the stream's id and the checksum.
const FRAME_BYTES: usize = 1 + 16 + 4;

/// The bytes of the longest text: a position in 65,536 partitions has fewer.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// The position of a watch of keys: it has all changes before. Its text is opaque, and short: some 10 characters for each
/// partition.
///
/// ```
/// use millstream_base::{Offset, WatchPosition, WatchPositions};
///
/// let positions = WatchPositions {
///     stream: [7; 16],
///     partitions: vec![WatchPosition { partition: 3, next: Offset(1000), epoch: 0 }],
/// };
/// let text = positions.to_string();
/// assert_eq!(text.parse(), Ok(positions));
/// assert!(text[1..].parse::<WatchPositions>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchPositions {
    /// The id of the stream, which no other stream has, nor a later one of the same name.
    pub stream: [u8; 16],
    /// The watched partitions, by their numbers; at least one.
    pub partitions: Vec<WatchPosition>,
}

/// The position in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchPosition {
    /// The partition.
    pub partition: u32,
    /// The offset of the next change.
    pub next: Offset,
    /// The epoch of the partition in which the position was reached: a later epoch shows whether records before it were lost.
    pub epoch: i32,
}

/// A text is not the position of a watch.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not the position of a watch: give one as a watch has returned it, without a change"
)]
pub struct NoWatchPositions;

crate::debug_as_display!(NoWatchPositions);

impl fmt::Display for WatchPositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![FORMAT];
        bytes.extend_from_slice(&self.stream);
        for position in &self.partitions {
            put(&mut bytes, u64::from(position.partition));
            put(&mut bytes, position.next.0);
            put(&mut bytes, u64::from(position.epoch.cast_unsigned()));
        }
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for WatchPositions {
    type Err = NoWatchPositions;

    fn from_str(text: &str) -> Result<WatchPositions, NoWatchPositions> {
        parse(text).ok_or(NoWatchPositions)
    }
}

fn parse(text: &str) -> Option<WatchPositions> {
    if text.len() > TEXT_BYTES_MAX || !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let pairs = text.as_bytes().chunks_exact(2);
    let bytes: Option<Vec<u8>> = pairs
        .map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8))
        .collect();
    let bytes = bytes.filter(|bytes| bytes.len() >= FRAME_BYTES)?;
    let (covered, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c(covered) != u32::from_le_bytes(*crc) || covered[0] != FORMAT {
        return None;
    }
    let (stream, mut rest) = covered[1..].split_first_chunk::<16>()?;
    let mut partitions: Vec<WatchPosition> = Vec::new();
    while !rest.is_empty() {
        partitions.push(WatchPosition {
            partition: u32::try_from(take(&mut rest)?).ok()?,
            next: Offset(take(&mut rest)?),
            epoch: u32::try_from(take(&mut rest)?).ok()?.cast_signed(),
        });
    }
    let rise = partitions.is_sorted_by(|one, next| one.partition < next.partition);
    (rise && !partitions.is_empty()).then_some(WatchPositions {
        stream: *stream,
        partitions,
    })
}

/// Appends a number, seven bits in each byte, the lowest first.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn positions() -> impl Strategy<Value = WatchPositions> {
        let position = (any::<u64>(), any::<i32>());
        let partitions = prop::collection::btree_map(any::<u32>(), position, 1..20);
        let partitions = partitions.prop_map(|partitions| {
            let partitions = partitions.into_iter();
            let position = |(partition, (next, epoch))| WatchPosition {
                partition,
                next: Offset(next),
                epoch,
            };
            partitions.map(position).collect()
        });
        (any::<[u8; 16]>(), partitions)
            .prop_map(|(stream, partitions)| WatchPositions { stream, partitions })
    }

    proptest! {
        #[test]
        fn positions_round_trip_and_a_changed_byte_is_refused(
            positions in positions(),
            at in any::<prop::sample::Index>(),
        ) {
            let text = positions.to_string();
            prop_assert_eq!(text.parse(), Ok(positions));
            let mut changed = text.into_bytes();
            let at = at.index(changed.len());
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            prop_assert_eq!(changed.parse::<WatchPositions>(), Err(NoWatchPositions));
        }

        #[test]
        fn arbitrary_texts_are_refused(text in ".{0,60}") {
            prop_assert!(text.parse::<WatchPositions>().is_err());
        }
    }

    #[test]
    fn a_position_names_each_partition_once() {
        let positions = |partitions: &[u32]| {
            let partitions = partitions.iter().map(|partition| WatchPosition {
                partition: *partition,
                next: Offset(1),
                epoch: 0,
            });
            let partitions = partitions.collect();
            let stream = [0; 16];
            WatchPositions { stream, partitions }.to_string()
        };
        for (partitions, is_good) in [(&[][..], false), (&[1, 3], true), (&[3, 3], false)] {
            let parsed: Result<WatchPositions, _> = positions(partitions).parse();
            assert_eq!(parsed.is_ok(), is_good, "{partitions:?}");
        }
    }

    #[test]
    fn the_text_of_a_position_is_short_and_has_its_golden_bytes() {
        let positions = WatchPositions {
            stream: [0xab; 16],
            partitions: vec![WatchPosition {
                partition: 2,
                next: Offset(300),
                epoch: 1,
            }],
        };
        let text = positions.to_string();
        let ab = "ab".repeat(16);
        assert!(text.starts_with(&format!("01{ab}02ac0201")), "{text}");
        assert_eq!(text.len(), 2 * FRAME_BYTES + 8);
    }
}

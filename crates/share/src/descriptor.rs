//! The entries of a ring: each holds the position of chunks, or a notice instead.

use thiserror::Error;

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 128;

/// The size of a descriptor in words of 8 bytes.
pub(crate) const DESCRIPTOR_WORDS: usize = DESCRIPTOR_BYTES / 8;

/// The kind of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Chunks, in the pool.
    Chunks = 1,
    /// The partition delivers no more chunks; `code` is the reason.
    Refused = 2,
    /// No data: `next` and the cursor moved over records that a filter left out.
    Moved = 3,
}

/// A place in a stream at which the broker can continue to hand out chunks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Index of the streamlet in its stream.
    pub streamlet: u32,
    /// Index of the segment in the group.
    pub segment: u32,
    /// The group in the streamlet.
    pub group: u64,
    /// Bytes from the start of the group.
    pub position: u64,
}

/// One entry of a ring. Fields that a kind does not use are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Its kind.
    pub kind: Kind,
    /// The partition, as its index in the source's list.
    pub place: u32,
    /// The first byte in the pool's file.
    pub position: u64,
    /// Bytes from there on: whole chunks, one after another.
    pub bytes: u64,
    /// The first offset that the consumer wants; the first chunk may begin before it.
    pub from: u64,
    /// The offset behind these chunks.
    pub next: u64,
    /// The offset behind the last readable record.
    pub end: u64,
    /// The reason for a refused partition: an error code of the protocol.
    pub code: i32,
    /// The cursor at which to continue.
    pub cursor: Cursor,
    /// The group in which the chunks lie.
    pub start_group: u64,
    /// Bytes from the start of that group to the first chunk.
    pub start_position: u64,
}

/// A descriptor cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadDescriptor {
    /// A kind that this version does not know.
    #[error("its kind is {0}, but only 1 to 3 are known")]
    Kind(u32),
    /// A partition that is not in the list.
    #[error("it is about partition {place} of a list of {places}")]
    Place {
        /// The partition's index in the descriptor.
        place: u32,
        /// The number of partitions.
        places: u32,
    },
    /// Bytes that are not in the pool.
    #[error("{bytes} bytes from {position} on are not in a pool of {pool_bytes}")]
    Range {
        /// The first byte.
        position: u64,
        /// Their number.
        bytes: u64,
        /// The size of the pool.
        pool_bytes: u64,
    },
}

impl Descriptor {
    /// Returns a descriptor of this kind whose other fields are 0.
    pub fn new(kind: Kind) -> Descriptor {
        Descriptor {
            kind,
            place: 0,
            position: 0,
            bytes: 0,
            from: 0,
            next: 0,
            end: 0,
            code: 0,
            cursor: Cursor::default(),
            start_group: 0,
            start_position: 0,
        }
    }

    /// Checks the fields that select memory: the partition is one of `places`, the bytes lie in a
    /// pool of `pool_bytes`.
    ///
    /// # Errors
    /// The first condition that does not hold.
    pub fn check(&self, places: u32, pool_bytes: u64) -> Result<(), BadDescriptor> {
        let (place, position, bytes) = (self.place, self.position, self.bytes);
        if place >= places {
            return Err(BadDescriptor::Place { place, places });
        }
        match position.checked_add(bytes) {
            Some(end) if end <= pool_bytes => Ok(()),
            _ => Err(BadDescriptor::Range {
                position,
                bytes,
                pool_bytes,
            }),
        }
    }

    /// Returns the words in the file; the table in [`layout`](crate::layout) has their positions.
    pub(crate) fn encode(&self) -> [u64; DESCRIPTOR_WORDS] {
        [
            pair(self.kind as u32, self.place),
            self.position,
            self.bytes,
            self.from,
            self.next,
            self.end,
            pair(self.code.cast_unsigned(), self.cursor.streamlet),
            pair(self.cursor.segment, 0),
            self.cursor.group,
            self.cursor.position,
            self.start_group,
            self.start_position,
            0,
            0,
            0,
            0,
        ]
    }

    pub(crate) fn decode(words: &[u64; DESCRIPTOR_WORDS]) -> Result<Descriptor, BadDescriptor> {
        let kind = match low(words[0]) {
            1 => Kind::Chunks,
            2 => Kind::Refused,
            3 => Kind::Moved,
            other => return Err(BadDescriptor::Kind(other)),
        };
        Ok(Descriptor {
            kind,
            place: high(words[0]),
            position: words[1],
            bytes: words[2],
            from: words[3],
            next: words[4],
            end: words[5],
            code: low(words[6]).cast_signed(),
            cursor: Cursor {
                streamlet: high(words[6]),
                segment: low(words[7]),
                group: words[8],
                position: words[9],
            },
            start_group: words[10],
            start_position: words[11],
        })
    }
}

/// Two fields of 4 bytes in a word, the one at the lower address first.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn low(word: u64) -> u32 {
    word as u32
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Every field has another value.
    fn descriptor() -> Descriptor {
        Descriptor {
            kind: Kind::Refused,
            place: 0x11,
            position: 0x22_0000_0000,
            bytes: 0x33,
            from: 0x44,
            next: 0x55,
            end: 0x66,
            code: -2,
            cursor: Cursor {
                streamlet: 0x77,
                segment: 0x88,
                group: 0x99,
                position: 0xaa,
            },
            start_group: 0xbb,
            start_position: 0xcc,
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes: Vec<u8> = descriptor()
            .encode()
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        let golden = "02000000110000000000000022000000\
                      33000000000000004400000000000000\
                      55000000000000006600000000000000\
                      feffffff770000008800000000000000\
                      9900000000000000aa00000000000000\
                      bb00000000000000cc00000000000000\
                      00000000000000000000000000000000\
                      00000000000000000000000000000000";
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden);
    }

    #[test]
    fn a_descriptor_round_trips() {
        let descriptor = descriptor();
        assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        let mut words = descriptor().encode();
        words[0] = pair(4, 0);
        assert_eq!(Descriptor::decode(&words), Err(BadDescriptor::Kind(4)));
        assert_eq!(
            Descriptor::decode(&[0; DESCRIPTOR_WORDS]),
            Err(BadDescriptor::Kind(0))
        );
    }

    #[test]
    fn places_and_ranges_are_checked_against_their_bounds() {
        let descriptor = |place, position, bytes| Descriptor {
            place,
            position,
            bytes,
            ..Descriptor::new(Kind::Chunks)
        };
        assert_eq!(descriptor(1, 10, 90).check(2, 100), Ok(()));
        assert_eq!(
            descriptor(2, 10, 90).check(2, 100),
            Err(BadDescriptor::Place {
                place: 2,
                places: 2
            })
        );
        for (position, bytes) in [(10, 91), (101, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(
                descriptor(1, position, bytes).check(2, 100),
                Err(BadDescriptor::Range {
                    position,
                    bytes,
                    pool_bytes: 100
                })
            );
        }
    }
}

//! The bytes of the manifest: a head of one page, then records of 64 bytes. All numbers are little-endian.
//!
//! ```text
//! head      0 "MSMANIF1" 8 | 8 directory id 16 | 24 number of this manifest 8 | 32 secret 8 | 40 CRC of all before 4 | zero 4052
//! record    0 CRC 4 | 4 kind 1, zero 3 | 8 stream 8 | 16 streamlet 4 | 20 lane 4 | 24 group 8 | 32 generation 4 |
//!          36 leader epoch 4 | 40 offset 8 | 48 number 8 | 56 durable 8
//! ```
//!
//! The CRC of a record covers the manifest's secret, the record's index, and the rest of the record. So no bytes count
//! that another manifest had at this place. `durable` is the number of the manifest's records that were durable when this
//! one was written: one of these that is damaged was lost, while any other may be a torn write.

use millstream_base::{
    GroupId, LaneIndex, Offset, Position, StreamId, StreamletIndex, Timestamp, crc32c,
};

use crate::ids::{Generation, GroupName, LaneId};

const MAGIC: [u8; 8] = *b"MSMANIF1";

/// The head has a page of its own, so that it is never rewritten with a record.
pub const HEAD_BYTES: u64 = 4096;

/// The bytes of the head that are not always 0.
pub const HEAD_USED: usize = 8 + 16 + 8 + 8 + 4;

/// A sector holds whole records, so a crash tears none.
pub const RECORD_BYTES: usize = 64;

const CRC_BYTES: usize = 4;

/// The identity of a manifest, and of its data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// A random number that no other data directory has.
    pub directory: [u8; 16],
    /// Counts the manifests of the directory from 1.
    pub number: u64,
    /// A random number of this manifest.
    pub secret: u64,
}

impl Head {
    /// Returns the head before the first manifest of a directory.
    pub fn of_new(directory: [u8; 16]) -> Head {
        Head {
            directory,
            number: 0,
            secret: 0,
        }
    }

    pub fn encode(&self) -> [u8; HEAD_BYTES as usize] {
        let mut bytes = [0; HEAD_BYTES as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.directory);
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.secret.to_le_bytes());
        let crc = crc32c(&bytes[..HEAD_USED - CRC_BYTES]);
        bytes[40..HEAD_USED].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns the head of a manifest that begins with `bytes`, if it is whole.
    pub fn decode(bytes: &[u8]) -> Option<Head> {
        let head = Head {
            directory: *bytes.get(8..)?.first_chunk()?,
            number: u64::from_le_bytes(*bytes.get(24..)?.first_chunk()?),
            secret: u64::from_le_bytes(*bytes.get(32..)?.first_chunk()?),
        };
        let bytes = bytes.get(..HEAD_BYTES as usize)?;
        (head.encode()[..] == *bytes).then_some(head)
    }
}

/// One change of the list of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// The group has a file.
    Group(GroupName),
    /// The lane begins with this group and offset: the groups before are removed. The group need not have a file.
    First {
        lane: LaneId,
        group: GroupId,
        offset: Offset,
    },
    /// This file replaces the groups from its own id to `last`.
    Replaced { by: GroupName, last: GroupId },
    /// Chunks from `from` on have this leader epoch.
    Epoch {
        lane: LaneId,
        epoch: i32,
        from: Offset,
    },
    /// The lane was compacted up to an offset.
    Compacted {
        lane: LaneId,
        to: Offset,
        at: Timestamp,
        /// No deletion at or behind this offset was dropped, if it is the newest version of its key. `None` from an earlier
        /// program, which did not note it.
        deletions_from: Option<Offset>,
    },
    /// The journal has a file. Its blocks end at `end`, which is 0 while some may be added.
    JournalFile {
        sequence: u64,
        secret: u64,
        end: Position,
    },
    /// A file of the journal is obsolete.
    JournalReleased { sequence: u64 },
    /// Compaction may have dropped records of keys that have newer ones before this offset, and no others, apart from deletions
    /// that were the newest versions of their keys.
    VersionsFrom { lane: LaneId, from: Offset },
    /// The end of the records that the manifest began with.
    End { count: u64 },
}

/// The place of a record, which its checksum covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The secret of the manifest.
    pub secret: u64,
    /// Counts the manifest's records from 0.
    pub index: u64,
}

/// The fields that a record may use. Those that its kind does not use are 0.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fields {
    kind: u8,
    stream: u64,
    streamlet: u32,
    lane: u32,
    group: u64,
    generation: u32,
    epoch: i32,
    offset: u64,
    number: u64,
}

impl Record {
    /// Returns the bytes of the record. `durable` records of the manifest are durable by now.
    pub fn encode(&self, place: Place, durable: u64) -> [u8; RECORD_BYTES] {
        let fields = self.fields();
        let mut bytes = [0; RECORD_BYTES];
        bytes[4] = fields.kind;
        bytes[8..16].copy_from_slice(&fields.stream.to_le_bytes());
        bytes[16..20].copy_from_slice(&fields.streamlet.to_le_bytes());
        bytes[20..24].copy_from_slice(&fields.lane.to_le_bytes());
        bytes[24..32].copy_from_slice(&fields.group.to_le_bytes());
        bytes[32..36].copy_from_slice(&fields.generation.to_le_bytes());
        bytes[36..40].copy_from_slice(&fields.epoch.to_le_bytes());
        bytes[40..48].copy_from_slice(&fields.offset.to_le_bytes());
        bytes[48..56].copy_from_slice(&fields.number.to_le_bytes());
        bytes[56..].copy_from_slice(&durable.to_le_bytes());
        let crc = crc_of(&bytes, place);
        bytes[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns the record that stands whole at a place, and how many records were durable when it was written.
    pub fn decode(bytes: &[u8; RECORD_BYTES], place: Place) -> Option<(Record, u64)> {
        if crc_in(bytes) != crc_of(bytes, place) {
            return None;
        }
        let fields = Fields {
            kind: bytes[4],
            stream: u64::from_le_bytes(take(bytes, 8)),
            streamlet: u32::from_le_bytes(take(bytes, 16)),
            lane: u32::from_le_bytes(take(bytes, 20)),
            group: u64::from_le_bytes(take(bytes, 24)),
            generation: u32::from_le_bytes(take(bytes, 32)),
            epoch: i32::from_le_bytes(take(bytes, 36)),
            offset: u64::from_le_bytes(take(bytes, 40)),
            number: u64::from_le_bytes(take(bytes, 48)),
        };
        let durable = u64::from_le_bytes(take(bytes, 56));
        let record = Record::of(&fields)?;
        // Nor does it count with a value in a field that its kind does not use.
        (record.encode(place, durable) == *bytes).then_some((record, durable))
    }

    /// Whether it lets files be removed.
    pub fn is_of_removal(&self) -> bool {
        matches!(
            self,
            Record::First { .. } | Record::Replaced { .. } | Record::JournalReleased { .. }
        )
    }

    /// Returns the stream whose files it is about, if it is not about the journal.
    pub fn stream(&self) -> Option<StreamId> {
        match self {
            Record::Group(name) | Record::Replaced { by: name, .. } => Some(name.lane.stream),
            Record::First { lane, .. }
            | Record::Epoch { lane, .. }
            | Record::Compacted { lane, .. }
            | Record::VersionsFrom { lane, .. } => Some(lane.stream),
            Record::JournalFile { .. } | Record::JournalReleased { .. } | Record::End { .. } => {
                None
            }
        }
    }

    fn fields(&self) -> Fields {
        match *self {
            Record::Group(name) => Fields::of_group(1, name),
            Record::First {
                lane,
                group,
                offset,
            } => Fields {
                group: group.0,
                offset: offset.0,
                ..Fields::of_lane(2, lane)
            },
            Record::Replaced { by, last } => Fields {
                number: last.0,
                ..Fields::of_group(3, by)
            },
            Record::Epoch { lane, epoch, from } => Fields {
                epoch,
                offset: from.0,
                ..Fields::of_lane(4, lane)
            },
            Record::Compacted {
                lane,
                to,
                at,
                deletions_from,
            } => Fields {
                group: deletions_from.map_or(0, |from| from.0 + 1),
                offset: to.0,
                number: at.0.cast_unsigned(),
                ..Fields::of_lane(5, lane)
            },
            Record::JournalFile {
                sequence,
                secret,
                end,
            } => Fields {
                kind: 6,
                group: secret,
                offset: end.0,
                number: sequence,
                ..Fields::default()
            },
            Record::JournalReleased { sequence } => Fields {
                kind: 7,
                number: sequence,
                ..Fields::default()
            },
            Record::VersionsFrom { lane, from } => Fields {
                offset: from.0,
                ..Fields::of_lane(9, lane)
            },
            Record::End { count } => Fields {
                kind: 8,
                number: count,
                ..Fields::default()
            },
        }
    }

    fn of(fields: &Fields) -> Option<Record> {
        let lane = LaneId {
            stream: StreamId(fields.stream),
            streamlet: StreamletIndex(fields.streamlet),
            lane: LaneIndex(fields.lane),
        };
        let (group, offset) = (GroupId(fields.group), Offset(fields.offset));
        let name = GroupName {
            lane,
            id: group,
            first_offset: offset,
            generation: Generation(fields.generation),
        };
        Some(match fields.kind {
            1 => Record::Group(name),
            2 => Record::First {
                lane,
                group,
                offset,
            },
            3 => Record::Replaced {
                by: name,
                last: GroupId(fields.number),
            },
            4 => Record::Epoch {
                lane,
                epoch: fields.epoch,
                from: offset,
            },
            5 => Record::Compacted {
                lane,
                to: offset,
                at: Timestamp(fields.number.cast_signed()),
                deletions_from: fields.group.checked_sub(1).map(Offset),
            },
            6 => Record::JournalFile {
                sequence: fields.number,
                secret: fields.group,
                end: Position(fields.offset),
            },
            7 => Record::JournalReleased {
                sequence: fields.number,
            },
            8 => Record::End {
                count: fields.number,
            },
            9 => Record::VersionsFrom { lane, from: offset },
            _ => return None,
        })
    }
}

impl Fields {
    fn of_lane(kind: u8, lane: LaneId) -> Fields {
        Fields {
            kind,
            stream: lane.stream.0,
            streamlet: lane.streamlet.0,
            lane: lane.lane.0,
            ..Fields::default()
        }
    }

    fn of_group(kind: u8, name: GroupName) -> Fields {
        Fields {
            group: name.id.0,
            generation: name.generation.0,
            offset: name.first_offset.0,
            ..Fields::of_lane(kind, name.lane)
        }
    }
}

/// Returns the checksum that the bytes of a record have.
pub fn crc_in(bytes: &[u8; RECORD_BYTES]) -> u32 {
    u32::from_le_bytes(take(bytes, 0))
}

fn take<const N: usize>(bytes: &[u8; RECORD_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|n| bytes[at + n])
}

fn crc_of(bytes: &[u8; RECORD_BYTES], place: Place) -> u32 {
    let mut covered = [0; 16 + RECORD_BYTES - CRC_BYTES];
    covered[..8].copy_from_slice(&place.secret.to_le_bytes());
    covered[8..16].copy_from_slice(&place.index.to_le_bytes());
    covered[16..].copy_from_slice(&bytes[CRC_BYTES..]);
    crc32c(&covered)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: LaneId = LaneId {
        stream: StreamId(0x11),
        streamlet: StreamletIndex(0x22),
        lane: LaneIndex(0x33),
    };

    const NAME: GroupName = GroupName {
        lane: LANE,
        id: GroupId(0x44),
        first_offset: Offset(0x55),
        generation: Generation(0x66),
    };

    const PLACE: Place = Place {
        secret: 7,
        index: 3,
    };

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The fields behind the checksum, for each kind.
    fn all() -> [(Record, &'static str); 10] {
        let (group, offset) = (GroupId(0x44), Offset(0x55));
        [
            (
                Record::Group(NAME),
                "01000000 1100000000000000 22000000 33000000 4400000000000000 66000000 00000000 5500000000000000 0000000000000000",
            ),
            (
                Record::First {
                    lane: LANE,
                    group,
                    offset,
                },
                "02000000 1100000000000000 22000000 33000000 4400000000000000 00000000 00000000 5500000000000000 0000000000000000",
            ),
            (
                Record::Replaced {
                    by: NAME,
                    last: GroupId(0x77),
                },
                "03000000 1100000000000000 22000000 33000000 4400000000000000 66000000 00000000 5500000000000000 7700000000000000",
            ),
            (
                Record::Epoch {
                    lane: LANE,
                    epoch: 0x88,
                    from: offset,
                },
                "04000000 1100000000000000 22000000 33000000 0000000000000000 00000000 88000000 5500000000000000 0000000000000000",
            ),
            (
                Record::Compacted {
                    lane: LANE,
                    to: offset,
                    at: Timestamp(-2),
                    deletions_from: Some(Offset(0xdd)),
                },
                "05000000 1100000000000000 22000000 33000000 de00000000000000 00000000 00000000 5500000000000000 feffffffffffffff",
            ),
            (
                Record::Compacted {
                    lane: LANE,
                    to: offset,
                    at: Timestamp(-2),
                    deletions_from: None,
                },
                "05000000 1100000000000000 22000000 33000000 0000000000000000 00000000 00000000 5500000000000000 feffffffffffffff",
            ),
            (
                Record::JournalFile {
                    sequence: 0x99,
                    secret: 0xaa,
                    end: Position(0xcc),
                },
                "06000000 0000000000000000 00000000 00000000 aa00000000000000 00000000 00000000 cc00000000000000 9900000000000000",
            ),
            (
                Record::VersionsFrom {
                    lane: LANE,
                    from: offset,
                },
                "09000000 1100000000000000 22000000 33000000 0000000000000000 00000000 00000000 5500000000000000 0000000000000000",
            ),
            (
                Record::JournalReleased { sequence: 0x99 },
                "07000000 0000000000000000 00000000 00000000 0000000000000000 00000000 00000000 0000000000000000 9900000000000000",
            ),
            (
                Record::End { count: 0xbb },
                "08000000 0000000000000000 00000000 00000000 0000000000000000 00000000 00000000 0000000000000000 bb00000000000000",
            ),
        ]
    }

    #[test]
    fn golden_bytes_of_all_records() {
        for (record, expected) in all() {
            let bytes = record.encode(PLACE, 2);
            let expected = format!("{expected} 0200000000000000").replace(' ', "");
            assert_eq!(hex(&bytes[CRC_BYTES..]), expected, "{record:?}");
            assert_eq!(Record::decode(&bytes, PLACE), Some((record, 2)));
        }
        let bytes = Record::Group(NAME).encode(PLACE, 2);
        let mut covered = [[7, 0, 0, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0, 0]].concat();
        covered.extend_from_slice(&bytes[4..]);
        assert_eq!(bytes[..4], crc32c(&covered).to_le_bytes());
    }

    #[test]
    fn golden_bytes_of_the_head() {
        let head = Head {
            directory: *b"0123456789abcdef",
            number: 2,
            secret: 3,
        };
        let bytes = head.encode();
        let crc = crc32c(&bytes[..40]).swap_bytes();
        let expected = format!(
            "4d534d414e494631 30313233343536373839616263646566 0200000000000000 0300000000000000 {crc:08x}"
        );
        assert_eq!(hex(&bytes[..HEAD_USED]), expected.replace(' ', ""));
        assert!(bytes[HEAD_USED..].iter().all(|byte| *byte == 0));
        assert_eq!(Head::decode(&bytes), Some(head));
        assert_eq!(Head::decode(&bytes[..4095]), None);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn a_record_with_a_flipped_bit_or_at_another_position_is_refused() {
        for (record, _) in all() {
            let bytes = record.encode(PLACE, 2);
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Record::decode(&flipped, PLACE), None, "bit {bit}");
            }
            for (secret, index) in [(7, 4), (8, 3)] {
                assert_eq!(Record::decode(&bytes, Place { secret, index }), None);
            }
        }
    }

    #[test]
    fn a_record_with_a_value_in_an_unused_field_is_refused() {
        let mut bytes = Record::End { count: 1 }.encode(PLACE, 0);
        bytes[36] = 1;
        let crc = crc_of(&bytes, PLACE);
        bytes[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Record::decode(&bytes, PLACE), None);
    }
}

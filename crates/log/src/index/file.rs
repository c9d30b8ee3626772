//! Index files: read as far as they are whole, and appended to.

use std::io;
use std::path::Path;

use millstream_base::disk::Access;
use millstream_base::{Disk, DiskFile, Position, ProducerId};
use uuid::Uuid;

use crate::ids::GroupName;
use crate::index::entry::{EntryKind, IndexEntry};
use crate::index::format::{Format, INDEX_HEADER_BYTES, decode_header, encode_header};
use crate::producers::ProducerState;

/// A longer file is not read: a group's index takes about a thousandth of the group, and some
/// 100 bytes for each producer and entry; the largest group has 512 GiB.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// Writes entries behind those that a file holds.
pub struct IndexWriter {
    file: Box<dyn DiskFile>,
    len: u64,
}

impl IndexWriter {
    /// Continues the index of `group`, of a stream with this identity, after its first `len` bytes (see [`Index::len`]); 0 starts it anew.
    pub fn open(
        disk: &dyn Disk,
        path: &Path,
        group: &GroupName,
        identity: Uuid,
        len: u64,
    ) -> io::Result<IndexWriter> {
        let file = disk.open(path, Access::Create)?;
        file.set_len(len)?;
        let mut writer = IndexWriter { file, len };
        if len == 0 {
            writer.write(&encode_header(group, identity))?;
        }
        Ok(writer)
    }

    /// Appends entries.
    pub fn append<'a>(
        &mut self,
        entries: impl IntoIterator<Item = &'a IndexEntry>,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        for entry in entries {
            entry.encode(&mut bytes);
        }
        self.write(&bytes)
    }

    /// Makes the appended entries durable.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        Ok(())
    }
}

/// The entries that an index file holds.
#[derive(Debug, Default)]
pub struct Index {
    pub entries: Vec<IndexEntry>,
    /// Bytes of the file that they take; the bytes behind them are torn. 0 where entries cannot be added to it.
    pub len: u64,
    /// The group that it names, if that is another one: then its entries are not read.
    pub foreign: Option<GroupName>,
    /// The identity of the stream that it names. An index beside a file without a head names none.
    pub identity: Option<Uuid>,
}

impl Index {
    /// Whether it covers a closed group to its end.
    pub fn is_whole(&self) -> bool {
        let last = self.entries.last();
        last.is_some_and(|entry| entry.kind == EntryKind::GroupEnd)
    }

    /// All producers of the lane at the beginning of the group, if the index has its first entry.
    pub fn producers_at_start(self) -> Option<Vec<(ProducerId, ProducerState)>> {
        let first = self.entries.into_iter().next();
        let first = first.filter(|entry| entry.position == Position(0));
        first.map(|entry| entry.producers)
    }

    /// Reads the index of `group` as far as it is whole; one that is missing or too long is empty.
    pub fn read(disk: &dyn Disk, path: &Path, group: &GroupName) -> io::Result<Index> {
        let file = match disk.open(path, Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Index::default()),
            Err(error) => return Err(error),
        };
        let len = file.len()?;
        if len > INDEX_BYTES_MAX {
            return Ok(Index::default());
        }
        let mut bytes = vec![0; len as usize];
        let count = file.read_full_at(&mut bytes, 0)?;
        bytes.truncate(count);
        Ok(Index::decode(&bytes, group))
    }

    fn decode(bytes: &[u8], group: &GroupName) -> Index {
        let mut index = Index::default();
        let Some(format) = Format::of(bytes) else {
            return index;
        };
        let Some((header, mut rest)) = bytes.split_at_checked(format.header_bytes()) else {
            return index;
        };
        match decode_header(header, format) {
            Some((named, identity)) if named == *group => {
                index.len = header.len() as u64;
                index.identity = identity;
            }
            Some((named, _)) => {
                index.foreign = Some(named);
                return index;
            }
            // Its header names no group.
            None if format == Format::Two && !group.has_head() => {}
            None => return index,
        }
        while let Some((entry, len)) = IndexEntry::decode(rest, format) {
            // Entries increase; one that does not is a leftover of an earlier use of the file.
            let rises = index.entries.last().is_none_or(|last| {
                last.kind != EntryKind::GroupEnd
                    && last.position <= entry.position
                    && last.offset <= entry.offset
            });
            if !rises {
                break;
            }
            rest = &rest[len..];
            if format != Format::Two {
                index.len += len as u64;
            }
            index.entries.push(entry);
        }
        index
    }

    /// The last entry, when it closes `group`, and the identity of the stream that the header names, if it names one. Reads
    /// only the header and the end of the file.
    pub fn read_end(
        disk: &dyn Disk,
        path: &Path,
        group: &GroupName,
    ) -> io::Result<Option<(IndexEntry, Option<Uuid>)>> {
        let file = match disk.open(path, Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut header = [0; INDEX_HEADER_BYTES];
        let count = file.read_full_at(&mut header, 0)?;
        let Some(format) = Format::of(&header[..count]) else {
            return Ok(None);
        };
        let identity = match decode_header(&header, format) {
            Some((named, identity)) if named == *group => identity,
            None if format == Format::Two && !group.has_head() => None,
            _ => return Ok(None),
        };
        let mut bytes = vec![0; format.end_bytes()];
        let Some(start) = file.len()?.checked_sub(bytes.len() as u64) else {
            return Ok(None);
        };
        let count = file.read_full_at(&mut bytes, start)?;
        Ok(IndexEntry::decode(&bytes[..count], format)
            .map(|(entry, _)| (entry, identity))
            .filter(|(entry, _)| entry.kind == EntryKind::GroupEnd))
    }
}

#[cfg(test)]
mod tests {
    use millstream_base::{
        GroupId, LaneIndex, Offset, Position, ProducerEpoch, ProducerId, Sequence, StreamId,
        StreamletIndex, Timestamp, crc32c,
    };

    use super::*;
    use crate::ids::{Generation, LaneId};
    use crate::index::entry::Fingerprint;
    use crate::index::format::{ENTRY_FIXED_BYTES_2, INDEX_HEADER_BYTES_3, MAGIC_2, PREFIX_BYTES};
    use crate::producers::transactions::{AbortedTransaction, OpenTransaction};
    use crate::producers::{CHUNKS_REMEMBERED, PastChunk, ProducerState};

    const NAME: GroupName = GroupName {
        lane: LaneId {
            stream: StreamId(16),
            streamlet: StreamletIndex(1),
            lane: LaneIndex(2),
        },
        id: GroupId(3),
        first_offset: Offset(4),
        generation: Generation::FORMAT_2,
    };

    fn entry(kind: EntryKind, position: u64, producers: usize) -> IndexEntry {
        IndexEntry {
            kind,
            position: Position(position),
            offset: Offset(position / 10),
            max_timestamp: Timestamp(-5),
            stable: Offset(position / 11),
            aborted: (0..producers as u64 / 2)
                .map(|n| AbortedTransaction {
                    producer: ProducerId(n as i64),
                    first_offset: Offset(n),
                    last_offset: Offset(n + 2),
                })
                .collect(),
            fingerprint: Fingerprint {
                first_crc: 1,
                last_crc: 2,
                last_bytes: position as u32 / 3,
            },
            producers: (0..producers)
                .map(|n| {
                    let chunk = PastChunk {
                        first: Sequence(n as i32),
                        last: Sequence(n as i32 + 3),
                        base_offset: Offset(77),
                    };
                    let state = ProducerState {
                        epoch: ProducerEpoch(2),
                        chunks: std::iter::repeat_n(chunk, n % (CHUNKS_REMEMBERED + 1)).collect(),
                        knows_sequence: n % 2 == 1,
                        last_offset: Offset(80),
                        last_timestamp: Timestamp(-6),
                        coordinator_epoch: n as i32 - 1,
                        transaction: (n % 2 == 1).then_some(OpenTransaction {
                            first_offset: Offset(n as u64),
                            started: Timestamp(n as i64),
                        }),
                    };
                    (ProducerId(n as i64), state)
                })
                .collect(),
        }
    }

    fn encoded(entries: &[IndexEntry]) -> Vec<u8> {
        let mut bytes = encode_header(&NAME, Uuid::nil());
        for entry in entries {
            entry.encode(&mut bytes);
        }
        bytes
    }

    #[test]
    fn golden_bytes() {
        let bytes = encoded(&[entry(EntryKind::SegmentStart, 0x1234, 2)]);
        let header_crc = crc32c(&bytes[..INDEX_HEADER_BYTES_3 - 4]).swap_bytes();
        let crc = crc32c(&bytes[INDEX_HEADER_BYTES_3 + PREFIX_BYTES..]).swap_bytes();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let without_chunks = "0200 5000000000000000 faffffffffffffff";
        let fields = format!(
            "4d53494e44455833
             1000000000000000 0300000000000000 0400000000000000 01000000 02000000
             {header_crc:08x}
             bd000000
             {crc:08x}
             01
             3412000000000000
             d201000000000000
             fbffffffffffffff
             a701000000000000
             02000000
             01000000
             01000000 02000000 11060000
             0000000000000000
             {without_chunks} ffffffff ffffffffffffffff 0000000000000000 00 00
             0100000000000000
             {without_chunks} 00000000 0100000000000000 0100000000000000 01 01
             01000000 04000000 4d00000000000000
             0000000000000000 0000000000000000 0200000000000000"
        );
        let fields: String = fields.split_whitespace().collect();
        assert_eq!(hex, fields);
    }

    #[test]
    fn golden_header_beside_a_file_with_a_head() {
        let name = GroupName {
            generation: Generation(0x66),
            ..NAME
        };
        let identity = Uuid::from_bytes([0xab; 16]);
        let header = encode_header(&name, identity);
        let hex: String = header.iter().map(|byte| format!("{byte:02x}")).collect();
        let crc = crc32c(&header[..INDEX_HEADER_BYTES - 4]).swap_bytes();
        let fields = format!(
            "4d53494e44455834
             1000000000000000 0300000000000000 0400000000000000 01000000 02000000
             66000000 abababababababababababababababab {crc:08x}"
        );
        let fields: String = fields.split_whitespace().collect();
        assert_eq!(hex, fields);
        let mut bytes = header;
        entry(EntryKind::SegmentStart, 0, 2).encode(&mut bytes);
        let index = Index::decode(&bytes, &name);
        assert_eq!((index.identity, index.entries.len()), (Some(identity), 1));
        assert_eq!(index.len, bytes.len() as u64);
        // Each generation has an index of its own.
        assert_eq!(Index::decode(&bytes, &NAME).foreign, Some(name));
        for bit in 0..INDEX_HEADER_BYTES * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let index = Index::decode(&flipped, &name);
            assert!(
                index.foreign.is_none() && index.entries.is_empty(),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn an_index_of_an_impossible_length_counts_as_missing() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.index");
        std::fs::write(&path, encoded(&[entry(EntryKind::SegmentStart, 0, 0)])).expect("a file");
        let file = std::fs::File::options().write(true).open(&path);
        file.and_then(|file| file.set_len(1 << 42)).expect("sparse");
        let index = Index::read(&millstream_base::SystemDisk, &path, &NAME).expect("it is there");
        assert!(index.entries.is_empty());
    }

    #[test]
    fn an_index_of_another_group_is_refused() {
        let bytes = encoded(&[entry(EntryKind::SegmentStart, 0, 1)]);
        let other = GroupName {
            first_offset: Offset(5),
            ..NAME
        };
        let index = Index::decode(&bytes, &other);
        assert_eq!((index.foreign, index.entries.len()), (Some(NAME), 0));
    }

    #[test]
    fn an_index_of_the_previous_format_is_read_and_not_appended_to() {
        let entries = [
            entry(EntryKind::SegmentStart, 0, 3),
            entry(EntryKind::GroupEnd, 70_000, 0),
        ];
        let mut bytes = MAGIC_2.to_vec();
        for entry in &entries {
            let start = bytes.len();
            entry.encode(&mut bytes);
            let fingerprint = start + PREFIX_BYTES + ENTRY_FIXED_BYTES_2;
            bytes.drain(fingerprint..fingerprint + 12);
            let payload = start + PREFIX_BYTES;
            let (len, crc) = (bytes.len() - payload, crc32c(&bytes[payload..]));
            bytes[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
            bytes[start + 4..payload].copy_from_slice(&crc.to_le_bytes());
        }
        let index = Index::decode(&bytes, &NAME);
        let expected = entries.clone().map(|entry| IndexEntry {
            fingerprint: Fingerprint::default(),
            ..entry
        });
        assert_eq!((index.entries, index.len), (expected.to_vec(), 0));
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.index");
        std::fs::write(&path, bytes).expect("a file");
        let end = Index::read_end(&millstream_base::SystemDisk, &path, &NAME).expect("it is there");
        assert_eq!(end, Some((expected[1].clone(), None)));
    }

    #[test]
    fn a_torn_or_damaged_index_reads_as_a_prefix() {
        let entries = [
            entry(EntryKind::SegmentStart, 0, 7),
            entry(EntryKind::Within, 65_536, 1),
            entry(EntryKind::GroupEnd, 70_000, 0),
        ];
        let bytes = encoded(&entries);
        let decode = |bytes: &[u8]| Index::decode(bytes, &NAME);
        assert_eq!(decode(&bytes).entries, entries);
        assert_eq!(decode(&bytes).len, bytes.len() as u64);
        for len in 0..bytes.len() {
            let index = decode(&bytes[..len]);
            assert!(index.len <= len as u64);
            assert!(entries.starts_with(&index.entries));
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let index = decode(&flipped);
            assert!(
                index.foreign.is_none()
                    && index.entries.len() < 3
                    && entries.starts_with(&index.entries),
                "bit {bit}"
            );
        }
    }
}

//! The sparse index of a group, kept beside its file: `<group>.index`.
//!
//! A series of *marks*. A mark says what held at a position of the group: the offset that comes
//! there, the largest timestamp before it, up to where all transactions have ended, the state of
//! those producers that appended since the mark before (at the group's start: of all), and which
//! transactions were aborted since. There is one at the start of each segment and
//! one every 64 KiB in it. A mark is written only after the group's file is synced up to its
//! position, so a file that is shorter than its last mark has lost data.
//!
//! The header names the group, and each mark has a fingerprint of the group's file: an index or a file
//! that was copied from another group is found at the start.
//!
//! The index is never synced and holds nothing that the group's file does not tell: where it is
//! missing or torn, the file is read instead.

pub mod places;

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use millstream_base::disk::Access;
use millstream_base::{
    Disk, DiskFile, GroupId, LaneIndex, Offset, Position, ProducerEpoch, ProducerId, Sequence,
    StreamId, StreamletIndex, Timestamp, crc32c,
};

use crate::ids::{GroupName, LaneId};
use crate::producers::transactions::{AbortedTransaction, OpenTransaction};
use crate::producers::{CHUNKS_REMEMBERED, PastChunk, ProducerState};

/// Bytes of a group between two marks.
pub const MARK_BYTES: u64 = 64 << 10;

const MAGIC: [u8; 8] = *b"MSINDEX3";

/// The format before: no group in its header, no fingerprints in its marks. It is read, and written
/// anew where marks are added to it.
const MAGIC_2: [u8; 8] = *b"MSINDEX2";

/// The magic, the group, and the checksum of both.
const HEADER_BYTES: usize = 8 + 8 + 8 + 8 + 4 + 4 + 4;

/// Length and checksum before each mark.
const PREFIX_BYTES: usize = 8;

/// A mark without producers and transactions.
const MARK_FIXED_BYTES: usize = MARK_FIXED_BYTES_2 + 4 + 4 + 4;

/// The same in the format before.
const MARK_FIXED_BYTES_2: usize = 1 + 8 + 8 + 8 + 8 + 4 + 4;

/// Where a producer's transaction begins that has none.
const NO_TRANSACTION: u64 = u64::MAX;

/// A mark with this many producers is as large as it gets.
const MARK_BYTES_MAX: usize = 4 << 20;

/// A longer file is not read: a group's index takes about a thousandth of the group, and some
/// 100 bytes for each producer and mark; the largest group has 512 GiB.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// How the bytes of an index are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Two,
    Three,
}

impl Format {
    /// Of what begins with these bytes.
    fn of(bytes: &[u8]) -> Option<Format> {
        match *bytes.first_chunk()? {
            MAGIC => Some(Format::Three),
            MAGIC_2 => Some(Format::Two),
            _ => None,
        }
    }

    fn header_bytes(self) -> usize {
        match self {
            Format::Two => MAGIC_2.len(),
            Format::Three => HEADER_BYTES,
        }
    }

    fn mark_fixed_bytes(self) -> usize {
        match self {
            Format::Two => MARK_FIXED_BYTES_2,
            Format::Three => MARK_FIXED_BYTES,
        }
    }

    /// The last mark of a closed group has no producers, so that it is found from the file's end.
    fn end_bytes(self) -> usize {
        PREFIX_BYTES + self.mark_fixed_bytes()
    }
}

/// Tells the file of a group from any other: the checksums of its first chunk and of the last one before
/// a position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// The checksum of the group's first chunk.
    pub first_crc: u32,
    /// The checksum of the chunk that ends at the position.
    pub last_crc: u32,
    /// The length of that chunk; 0 where there is none, or where it is not known.
    pub last_bytes: u32,
}

impl Fingerprint {
    /// Takes note of a chunk that comes at `position`.
    pub fn add(&mut self, position: Position, crc: u32, bytes: usize) {
        if position == Position(0) {
            self.first_crc = crc;
        }
        self.last_crc = crc;
        self.last_bytes = bytes as u32;
    }
}

/// What a mark stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkKind {
    /// A place within a segment.
    Within = 0,
    /// The start of a segment.
    SegmentStart = 1,
    /// The end of the group, which is closed.
    GroupEnd = 2,
}

/// What held at a position of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub kind: MarkKind,
    pub position: Position,
    /// The offset of the chunk that starts at `position`.
    pub offset: Offset,
    /// The largest timestamp of the chunks of this group before `position`.
    pub max_timestamp: Timestamp,
    /// Before this offset all transactions have ended.
    pub stable: Offset,
    /// Producers that appended since the mark before, as they were here.
    pub producers: Vec<(ProducerId, ProducerState)>,
    /// Transactions whose markers came since the mark before, and that were aborted.
    pub aborted: Vec<AbortedTransaction>,
    /// Of the group's file up to `position`.
    pub fingerprint: Fingerprint,
}

impl Mark {
    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; PREFIX_BYTES]);
        out.push(self.kind as u8);
        out.extend_from_slice(&self.position.0.to_le_bytes());
        out.extend_from_slice(&self.offset.0.to_le_bytes());
        out.extend_from_slice(&self.max_timestamp.0.to_le_bytes());
        out.extend_from_slice(&self.stable.0.to_le_bytes());
        out.extend_from_slice(&(self.producers.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.aborted.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.fingerprint.first_crc.to_le_bytes());
        out.extend_from_slice(&self.fingerprint.last_crc.to_le_bytes());
        out.extend_from_slice(&self.fingerprint.last_bytes.to_le_bytes());
        for (id, state) in &self.producers {
            out.extend_from_slice(&id.0.to_le_bytes());
            encode_producer(state, out);
        }
        for aborted in &self.aborted {
            out.extend_from_slice(&aborted.producer.0.to_le_bytes());
            out.extend_from_slice(&aborted.first_offset.0.to_le_bytes());
            out.extend_from_slice(&aborted.last_offset.0.to_le_bytes());
        }
        let len = out.len() - start - PREFIX_BYTES;
        let crc = crc32c(&out[start + PREFIX_BYTES..]);
        out[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
        out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    }

    /// The mark at the start of `bytes` and its length, or `None` when there is no whole one.
    fn decode(bytes: &[u8], format: Format) -> Option<(Mark, usize)> {
        let mut input = Input(bytes);
        let len = u32::from_le_bytes(input.take()?) as usize;
        let crc = u32::from_le_bytes(input.take()?);
        if !(format.mark_fixed_bytes()..=MARK_BYTES_MAX).contains(&len) {
            return None;
        }
        let payload = input.0.get(..len)?;
        if crc32c(payload) != crc {
            return None;
        }
        let mut input = Input(payload);
        let kind = match input.take::<1>()? {
            [0] => MarkKind::Within,
            [1] => MarkKind::SegmentStart,
            [2] => MarkKind::GroupEnd,
            _ => return None,
        };
        let position = Position(u64::from_le_bytes(input.take()?));
        let offset = Offset(u64::from_le_bytes(input.take()?));
        let max_timestamp = Timestamp(i64::from_le_bytes(input.take()?));
        let stable = Offset(u64::from_le_bytes(input.take()?));
        let producer_count = u32::from_le_bytes(input.take()?);
        let aborted_count = u32::from_le_bytes(input.take()?);
        let fingerprint = match format {
            Format::Two => Fingerprint::default(),
            Format::Three => Fingerprint {
                first_crc: u32::from_le_bytes(input.take()?),
                last_crc: u32::from_le_bytes(input.take()?),
                last_bytes: u32::from_le_bytes(input.take()?),
            },
        };
        let mut producers = Vec::new();
        for _ in 0..producer_count {
            let id = ProducerId(i64::from_le_bytes(input.take()?));
            producers.push((id, decode_producer(&mut input)?));
        }
        let mut aborted = Vec::new();
        for _ in 0..aborted_count {
            aborted.push(AbortedTransaction {
                producer: ProducerId(i64::from_le_bytes(input.take()?)),
                first_offset: Offset(u64::from_le_bytes(input.take()?)),
                last_offset: Offset(u64::from_le_bytes(input.take()?)),
            });
        }
        let mark = Mark {
            kind,
            position,
            offset,
            max_timestamp,
            stable,
            producers,
            aborted,
            fingerprint,
        };
        input.0.is_empty().then_some((mark, PREFIX_BYTES + len))
    }
}

fn encode_header((lane, group, first_offset): &GroupName) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend_from_slice(&lane.stream.0.to_le_bytes());
    header.extend_from_slice(&group.0.to_le_bytes());
    header.extend_from_slice(&first_offset.0.to_le_bytes());
    header.extend_from_slice(&lane.streamlet.0.to_le_bytes());
    header.extend_from_slice(&lane.lane.0.to_le_bytes());
    let crc = crc32c(&header);
    header.extend_from_slice(&crc.to_le_bytes());
    header
}

/// The group that a header names, if it is whole.
fn decode_header(header: &[u8]) -> Option<GroupName> {
    let mut input = Input(header.get(MAGIC.len()..)?);
    let stream = StreamId(u64::from_le_bytes(input.take()?));
    let group = GroupId(u64::from_le_bytes(input.take()?));
    let first_offset = Offset(u64::from_le_bytes(input.take()?));
    let lane = LaneId {
        stream,
        streamlet: StreamletIndex(u32::from_le_bytes(input.take()?)),
        lane: LaneIndex(u32::from_le_bytes(input.take()?)),
    };
    let name = (lane, group, first_offset);
    (encode_header(&name)[..] == header[..HEADER_BYTES]).then_some(name)
}

fn encode_producer(state: &ProducerState, out: &mut Vec<u8>) {
    let first = state
        .transaction
        .map(|transaction| transaction.first_offset);
    let started = state.transaction.map(|transaction| transaction.started);
    out.extend_from_slice(&state.epoch.0.to_le_bytes());
    out.extend_from_slice(&state.last_offset.0.to_le_bytes());
    out.extend_from_slice(&state.last_timestamp.0.to_le_bytes());
    out.extend_from_slice(&state.coordinator_epoch.to_le_bytes());
    out.extend_from_slice(&first.map_or(NO_TRANSACTION, |first| first.0).to_le_bytes());
    out.extend_from_slice(&started.unwrap_or_default().0.to_le_bytes());
    out.push(state.knows_sequence.into());
    out.push(state.chunks.len() as u8);
    for chunk in &state.chunks {
        out.extend_from_slice(&chunk.first.0.to_le_bytes());
        out.extend_from_slice(&chunk.last.0.to_le_bytes());
        out.extend_from_slice(&chunk.base_offset.0.to_le_bytes());
    }
}

fn decode_producer(input: &mut Input<'_>) -> Option<ProducerState> {
    let epoch = ProducerEpoch(i16::from_le_bytes(input.take()?));
    let last_offset = Offset(u64::from_le_bytes(input.take()?));
    let last_timestamp = Timestamp(i64::from_le_bytes(input.take()?));
    let coordinator_epoch = i32::from_le_bytes(input.take()?);
    let first = u64::from_le_bytes(input.take()?);
    let started = Timestamp(i64::from_le_bytes(input.take()?));
    let [knows_sequence] = input.take()?;
    let [chunk_count] = input.take()?;
    if usize::from(chunk_count) > CHUNKS_REMEMBERED {
        return None;
    }
    let mut chunks = VecDeque::with_capacity(chunk_count.into());
    for _ in 0..chunk_count {
        chunks.push_back(PastChunk {
            first: Sequence(i32::from_le_bytes(input.take()?)),
            last: Sequence(i32::from_le_bytes(input.take()?)),
            base_offset: Offset(u64::from_le_bytes(input.take()?)),
        });
    }
    Some(ProducerState {
        epoch,
        chunks,
        knows_sequence: knows_sequence != 0,
        last_offset,
        last_timestamp,
        coordinator_epoch,
        transaction: (first != NO_TRANSACTION).then_some(OpenTransaction {
            first_offset: Offset(first),
            started,
        }),
    })
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }
}

/// Writes marks behind those that a file holds.
pub struct IndexWriter {
    file: Box<dyn DiskFile>,
    len: u64,
}

impl IndexWriter {
    /// Continues the index of `group` after its first `len` bytes (see [`Index::len`]); 0 starts it anew.
    pub fn open(
        disk: &dyn Disk,
        path: &Path,
        group: &GroupName,
        len: u64,
    ) -> io::Result<IndexWriter> {
        let file = disk.open(path, Access::Create)?;
        file.set_len(len)?;
        let mut writer = IndexWriter { file, len };
        if len == 0 {
            writer.write(&encode_header(group))?;
        }
        Ok(writer)
    }

    /// Appends marks.
    pub fn append<'a>(&mut self, marks: impl IntoIterator<Item = &'a Mark>) -> io::Result<()> {
        let mut bytes = Vec::new();
        for mark in marks {
            mark.encode(&mut bytes);
        }
        self.write(&bytes)
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

/// The marks that an index file holds.
#[derive(Debug, Default)]
pub struct Index {
    pub marks: Vec<Mark>,
    /// Bytes of the file that they take; what is behind is torn. 0 where marks cannot be added to it.
    pub len: u64,
    /// The group that it names, if that is another one: then its marks are not read.
    pub foreign: Option<GroupName>,
}

impl Index {
    /// Whether it is that of a closed group, to its end.
    pub fn is_whole(&self) -> bool {
        let last = self.marks.last();
        last.is_some_and(|mark| mark.kind == MarkKind::GroupEnd)
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
        if format == Format::Three {
            match decode_header(header) {
                Some(named) if named == *group => index.len = HEADER_BYTES as u64,
                Some(named) => {
                    index.foreign = Some(named);
                    return index;
                }
                None => return index,
            }
        }
        while let Some((mark, len)) = Mark::decode(rest, format) {
            // Marks rise; one that does not belongs to a former life of the file.
            let rises = index.marks.last().is_none_or(|last| {
                last.kind != MarkKind::GroupEnd
                    && last.position <= mark.position
                    && last.offset <= mark.offset
            });
            if !rises {
                break;
            }
            rest = &rest[len..];
            if format == Format::Three {
                index.len += len as u64;
            }
            index.marks.push(mark);
        }
        index
    }

    /// The last mark, when it closes `group`; reads only the header and the end of the file.
    pub fn read_end(disk: &dyn Disk, path: &Path, group: &GroupName) -> io::Result<Option<Mark>> {
        let file = match disk.open(path, Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut header = [0; HEADER_BYTES];
        let count = file.read_full_at(&mut header, 0)?;
        let Some(format) = Format::of(&header[..count]) else {
            return Ok(None);
        };
        if format == Format::Three && decode_header(&header).as_ref() != Some(group) {
            return Ok(None);
        }
        let mut bytes = vec![0; format.end_bytes()];
        let Some(start) = file.len()?.checked_sub(bytes.len() as u64) else {
            return Ok(None);
        };
        let count = file.read_full_at(&mut bytes, start)?;
        Ok(Mark::decode(&bytes[..count], format)
            .map(|(mark, _)| mark)
            .filter(|mark| mark.kind == MarkKind::GroupEnd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: GroupName = (
        LaneId {
            stream: StreamId(16),
            streamlet: StreamletIndex(1),
            lane: LaneIndex(2),
        },
        GroupId(3),
        Offset(4),
    );

    fn mark(kind: MarkKind, position: u64, producers: usize) -> Mark {
        Mark {
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

    fn encoded(marks: &[Mark]) -> Vec<u8> {
        let mut bytes = encode_header(&NAME);
        for mark in marks {
            mark.encode(&mut bytes);
        }
        bytes
    }

    #[test]
    fn golden_bytes() {
        let bytes = encoded(&[mark(MarkKind::SegmentStart, 0x1234, 2)]);
        let header_crc = crc32c(&bytes[..HEADER_BYTES - 4]).swap_bytes();
        let crc = crc32c(&bytes[HEADER_BYTES + PREFIX_BYTES..]).swap_bytes();
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
    fn an_index_of_an_absurd_length_counts_as_missing() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.index");
        std::fs::write(&path, encoded(&[mark(MarkKind::SegmentStart, 0, 0)])).expect("a file");
        let file = std::fs::File::options().write(true).open(&path);
        file.and_then(|file| file.set_len(1 << 42)).expect("sparse");
        let index = Index::read(&millstream_base::SystemDisk, &path, &NAME).expect("it is there");
        assert!(index.marks.is_empty());
    }

    #[test]
    fn an_index_of_another_group_is_told() {
        let bytes = encoded(&[mark(MarkKind::SegmentStart, 0, 1)]);
        let other = (NAME.0, NAME.1, Offset(5));
        let index = Index::decode(&bytes, &other);
        assert_eq!((index.foreign, index.marks.len()), (Some(NAME), 0));
    }

    #[test]
    fn an_index_of_the_format_before_is_read_and_not_continued() {
        let marks = [
            mark(MarkKind::SegmentStart, 0, 3),
            mark(MarkKind::GroupEnd, 70_000, 0),
        ];
        let mut bytes = MAGIC_2.to_vec();
        for mark in &marks {
            let start = bytes.len();
            mark.encode(&mut bytes);
            let fingerprint = start + PREFIX_BYTES + MARK_FIXED_BYTES_2;
            bytes.drain(fingerprint..fingerprint + 12);
            let payload = start + PREFIX_BYTES;
            let (len, crc) = (bytes.len() - payload, crc32c(&bytes[payload..]));
            bytes[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
            bytes[start + 4..payload].copy_from_slice(&crc.to_le_bytes());
        }
        let index = Index::decode(&bytes, &NAME);
        let expected = marks.clone().map(|mark| Mark {
            fingerprint: Fingerprint::default(),
            ..mark
        });
        assert_eq!((index.marks, index.len), (expected.to_vec(), 0));
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.index");
        std::fs::write(&path, bytes).expect("a file");
        let end = Index::read_end(&millstream_base::SystemDisk, &path, &NAME).expect("it is there");
        assert_eq!(end, Some(expected[1].clone()));
    }

    #[test]
    fn every_torn_or_flipped_index_reads_as_a_prefix() {
        let marks = [
            mark(MarkKind::SegmentStart, 0, 7),
            mark(MarkKind::Within, 65_536, 1),
            mark(MarkKind::GroupEnd, 70_000, 0),
        ];
        let bytes = encoded(&marks);
        let decode = |bytes: &[u8]| Index::decode(bytes, &NAME);
        assert_eq!(decode(&bytes).marks, marks);
        assert_eq!(decode(&bytes).len, bytes.len() as u64);
        for len in 0..bytes.len() {
            let index = decode(&bytes[..len]);
            assert!(index.len <= len as u64);
            assert!(marks.starts_with(&index.marks));
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let index = decode(&flipped);
            assert!(
                index.foreign.is_none() && index.marks.len() < 3 && marks.starts_with(&index.marks),
                "bit {bit}"
            );
        }
    }
}

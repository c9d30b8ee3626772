//! The bytes of an index file.

use std::collections::VecDeque;

use millstream_base::{
    GroupId, LaneIndex, Offset, Position, ProducerEpoch, ProducerId, Sequence, StreamId,
    StreamletIndex, Timestamp, crc32c,
};
use uuid::Uuid;

use crate::ids::{Generation, GroupName, LaneId};
use crate::index::entry::{EntryKind, Fingerprint, IndexEntry};
use crate::producers::transactions::{AbortedTransaction, OpenTransaction};
use crate::producers::{CHUNKS_REMEMBERED, PastChunk, ProducerState};

const MAGIC: [u8; 8] = *b"MSINDEX4";

/// The previous format, for group files without a head: its header has neither generation nor identity. It is still written
/// beside these files.
const MAGIC_3: [u8; 8] = *b"MSINDEX3";

/// The format before that: no group in its header, no fingerprints in its entries. It is read, and written
/// anew where entries are added to it.
pub const MAGIC_2: [u8; 8] = *b"MSINDEX2";

/// The magic, the group, the stream's identity, and the checksum of all.
pub const INDEX_HEADER_BYTES: usize = INDEX_HEADER_BYTES_3 + 4 + 16;

/// The magic, the group, and the checksum of both.
pub const INDEX_HEADER_BYTES_3: usize = 8 + 8 + 8 + 8 + 4 + 4 + 4;

/// Length and checksum before each entry.
pub const PREFIX_BYTES: usize = 8;

/// An entry without producers and transactions.
pub const ENTRY_FIXED_BYTES: usize = ENTRY_FIXED_BYTES_2 + 4 + 4 + 4;

/// The same in the format before.
pub const ENTRY_FIXED_BYTES_2: usize = 1 + 8 + 8 + 8 + 8 + 4 + 4;

/// The start of the transaction of a producer that has none.
const NO_TRANSACTION: u64 = u64::MAX;

/// An entry with this many producers is as large as it gets.
pub const ENTRY_BYTES_MAX: usize = 4 << 20;

/// The layout of the bytes of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Two,
    Three,
    Four,
}

impl Format {
    /// Returns the format of a file that begins with these bytes.
    pub fn of(bytes: &[u8]) -> Option<Format> {
        match *bytes.first_chunk()? {
            MAGIC => Some(Format::Four),
            MAGIC_3 => Some(Format::Three),
            MAGIC_2 => Some(Format::Two),
            _ => None,
        }
    }

    pub fn header_bytes(self) -> usize {
        match self {
            Format::Two => MAGIC_2.len(),
            Format::Three => INDEX_HEADER_BYTES_3,
            Format::Four => INDEX_HEADER_BYTES,
        }
    }

    pub fn entry_fixed_bytes(self) -> usize {
        match self {
            Format::Two => ENTRY_FIXED_BYTES_2,
            Format::Three | Format::Four => ENTRY_FIXED_BYTES,
        }
    }

    /// The last entry of a closed group has no producers, so that it is found from the file's end.
    pub fn end_bytes(self) -> usize {
        PREFIX_BYTES + self.entry_fixed_bytes()
    }
}

impl IndexEntry {
    pub fn encode(&self, out: &mut Vec<u8>) {
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

    /// The entry at the start of `bytes` and its length, or `None` when there is no whole one.
    pub fn decode(bytes: &[u8], format: Format) -> Option<(IndexEntry, usize)> {
        let mut input = Input(bytes);
        let len = u32::from_le_bytes(input.take()?) as usize;
        let crc = u32::from_le_bytes(input.take()?);
        if !(format.entry_fixed_bytes()..=ENTRY_BYTES_MAX).contains(&len) {
            return None;
        }
        let payload = input.0.get(..len)?;
        if crc32c(payload) != crc {
            return None;
        }
        let mut input = Input(payload);
        let kind = match input.take::<1>()? {
            [0] => EntryKind::Within,
            [1] => EntryKind::SegmentStart,
            [2] => EntryKind::GroupEnd,
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
            Format::Three | Format::Four => Fingerprint {
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
        let entry = IndexEntry {
            kind,
            position,
            offset,
            max_timestamp,
            stable,
            producers,
            aborted,
            fingerprint,
        };
        input.0.is_empty().then_some((entry, PREFIX_BYTES + len))
    }
}

/// Returns the header of a group's index. Beside a file without a head, it has no identity either.
pub fn encode_header(name: &GroupName, identity: Uuid) -> Vec<u8> {
    let GroupName {
        lane,
        id,
        first_offset,
        generation,
    } = name;
    let magic = if name.has_head() { MAGIC } else { MAGIC_3 };
    let mut header = magic.to_vec();
    header.extend_from_slice(&lane.stream.0.to_le_bytes());
    header.extend_from_slice(&id.0.to_le_bytes());
    header.extend_from_slice(&first_offset.0.to_le_bytes());
    header.extend_from_slice(&lane.streamlet.0.to_le_bytes());
    header.extend_from_slice(&lane.lane.0.to_le_bytes());
    if name.has_head() {
        header.extend_from_slice(&generation.0.to_le_bytes());
        header.extend_from_slice(identity.as_bytes());
    }
    let crc = crc32c(&header);
    header.extend_from_slice(&crc.to_le_bytes());
    header
}

/// The group that a header names, with the stream's identity if it names that, too; if it is whole.
pub fn decode_header(header: &[u8], format: Format) -> Option<(GroupName, Option<Uuid>)> {
    let mut input = Input(header.get(MAGIC.len()..)?);
    let stream = StreamId(u64::from_le_bytes(input.take()?));
    let id = GroupId(u64::from_le_bytes(input.take()?));
    let first_offset = Offset(u64::from_le_bytes(input.take()?));
    let lane = LaneId {
        stream,
        streamlet: StreamletIndex(u32::from_le_bytes(input.take()?)),
        lane: LaneIndex(u32::from_le_bytes(input.take()?)),
    };
    let (generation, identity) = match format {
        Format::Two => return None,
        Format::Three => (Generation::FORMAT_2, None),
        Format::Four => {
            let generation = Generation(u32::from_le_bytes(input.take()?));
            (generation, Some(Uuid::from_bytes(input.take()?)))
        }
    };
    let name = GroupName {
        lane,
        id,
        first_offset,
        generation,
    };
    let encoded = encode_header(&name, identity.unwrap_or_default());
    (header.get(..format.header_bytes())? == encoded).then_some((name, identity))
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

//! An entry of a group's index: the state at a position of the group.

use millstream_base::{Offset, Position, ProducerId, Timestamp};

use crate::producers::ProducerState;
use crate::producers::transactions::AbortedTransaction;

/// Bytes of a group between two entries.
pub const INDEX_INTERVAL_BYTES: u64 = 64 << 10;

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

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A place within a segment.
    Within = 0,
    /// The start of a segment.
    SegmentStart = 1,
    /// The end of the group, which is closed.
    GroupEnd = 2,
}

/// The state at a position of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    pub kind: EntryKind,
    pub position: Position,
    /// The offset of the chunk that starts at `position`.
    pub offset: Offset,
    /// The largest timestamp of the chunks of this group before `position`.
    pub max_timestamp: Timestamp,
    /// All transactions have ended before this offset.
    pub stable: Offset,
    /// Producers that appended since the entry before, as they were here.
    pub producers: Vec<(ProducerId, ProducerState)>,
    /// Transactions whose markers came since the entry before, and that were aborted.
    pub aborted: Vec<AbortedTransaction>,
    /// The fingerprint of the group's file up to `position`.
    pub fingerprint: Fingerprint,
}

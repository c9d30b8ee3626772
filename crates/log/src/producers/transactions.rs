//! Transactions in a lane: which are open, which were aborted, and up to where all have ended.
//!
//! A transaction begins in a lane with its producer's first transactional chunk, and ends with a
//! marker, a chunk that the broker appends. The open ones are part of the states of the lane's
//! producers, and the aborted ones part of a group's index; both come back with these.

use millstream_base::{Offset, ProducerId, Timestamp};
use millstream_record::{ChunkHeader, TransactionEnd};

/// A transaction that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenTransaction {
    /// The offset of its first record in the lane.
    pub first_offset: Offset,
    /// The largest timestamp of its first chunk in the lane.
    pub started: Timestamp,
}

/// A transaction that was aborted: its records do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Its producer. The producer's transactional records in the range do not count.
    pub producer: ProducerId,
    /// The offset of its first record in the lane.
    pub first_offset: Offset,
    /// The offset of the marker.
    pub last_offset: Offset,
}

impl AbortedTransaction {
    /// Returns whether a chunk is part of it.
    pub(crate) fn holds(&self, header: &ChunkHeader) -> bool {
        let attributes = header.attributes;
        attributes.is_transactional()
            && !attributes.is_control()
            && self.producer == header.producer_id
            && (self.first_offset..self.last_offset).contains(&header.base_offset)
    }
}

/// A transaction that a marker has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedTransaction {
    pub producer: ProducerId,
    pub first_offset: Offset,
    /// The offset of the marker.
    pub last_offset: Offset,
    pub end: TransactionEnd,
}

impl EndedTransaction {
    /// The same, if it was aborted.
    pub fn aborted(&self) -> Option<AbortedTransaction> {
        (self.end == TransactionEnd::Abort).then_some(AbortedTransaction {
            producer: self.producer,
            first_offset: self.first_offset,
            last_offset: self.last_offset,
        })
    }
}

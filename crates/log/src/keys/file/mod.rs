//! Key files: the keys of a closed group, sorted, each with its newest record.
//!
//! ```text
//! header 64     "MSKEYS01" | stream 8 | group 8 | first offset 8 | streamlet 4 | lane 4 | generation 4 | kind 8 |
//!               zero 8 | CRC 4
//! blocks        of up to 4 KiB, a longer entry alone: entries in the order of their keys, CRC 4
//!   entry       shared prefix | bytes behind it | these | offset − first offset, 2 bits of flags | position of the chunk |
//!               bytes of the record
//! filters       one for each 256 blocks: length 4 | split-block Bloom filter | CRC 4
//! block list    for each block: length of the first key | the key | position; CRC 4
//! footer 96     keys 8 | tombstones 8 | records without key 8 | misplaced 8 | position of the filters 8 | position of the
//!               block list 8 | end offset 8 | horizon of tombstones 8 | horizon of markers 8 | end of values 8 |
//!               bit 0: values without an end 4 | CRC 4 | "MSKEYEND"
//! ```
//!
//! All numbers are little-endian; those without a size are varints. The first bit of the flags says that the record has no
//! value, the second that another partition owned the key when the file was made. The bytes of a record are its key,
//! value and headers. A horizon is the smallest one of the group's chunks, -1 without one; earlier programs wrote 0 for both.
//! The end of values is the time in ms at which enough values have expired to make a rewrite worth it, 0 if none expires.
//! Checksums are CRC-32C.
//!
//! A group has a file of this format for each index of [secondary keys](super::secondary), too. Its keys are
//! [entries](super::secondary::entry), only of records with a value, and its records without key are those with secondary keys
//! that the index leaves out. The kind is 0 in the file of the keys, and else the xxHash64 of the index's name.
//!
//! A key file follows from its group alone. So a damaged file, or a file of another group, is rebuilt, and readers return
//! damage as an error that names the place.

mod block;
mod buffer;
mod filter;
pub mod merge;
mod names;
pub mod read;
pub mod sort;
pub mod write;

#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use millstream_base::{Offset, Position, Timestamp};
use millstream_record::{ChunkHeader, Life};

/// Bytes of a block of entries, without its checksum. Only a block with one entry is larger.
const BLOCK_BYTES: usize = 4096;

/// The blocks that share a filter.
const FILTER_BLOCKS: usize = 256;

const CRC_BYTES: usize = 4;

/// The newest record of a key in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    pub offset: Offset,
    /// The position of the record's chunk in the group.
    pub chunk: Position,
    /// The bytes of the record's key, value and headers.
    pub bytes: u32,
    /// Whether the record has no value.
    pub is_tombstone: bool,
    /// Whether another partition owned the key when the file was made. A stream may have grown since, so readers ask again.
    pub is_misplaced: bool,
}

/// Counts of a key file's entries and of its group's committed records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyCounts {
    /// Entries.
    pub keys: u64,
    /// Entries without a value.
    pub tombstones: u64,
    /// Records of the group without a key, which have no entry. Of secondary keys: those with some that the index leaves out.
    pub without_key: u64,
    /// Records of the group whose keys other partitions owned.
    pub misplaced: u64,
    /// When tombstones and markers of the group may be removed; `None` where an earlier program has made the file.
    pub horizons: Option<Horizons>,
    /// The length of the key file, which it does not hold itself.
    pub file_bytes: u64,
}

/// The times of a group at which a rewrite has something to remove.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Horizons {
    /// The smallest delete horizon of chunks with tombstones.
    pub tombstones: Option<Timestamp>,
    /// The smallest delete horizon of markers of transactions.
    pub markers: Option<Timestamp>,
    /// The time at which enough values have expired to make a rewrite worth it; `None` if no record names an expiry.
    pub values: Option<Timestamp>,
    /// Whether there are values that name no end.
    pub has_endless: bool,
}

impl Horizons {
    /// Returns when expired values make a rewrite worth it. Values without an expiry of their own expire after `ttl`, if the
    /// stream has one. `newest` is the time of the group's newest record.
    pub fn values_end(&self, newest: Timestamp, ttl: Option<Duration>) -> Option<Timestamp> {
        let life = Life {
            timestamp: newest,
            expires: None,
        };
        let endless = life.end(ttl).filter(|_| self.has_endless);
        [self.values, endless].into_iter().flatten().min()
    }

    /// Takes note of a chunk.
    pub fn note(&mut self, header: &ChunkHeader) {
        let horizon = match header.attributes.is_control() {
            true => &mut self.markers,
            false => &mut self.tombstones,
        };
        if let Some(at) = header.delete_horizon() {
            *horizon = Some(horizon.map_or(at, |first| first.min(at)));
        }
    }
}

/// A key file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The operating system cannot read it.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Its bytes are not a key file of the group.
    #[error("damaged at byte {position}: {what}")]
    Damaged { position: u64, what: &'static str },
}

impl KeyFileError {
    fn damaged(position: u64, what: &'static str) -> KeyFileError {
        KeyFileError::Damaged { position, what }
    }
}

//! A group as recovery found it.

use std::sync::Arc;

use millstream_base::Position;

use crate::error::LogError;
use crate::group::end::GroupEnd;
use crate::index::entry::IndexEntry;
use crate::index::sparse::SparseIndex;
use crate::memory::buffer::Buffer;

/// A group as recovery found it on disk.
#[derive(Debug)]
pub struct StoredGroup {
    /// Its durable position.
    pub position: Position,
    /// The synced bytes of its file; the rest is in memory, and in the journal.
    pub synced: Position,
    pub end: Option<GroupEnd>,
    /// Bytes of the index file.
    pub index_len: u64,
    /// Segment starts; empty when they are not loaded.
    pub segments: Vec<Position>,
    /// The buffers of the last segments, which hold the bytes that are not synced.
    pub buffers: Vec<Arc<Buffer>>,
    /// Index entries that are not in the index yet.
    pub entries: Vec<IndexEntry>,
    /// Its index in memory; `None` when it is not loaded.
    pub index: Option<SparseIndex>,
    /// Whether there is a file. The manifest lists it, unless the lane is damaged and takes no writes.
    pub has_file: bool,
    /// The damage behind `position`, if bytes are missing there.
    pub damage: Option<LogError>,
}

//! The end of a closed group.

use millstream_base::{Offset, Position, Timestamp};

use crate::index::entry::IndexEntry;

/// The end of a closed group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupEnd {
    pub position: Position,
    /// The offset behind the last record: the lane's next group starts with it, unless something is
    /// missing between them.
    pub offset: Offset,
    /// The largest timestamp in the group.
    pub max_timestamp: Timestamp,
    /// Before this offset all transactions have ended here.
    pub stable: Offset,
}

impl GroupEnd {
    /// Returns the end that the closing index entry names.
    pub fn of(entry: &IndexEntry) -> GroupEnd {
        GroupEnd {
            position: entry.position,
            offset: entry.offset,
            max_timestamp: entry.max_timestamp,
            stable: entry.stable,
        }
    }
}

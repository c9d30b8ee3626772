//! The end of a closed group.

use millstream_base::{Offset, Position, Timestamp};

use crate::index::entry::Mark;

/// How a closed group ends.
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
    /// What the mark says that closes the group.
    pub fn of(mark: &Mark) -> GroupEnd {
        GroupEnd {
            position: mark.position,
            offset: mark.offset,
            max_timestamp: mark.max_timestamp,
            stable: mark.stable,
        }
    }
}

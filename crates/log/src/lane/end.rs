//! The end of a lane at a moment: behind the last appended chunk, durable or not.

use millstream_base::{GroupId, Offset, Position};

use crate::group::Group;
use crate::lane::head::Head;

/// The end of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneEnd {
    /// The offset behind the last record.
    pub offset: Offset,
    /// The open group, and its end in that group.
    open: Option<(GroupId, Position)>,
}

impl LaneEnd {
    pub(super) fn of(head: &Head) -> LaneEnd {
        let open = head.open.as_ref();
        LaneEnd {
            offset: head.next_offset,
            open: open.map(|open| (open.group.id, open.position)),
        }
    }

    /// Returns the end of a group's chunks that were appended by then.
    pub fn in_group(&self, group: &Group) -> Position {
        match self.open {
            // A rewritten one was closed since.
            Some((id, position)) if id == group.id && !group.is_rewritten() => position,
            _ => group
                .end()
                .map_or_else(|| group.high_watermark(), |end| end.position),
        }
    }
}

//! The start of a lane for readers, as offset and as cursor.

use std::sync::atomic::Ordering;

use millstream_base::{Cursor, GroupId, Offset, Position};

use crate::lane::LaneState;

/// Where a reader stands in a lane that has no groups yet: ids start from 1.
const BEFORE_ALL: GroupId = GroupId(0);

impl LaneState {
    /// The earliest offset that is stored and was not deleted.
    pub fn earliest_offset(&self) -> Offset {
        let first = || self.first_group().map(|group| group.first_offset);
        let stored = first().unwrap_or_else(|| {
            // The first group may be made meanwhile.
            let next = self.next_offset();
            first().unwrap_or(next)
        });
        stored.max(self.start.offset())
    }

    /// Whether all that the lane holds was deleted.
    pub fn is_emptied(&self) -> bool {
        self.start.offset() > Offset(0) && self.start.offset() >= self.next_offset()
    }

    /// Returns the start of reading in the stored groups; `None` if there are none.
    pub fn first_place(&self) -> Option<(GroupId, Position)> {
        let start = self.start.place();
        start
            .filter(|(group, _)| self.group(*group).is_some())
            .or_else(|| Some((self.first_group()?.id, Position(0))))
    }

    /// Where a reader of this lane starts, also one that is there before the first group: the id that
    /// comes next may go to another lane of the streamlet.
    pub fn first_cursor(&self) -> Cursor {
        let (group, position) = self.first_place().unwrap_or((BEFORE_ALL, Position(0)));
        self.cursor(group, position)
    }

    /// Where reading starts; for a lane without groups with the group that comes next.
    pub fn earliest_cursor(&self) -> Cursor {
        let (group, position) = self.first_place().unwrap_or_else(|| {
            let next = self.streamlet.next_group.load(Ordering::Relaxed);
            (GroupId(next), Position(0))
        });
        self.cursor(group, position)
    }

    pub fn cursor(&self, group: GroupId, position: Position) -> Cursor {
        Cursor {
            stream: self.id.stream,
            streamlet: self.id.streamlet,
            group,
            segment: self
                .group(group)
                .map_or_else(Default::default, |group| group.segment_at(position)),
            position,
        }
    }
}

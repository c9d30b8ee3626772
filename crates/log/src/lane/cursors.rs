//! The start of a lane for readers, as offset and as cursor.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_base::{Cursor, GroupId, Offset, Position, SegmentIndex};

use crate::group::Group;
use crate::lane::LaneState;

/// The group of a reader in a lane without groups: ids start from 1.
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
    pub fn first_place(&self) -> Option<(Arc<Group>, Position)> {
        // Groups are replaced under this lock, and the start with them.
        let groups = self.groups.read();
        let first = groups.front()?;
        let in_group = self.start.place().and_then(|start| {
            let n = groups.binary_search_by_key(&start.group, |group| group.id);
            let group = groups.get(n.ok()?).filter(|group| start.is_in(group))?;
            Some((Arc::clone(group), start.position))
        });
        Some(in_group.unwrap_or_else(|| (Arc::clone(first), Position(0))))
    }

    /// Returns the group and the position that a cursor names. Where the group was rewritten since the cursor was made, reading
    /// goes on where the rewritten group begins: no record is missed, but some come again.
    pub fn group_of(&self, cursor: &Cursor) -> Option<(Arc<Group>, Position)> {
        let group = self
            .group(cursor.group)
            .or_else(|| self.group_over(cursor.group))?;
        if group.id == cursor.group && group.has_made(cursor) {
            return Some((group, cursor.position));
        }
        let start = self.start.place().filter(|start| start.is_in(&group));
        Some((group, start.map_or(Position(0), |start| start.position)))
    }

    /// The rewritten group that has replaced a group which was not the first of its run.
    fn group_over(&self, id: GroupId) -> Option<Arc<Group>> {
        if self.stream.config.read().lanes > 1 {
            // Its runs have one group each, since other lanes have the ids between.
            return None;
        }
        let groups = self.groups.read();
        let after = groups.partition_point(|group| group.id <= id);
        // The group of a lane that has the highest id is never rewritten.
        let group = groups.get(after.checked_sub(1)?)?;
        group.is_rewritten().then(|| Arc::clone(group))
    }

    /// Returns the cursor at which a reader of this lane starts, even before the first group exists: the next id may go to
    /// another lane of the streamlet.
    pub fn first_cursor(&self) -> Cursor {
        self.earliest_or(BEFORE_ALL)
    }

    /// Returns the cursor of the earliest chunk; in a lane without groups, the cursor of the next group.
    pub fn earliest_cursor(&self) -> Cursor {
        let next = self.streamlet.next_group.load(Ordering::Relaxed);
        self.earliest_or(GroupId(next))
    }

    fn earliest_or(&self, group: GroupId) -> Cursor {
        match self.first_place() {
            Some((group, position)) => group.cursor(position),
            None => Cursor {
                stream: self.id.stream,
                streamlet: self.id.streamlet,
                group,
                segment: SegmentIndex::default(),
                position: Position(0),
            },
        }
    }
}

//! The start of a lane whose first records were deleted.

use std::sync::atomic::{AtomicU64, Ordering};

use millstream_base::{GroupId, Offset, Position};
use parking_lot::Mutex;

use crate::group::Group;

/// The start of a lane whose first records were deleted.
#[derive(Debug, Default)]
pub struct LaneStart {
    /// 0 if no records were deleted. Only grows; stored under the lock of `place`.
    offset: AtomicU64,
    /// The position of the chunk that holds this offset.
    place: Mutex<(GroupId, Position)>,
}

impl LaneStart {
    /// 0 where nothing was deleted.
    pub fn offset(&self) -> Offset {
        Offset(self.offset.load(Ordering::Acquire))
    }

    /// Returns the start of reading, if records were deleted.
    pub fn place(&self) -> Option<(GroupId, Position)> {
        (self.offset() > Offset(0)).then(|| *self.place.lock())
    }

    /// Whether the chunk at `position` of `group` was deleted.
    pub fn is_behind(&self, group: &Group, position: Position) -> bool {
        let Some((id, start)) = self.place() else {
            return false;
        };
        let at_end = |offset: Offset| {
            let end = group.end().filter(|end| end.offset >= offset);
            end.is_some_and(|end| position >= end.position)
        };
        match group.id.cmp(&id) {
            std::cmp::Ordering::Less => !at_end(self.offset()),
            std::cmp::Ordering::Equal => position < start,
            std::cmp::Ordering::Greater => false,
        }
    }

    /// Lets the lane begin at `offset`, unless it begins behind it already.
    pub fn set(&self, offset: Offset, place: (GroupId, Position)) {
        let mut current = self.place.lock();
        if self.offset() < offset {
            *current = place;
            self.offset.store(offset.0, Ordering::Release);
        }
    }
}

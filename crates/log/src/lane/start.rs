//! The start of a lane whose first records were deleted.

use std::sync::atomic::{AtomicU64, Ordering};

use millstream_base::{GroupId, Offset, Position};
use parking_lot::Mutex;

use crate::group::Group;
use crate::ids::Generation;

/// The start of a lane whose first records were deleted.
#[derive(Debug, Default)]
pub struct LaneStart {
    /// 0 if no records were deleted. Only grows; stored under the lock of `place`.
    offset: AtomicU64,
    /// The position of the chunk that holds this offset.
    place: Mutex<Option<StartPlace>>,
}

/// The position of a lane's start in a file of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartPlace {
    pub group: GroupId,
    /// The generation of the file.
    pub generation: Generation,
    pub position: Position,
}

impl StartPlace {
    /// The begin of a group, or a place before all groups.
    pub fn of_begin(group: Option<&Group>) -> StartPlace {
        StartPlace {
            group: group.map_or(GroupId(0), |group| group.id),
            generation: group.map_or(Generation::FIRST, |group| group.name().generation),
            position: Position(0),
        }
    }

    /// Whether it is in this group, and in this file of it.
    pub fn is_in(&self, group: &Group) -> bool {
        (self.group, self.generation) == (group.id, group.name().generation)
    }
}

impl LaneStart {
    /// 0 where nothing was deleted.
    pub fn offset(&self) -> Offset {
        Offset(self.offset.load(Ordering::Acquire))
    }

    /// Returns the start of reading, if records were deleted.
    pub fn place(&self) -> Option<StartPlace> {
        *self.place.lock()
    }

    /// Whether the chunk at `position` of `group` was deleted. Of a group that was replaced this is not known.
    pub fn is_behind(&self, group: &Group, position: Position) -> bool {
        let Some(start) = self.place() else {
            return false;
        };
        let at_end = |offset: Offset| {
            let end = group.end().filter(|end| end.offset >= offset);
            end.is_some_and(|end| position >= end.position)
        };
        match group.id.cmp(&start.group) {
            std::cmp::Ordering::Less => !at_end(self.offset()),
            std::cmp::Ordering::Equal => start.is_in(group) && position < start.position,
            std::cmp::Ordering::Greater => false,
        }
    }

    /// Lets the lane begin at `offset`, unless it begins behind it already.
    pub fn set(&self, offset: Offset, place: StartPlace) {
        let mut current = self.place.lock();
        if self.offset() < offset {
            *current = Some(place);
            self.offset.store(offset.0, Ordering::Release);
        }
    }

    /// Takes note that the start is now at a position of a rewritten group.
    pub fn move_to(&self, group: &Group, position: Position) {
        *self.place.lock() = Some(StartPlace {
            position,
            ..StartPlace::of_begin(Some(group))
        });
    }
}

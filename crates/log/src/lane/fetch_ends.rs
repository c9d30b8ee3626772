//! The ends of a lane's last fetches: the next fetch of the same consumer begins there, and needs no search.

use millstream_base::{GroupId, Offset, Position};
use parking_lot::Mutex;

use crate::ids::Generation;

/// The number of fetches whose ends a lane remembers.
const ENDS_REMEMBERED: usize = 8;

/// The ends of the last fetches. Fetches write and read them.
#[derive(Debug, Default)]
pub struct FetchEnds {
    ends: Mutex<Ends>,
}

#[derive(Debug, Default)]
struct Ends {
    ends: [Option<FetchEnd>; ENDS_REMEMBERED],
    /// The one that is written next.
    turn: usize,
}

/// The chunk with this offset comes here, or at the start of the lane's next group if this one ends
/// here. That never changes, so it holds as long as this file of the group is in use.
#[derive(Debug, Clone, Copy)]
pub struct FetchEnd {
    pub offset: Offset,
    pub group: GroupId,
    pub generation: Generation,
    pub position: Position,
}

impl FetchEnds {
    /// Returns the remembered end of a fetch at this offset.
    pub fn of(&self, offset: Offset) -> Option<FetchEnd> {
        let ends = self.ends.lock();
        let mut known = ends.ends.iter().flatten();
        known.find(|end| end.offset == offset).copied()
    }

    /// Remembers an end in place of the one where this fetch began.
    pub fn put(&self, from: Offset, end: FetchEnd) {
        let mut ends = self.ends.lock();
        let is_old = |known: &Option<FetchEnd>| known.is_some_and(|known| known.offset == from);
        let place = ends.ends.iter().position(is_old).unwrap_or(ends.turn);
        if place == ends.turn {
            ends.turn = (ends.turn + 1) % ENDS_REMEMBERED;
        }
        ends.ends[place] = Some(end);
    }
}

//! A run: neighbouring chunks of one group that become durable together.

use std::sync::Arc;

use millstream_base::{GroupId, Offset, Position};

use crate::group::Group;
use crate::ids::LaneId;
use crate::memory::buffer::Slice;

/// Neighbouring chunks of one group that wait to be made durable.
#[derive(Debug)]
pub struct Run {
    pub group: Arc<Group>,
    pub position: Position,
    pub slice: Slice,
}

impl Run {
    pub fn end(&self) -> Position {
        self.position.plus(self.slice.len() as u64)
    }
}

/// A run as recovery finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredRun {
    pub lane: LaneId,
    pub group: GroupId,
    pub group_first_offset: Offset,
    pub position: Position,
}

//! The segments that take memory, oldest first: eviction goes through them.

use std::collections::VecDeque;
use std::sync::Arc;

use millstream_base::SegmentIndex;
use parking_lot::{Mutex, MutexGuard};

use crate::group::Group;
use crate::ids::LaneId;

/// A segment that takes memory.
#[derive(Debug, Clone)]
pub struct Resident {
    pub lane: LaneId,
    pub group: Arc<Group>,
    pub segment: SegmentIndex,
}

/// The segments that take memory, oldest first. Appends add, eviction takes.
#[derive(Debug, Default)]
pub struct Residents {
    segments: Mutex<VecDeque<Resident>>,
}

impl Residents {
    pub fn add(&self, resident: Resident) {
        self.segments.lock().push_back(resident);
    }

    pub fn lock(&self) -> MutexGuard<'_, VecDeque<Resident>> {
        self.segments.lock()
    }
}

//! The lanes that compaction looks at next.

use std::collections::BTreeSet;
use std::mem;

use parking_lot::Mutex;

use crate::ids::LaneId;

/// The lanes whose state has changed so that they may be due for compaction. Appends and the makers of key files add,
/// the compaction thread takes. So a round costs nothing for lanes at rest.
#[derive(Debug, Default)]
pub struct CompactionMarks {
    lanes: Mutex<BTreeSet<LaneId>>,
}

impl CompactionMarks {
    /// Makes compaction check a lane. No other lock is taken while this one is held.
    pub fn add(&self, lane: LaneId) {
        self.lanes.lock().insert(lane);
    }

    pub fn take(&self) -> Vec<LaneId> {
        mem::take(&mut *self.lanes.lock()).into_iter().collect()
    }
}

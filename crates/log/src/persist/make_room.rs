//! Removal of groups on a full disk, so that there is room to note their removal.

use std::sync::Arc;

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::group::Group;
use crate::lane::LaneState;
use crate::stream::StreamState;

impl Core {
    /// Removes a lane's groups before `group`, so that a full disk has room.
    pub fn make_room_before(&self, lane: &LaneState, group: &Arc<Group>) -> Result<()> {
        let _no_probe = self.probed_at.lock();
        self.remove_groups_before(lane, group)?;
        // Whether it is enough, the next write finds out.
        self.appends.disk.clear_full();
        self.appends.persister.notify();
        Ok(())
    }

    /// Removes the groups of a stream, as retention would, so that a full disk has room to note that it
    /// is deleted. Chunks that wait for that room to become durable are given up: no producer got the answer that
    /// they are durable.
    pub fn make_room_of(&self, stream: &StreamState) -> Result<()> {
        let _no_probe = self.probed_at.lock();
        let fault = LogError::PartitionFault {
            what: "its stream was emptied to make room for its deletion".to_owned(),
        };
        let lanes = stream.made_lanes().into_iter();
        for lane in lanes.filter(|lane| !lane.is_memory_only()) {
            lane.set_fault(&fault);
            // Chunks that producers of a `written` stream got answers for become durable: the lane goes on behind them.
            self.sync_written(vec![Arc::clone(&lane)]);
            let last = lane.give_up();
            let groups = lane.groups();
            if groups.iter().any(|group| group.has_file()) {
                // The lane has no file then. The manifest holds its next offset.
                let before = groups.partition_point(|group| group.id < last.id);
                self.remove_first(&lane, &groups[..before], &last)?;
            }
        }
        self.try_to_finish_recovery();
        // Whether it is enough, the next write finds out.
        self.appends.disk.clear_full();
        self.appends.persister.notify();
        Ok(())
    }
}

//! Removal of a lane's first groups, so that a crash leaves no hole and no lane without a file.

use std::sync::Arc;

use millstream_base::Position;

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::group::Group;
use crate::group::file::{KeepOpen, WriteMode};
use crate::lane::LaneState;

impl Core {
    /// Removes a lane's groups before `group`.
    pub fn remove_groups_before(&self, lane: &LaneState, group: &Arc<Group>) -> Result<()> {
        if !lane.is_memory_only() {
            self.persist(vec![Arc::clone(group)]);
            self.found(lane, group)?;
        }
        for old in lane.groups() {
            if old.id >= group.id {
                break;
            }
            self.remove_first(lane, &old)?;
        }
        Ok(())
    }

    /// Removes a lane's first group.
    pub fn remove_first(&self, lane: &LaneState, group: &Group) -> Result<()> {
        // Its index is gone before its file: an index without a file means that the file was lost.
        self.remove_index(lane, group)?;
        group.remove(&self.dir)?;
        lane.remove_first(group.id);
        // Before the next one goes: the rest of a lane has no holes.
        self.sync_names(lane)
    }

    /// Removes the index of a group for good.
    pub fn remove_index(&self, lane: &LaneState, group: &Group) -> Result<()> {
        if let Some(fault) = lane.fault().filter(|_| group.has_failed()) {
            return Err(fault.clone());
        }
        group.remove_index(&self.dir)?;
        self.sync_names(lane)
    }

    /// Makes the names of a lane's files durable.
    fn sync_names(&self, lane: &LaneState) -> Result<()> {
        if lane.is_memory_only() {
            return Ok(());
        }
        let synced = self.dir.sync_dir(&self.dir.stream_dir(lane.id.stream));
        synced.inspect_err(|error| self.fail_all(lane, error))
    }

    /// Gives up a lane: which files it has is unknown.
    pub fn fail_all(&self, lane: &LaneState, error: &LogError) {
        let fault = error.to_lane_fault();
        lane.set_fault(&fault);
        for group in lane.groups() {
            group.fail(&fault);
        }
    }

    /// Makes sure that an empty group has a file with a durable name.
    pub fn found(&self, lane: &LaneState, group: &Group) -> Result<()> {
        if let Some(damage) = group.damage() {
            // Files and index of a damaged group stay until a repair.
            return Err(damage.clone());
        }
        for earlier in lane.unsettled_before(group.id) {
            if earlier
                .end()
                .is_some_and(|end| earlier.synced() < end.position)
            {
                let fault = lane.fault().cloned();
                return Err(fault.unwrap_or_else(|| self.appends.disk.full_error()));
            }
        }
        if group.has_file() {
            return Ok(());
        }
        let founded = group
            .write_back(
                &self.dir,
                Position(0),
                WriteMode::BypassCache,
                KeepOpen::Yes,
            )
            .and_then(|_| group.sync(&self.dir, KeepOpen::No));
        if let Err(error) = &founded
            && !error.is_disk_full()
        {
            self.fail(group, error);
        }
        founded
    }
}

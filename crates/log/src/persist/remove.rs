//! Removal of a lane's first groups, so that a crash leaves no hole.

use std::sync::Arc;

use millstream_base::Position;

use crate::core::Core;
use crate::error::Result;
use crate::group::Group;
use crate::group::file::{KeepOpen, WriteMode};
use crate::group::remove::remove_first_groups;
use crate::lane::LaneState;
use crate::recovery::foreign::read_index;
use crate::recovery::rebuild::rewrite_index;

impl Core {
    /// Removes a lane's groups before `group`.
    pub fn remove_groups_before(&self, lane: &LaneState, group: &Arc<Group>) -> Result<()> {
        if !lane.is_memory_only() {
            self.persist(vec![Arc::clone(group)]);
            self.found(lane, group)?;
        }
        let mut groups = lane.groups();
        groups.truncate(groups.partition_point(|old| old.id < group.id));
        self.remove_first(lane, &groups, group)
    }

    /// Removes a lane's first groups: `next` is the one behind them.
    pub fn remove_first(
        &self,
        lane: &LaneState,
        groups: &[Arc<Group>],
        next: &Group,
    ) -> Result<()> {
        let failed = groups.iter().any(|group| group.has_failed());
        if let Some(fault) = lane.fault().filter(|_| failed) {
            return Err(fault.clone());
        }
        if groups.is_empty() {
            return Ok(());
        }
        let _no_swap = lane.changing_groups.lock();
        if !lane.has_groups(groups) {
            // A compaction has replaced some. The next round looks at the lane anew.
            return Ok(());
        }
        if lane.is_memory_only() {
            for group in groups {
                group.remove(&self.dir)?;
                lane.remove_first(group.id);
            }
            return Ok(());
        }
        let kept = self.keep_producers(groups, next);
        if let Err(error) = &kept {
            // A full disk may have room for the index once they are gone.
            let is_retried = error.is_disk_full() && next.first_unwritten_entry().is_some();
            if !is_retried {
                return kept;
            }
        }
        remove_first_groups(&self.dir, groups, next, |gone| {
            lane.remove_first(gone.id);
        })?;
        if kept.is_err()
            && let Err(error) = next.sync_index(&self.dir)
        {
            tracing::warn!(group = %next.id, stream = %next.lane.stream, %error,
                "the index of the lane's first group is not durable yet: a crash may lose the lane's producers");
        }
        Ok(())
    }

    /// Makes the producer states durable that only the groups before `next` still hold: the index of `next` begins with all
    /// producers of the lane. A crash may have torn that index, since nothing else syncs it.
    fn keep_producers(&self, before: &[Arc<Group>], next: &Group) -> Result<()> {
        // The index of a rewritten group was synced. Without a file the lane is given up.
        if next.is_rewritten() || !next.has_file() {
            return Ok(());
        }
        let has_start = next.first_unwritten_entry().is_some()
            || read_index(&self.dir, &next.name())?
                .producers_at_start()
                .is_some();
        if !has_start && next.is_settled() {
            let ends = before
                .iter()
                .filter_map(|group| Some((group.name(), group.end()?.position)));
            rewrite_index(&self.dir, next, ends.collect())?;
        }
        next.sync_index(&self.dir)
    }

    /// Makes sure that an empty group has a file and an index, which holds the lane's producers.
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

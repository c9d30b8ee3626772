//! Commits straight into the files of groups: for a virtual log with one busy lane.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_base::Position;

use crate::commit::settle::settle_durable;
use crate::core::Core;
use crate::error::Result;
use crate::group::Group;
use crate::group::file::{KeepOpen, WriteMode};
use crate::lane::LaneState;
use crate::lane::virtual_log::{COMMIT_BYTES_MAX, PendingRun, VirtualLog};

impl Core {
    /// Writes the runs of a virtual log that has one busy lane straight into the groups' files.
    pub fn commit_direct(&self, log: &Arc<VirtualLog>) {
        let mut runs = log.take(COMMIT_BYTES_MAX);
        self.drop_faulted(&mut runs);
        while let Some(first) = runs.first() {
            let lane = Arc::clone(&first.lane);
            let group = Arc::clone(&first.run.group);
            // Other lanes may have joined since the virtual log was queued here.
            let is_same = |pending: &&PendingRun| Arc::ptr_eq(&pending.run.group, &group);
            let count = runs.iter().take_while(is_same).count();
            let end = runs[count - 1].run.end();
            match self.sync_group(&lane, &group, end) {
                Ok(()) => {
                    let done: Vec<PendingRun> = runs.drain(..count).collect();
                    let bytes: usize = done.iter().map(|done| done.run.slice.len()).sum();
                    self.counters.direct_commits.fetch_add(1, Ordering::Relaxed);
                    self.counters
                        .direct_bytes
                        .fetch_add(bytes as u64, Ordering::Relaxed);
                    settle_durable(done);
                }
                Err(error) => {
                    self.settle_failed(vec![(Arc::clone(log), runs)], &error);
                    return;
                }
            }
        }
        self.go_on(log);
    }

    /// Brings a group's file up to `to` and syncs it, its lane's earlier groups before it: the files
    /// of a lane are a gapless series.
    fn sync_group(&self, lane: &LaneState, group: &Group, to: Position) -> Result<()> {
        for earlier in lane.unsettled_before(group.id) {
            let end = earlier.end().expect("only the last group is open");
            earlier.write_back(
                &self.dir,
                end.position,
                WriteMode::BypassCache,
                KeepOpen::Yes,
            )?;
            earlier.sync(&self.dir, KeepOpen::No)?;
        }
        group.write_back(&self.dir, to, WriteMode::BypassCache, KeepOpen::Yes)?;
        group.sync(&self.dir, KeepOpen::Yes)
    }
}

//! The outcome of a commit: durable offsets move, or lanes learn of a failure.

use std::sync::Arc;

use crate::core::Core;
use crate::error::LogError;
use crate::lane::LaneState;
use crate::lane::virtual_log::{PendingRun, VirtualLog};

/// The most files that are synced one by one; more are synced together.
pub const SINGLE_SYNCS_MAX: usize = 4;

impl Core {
    /// Chunks behind one that failed must never become durable.
    pub fn drop_faulted(&self, runs: &mut Vec<PendingRun>) {
        runs.retain(|pending| pending.lane.fault().is_none());
    }

    /// Handles a failed commit: the syncer waits on a full disk; any other failure is final for the lanes.
    pub fn settle_failed(&self, taken: Vec<(Arc<VirtualLog>, Vec<PendingRun>)>, error: &LogError) {
        if error.is_disk_full() {
            self.set_disk_full(error);
            for (log, runs) in taken {
                let lanes: Vec<Arc<LaneState>> = runs
                    .iter()
                    .map(|pending| Arc::clone(&pending.lane))
                    .collect();
                log.put_back(runs);
                self.stalled.lock().push(log);
                for lane in lanes {
                    lane.durable_moved.notify(usize::MAX);
                }
            }
            return;
        }
        let fault = error.to_lane_fault();
        for (log, runs) in taken {
            for pending in runs {
                pending.lane.set_fault(&fault);
            }
            self.go_on(&log);
        }
    }

    /// Puts a virtual log in line again if more came in the meantime.
    pub fn go_on(&self, log: &Arc<VirtualLog>) {
        if log.committed() {
            self.appends.queue.add_again(Arc::clone(log));
        }
    }
}

/// Moves the durable positions behind runs that are synced, and wakes the threads that wait for them.
pub fn settle_durable(runs: Vec<PendingRun>) {
    for pending in &runs {
        pending.run.group.set_durable(pending.run.end());
    }
    // A lane's offset moves once, to behind its last run.
    let mut runs = runs.into_iter().peekable();
    while let Some(pending) = runs.next() {
        let last_of_lane = runs
            .peek()
            .is_none_or(|next| !Arc::ptr_eq(&next.lane, &pending.lane));
        if last_of_lane {
            pending.lane.set_durable_offset(pending.next_offset);
        }
    }
}

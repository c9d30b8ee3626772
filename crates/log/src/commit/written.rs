//! Streams of [`Durability::Written`](crate::Durability::Written): a producer is answered when its chunks are in the group's file, in
//! the system's cache, and the file is synced later.
//!
//! 1. A syncer writes the pending runs of a virtual log into their groups' files ([`Core::commit_written`]). A new
//!    file is named for good and listed before its first byte.
//!    From then on a kill of the process does not lose them, and consumers read them: this moves the
//!    lane's high watermark.
//! 2. The lane stands in line ([`SyncQueue::add_unsynced`](crate::lane::sync_queue::SyncQueue::add_unsynced))
//!    for [`SYNC_AFTER`], or until much is written or a caller waits for durability.
//! 3. A syncer syncs the file ([`Core::sync_written`]). This moves the lane's durable offset, as a commit
//!    of any other stream does: cursors, positions and deletions go by that one, so they outlast a loss of
//!    power here, too.
//!
//! The journal has no part in this: bytes in the group's file need not be written again.
//!
//! At most [`UNSYNCED_BYTES_MAX`] of a lane are written and not synced, all in one group's file: a group
//! is synced whole before the file of the next one gets its first byte. So a loss of power leaves behind
//! the last whole chunk never more bytes than recovery takes for the torn end of a write, and no lane ever has a hole.

use std::sync::Arc;
use std::time::Duration;

use crate::commit::settle::SINGLE_SYNCS_MAX;
use crate::core::Core;
use crate::error::Result;
use crate::group::Group;
use crate::group::file::{KeepOpen, WriteMode, list_begun};
use crate::lane::LaneState;
use crate::lane::unsynced::{SyncLine, WrittenEnd};
use crate::lane::virtual_log::{COMMIT_BYTES_MAX, PendingRun, VirtualLog};

/// The time that written bytes wait for their sync: the most that a loss of power may cost, beside the time that a sync
/// takes. Shorter means more syncs for lanes that get little.
pub const SYNC_AFTER: Duration = Duration::from_secs(1);

/// A lane with this many bytes written and not synced waits no longer: the sync is over before
/// [`UNSYNCED_BYTES_MAX`] is reached, unless the disk is slower than the producers.
const SYNC_BYTES: u64 = 2 << 20;

/// The most of a lane that is written and not synced; a write that would exceed it syncs first. Recovery
/// takes no more than that for the torn end of a write, and one commit fits.
pub const UNSYNCED_BYTES_MAX: u64 = COMMIT_BYTES_MAX as u64;

impl Core {
    /// Writes the pending runs of a virtual log into the groups' files, without syncing them.
    pub fn commit_written(&self, log: &Arc<VirtualLog>) {
        let mut runs = log.take(COMMIT_BYTES_MAX);
        // The runs of one group together; the runs of each lane stay in order.
        runs.sort_by_key(|pending| (pending.run.group.lane, pending.run.group.id));
        self.begin_files(&runs);
        let mut written = 0;
        for of_group in runs.chunk_by(|a, b| Arc::ptr_eq(&a.run.group, &b.run.group)) {
            let last = of_group.last().expect("chunks are never empty");
            let lane = &last.lane;
            // Chunks behind one that failed must never be acknowledged.
            if lane.fault().is_none() {
                let end = WrittenEnd {
                    group: Arc::clone(&last.run.group),
                    position: last.run.end(),
                    offset: last.next_offset,
                };
                match self.write(lane, &end) {
                    Ok(()) => self.settle_written(lane, end),
                    Err(error) if error.is_disk_full() => {
                        let left = runs.split_off(written);
                        self.settle_failed(vec![(Arc::clone(log), left)], &error);
                        return;
                    }
                    Err(error) => lane.set_fault(&error.to_lane_fault()),
                }
            }
            written += of_group.len();
        }
        self.go_on(log);
    }

    /// Begins the files of many new groups at once. A file that fails is begun alone, when it is written.
    fn begin_files(&self, runs: &[PendingRun]) {
        let groups = runs.chunk_by(|a, b| a.run.group.lane == b.run.group.lane);
        if groups.clone().nth(SINGLE_SYNCS_MAX).is_none() {
            return;
        }
        // The first of each lane: a group is synced whole before the next one has a file.
        let groups = groups.filter_map(|of_lane| {
            let PendingRun { lane, run, .. } = of_lane.first()?;
            let is_new = lane.fault().is_none()
                && !run.group.is_listed()
                && lane.unsettled_before(run.group.id).is_empty();
            is_new.then(|| Arc::clone(&run.group))
        });
        let mut begun: Vec<Arc<Group>> = groups.collect();
        if begun.len() <= SINGLE_SYNCS_MAX {
            return;
        }
        begun.retain(|group| group.create(&self.dir).is_ok());
        let listed = self
            .dir
            .sync_streams()
            .and_then(|()| list_begun(&self.dir, &begun));
        if let Err(error) = listed
            && !error.is_disk_full()
        {
            begun.iter().for_each(|group| self.fail(group, &error));
        }
    }

    /// Brings a group's file up to `end`.
    fn write(&self, lane: &LaneState, end: &WrittenEnd) -> Result<()> {
        let group = &end.group;
        for earlier in lane.unsettled_before(group.id) {
            // All of it is written: its runs came before the runs of this group.
            earlier.sync(&self.dir, KeepOpen::No)?;
        }
        let before = lane.unsynced.end();
        if let Some(before) = before.filter(|before| before.group.id < group.id) {
            lane.settle_synced(&before);
        }
        if end.position.0 - group.synced().0 > UNSYNCED_BYTES_MAX {
            group.sync(&self.dir, KeepOpen::Yes)?;
        }
        debug_assert!(end.position.0 - group.synced().0 <= UNSYNCED_BYTES_MAX);
        if !group.is_listed() {
            group.begin(&self.dir)?;
        }
        // Until the file is synced, which may be a second and thousands of lanes later.
        let keep_open = KeepOpen::of_busy(&self.dir);
        group
            .write_back(&self.dir, end.position, WriteMode::Cached, keep_open)
            .map(drop)
    }

    /// Lets written chunks be read, and puts the lane in line for a sync.
    fn settle_written(&self, lane: &Arc<LaneState>, end: WrittenEnd) {
        end.group.set_high_watermark(end.position);
        lane.set_written_offset(end.offset);
        let unsynced = end.position.0 - end.group.synced().0;
        let mut state = lane.unsynced.state.lock();
        state.end = Some(end);
        let is_due = unsynced >= SYNC_BYTES || state.wanted > lane.durable_offset();
        let line = match is_due {
            true => SyncLine::Due,
            false => SyncLine::Waiting,
        };
        match (&state.line, &line) {
            (SyncLine::Out, SyncLine::Due) => self
                .appends
                .queue
                .add_unsynced(Arc::clone(lane), Duration::ZERO),
            (SyncLine::Out, _) => self
                .appends
                .queue
                .add_unsynced(Arc::clone(lane), SYNC_AFTER),
            (SyncLine::Waiting, SyncLine::Due) => self.appends.queue.hurry_unsynced_lane(lane),
            _ => return,
        }
        state.line = line;
    }

    /// Syncs the written bytes of these lanes.
    pub fn sync_written(&self, lanes: Vec<Arc<LaneState>>) {
        let mut ends: Vec<(Arc<LaneState>, WrittenEnd)> = Vec::with_capacity(lanes.len());
        for lane in lanes {
            if let Some(end) = lane.unsynced.take_turn() {
                ends.push((lane, end));
            }
        }
        if ends.len() <= SINGLE_SYNCS_MAX {
            for (_, WrittenEnd { group, .. }) in &ends {
                if let Err(error) = group.sync(&self.dir, KeepOpen::Yes) {
                    self.sync_failed(group, &error);
                }
            }
        } else {
            let groups = ends.iter();
            let groups = groups.map(|(_, end)| (Arc::clone(&end.group), end.position));
            self.sync_all(&mut groups.collect::<Vec<_>>());
        }
        for (lane, end) in ends {
            lane.settle_synced(&end);
        }
    }
}

impl LaneState {
    /// Moves the durable offset behind the written chunks, if they are synced.
    fn settle_synced(&self, end: &WrittenEnd) {
        // One syncer at a time, so that the offset never moves back.
        let _state = self.unsynced.state.lock();
        if end.group.synced() < end.position {
            // The sync failed, and the lane has a fault; or the stream is deleted.
            return;
        }
        if end.group.durable() < end.position {
            end.group.set_durable(end.position);
        }
        if self.durable_offset() < end.offset {
            self.set_durable_offset(end.offset);
        }
    }
}

//! Write-back: groups' files are brought up to the durable positions, and synced.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use millstream_base::Position;

use crate::commit::settle::SINGLE_SYNCS_MAX;
use crate::core::Core;
use crate::error::LogError;
use crate::group::Group;
use crate::group::file::{KeepOpen, WriteMode, synced_with_all};
use crate::ids::LaneId;

impl Core {
    /// Persists the groups that hold back the oldest `share` of the journal's files, and frees these.
    pub fn release_journal(&self, share: f64) -> bool {
        let groups = self.journal.groups_to_persist(share);
        let groups = groups.into_iter().map(|(group, _)| group).collect();
        self.persist(groups);
        self.journal.release_obsolete()
    }

    /// Brings groups' files up to their durable positions and syncs them. Groups of lanes that fail are
    /// left as they are: their lanes refuse writes.
    pub fn persist(&self, groups: Vec<Arc<Group>>) {
        // Step 1: the lanes' earlier groups go first.
        let mut last_of_lane: HashMap<LaneId, Arc<Group>> = HashMap::new();
        for group in groups {
            let last = last_of_lane.entry(group.lane).or_insert(group.clone());
            if last.id < group.id {
                *last = group;
            }
        }
        let mut all: Vec<Arc<Group>> = Vec::with_capacity(last_of_lane.len());
        for group in last_of_lane.into_values() {
            if let Some(lane) = self.lane(group.lane).filter(|lane| !lane.is_memory_only()) {
                all.extend(lane.unsettled_before(group.id));
                all.push(group);
            }
        }
        all.sort_unstable_by_key(|group| (group.lane, group.id));
        all.dedup_by_key(|group| (group.lane, group.id));

        // Step 2: write. Files that are synced together need not stay open for that, and may be more
        // than can be open.
        let keep_open = if all.len() <= SINGLE_SYNCS_MAX {
            KeepOpen::Yes
        } else {
            KeepOpen::No
        };
        let mut written: Vec<(Arc<Group>, Position)> = Vec::with_capacity(all.len());
        let mut failed_lane = None;
        for group in all {
            // The files of a lane are a gapless series: the groups behind a failed one fail too.
            if failed_lane == Some(group.lane) {
                self.fail_behind(&group);
                continue;
            }
            if group.has_failed() {
                failed_lane = Some(group.lane);
                continue;
            }
            match group.write_back(
                &self.dir,
                group.durable(),
                WriteMode::BypassCache,
                keep_open,
            ) {
                // Those without a file, too: a lane's files are listed in their order.
                Ok(to) if to > group.synced() || !group.has_file() => written.push((group, to)),
                Ok(_) => {
                    // Nothing to write; its end may still be missing in the index.
                    if let Err(error) = group.sync(&self.dir, KeepOpen::No) {
                        self.sync_failed(&group, &error);
                    }
                }
                Err(error) if error.is_disk_full() => {
                    self.set_disk_full(&error);
                    break;
                }
                Err(error) => {
                    failed_lane = Some(group.lane);
                    self.fail(&group, &error);
                }
            }
        }

        // Step 3: sync.
        if written.len() <= SINGLE_SYNCS_MAX {
            let mut failed_lane = None;
            for (group, _) in &written {
                if failed_lane == Some(group.lane) {
                    self.fail_behind(group);
                    continue;
                }
                if let Err(error) = group.sync(&self.dir, KeepOpen::No) {
                    failed_lane = Some(group.lane);
                    self.sync_failed(group, &error);
                }
            }
        } else {
            self.sync_all(&mut written);
        }
        self.counters
            .persisted_groups
            .fetch_add(written.len() as u64, Ordering::Relaxed);
    }

    /// Syncs the files of groups, as far as they are written, with all others.
    pub fn sync_all(&self, written: &mut [(Arc<Group>, Position)]) {
        let synced = self.dir.sync_streams();
        let failed = match synced {
            Ok(()) => synced_with_all(&self.dir, written),
            Err(error) => Err(error.to_lane_fault()),
        };
        if let Err(error) = failed {
            for (group, _) in written {
                self.sync_failed(group, &error);
            }
        }
    }

    /// After a failed sync: a full disk, where the manifest could not list a file, is waited for; anything else is final.
    pub fn sync_failed(&self, group: &Group, error: &LogError) {
        match error.is_disk_full() {
            true => self.set_disk_full(error),
            false => self.fail(group, error),
        }
    }

    /// Gives up a group behind one that failed.
    fn fail_behind(&self, group: &Group) {
        if let Some(lane) = self.lane(group.lane)
            && let Some(fault) = lane.fault()
        {
            group.fail(fault);
        }
    }

    pub fn fail(&self, group: &Group, error: &LogError) {
        let fault = error.to_lane_fault();
        group.fail(&fault);
        if let Some(lane) = self.lane(group.lane) {
            lane.set_fault(&fault);
        }
    }
}

//! The end of recovery, in the background: the files take over the runs of the old journal, then it is removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_base::Position;

use crate::core::Core;
use crate::error::Result;
use crate::group::Group;
use crate::journal::old::OldJournal;
use crate::lane::residents::Resident;
use crate::recovery::unfinished::UnfinishedRecovery;

impl Core {
    /// Takes over the recovered groups, once all streams are there.
    pub fn take_over(&self, journal: OldJournal, is_retained: bool) {
        let lanes = self.made_lanes();
        let mut groups: Vec<(Arc<Group>, Position)> = Vec::new();
        for group in lanes.iter().flat_map(|lane| lane.groups()) {
            for segment in group.segments_in_memory() {
                self.appends.residents.add(Resident {
                    lane: group.lane,
                    group: Arc::clone(&group),
                    segment,
                });
            }
            let durable = group.durable();
            if group.synced() < durable || (group.has_unwritten_entries() && durable > Position(0))
            {
                groups.push((group, durable));
            }
        }
        *self.unfinished_recovery.lock() = Some(UnfinishedRecovery {
            journal,
            groups,
            is_retained,
        });
    }

    /// Finishes recovery, if that can be done now.
    pub fn try_to_finish_recovery(&self) {
        if let Err(error) = self.finish_recovery() {
            tracing::warn!(%error, "the journal of the last run stays for now");
        }
    }

    /// The last step of recovery: persists the replayed groups, and removes the old journal. On a full
    /// disk it is tried again when there is room.
    pub fn finish_recovery(&self) -> Result<()> {
        let mut unfinished = self.unfinished_recovery.lock();
        let Some(UnfinishedRecovery {
            journal,
            groups,
            is_retained,
        }) = &*unfinished
        else {
            return Ok(());
        };
        self.persist(groups.iter().map(|(group, _)| Arc::clone(group)).collect());
        let is_live =
            |(group, to): &&(Arc<Group>, Position)| !group.is_removed() && group.synced() < *to;
        // Chunks of failed lanes stay in the journal until the next start.
        let (failed, waiting): (Vec<_>, Vec<_>) = groups
            .iter()
            .filter(is_live)
            .partition(|(group, _)| group.has_failed());
        self.recovery_waits
            .store(!waiting.is_empty(), Ordering::Relaxed);
        if let Some((group, _)) = failed.first().or(waiting.first()) {
            let lane = self.lane(group.lane).filter(|_| group.has_failed());
            let fault = lane.and_then(|lane| lane.fault().cloned());
            return Err(fault.unwrap_or_else(|| self.appends.disk.full_error()));
        }
        if !journal.is_empty() && !is_retained {
            journal.remove(&self.dir)?;
        }
        *unfinished = None;
        Ok(())
    }
}

//! The end of a log: all that was appended becomes durable, and the files hold it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::files::clean_stop::CleanStop;
use crate::group::Group;
use crate::ids::LaneId;
use crate::journal::old::OldJournal;
use crate::lane::LaneState;
use crate::log::Inner;
use crate::produce::wait::wait_durable;
use crate::settings::config::Durability;

impl Inner {
    pub(super) fn close(&self) -> Result<()> {
        // All at once, not one after another as they are waited for.
        self.core.appends.queue.hurry_unsynced(|_| true);
        if self.core.appends.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.core.appends.disk.wake();
        // A pass stops at its next read or write.
        self.core.compactor.signal.close();
        let lanes = self.core.made_lanes();

        // Step 1: appended chunks become durable, while the persistence manager still helps. A
        // lane that fails has reported that to its waiters.
        for lane in &lanes {
            let _ = wait_durable(&self.core, lane, lane.next_offset());
        }
        self.core.appends.queue.close();
        for thread in std::mem::take(&mut *self.syncers.lock()) {
            // A syncer that panicked has printed its panic.
            let _ = thread.join();
        }
        self.core.appends.persister.close();
        if let Some(thread) = self.persister.lock().take() {
            let _ = thread.join();
        }
        if let Some(thread) = self.compactor.lock().take() {
            let _ = thread.join();
        }
        self.core.key_builder.close();
        // Lookups make key files, too.
        self.core.reads.key_files.close();
        if let Some(thread) = self.key_builder.lock().take() {
            let _ = thread.join();
        }
        self.core.reads.catch_up.close();
        let recovered = self.core.finish_recovery();
        // The waits above fail at once while the disk is full, yet the disk still syncs the bytes in its files.
        let written = |lane: &&Arc<LaneState>| lane.stream.durability == Durability::Written;
        self.core
            .sync_written(lanes.iter().filter(written).cloned().collect());

        // Step 2: files hold everything, and their indexes are whole.
        let mut open = Vec::new();
        for lane in &lanes {
            if !lane.is_memory_only() {
                lane.index_end();
                open.extend(lane.last_group());
            }
        }
        open.retain(|group| {
            group.synced() < group.durable() || (group.has_file() && group.has_unwritten_entries())
        });
        self.core.persist(open);
        self.core.release_journal(1.0);
        self.core.journal.remove_files(&self.core.dir)?;

        // Step 3: from here on nothing is written, so the next start need not expect a torn write.
        if let Err(error) = self.record_clean_stop(&lanes) {
            tracing::warn!(%error, "the stop is not recorded as clean; the next start treats it as a crash");
        }
        self.core.dir.unlock();
        // Chunks that could not go to their files on a full disk are durable in the journal.
        match recovered {
            Err(error) if !error.is_disk_full() => return Err(error),
            _ => {}
        }
        let is_durable = |lane: &Arc<LaneState>| lane.durable_offset() == lane.next_offset();
        if self.core.appends.disk.is_full() && !lanes.iter().all(is_durable) {
            return Err(self.core.appends.disk.full_error());
        }
        Ok(())
    }
}

impl Inner {
    /// Records that the files of all lanes end behind their last chunks, but for those that failed in this run. Records
    /// nothing where the journal still holds chunks, or some are not durable.
    fn record_clean_stop(&self, lanes: &[Arc<LaneState>]) -> Result<()> {
        let dir = &self.core.dir;
        let (failed, others): (Vec<_>, Vec<_>) = lanes
            .iter()
            .filter(|lane| !lane.is_memory_only())
            .partition(|lane| lane.fault().is_some());
        let is_synced = |group: Arc<Group>| group.is_removed() || group.synced() == group.durable();
        let is_whole = |lane: &&Arc<LaneState>| {
            lane.durable_offset() == lane.next_offset() && lane.groups().into_iter().all(is_synced)
        };
        if !OldJournal::find(dir)?.is_empty() || !others.iter().all(is_whole) {
            return Ok(());
        }
        // Lanes that this run found damaged after the last clean stop took no writes.
        let still_untorn = CleanStop::read(dir, true)?;
        let mut torn: BTreeSet<LaneId> = failed.iter().map(|lane| lane.id).collect();
        torn.retain(|lane| !still_untorn.covers(*lane));
        CleanStop::AllBut(torn).store(dir)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "log not closed cleanly; the next start recovers it");
        }
    }
}

//! Commits: a syncer makes appended chunks durable, or writes them to their groups' files.
//!
//! A virtual log's pending runs go with the next block of the [`journal`], or [`direct`]ly to the file of their group,
//! or to the file without a sync ([`written`]). Each is a function that does one step: threads call it in a loop, tests
//! call it one by one.
//!
//! A virtual log is with one syncer at a time, so its runs become durable in the order of their appends. Chunks behind
//! one that failed never become durable.
//!
//! A commit knows neither retention nor readers; it wakes the persistence manager when the journal or the disk is full.

pub mod direct;
pub mod journal;
pub mod settle;
pub mod written;

use crate::core::Core;
use crate::lane::sync_queue::SyncTask;
use crate::settings::config::Durability;

impl Core {
    /// Makes one commit, if anything waits for it. `true` when it did something.
    pub fn sync_step(&self) -> bool {
        match self.appends.queue.try_take() {
            Some(task) => {
                self.commit(task);
                true
            }
            None => false,
        }
    }

    /// Makes one commit.
    pub fn commit(&self, task: SyncTask) {
        match task {
            SyncTask::Direct(log) if log.durability == Durability::Written => {
                self.commit_written(&log);
            }
            SyncTask::Direct(log) => self.commit_direct(&log),
            SyncTask::Unsynced(lanes) => {
                self.sync_written(lanes);
                self.appends.queue.unsynced_done();
            }
            SyncTask::Journal(logs) => {
                self.commit_to_journal(logs);
                self.appends.queue.journal_done();
            }
        }
        self.trim_after_commit();
    }
}

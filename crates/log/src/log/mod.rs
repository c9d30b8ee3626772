//! The log of one node, for its users: to open, use and close it.
//!
//! A stream is used only after its catalog entry is durable, and its files are removed only after the entry's end is
//! ([`lifecycle`]). One change of a stream is made at a time. This folder stands on all others but repair and subscriptions.

pub mod background;
pub mod close;
pub mod cursors;
pub mod delete_records;
mod epochs;
pub mod holds;
pub mod lifecycle;
pub mod objects;
pub mod open;
pub mod stats;
pub mod streams;
pub mod upgraded;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use hashbrown::{HashMap, HashSet};
use millstream_base::{ByteSize, Clock, Random, StreamId};
use parking_lot::{Condvar, Mutex};

use crate::catalog::table::Table;
use crate::compact::PassReport;
use crate::core::Core;
use crate::error::Result;
use crate::memory::pool::Pool;
use crate::shared_group::SharedGroup;

/// The log of one node.
#[derive(Debug, Clone)]
pub struct Log {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    pub(crate) catalog: Arc<Table>,
    positions: Arc<Table>,
    shared_groups: Mutex<HashMap<(StreamId, String), Arc<SharedGroup>>>,
    /// Removals and changes are done one at a time.
    pub(crate) changing: Mutex<()>,
    /// Names whose streams are being created: not to be used before that is durable.
    creating: Mutex<HashSet<String>>,
    /// Some name is not in `creating` any more.
    created: Condvar,
    pub(crate) random: Arc<dyn Random>,
    syncers: Mutex<Vec<JoinHandle<()>>>,
    persister: Mutex<Option<JoinHandle<()>>>,
    /// The thread that makes key files.
    key_builder: Mutex<Option<JoinHandle<()>>>,
    /// The thread that compacts.
    compactor: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// The data directory.
    pub fn dir(&self) -> &Path {
        &self.inner.core.dir.root
    }

    /// The memory that holds its data.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.inner.core.pool
    }

    /// The clock that the log was opened with.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.core.clock
    }

    /// See [`LogConfig::compaction_rate`](crate::LogConfig::compaction_rate).
    pub fn compaction_rate(&self) -> ByteSize {
        self.inner.core.config.compaction_rate
    }

    /// Removes the groups that retention has expired, at once. The background threads do it from time to time.
    ///
    /// # Errors
    /// When files cannot be removed.
    pub fn apply_retention(&self) -> Result<u64> {
        self.inner.core.retain(self.inner.core.clock.now())
    }

    /// Compacts all keyed streams at once, as far as their settings allow it: of the records in closed groups the newest of
    /// each key stay. Returns the sum of all passes.
    ///
    /// # Errors
    /// When groups cannot be read or written. Those that were not compacted stay as they are.
    pub fn compact(&self) -> Result<PassReport> {
        self.end_holds();
        self.inner.core.compact_all()
    }

    /// Does one step of each kind of background work but compaction; for [`Background::Manual`](crate::Background::Manual). `true` when there
    /// was something to do.
    pub fn step(&self) -> bool {
        let core = &self.inner.core;
        core.sync_step() | core.persist_step() | core.key_step()
    }

    /// Makes one commit; for [`Background::Manual`](crate::Background::Manual).
    pub fn sync_step(&self) -> bool {
        self.inner.core.sync_step()
    }

    /// Compacts the partition that is most due, if any; for [`Background::Manual`](crate::Background::Manual). Returns whether
    /// one was due.
    pub fn compact_step(&self) -> bool {
        self.end_holds();
        self.inner.core.compact_step()
    }

    /// Brings all group files up to date, whatever the journal's fill.
    pub fn persist(&self) {
        self.inner.core.release_journal(1.0);
    }

    /// Gives the memory of all persisted segments back, as if the pool were short.
    pub fn evict(&self) {
        self.inner.core.reclaim(usize::MAX);
    }

    /// Gives back the buffers of lanes that are idle for longer than the setting allows, and gives memory back to the system that
    /// was free at the last call and ever since.
    pub fn release_idle(&self) {
        self.inner.core.release_idle();
    }

    /// Ends the log: makes everything durable, writes it to its files, and gives the data directory
    /// free. A log that is only dropped does the same.
    ///
    /// # Errors
    /// When something could not be made durable.
    pub fn close(self) -> Result<()> {
        self.inner.close()
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}

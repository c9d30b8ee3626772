//! The log's threads: syncers, the persistence manager, the one that makes key files, and the one that compacts.

use std::sync::Arc;
use std::time::Duration;

use crate::abort::AbortOnPanic;
use crate::catalog::table::Table;
use crate::core::Core;
use crate::error::{LogError, Result};
use crate::lane::persist_signal::TICK;
use crate::log::Inner;
use crate::log::holds::end_holds;
use crate::priority;

/// The most steps of persistence that a thread does before other work gets its turn.
const PERSIST_STEPS_MAX: usize = 64;

/// The interval of the search for idle lanes. Memory that stays free from one to the next goes back to the system.
const RELEASE_EVERY: Duration = Duration::from_millis(2500);

/// The interval of the search for groups that need key files.
const KEY_FILES_EVERY: Duration = Duration::from_secs(1);

/// The interval of the search for lanes that are due for compaction.
const COMPACT_EVERY: Duration = Duration::from_secs(1);

/// Threads that make commits. They wait for the disk most of the time, so there is no harm in more
/// than cores; more than a disk works on at once would not help either.
const SYNCERS: usize = 4;

impl Inner {
    pub(super) fn start_threads(&self) -> Result<()> {
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(work)
                .map_err(|error| LogError::io("start", format!("thread {name}"), error))
        };
        for n in 0..SYNCERS {
            let core = Arc::clone(&self.core);
            let work = move || {
                let _abort = AbortOnPanic;
                while let Some(task) = core.appends.queue.take() {
                    core.commit(task);
                }
            };
            let thread = spawn(&format!("millstream-sync-{n}"), Box::new(work))?;
            self.syncers.lock().push(thread);
        }
        let core = Arc::clone(&self.core);
        let thread = spawn("millstream-persist", Box::new(move || persist_loop(&core)))?;
        *self.persister.lock() = Some(thread);
        let core = Arc::clone(&self.core);
        let thread = spawn("millstream-keys", Box::new(move || key_loop(&core)))?;
        *self.key_builder.lock() = Some(thread);
        let (core, catalog) = (Arc::clone(&self.core), Arc::clone(&self.catalog));
        let work = move || compact_loop(&core, &catalog);
        let thread = spawn("millstream-compact", Box::new(work))?;
        *self.compactor.lock() = Some(thread);
        Ok(())
    }
}

fn key_loop(core: &Core) {
    let _abort = AbortOnPanic;
    priority::lower();
    while core.key_builder.wait(KEY_FILES_EVERY) {
        while core.key_step() {}
    }
}

fn compact_loop(core: &Core, catalog: &Table) {
    let _abort = AbortOnPanic;
    priority::lower();
    while core.compactor.signal.wait(COMPACT_EVERY) {
        end_holds(core, catalog);
        while core.compact_step() {}
    }
}

fn persist_loop(core: &Core) {
    let _abort = AbortOnPanic;
    core.try_to_finish_recovery();
    let mut idle_checked = core.clock.monotonic();
    let mut retained = idle_checked;
    while core.appends.persister.wait(TICK) {
        core.appends.queue.wake_for_unsynced();
        for _ in 0..PERSIST_STEPS_MAX {
            if !core.persist_step() {
                break;
            }
        }
        let now = core.clock.monotonic();
        if now.saturating_sub(idle_checked) >= RELEASE_EVERY {
            idle_checked = now;
            core.release_idle();
        }
        if now.saturating_sub(retained) >= core.config.retention_every {
            retained = now;
            if let Err(error) = core.retain(core.clock.now()) {
                tracing::warn!(%error, "retention could not remove all that it should");
            }
        }
    }
}

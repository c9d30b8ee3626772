//! Commits of several virtual logs with one block of the journal.

use std::sync::Arc;

use crate::commit::settle::settle_durable;
use crate::core::Core;
use crate::journal::run::Run;
use crate::journal::writer::WriteOutcome;
use crate::lane::virtual_log::{COMMIT_BYTES_MAX, PendingRun, VirtualLog};

/// The journal is emptied into group files when it is fuller than this.
pub const JOURNAL_FILL_MAX: f64 = 0.5;

impl Core {
    /// Writes runs of several virtual logs, as many as fit, as one block of the journal.
    pub fn commit_to_journal(&self, logs: Vec<Arc<VirtualLog>>) {
        let mut room = COMMIT_BYTES_MAX.min(self.journal.block_bytes_max());
        let mut taken: Vec<(Arc<VirtualLog>, Vec<PendingRun>)> = Vec::with_capacity(logs.len());
        for log in logs {
            if room == 0 || log.is_direct() {
                self.appends.queue.add_now(log);
                continue;
            }
            let mut runs = log.take(room);
            self.drop_faulted(&mut runs);
            let bytes: usize = runs.iter().map(|pending| pending.run.slice.len()).sum();
            room = room.saturating_sub(bytes);
            taken.push((log, runs));
        }

        // Where there are very many small runs, the directory may leave no room for all.
        let all: Vec<&Run> = taken
            .iter()
            .flat_map(|(_, runs)| runs.iter().map(|pending| &pending.run))
            .collect();
        let fitting = self.journal.fitting(all.iter().copied());
        let mut count = 0;
        let mut left = Vec::new();
        if fitting < all.len() {
            for (log, runs) in &mut taken {
                let keep = (fitting - count).min(runs.len());
                count += keep;
                left.push((Arc::clone(log), runs.split_off(keep)));
            }
        }
        for (log, runs) in left {
            log.put_back(runs);
        }
        let runs: Vec<&Run> = taken
            .iter()
            .flat_map(|(_, runs)| runs.iter().map(|pending| &pending.run))
            .collect();
        let outcome = if runs.is_empty() {
            Ok(WriteOutcome::Durable)
        } else {
            self.journal.write(&self.dir, &runs)
        };
        match outcome {
            Ok(WriteOutcome::Durable) => {
                for (log, runs) in taken {
                    settle_durable(runs);
                    self.go_on(&log);
                }
            }
            Ok(WriteOutcome::NoFile) => {
                for (log, runs) in taken {
                    log.put_back(runs);
                    self.stalled.lock().push(log);
                }
                self.appends.persister.notify();
            }
            Err(error) => self.settle_failed(taken, &error),
        }
        if self.journal.fill() > JOURNAL_FILL_MAX {
            self.appends.persister.notify();
        }
    }
}

//! One round of the persistence manager.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::commit::journal::JOURNAL_FILL_MAX;
use crate::core::Core;
use crate::lane::context::POOL_FREE_MIN;
use crate::memory::pool::Arena;

/// … until this part is.
const POOL_FREE_GOAL: f64 = 0.375;

impl Core {
    /// Runs one round of the persistence manager. Returns whether it did anything.
    pub fn persist_step(&self) -> bool {
        let now = self.tick();
        let mut worked = false;
        if self.appends.disk.is_full() {
            self.probe_disk(now);
            if self.appends.disk.is_full() {
                return false;
            }
            worked = true;
        }
        if self.recovery_waits.swap(false, Ordering::Relaxed) {
            self.try_to_finish_recovery();
            if self.appends.disk.is_full() {
                return false;
            }
            worked = true;
        }
        let stalled = !self.stalled.lock().is_empty();
        if self.journal.fill() > JOURNAL_FILL_MAX || stalled {
            worked |= self.release_journal(JOURNAL_FILL_MAX);
        }
        if !self.appends.disk.is_full() && self.journal.has_room() {
            worked |= !self.stalled.lock().is_empty();
            self.release_stalled();
        }
        let goal = |share: f64| (self.pool.size_bytes(Arena::Segments) as f64 * share) as usize;
        let starved = self.starved.swap(false, Ordering::Relaxed);
        if self.appends.free_bytes() < goal(POOL_FREE_MIN) {
            worked |= self.reclaim(goal(POOL_FREE_GOAL));
        } else if starved {
            // The free memory lies in pieces that are too small.
            worked |= self.reclaim(usize::MAX);
        } else if self.exceeds_goal.swap(false, Ordering::Relaxed) | self.appends.wants_trim() {
            worked |= self.trim_and_persist();
        }
        worked | self.remove_replaced()
    }

    pub fn tick(&self) -> Duration {
        let now = self.clock.monotonic();
        self.appends.set_recently(now);
        now
    }
}

//! Removes the files of groups that a rewrite has replaced.

use std::sync::Arc;
use std::time::Duration;

use crate::core::Core;
use crate::group::Group;

/// The time until a failed removal of a file is retried.
const RETRY_AFTER: Duration = Duration::from_secs(15);

impl Core {
    /// Removes the files of replaced groups that no reader has, `file.delete.delay.ms` after they were replaced. `true` if it
    /// removed any.
    pub fn remove_replaced(&self) -> bool {
        let mut replaced = self.replaced.lock();
        if replaced.is_empty() {
            return false;
        }
        let now = self.clock.monotonic();
        let before = replaced.len();
        replaced.retain_mut(|old| {
            let is_deleted = self.stream(old.group.lane.stream).is_none();
            if !is_deleted && (now < old.stays_until || !self.is_unused(&old.group)) {
                return true;
            }
            let removed = old.group.remove(&self.dir);
            if let Err(error) = &removed {
                tracing::warn!(stream = %old.group.lane.stream, group = %old.group.id, %error,
                    "the files of a group that was compacted cannot be removed yet");
                old.stays_until = now + RETRY_AFTER;
            }
            removed.is_err()
        });
        replaced.len() < before
    }

    /// Whether no reader has a replaced group. Caches give it up.
    fn is_unused(&self, group: &Arc<Group>) -> bool {
        self.appends.residents.lock().retain(|resident| {
            !Arc::ptr_eq(&resident.group, group) || group.evict(resident.segment).is_none()
        });
        self.reads.catch_up.forget_group(group);
        self.journal.forget_settled(group);
        Arc::strong_count(group) == 1
    }
}

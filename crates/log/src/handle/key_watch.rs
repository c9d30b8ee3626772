//! The positions of watches: whether a watch of keys that has all changes before an offset can go on there.

use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_record::{Life, Record};

use crate::error::{LogError, Result};
use crate::handle::partition::StreamPartition;
use crate::settings::config::Durability;

/// Reasons of [`LogError::ChangesLost`].
pub const RECORDS_REMOVED: &str =
    "retention or an administrator has removed records behind the position";
pub const DELETIONS_DROPPED: &str = "compaction has dropped deletions behind the position, since they are older than the setting \
                                 delete.retention.ms, or values that have ended by the setting millstream.keyed.clock";
const HISTORY_LOST: &str = "records before the position were lost, for example by a crash, and others may have their offsets now";

impl StreamPartition {
    /// Returns the epoch of the positions that a reader gets now: see [`has_history`](Self::has_history).
    pub fn watch_epoch(&self) -> i32 {
        match self.durability() {
            // All is lost with each stop.
            Durability::Memory => self.core.run,
            _ => self.leader_epoch(),
        }
    }

    /// Returns whether no record before an offset was lost since a reader came to it in a certain [epoch](Self::watch_epoch).
    /// Retention may have removed some.
    pub fn has_history(&self, offset: Offset, epoch: i32) -> bool {
        match self.durability() {
            Durability::Memory => epoch == self.core.run,
            _ => self.epoch_end(epoch).is_some_and(|(_, end)| offset <= end),
        }
    }

    /// Checks that a watch can continue at an offset, which it reached in a certain [epoch](Self::watch_epoch): from there on
    /// the partition still has the newest change of each key that has changed, and no record before the offset was lost since.
    ///
    /// # Errors
    /// When that is not so ([`LogError::ChangesLost`]).
    pub fn check_watch(&self, offset: Offset, epoch: i32) -> Result<()> {
        if !self.has_history(offset, epoch) {
            return Err(self.changes_lost(offset, HISTORY_LOST));
        }
        if offset < self.earliest_offset() {
            return Err(self.changes_lost(offset, RECORDS_REMOVED));
        }
        self.check_deletions(offset)
    }

    /// Returns how long values live that name no end of their own.
    pub fn ttl(&self) -> Option<Duration> {
        self.lane.stream.limits.ttl()
    }

    /// Returns the time that the ends of values are compared with: see [`KEYED_CLOCK`](crate::KEYED_CLOCK).
    pub fn keyed_now(&self) -> Timestamp {
        let clock = self.lane.stream.limits.keyed_clock();
        clock.now(|| self.core.clock.now())
    }

    /// Returns the value of a record as look-ups see it now, and when it ends; `None` if there is none, or it has ended.
    pub fn value_of<'r>(&self, record: &Record<'r>) -> Option<(&'r [u8], Option<Timestamp>)> {
        let end = Life::of(record).end(self.ttl());
        let is_over = end.is_some_and(|end| end <= self.keyed_now());
        let value = record.value.filter(|_| !is_over)?;
        Some((value, end))
    }

    /// Checks that no deletion at or behind an offset was dropped that is the newest version of its key.
    pub(crate) fn check_deletions(&self, offset: Offset) -> Result<()> {
        match self.lane.deletions_from() <= offset {
            true => Ok(()),
            false => Err(self.changes_lost(offset, DELETIONS_DROPPED)),
        }
    }

    pub(crate) fn changes_lost(&self, offset: Offset, why: &'static str) -> LogError {
        LogError::ChangesLost {
            stream: self.lane.stream.name.clone(),
            partition: self.lane.partition,
            offset,
            why,
        }
    }
}

//! Figures about compaction.

use std::sync::atomic::{AtomicI64, AtomicU64};

use millstream_base::{Offset, Timestamp};
use serde::Serialize;

/// The compaction of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CompactionStats {
    /// Bytes of the groups that could be compacted when compaction last checked the partition: closed ones, whose
    /// transactions have ended and whose records are old enough.
    pub total_bytes: u64,
    /// The bytes of `total_bytes` that were written since the last pass.
    pub dirty_bytes: u64,
    /// The partition is compacted up to this offset; 0 if it never was.
    pub compacted_to: Offset,
    /// When the last pass ended; `None` if there was none.
    pub compacted_at: Option<Timestamp>,
    /// Passes since the start.
    pub passes: u64,
    /// Bytes that they read, of the groups that they replaced …
    pub bytes_before: u64,
    /// … and bytes of the groups in their place.
    pub bytes_after: u64,
    /// Passes since the start that have failed.
    pub failed: u64,
    /// Why the last pass has failed; `None` if it has not.
    pub fault: Option<String>,
}

impl CompactionStats {
    /// Returns the share of dirty bytes, from 0 to 1.
    pub fn dirty_ratio(&self) -> f64 {
        self.dirty_bytes as f64 / self.total_bytes.max(1) as f64
    }
}

/// Counts of all lanes together since the start. Written by the thread that compacts, read by statistics.
#[derive(Debug, Default)]
pub struct CompactionCounters {
    pub passes: AtomicU64,
    pub failed: AtomicU64,
    pub bytes_before: AtomicU64,
    pub bytes_after: AtomicU64,
    pub records_dropped: AtomicU64,
    /// Lanes that are due.
    pub due_lanes: AtomicU64,
    /// Lanes whose last pass has failed.
    pub failing_lanes: AtomicU64,
    /// When the last pass ended; 0 before the first one.
    pub ended_at: AtomicI64,
}

/// The compaction of all streams of a log together. Counts are since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LogCompaction {
    /// Passes, each over one partition.
    pub passes: u64,
    /// Passes that have failed.
    pub failed: u64,
    /// Bytes of the groups that passes have replaced …
    pub bytes_before: u64,
    /// … and of the groups in their place.
    pub bytes_after: u64,
    /// Records that passes have dropped.
    pub records_dropped: u64,
    /// When the last pass ended; `None` if there was none.
    pub ended_at: Option<Timestamp>,
    /// Partitions that are due.
    pub due_partitions: u64,
    /// Partitions whose last pass has failed.
    pub failing_partitions: u64,
    /// Groups that were replaced and whose files are still there: readers may have them.
    pub replaced_groups: u64,
}

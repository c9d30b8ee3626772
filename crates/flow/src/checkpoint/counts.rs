//! The figures of a flow's checkpoints, for its owner.

use serde::{Deserialize, Serialize};

/// Statistics of a flow's checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointCounts {
    /// Shards of this rank that are stored.
    pub kept: u64,
    /// Attempts to store a shard that failed. There may be many for one shard: it is tried again, as long as prepared
    /// results wait for it, and counts as kept when one succeeds. On rank 0 those to store the record of a checkpoint are
    /// among them.
    pub failed: u64,
    /// Why the last of them failed.
    pub error: Option<String>,
    /// The time from one checkpoint to the next, in seconds: it may adapt to their cost.
    pub interval_seconds: f64,
    /// The last shard of this rank that is stored, even by an earlier run.
    pub last: Option<LastCheckpoint>,
}

/// The last shard of a checkpoint that a rank has stored. A checkpoint is complete when all ranks have stored theirs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LastCheckpoint {
    /// The checkpoint's number.
    pub number: u64,
    /// The time at which it was stored, in milliseconds since 1970; `None` for a checkpoint of an earlier run.
    pub kept_at_ms: Option<i64>,
    /// How long ago that was, in seconds.
    pub age_seconds: Option<f64>,
    /// How long it took to write.
    pub seconds: Option<f64>,
    /// How long the sources paused for it before.
    pub pause_seconds: Option<f64>,
    /// Its size.
    pub bytes: Option<u64>,
    /// The changes of state elements that it names in their changelogs.
    pub changes: Option<u64>,
    /// The bytes of the keys and values of these changes.
    pub change_bytes: Option<u64>,
}

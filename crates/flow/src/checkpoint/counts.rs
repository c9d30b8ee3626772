//! The figures of a flow's checkpoints, for its owner.

use serde::Serialize;

/// How a flow's checkpoints fare.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CheckpointCounts {
    /// Parts of this rank that are kept for good.
    pub kept: u64,
    /// Parts that could not be kept.
    pub failed: u64,
    /// Why the last of them could not.
    pub error: Option<String>,
    /// The last part of this rank that is kept, be it of a run before.
    pub last: Option<LastCheckpoint>,
}

/// The last part of a checkpoint that a rank has kept. A checkpoint is complete when all ranks have kept theirs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LastCheckpoint {
    /// The checkpoint's number.
    pub number: u64,
    /// When it was kept, in milliseconds since 1970; `None` for that of an earlier run.
    pub kept_at_ms: Option<i64>,
    /// How long ago that was, in seconds.
    pub age_seconds: Option<f64>,
    /// How long it took to write.
    pub seconds: Option<f64>,
    /// Its size.
    pub bytes: Option<u64>,
}

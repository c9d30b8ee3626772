//! Stores of checkpoints: the contract that programs implement, and the settings of a flow's checkpoints.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::BoxError;

/// Holds a place of checkpoints for one run of a flow, until it is dropped or the process ends.
pub type PlaceLock = Box<dyn Send + Sync>;

/// A store of checkpoints. All ranks of a flow see the same store.
pub trait Checkpoints: Send + Sync + 'static {
    /// Locks the store for one run, so that no other run stores its checkpoints there meanwhile. Rank 0 locks it
    /// before it lists the shards, and unlocks it when its last shard is stored. `None` where the store cannot be
    /// locked.
    ///
    /// # Errors
    /// When another run holds the place; then the flow does not begin.
    fn lock(&self) -> Result<Option<PlaceLock>, BoxError> {
        Ok(None)
    }

    /// Stores the shard of a rank, whole or not at all, and so that it outlasts a crash.
    ///
    /// # Errors
    /// The flow goes on, and tries again with the next checkpoint. When it is the first one, the flow does not begin.
    fn put(&self, key: PartKey, part: &[u8]) -> Result<(), BoxError>;

    /// Returns a stored shard.
    ///
    /// # Errors
    /// When it cannot be read.
    fn get(&self, key: PartKey) -> Result<Vec<u8>, BoxError>;

    /// Lists all stored shards.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn list(&self) -> Result<Vec<PartKey>, BoxError>;

    /// Removes a shard.
    ///
    /// # Errors
    /// When it stays; it does no harm.
    fn remove(&self, key: PartKey) -> Result<(), BoxError>;

    /// Describes where a shard is, for messages.
    fn describe(&self, key: PartKey) -> String {
        let PartKey { checkpoint, rank } = key;
        format!("the part of rank {rank} of checkpoint {checkpoint}")
    }
}

/// Names a shard: a rank's share of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartKey {
    /// Counted from 1 by the flow's runs together; the last one of a run may lie far behind the others.
    pub checkpoint: u64,
    /// The rank.
    pub rank: u32,
}

/// The settings of a flow's checkpoints.
#[derive(Clone)]
pub struct Checkpointing {
    /// Where.
    pub place: Arc<dyn Checkpoints>,
    /// How often.
    pub interval: Duration,
    /// Where it begins.
    pub resume: Resume,
}

/// Whether a flow resumes from the last complete checkpoint: the last of which all ranks have stored their shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// It begins at the start, and there must be no checkpoint.
    Never,
    /// It resumes from one if there is one; else it begins at the start. For programs that are started again by
    /// themselves.
    IfAny,
    /// There must be one.
    Always,
}

impl fmt::Debug for Checkpointing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpointing")
            .field("interval", &self.interval)
            .field("resume", &self.resume)
            .finish_non_exhaustive()
    }
}

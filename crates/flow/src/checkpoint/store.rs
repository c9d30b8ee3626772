//! Stores of checkpoints: the contract that programs implement, and the settings of a flow's checkpoints.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::BoxError;

/// Holds a place of checkpoints for one run of a flow, until it is dropped or the process ends.
pub type PlaceLock = Box<dyn Send + Sync>;

/// Where checkpoints are kept. All ranks of a flow see the same place.
pub trait Checkpoints: Send + Sync + 'static {
    /// Holds the place for one run, so that no other run keeps its checkpoints there meanwhile. Rank 0 asks for it before
    /// it looks at what is there, and lets it go when its last part is kept. `None` where the place cannot be held.
    ///
    /// # Errors
    /// When another run holds the place; then the flow does not begin.
    fn lock(&self) -> Result<Option<PlaceLock>, BoxError> {
        Ok(None)
    }

    /// Keeps the part of a rank, whole or not at all, and so that it outlasts a crash.
    ///
    /// # Errors
    /// The flow goes on, and tries again with the next checkpoint. When it is the first one, the flow does not begin.
    fn put(&self, key: PartKey, part: &[u8]) -> Result<(), BoxError>;

    /// A part that was kept.
    ///
    /// # Errors
    /// When it cannot be read.
    fn get(&self, key: PartKey) -> Result<Vec<u8>, BoxError>;

    /// All parts that are kept.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn list(&self) -> Result<Vec<PartKey>, BoxError>;

    /// Forgets a part.
    ///
    /// # Errors
    /// When it stays; it does no harm.
    fn remove(&self, key: PartKey) -> Result<(), BoxError>;

    /// Where a part is, for messages.
    fn describe(&self, key: PartKey) -> String {
        let PartKey { checkpoint, rank } = key;
        format!("the part of rank {rank} of checkpoint {checkpoint}")
    }
}

/// Which part of which checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartKey {
    /// Counted from 1 by the flow's runs together; the last one of a run may lie far behind the others.
    pub checkpoint: u64,
    /// Whose part it is.
    pub rank: u32,
}

/// How a flow keeps checkpoints.
#[derive(Clone)]
pub struct Checkpointing {
    /// Where.
    pub place: Arc<dyn Checkpoints>,
    /// How often.
    pub interval: Duration,
    /// Where it begins.
    pub resume: Resume,
}

/// Whether a flow goes on from the last checkpoint that is complete: of which all ranks have kept their parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// It begins at the start, and there must be no checkpoint.
    Never,
    /// If there is one; else it begins at the start. For those who start it again without looking what there is.
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

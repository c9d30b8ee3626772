//! Stores of checkpoints: the contract that programs implement, and the settings of a flow's checkpoints.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::checkpoint::changelog::Changelog;
use crate::checkpoint::pace::INTERVAL_MIN;
use crate::error::BoxError;
use crate::state::watched::WatchedChangelog;

/// Holds the lock of a store of checkpoints for one run of a flow, until it is dropped or the process ends.
pub type StoreLock = Box<dyn Send + Sync>;

/// A store of checkpoints. All ranks of a flow see the same store.
pub trait Checkpoints: Send + Sync + 'static {
    /// Locks the store for one run, so that no other run stores its checkpoints there meanwhile. Rank 0 locks it
    /// before it lists the shards, and unlocks it when its last shard is stored. `None` where the store cannot be
    /// locked.
    ///
    /// A store with [`records`](Self::records) may instead take the lock from an earlier run that still goes on: see
    /// [`CheckpointRecords::append`].
    ///
    /// # Errors
    /// When another run holds the store; then the flow does not begin.
    fn lock(&self) -> Result<Option<StoreLock>, BoxError> {
        Ok(None)
    }

    /// Returns the store's records of complete checkpoints. `None` where it has none: there, a checkpoint is complete when
    /// the shards of all ranks are stored. Always the same.
    fn records(&self) -> Option<&dyn CheckpointRecords> {
        None
    }

    /// Stores the shard of a rank, whole or not at all, and so that it outlasts a crash. After an error the same shard may
    /// be put again; if it is stored after all, it must not be missing meanwhile: other ranks may have removed older ones.
    ///
    /// # Errors
    /// A [`FinalError`](crate::FinalError) ends the flow. After others it continues, and tries again: with the next
    /// checkpoint, or with the same shard after a pause if sinks or changelogs wait for it. If the first one fails, the
    /// flow does not begin. If the last one fails, the flow fails, unless a [`PassingError`](crate::PassingError) has passed.
    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError>;

    /// Returns a stored shard.
    ///
    /// # Errors
    /// When it cannot be read.
    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError>;

    /// Lists all stored shards.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn list(&self) -> Result<Vec<ShardKey>, BoxError>;

    /// Removes a shard.
    ///
    /// # Errors
    /// When it stays; it does no harm.
    fn remove(&self, key: ShardKey) -> Result<(), BoxError>;

    /// Opens the changelog of the state element `element` of a flow: then a checkpoint appends only the keys that have
    /// changed since the checkpoint before. `None` where the store has no changelogs: then the element is saved whole, in
    /// the shard. Called once per element and run. Each rank opens its own handle before the ranks agree that they begin,
    /// so several may create the stream at once, and nothing of an earlier run is decided yet. It may wait.
    ///
    /// # Errors
    /// When it cannot be opened: the flow does not begin.
    fn changelog(
        &self,
        _flow: &str,
        _element: &str,
    ) -> Result<Option<Box<dyn Changelog>>, BoxError> {
        Ok(None)
    }

    /// Returns the same changelog for readers that watch it; `None` where the changes are in no stream. It does not wait.
    fn watched_changelog(&self, _flow: &str, _element: &str) -> Option<Arc<dyn WatchedChangelog>> {
        None
    }

    /// Whether a changelog also restores an older checkpoint, while its shards are stored: they name their changes. Otherwise
    /// the changelogs have later changes, and restore only the last complete checkpoint.
    fn changelogs_go_back(&self) -> bool {
        false
    }

    /// Returns the shortest interval of checkpoints that adapts to their cost: longer than by default where writes disturb
    /// others.
    fn interval_min(&self) -> Duration {
        INTERVAL_MIN
    }

    /// Describes where a shard is, for messages.
    fn describe(&self, key: ShardKey) -> String {
        let ShardKey {
            checkpoint, rank, ..
        } = key;
        format!("the shard of rank {rank} of checkpoint {checkpoint}")
    }
}

/// The records of the complete checkpoints of one flow. Only the last one counts.
pub trait CheckpointRecords {
    /// Returns the last record, if there is any: at least the last one of the runs that locked the store before. A record
    /// that was appended since then may be found a moment later. Also called before the store is locked, while another run
    /// may go on.
    ///
    /// # Errors
    /// When it cannot be read.
    fn last(&self) -> Result<Option<Vec<u8>>, BoxError>;

    /// Appends a record, which replaces the previous one. Returns when it is durable. Only rank 0 calls this, while
    /// it has [locked](Checkpoints::lock) the store.
    ///
    /// # Errors
    /// A [`FinalError`](crate::FinalError) if another run has locked the store since: then the record never counts. After
    /// others it may count or not, and is appended again.
    fn append(&self, record: &[u8]) -> Result<(), BoxError>;

    /// Describes where the record is, for messages.
    fn describe(&self) -> String;
}

/// Names a shard: a rank's share of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardKey {
    /// Counted from 1 by the flow's runs together; the last one of a run may lie far behind the others.
    pub checkpoint: u64,
    /// The rank.
    pub rank: u32,
    /// The run that stores it, in a store with records, so that no two runs use one name; otherwise 0.
    pub run: u64,
}

/// The settings of a flow's checkpoints.
#[derive(Clone)]
pub struct Checkpointing {
    /// The store of the checkpoints.
    pub store: Arc<dyn Checkpoints>,
    /// The time from one checkpoint to the next. Without one it adapts: from 10 ms, or the store's
    /// [least interval](Checkpoints::interval_min), to 10 s, at least five times the cost of the last checkpoint. That is
    /// the pause of the sources and the time to store it. Nothing is stored while nothing is processed.
    pub interval: Option<Duration>,
    /// Whether the flow resumes from a checkpoint.
    pub resume: Resume,
}

/// Whether a flow resumes from the last complete checkpoint: the last of which all ranks have stored their shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// The flow begins at the start, and there must be no checkpoint.
    Never,
    /// The flow resumes from a checkpoint if there is one, and otherwise begins at the start. For programs that a
    /// supervisor restarts.
    IfAny,
    /// The flow resumes from a checkpoint; there must be one.
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

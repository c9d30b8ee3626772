//! The contract of state elements whose changes are noted from checkpoint to checkpoint, and can go to a changelog.

use std::sync::Arc;
use std::task::Waker;

use crate::error::BoxError;
use crate::state::change::Change;
use crate::state::changelog_reader::ChangelogReader;
use crate::state::loading::LoadThreads;
use crate::state::watched::ShownChange;

/// Writes changes.
pub type WriteChanges<'a> = dyn FnMut(Changes<'_>) -> Result<(), BoxError> + 'a;

/// Changes of different keys, each encoded when it is asked for.
pub type Changes<'a> = &'a mut dyn Iterator<Item = Result<Change, BoxError>>;

/// The part of a checkpoint that belongs to an element beside its changes.
pub struct StateHead {
    pub bytes: Vec<u8>,
    /// The time, in milliseconds, that the element has passed on this rank: when it resumes from here, it needs no changes that
    /// expire by then. `None` if it has no time yet.
    pub passed: Option<i64>,
}

/// A state element, whatever the types of its keys and values.
pub trait LoggedState: Send + Sync {
    /// Notes the keys that change from now on, also by restoring them whole.
    fn note_changes(&self);

    /// Whether readers may ask for the values of the last complete checkpoint: then these are noted in a flow whose
    /// checkpoints have the element whole, too.
    fn has_history(&self) -> bool {
        false
    }

    /// Returns what a checkpoint has of the element beside its changes, the element being at rest; `None` for nothing.
    ///
    /// # Errors
    /// When it cannot be encoded.
    fn head(&self, _checkpoint: u64) -> Result<Option<StateHead>, BoxError> {
        Ok(None)
    }

    /// Restores the bytes of a [`head`](Self::head), before the changes.
    ///
    /// # Errors
    /// When it is none.
    fn restore_head(&self, _head: &[u8]) -> Result<(), BoxError> {
        Err("the element has no head".into())
    }

    /// Whether its values have a lifetime: then the changelog has the times of their last changes beside them, and each
    /// checkpoint has a head.
    fn has_lifetime(&self) -> bool {
        false
    }

    /// Takes a change that an earlier run has committed; a later one of the same key replaces it. A key that another
    /// rank owns is left out.
    ///
    /// # Errors
    /// When the key or value cannot be decoded.
    fn restore_change(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), BoxError>;

    /// Whether it can [read its values lazily](Self::read_lazily).
    fn is_lazy(&self) -> bool {
        false
    }

    /// From now on, the element may read values that the changelog has while the flow runs. With a `scan` it has none yet, and
    /// reads all, in place of [`restore_change`](Self::restore_change). `waker` wakes the workers when values have come, or
    /// one cannot be read. Called only if it [can](Self::is_lazy).
    ///
    /// # Errors
    /// When the system has no threads.
    fn read_lazily(
        &self,
        _reader: Arc<dyn ChangelogReader>,
        _scan: bool,
        _waker: Waker,
    ) -> Result<LoadThreads, BoxError> {
        Err("the element reads all changes at once".into())
    }

    /// All changes of earlier runs are taken.
    fn restored(&self) {}

    /// Notes that the changelog has something of this key, which may differ from the element.
    ///
    /// # Errors
    /// When the key cannot be decoded.
    fn note_changed(&self, key: &[u8]) -> Result<(), BoxError>;

    /// Returns a key that has a value, and the value, both encoded; `None` if there is none, or it cannot be encoded.
    fn sample(&self) -> Option<(Vec<u8>, Vec<u8>)>;

    /// Reads the bytes that [`sample`](Self::sample) returned in another run.
    ///
    /// # Errors
    /// When the key or value cannot be decoded.
    fn check_sample(&self, key: &[u8], value: &[u8]) -> Result<(), BoxError>;

    /// Whether this rank has a value for the encoded key.
    ///
    /// # Errors
    /// When the key cannot be decoded, or the value cannot be read.
    fn has(&self, key: &[u8]) -> Result<bool, BoxError>;

    /// Whether each key of the changelog is a key of the element.
    fn has_plain_keys(&self) -> bool;

    /// Whether changes are those of values that readers of the element see.
    fn is_watchable(&self) -> bool {
        true
    }

    /// Decodes a change for readers, whichever rank owns its key.
    ///
    /// # Errors
    /// When the key or value cannot be decoded.
    fn show(&self, key: &[u8], value: Option<&[u8]>) -> Result<ShownChange, BoxError>;

    /// Returns the number of keys that have changed since the last cut. Never waits.
    fn changed_keys(&self) -> usize;

    /// A checkpoint is taken of the element, which is at rest: changes from now on are behind it. Costs the same, however
    /// many keys have changed.
    fn cut(&self, checkpoint: u64);

    /// The checkpoint is complete on all ranks, as are those before it. Never waits.
    fn complete(&self, _checkpoint: u64) {}

    /// Writes the changes before `checkpoint`, the last cut, that the changelog does not have yet, as they were at the
    /// cut, while the element goes on to change.
    ///
    /// # Errors
    /// Errors of encoding, and of `write`.
    fn write(&self, checkpoint: u64, write: &mut WriteChanges<'_>) -> Result<(), BoxError>;

    /// The changelog has all changes before this checkpoint: they are written and prepared.
    fn written(&self, checkpoint: u64);

    /// Frees the memory of changes before the last complete checkpoint, and of values that memory has no room for, while the
    /// element goes on to change.
    fn sweep(&self);

    /// Returns the bytes of changes that make a checkpoint due.
    fn changed_bytes_max(&self) -> u64 {
        u64::MAX
    }
}

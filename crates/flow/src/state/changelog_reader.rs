//! The contract of changelogs whose values can be read one by one.

use std::sync::atomic::AtomicBool;

use crate::error::BoxError;

/// Takes the key and the value of each change that a changelog restores.
pub type RestoreChange<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> Result<(), BoxError> + 'a;

/// Reads the committed changes of a state element beside the rank that appends to the changelog. It may wait.
pub trait ChangelogReader: Send + Sync {
    /// Returns the newest committed value of each key; `None` for a key that has none. Returns any result early when
    /// `is_stopped` is set, if it may have to wait for long.
    ///
    /// # Errors
    /// When one cannot be read, or is no change of the element up to the checkpoint that the flow resumed from.
    fn get(
        &self,
        keys: &[Vec<u8>],
        is_stopped: &AtomicBool,
    ) -> Result<Vec<Option<Vec<u8>>>, BoxError>;

    /// Calls `each` as [`Changelog::restore`](crate::Changelog::restore) does, with every change that was committed at the
    /// time of the call, and maybe later ones. Returns early when `is_stopped` is set.
    ///
    /// # Errors
    /// Those of [`Changelog::restore`](crate::Changelog::restore).
    fn read_all(
        &self,
        is_stopped: &AtomicBool,
        each: &mut RestoreChange<'_>,
    ) -> Result<(), BoxError>;
}

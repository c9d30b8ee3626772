//! The contract of state elements whose changes can go to a changelog.

use crate::checkpoint::changelog::Change;
use crate::error::BoxError;

/// Writes changes, and returns the bytes that name them.
pub type WriteChanges<'a> = dyn FnMut(Changes<'_>) -> Result<Vec<u8>, BoxError> + 'a;

/// Changes of different keys, each encoded when it is asked for.
pub type Changes<'a> = &'a mut dyn Iterator<Item = Result<Change, BoxError>>;

/// A state element, whatever the types of its keys and values.
pub trait LoggedState: Send + Sync {
    /// Notes the keys that change from now on, also by restoring them.
    fn note_changes(&self);

    /// Takes a change that an earlier run has committed; a later one of the same key replaces it. A key that another
    /// rank owns is left out.
    ///
    /// # Errors
    /// When the key or value cannot be decoded.
    fn restore_change(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), BoxError>;

    /// Notes that the changelog has something of this key, which may differ from the element.
    ///
    /// # Errors
    /// When the key cannot be decoded.
    fn note_changed(&self, key: &[u8]) -> Result<(), BoxError>;

    /// Sets aside the changes since the last call, for [`write`](Self::write). The element is at rest.
    fn set_aside(&self);

    /// Writes the changes that were set aside. If that fails, they stay there for the next call, and
    /// [`set_aside`](Self::set_aside) replaces those of keys that have changed since.
    ///
    /// # Errors
    /// Those of encoding, and of `write`.
    fn write(&self, write: &mut WriteChanges<'_>) -> Result<Vec<u8>, BoxError>;
}

//! The contract of changelogs whose values can be read one by one.

use std::sync::atomic::AtomicBool;

use millstream_base::KeyRange;

use crate::error::BoxError;

/// Takes the key and the value of each change that a changelog restores.
pub type RestoreChange<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> Result<(), BoxError> + 'a;

/// Some values of a range of keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ValuePage {
    /// Keys with their values, in the order of the keys.
    pub values: Vec<(Vec<u8>, Vec<u8>)>,
    /// The first key that did not fit: a page from it goes on. `None` at the end of the range.
    pub next: Option<Vec<u8>>,
}

/// Reads the committed changes of a state element beside the rank that appends to the changelog. It may wait.
pub trait ChangelogReader: Send + Sync {
    /// Whether the changes take long to read, so that the flow should begin before.
    fn is_large(&self) -> bool;

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

    /// Returns the newest committed values of the keys of a range: the first `limit` of them, or fewer. A page of none that
    /// has a `next` does not end the range. Like all that follow, it returns any result early when `is_stopped` is set, if it
    /// may have to wait for long.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    fn range(
        &self,
        range: &KeyRange,
        limit: usize,
        is_stopped: &AtomicBool,
    ) -> Result<ValuePage, BoxError>;

    /// Returns the ends of the changes now: of all that this rank has flushed before, wherever they are.
    ///
    /// # Errors
    /// When they cannot be read.
    fn ends(&self, is_stopped: &AtomicBool) -> Result<Vec<u64>, BoxError>;

    /// Whether each of the changes before these [ends](Self::ends) is found by reads that begin now, or never will be: the
    /// transactions of all ranks have ended.
    ///
    /// # Errors
    /// When that cannot be read.
    fn is_stable(&self, ends: &[u64], is_stopped: &AtomicBool) -> Result<bool, BoxError>;
}

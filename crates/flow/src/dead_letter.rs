//! Items that a flow could not process.

use std::sync::Arc;

use crate::error::BoxError;

/// An item that made code of the user panic twice, or for which it answered an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Whose code it was.
    pub operator: Arc<str>,
    /// What the operator was given, as text (`Debug`), cut after 64 KiB.
    pub item: String,
    /// The message of the panic, or the error; cut after 64 KiB.
    pub error: String,
}

/// Keeps dead letters. Without one a panic or an error of user code fails the flow.
pub trait DeadLetters: Send + Sync + 'static {
    /// Keeps the letters that come of one item. It may wait: dead letters are not meant to be many.
    ///
    /// # Errors
    /// Ends the flow.
    fn put(&self, letters: &[DeadLetter]) -> Result<(), BoxError>;
}

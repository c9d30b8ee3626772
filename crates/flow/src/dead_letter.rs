//! Items that a flow could not process.

use std::sync::Arc;

use crate::error::BoxError;

/// An item that made code of the user panic twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Whose code it was.
    pub operator: Arc<str>,
    /// What the operator was given, as text (`Debug`), cut after 64 KiB.
    pub item: String,
    /// The message of the panic.
    pub error: String,
}

/// Keeps dead letters. Without one a panic of user code fails the flow.
pub trait DeadLetters: Send + Sync + 'static {
    /// Keeps a letter. It may wait: dead letters are not meant to be many.
    ///
    /// # Errors
    /// Ends the flow.
    fn put(&self, letter: &DeadLetter) -> Result<(), BoxError>;
}

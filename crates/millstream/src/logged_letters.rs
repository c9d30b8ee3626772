//! Dead letters of flows without a node.

use millstream_flow::{BoxError, DeadLetter, DeadLetters};

/// Logs dead letters without their items, for a flow without a node.
pub(crate) struct LoggedLetters;

impl DeadLetters for LoggedLetters {
    fn put(&self, letters: &[DeadLetter]) -> Result<(), BoxError> {
        for DeadLetter {
            operator, error, ..
        } in letters
        {
            tracing::warn!(operator = &**operator, "an item was left out: {error}");
        }
        Ok(())
    }
}

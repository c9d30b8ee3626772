//! What makes no sense, whatever the server or the data directory holds.

/// Arguments or settings that do not go together. The program ends with the exit code of wrong usage.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUsage(String);

impl WrongUsage {
    /// An error that says what is wrong, and what to do.
    pub fn error(what: impl Into<String>) -> anyhow::Error {
        WrongUsage(what.into()).into()
    }
}

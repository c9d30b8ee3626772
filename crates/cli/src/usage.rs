//! Errors of usage, which do not depend on the server's or the data directory's content.

/// Arguments or settings that contradict each other. The program ends with the exit code of wrong usage.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUsage(String);

impl WrongUsage {
    /// Creates an error with this message, which names the contradiction and the remedy.
    pub fn error(what: impl Into<String>) -> anyhow::Error {
        WrongUsage(what.into()).into()
    }
}

//! The classes of work.

use serde::Serialize;

/// The class of a member's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A caller waits for it: it has a slot before any best-effort work.
    Critical,
    /// It has the time that is left, and a little in any case.
    #[default]
    BestEffort,
}

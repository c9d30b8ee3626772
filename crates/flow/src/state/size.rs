//! The size of a state element.

use crate::windows::TableSize;

/// The kind of a state element, and its size on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSize {
    /// The kind, such as `values` or `windows`.
    pub kind: &'static str,
    /// The entries and their memory; `None` if they are unknown.
    pub tables: Option<TableSize>,
}

impl StateSize {
    /// A kind of unknown size.
    pub fn unknown(kind: &'static str) -> StateSize {
        StateSize { kind, tables: None }
    }
}

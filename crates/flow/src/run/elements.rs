//! The state elements of a running flow, for its owner.

use serde::{Deserialize, Serialize};

use crate::checkpoint::coordinator::Purpose;
use crate::run::workers::Workers;

/// A state element of a flow, as one rank has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateElement {
    /// Its name.
    pub name: String,
    /// Its kind, such as `values` or `windows`.
    pub kind: String,
    /// Its entries in memory: keys, or windows of keys with those that were released and can be read. A key that was removed
    /// counts until the next checkpoint is complete. `None` if unknown.
    pub entries: Option<u64>,
    /// Its memory in bytes, by estimate: its tables, and for keys and values with memory of their own the mean encoded size
    /// of a few of them. Former values for readers of the last checkpoint, and the allocator's own memory, are not counted.
    /// `None` if unknown.
    pub memory_bytes: Option<u64>,
    /// How checkpoints store it.
    pub stored: ElementStorage,
}

/// How checkpoints store a state element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementStorage {
    /// Its changes go to a changelog.
    Changelog,
    /// Each checkpoint has all of it.
    Whole,
    /// The flow takes no checkpoints.
    Nowhere,
}

impl ElementStorage {
    /// Returns the name, as JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            ElementStorage::Changelog => "changelog",
            ElementStorage::Whole => "whole",
            ElementStorage::Nowhere => "nowhere",
        }
    }
}

impl Workers {
    /// Returns the state elements of this rank, in the order of the program.
    pub(super) fn elements_of_state(&self) -> Vec<StateElement> {
        let takes_checkpoints = matches!(self.coordinator.purpose(), Purpose::Checkpoints(..));
        let stored = |name: &str| {
            let mut logged = self.logged.iter();
            match logged.any(|element| element.name() == name && element.is_open()) {
                true => ElementStorage::Changelog,
                false if takes_checkpoints => ElementStorage::Whole,
                false => ElementStorage::Nowhere,
            }
        };
        let elements = self.states.iter().map(|(name, state)| {
            let size = state.size();
            StateElement {
                name: name.clone(),
                kind: size.kind.to_owned(),
                entries: size.tables.map(|tables| tables.entries),
                memory_bytes: size.tables.map(|tables| tables.bytes),
                stored: stored(name),
            }
        });
        elements.collect()
    }
}

//! The positions of readers in a lane, for eviction.

use std::sync::atomic::{AtomicU64, Ordering};

use millstream_base::{GroupId, Position};

/// The position of a reader. The reader stores it, and eviction loads it.
#[derive(Debug, Default)]
pub struct ReaderPosition {
    pub group: AtomicU64,
    pub position: AtomicU64,
}

impl ReaderPosition {
    /// Publishes the reader's position. Only eviction's choice depends on it: a torn pair costs a read from disk, nothing
    /// else.
    pub fn publish(&self, group: GroupId, position: Position) {
        self.position.store(position.0, Ordering::Relaxed);
        self.group.store(group.0, Ordering::Relaxed);
    }
}

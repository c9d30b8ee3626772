//! The events of watches of keys.

use bytes::Bytes;

use crate::{Offset, Timestamp, WatchPositions};

/// Where a watch begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchFrom {
    /// With the next change.
    Now,
    /// With a snapshot of the keys that have a value.
    Snapshot,
    /// At a position.
    After(WatchPositions),
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyEvent {
    /// The watch has missed changes, and makes a snapshot.
    ChangesLost {
        /// The reason.
        why: String,
    },
    /// A snapshot begins, and all events before are void.
    SnapshotBegins,
    /// A key has changed, or is in the snapshot.
    Change {
        /// The key.
        key: Bytes,
        /// The new version.
        version: KeyedVersion,
        /// The time of the record.
        timestamp: Timestamp,
        /// The value; `None` if the key was deleted, or the value has ended.
        value: Option<Bytes>,
        /// The time at which the value expires, if it does. The expiry is not a change.
        expires_at: Option<Timestamp>,
    },
    /// The snapshot is complete.
    SnapshotEnds,
}

/// A version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyedVersion {
    /// The partition of the key.
    pub partition: u32,
    /// The offset of the record in the partition.
    pub version: Offset,
}

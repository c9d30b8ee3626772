//! A lane as recovery found it.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashSet;
use millstream_base::{GroupId, Offset, Position, ProducerId, Timestamp};

use crate::error::LogError;
use crate::group::Group;
use crate::index::entry::Fingerprint;
use crate::producers::Producers;
use crate::producers::transactions::AbortedTransaction;

/// A lane as recovery found it.
#[derive(Debug, Default)]
pub struct StoredLane {
    pub groups: VecDeque<Arc<Group>>,
    /// The last group that the lane has, or has had.
    pub last_group: Option<GroupId>,
    pub next_offset: Offset,
    pub producers: Producers,
    /// Producers that appended to the last group behind its last entry.
    pub unindexed: HashSet<ProducerId>,
    /// Transactions that were aborted in the last group behind its last entry.
    pub aborted: Vec<AbortedTransaction>,
    /// The largest timestamp of the last group, if it is open.
    pub max_timestamp: Option<Timestamp>,
    /// The fingerprint of the last group.
    pub fingerprint: Fingerprint,
    /// The position of the last group's last index entry.
    pub indexed_at: Position,
    /// Bytes that the start truncated from the last group's file.
    pub truncated_bytes: u64,
    /// The leader epochs behind epoch 0, each with the offset that it begins at.
    pub epochs: Vec<(i32, Offset)>,
    /// The offset from which on it has all deletions that are newest versions.
    pub deletions_from: Offset,
    /// The offset before which lie all records that made compaction drop older ones of their keys.
    pub versions_from: Offset,
    pub fault: Option<LogError>,
}

impl StoredLane {
    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.last_group.is_none()
            && self.fault.is_none()
            && self.next_offset == Offset(0)
            && self.epochs.is_empty()
    }
}

//! A recovered lane becomes a lane of the log.

use std::collections::VecDeque;
use std::sync::Arc;

use millstream_base::{Offset, Position, Timestamp};
use uuid::Uuid;

use crate::error::LogError;
use crate::files::DataDir;
use crate::group::Group;
use crate::group::end::GroupEnd;
use crate::group::stored::StoredGroup;
use crate::ids::GroupName;
use crate::index::sparse::SparseIndex;
use crate::lane::epochs::epoch_at;
use crate::lane::stored::StoredLane;
use crate::recovery::foreign::foreign_identity;
use crate::recovery::lane::RecoveredLane;

impl RecoveredLane {
    /// Returns the lane as one of a stream with this identity. A file that names another one is damage: none of it is
    /// served.
    pub fn into_stored(
        self,
        dir: &DataDir,
        identity: Uuid,
        epochs: Vec<(i32, Offset)>,
    ) -> StoredLane {
        let mut fault = self.damage.as_ref().map(|damage| damage.error.clone());
        let mut foreign = |name: &GroupName, found| {
            let damage = foreign_identity(dir, name, found, identity)?;
            fault.get_or_insert(damage.clone());
            Some(damage)
        };
        let mut groups: VecDeque<Arc<Group>> = VecDeque::new();
        for group in self.closed {
            let stored = match foreign(&group.name, group.identity) {
                Some(damage) => unreadable(&group.name, true, damage),
                None => StoredGroup {
                    position: group.end.position,
                    end: Some(group.end),
                    index_len: group.index_len,
                    segments: group.segments,
                    entries: group.entries,
                    index: group.sparse_index,
                    synced: group.replayed.from,
                    has_file: group.replayed.has_file,
                    damage: group.damage,
                    buffers: group.replayed.into_buffers(),
                },
            };
            let epoch = epoch_at(&epochs, group.name.first_offset);
            groups.push_back(Arc::new(Group::stored(group.name, identity, epoch, stored)));
        }
        let tail = self.tail;
        if tail.replayed.has_file || tail.position > Position(0) || tail.damage.is_some() {
            let stored = match foreign(&tail.name, tail.identity) {
                Some(damage) => unreadable(&tail.name, tail.end.is_some(), damage),
                None => StoredGroup {
                    position: tail.position,
                    end: tail.end,
                    index_len: tail.index_len,
                    segments: tail.segments,
                    // The index of a damaged group shows the next start the missing bytes.
                    entries: match self.damage {
                        None => tail.entries,
                        Some(_) => Vec::new(),
                    },
                    index: Some(tail.sparse_index),
                    synced: tail.replayed.from,
                    has_file: tail.replayed.has_file,
                    damage: tail.damage,
                    buffers: tail.replayed.into_buffers(),
                },
            };
            let epoch = epoch_at(&epochs, tail.name.first_offset);
            groups.push_back(Arc::new(Group::stored(tail.name, identity, epoch, stored)));
        }
        let last_group = groups.back().map(|group| group.id);
        StoredLane {
            last_group: last_group.max(self.last_group),
            groups,
            next_offset: tail.offset,
            producers: tail.producers,
            unindexed: tail.unindexed,
            aborted: tail.aborted,
            max_timestamp: Some(tail.max_timestamp),
            fingerprint: tail.fingerprint,
            indexed_at: tail.indexed_at,
            truncated_bytes: self.truncated_bytes,
            epochs,
            deletions_from: Offset(0),
            versions_from: Offset(0),
            fault,
        }
    }
}

/// A group of which nothing can be read.
fn unreadable(name: &GroupName, is_closed: bool, damage: LogError) -> StoredGroup {
    let end = GroupEnd {
        position: Position(0),
        offset: name.first_offset,
        max_timestamp: Timestamp(i64::MIN),
        stable: name.first_offset,
    };
    StoredGroup {
        position: Position(0),
        synced: Position(0),
        end: is_closed.then_some(end),
        index_len: 0,
        segments: Vec::new(),
        buffers: Vec::new(),
        entries: Vec::new(),
        index: Some(SparseIndex::default()),
        has_file: true,
        damage: Some(damage),
    }
}

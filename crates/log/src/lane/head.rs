//! The head of a lane: the open group that appends go to, and the producers.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use millstream_base::{Offset, Position, ProducerId, Timestamp};

use crate::group::Group;
use crate::group::end::GroupEnd;
use crate::index::entry::{EntryKind, Fingerprint, INDEX_INTERVAL_BYTES, IndexEntry};
use crate::memory::buffer::BufferWriter;
use crate::producers::Producers;
use crate::producers::transactions::AbortedTransaction;

/// A group is closed when more transactions were aborted in it: a reader of the group has all of them in
/// memory.
const ABORTED_MAX: usize = 16_384;

/// The state that appends change, under the lane's lock.
#[derive(Debug)]
pub struct Head {
    pub next_offset: Offset,
    pub producers: Producers,
    pub open: Option<OpenGroup>,
    pub segment_bytes: usize,
    /// About when the last append was: see [`AppendContext::recently`](super::context::AppendContext::recently).
    pub appended_at: Duration,
}

/// The group that appends go to.
#[derive(Debug)]
pub struct OpenGroup {
    pub group: Arc<Group>,
    /// The head segment, if there is one.
    pub writer: Option<BufferWriter>,
    pub position: Position,
    /// Whether it is never written to disk, so that its index is only in memory.
    pub is_memory_only: bool,
    /// The position at which the group is full.
    pub bytes_max: u64,
    pub max_timestamp: Timestamp,
    /// The fingerprint of the appended chunks.
    pub fingerprint: Fingerprint,
    pub indexed_at: Position,
    /// Producers that appended since the last entry.
    pub changed: HashSet<ProducerId>,
    /// Transactions that were aborted since the last entry.
    pub aborted: Vec<AbortedTransaction>,
    /// How many transactions were aborted in all of the group.
    pub aborted_count: usize,
}

impl Head {
    pub fn close_group(&mut self) {
        close_group(&mut self.open, self.next_offset, &self.producers);
    }

    pub fn has_room(&self, bytes: usize) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let writer = open.writer.as_ref();
            writer.is_some_and(|writer| writer.room() >= bytes) && open.takes(bytes)
        })
    }
}

impl OpenGroup {
    /// Whether a chunk of `bytes` still belongs to this group.
    pub fn takes(&self, bytes: usize) -> bool {
        self.position == Position(0) || self.position.0 + bytes as u64 <= self.bytes_max
    }

    pub fn add_aborted(&mut self, aborted: AbortedTransaction) {
        self.group.add_aborted(aborted);
        self.aborted.push(aborted);
        self.aborted_count += 1;
        if self.aborted_count >= ABORTED_MAX {
            self.bytes_max = 0;
        }
    }

    /// Adds an index entry for the end of the group: `producers` must be those before the next chunk.
    pub fn add_index_entry(&mut self, kind: EntryKind, offset: Offset, producers: &Producers) {
        let stable = producers.stable(offset);
        let producers = if self.is_memory_only {
            Vec::new()
        } else if self.position == Position(0) {
            let all = producers.iter();
            all.map(|(id, state)| (id, state.clone())).collect()
        } else {
            let changed = self.changed.iter();
            changed
                .filter_map(|id| producers.get(*id).map(|state| (*id, state.clone())))
                .collect()
        };
        self.changed.clear();
        self.indexed_at = self.position;
        let entry = IndexEntry {
            kind,
            position: self.position,
            offset,
            max_timestamp: self.max_timestamp,
            stable,
            producers,
            aborted: std::mem::take(&mut self.aborted),
            fingerprint: self.fingerprint,
        };
        self.group.add_point(&entry);
        if !self.is_memory_only {
            self.group.add_entry(entry);
        }
    }
}

/// Whether the index needs an entry before the chunk at `position`: after the group's first chunk, so that the
/// file can be distinguished from others, and then every 64 KiB.
pub fn is_entry_due(position: Position, indexed_at: Position) -> bool {
    position.0 - indexed_at.0 >= INDEX_INTERVAL_BYTES
        || (indexed_at == Position(0) && position > indexed_at)
}

/// Closes the open group; `next_offset` is the offset that its successor starts with.
pub fn close_group(open: &mut Option<OpenGroup>, next_offset: Offset, producers: &Producers) {
    let Some(mut open) = open.take() else {
        return;
    };
    if open.writer.is_some() {
        open.group.close_segment(open.position);
    }
    if !open.aborted.is_empty() {
        // The closing entry names no transactions, so that it is found from the file's end.
        open.add_index_entry(EntryKind::Within, next_offset, producers);
    }
    let end = IndexEntry {
        kind: EntryKind::GroupEnd,
        position: open.position,
        offset: next_offset,
        max_timestamp: open.max_timestamp,
        stable: producers.stable(next_offset),
        producers: Vec::new(),
        aborted: Vec::new(),
        fingerprint: open.fingerprint,
    };
    open.group.close(GroupEnd::of(&end));
    open.group.add_entry(end);
}

//! A group: a series of segments, and the file that they end up in.
//!
//! Life of a segment: *head* (appends go to it) → *closed* → *persisted* (its bytes are in the
//! group's file and synced) → *evicted* (its buffer went back to the pool; reads go to the file).
//!
//! Positions of a group: `synced ≤ written ≤ head` and `durable ≤ high watermark ≤ head`; none decreases. Bytes between `synced` and
//! `durable` are in the journal; bytes between `durable` and `synced` are about to become durable. Of a
//! [`Durability::Written`](crate::Durability::Written) stream `durable ≤ synced ≤ high watermark ≤ written`.
//!
//! A group knows neither its lane's other groups nor the journal. Its callers write the files of a lane in the order of the
//! groups.

pub mod end;
pub mod file;
pub mod keys;
pub mod remove;
pub mod segments;
pub mod stored;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millstream_base::{GroupId, Offset, Position};
use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use crate::error::LogError;
use crate::files::DataDir;
use crate::group::end::GroupEnd;
use crate::group::file::{GroupFile, Listing};
use crate::group::keys::GroupKeys;
use crate::group::segments::Segment;
use crate::group::stored::StoredGroup;
use crate::ids::{Generation, GroupName, LaneId};
use crate::index::entry::IndexEntry;
use crate::index::sparse::SparseIndex;
use crate::producers::transactions::AbortedTransaction;

/// A group of a lane.
#[derive(Debug)]
pub struct Group {
    pub lane: LaneId,
    pub id: GroupId,
    pub first_offset: Offset,
    generation: Generation,
    /// The stream's identity; the file's head has it.
    identity: Uuid,
    /// The leader epoch of its first chunk; the file's head has it.
    leader_epoch: i32,
    /// Written by the lane when it moves on; read by consumers and retention.
    end: OnceLock<GroupEnd>,
    /// The durable position. Stored by the syncer (`Release`) after the sync; loaded by readers
    /// (`Acquire`), which then find the bytes before it in a segment or in the file.
    durable: AtomicU64,
    /// The end of the bytes that may be read before they are durable; else 0. Stored (`Release`) by the lane when
    /// the bytes are in their segment, or by the syncer when they are in the file.
    early: AtomicU64,
    /// The durable bytes of the file. Stored under the lock of `file`; loaded by eviction and
    /// by the journal.
    synced: AtomicU64,
    /// Set when retention or deletion takes the group away; under the lock of `file`.
    removed: AtomicBool,
    /// Set with `failed` of `file`, for callers that must not wait for its lock.
    failed: AtomicBool,
    /// In the order of their positions. The lane adds them, eviction takes their buffers.
    segments: RwLock<Vec<Segment>>,
    /// Index entries that wait until the file is synced up to them. The lane adds, write-back takes.
    unwritten_entries: Mutex<VecDeque<IndexEntry>>,
    /// The damage behind the high watermark, if bytes are missing there. Set by recovery.
    damage: OnceLock<LogError>,
    /// The index in memory, for readers. The lane adds to it; `None` if readers must load it from the file.
    index: RwLock<Option<SparseIndex>>,
    /// Whether the index in memory was used since the cache last asked.
    index_used: AtomicBool,
    /// Its key files.
    keys: RwLock<GroupKeys>,
    file: Mutex<GroupFile>,
    /// Held while the file is synced: of two syncs at a time only one would learn of a failed write.
    /// Taken before the lock of `file`, which is free meanwhile, so that the file can be written.
    syncing: Mutex<()>,
}

impl Group {
    /// A group of a stream with this identity that starts empty, in memory.
    pub fn new(name: GroupName, identity: Uuid, leader_epoch: i32) -> Group {
        Group {
            lane: name.lane,
            id: name.id,
            first_offset: name.first_offset,
            generation: name.generation,
            identity,
            leader_epoch,
            end: OnceLock::new(),
            durable: AtomicU64::new(0),
            early: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            segments: RwLock::new(Vec::new()),
            unwritten_entries: Mutex::new(VecDeque::new()),
            damage: OnceLock::new(),
            index: RwLock::new(Some(SparseIndex::default())),
            index_used: AtomicBool::new(false),
            keys: RwLock::default(),
            file: Mutex::new(GroupFile {
                open: None,
                index: None,
                written: 0,
                index_len: 0,
                listing: Listing::None,
                failed: None,
            }),
            syncing: Mutex::new(()),
        }
    }

    /// A group that recovery found on disk.
    pub fn stored(
        name: GroupName,
        identity: Uuid,
        leader_epoch: i32,
        stored: StoredGroup,
    ) -> Group {
        let group = Group::new(name, identity, leader_epoch);
        let (durable, synced) = (stored.position.0, stored.synced.0);
        group.durable.store(durable, Ordering::Relaxed);
        group.synced.store(synced, Ordering::Relaxed);
        {
            let mut file = group.file.lock();
            file.written = synced;
            file.index_len = stored.index_len;
            if stored.has_file {
                file.listing = Listing::Durable;
            }
            let ends = stored.segments.iter().skip(1).copied();
            let evicted = stored.segments.len() - stored.buffers.len();
            let buffers = std::iter::repeat_n(None, evicted);
            *group.segments.write() = stored
                .segments
                .iter()
                .zip(ends.chain([stored.position]))
                .zip(buffers.chain(stored.buffers.into_iter().map(Some)))
                .map(|((&base, end), buffer)| Segment {
                    base,
                    end: Some(end),
                    buffer,
                    lead: 0,
                })
                .collect();
        }
        *group.unwritten_entries.lock() = stored.entries.into();
        *group.index.write() = stored.index;
        if let Some(damage) = stored.damage {
            let _ = group.damage.set(damage);
        }
        if let Some(end) = stored.end {
            group.close(end);
        }
        group
    }

    pub fn durable(&self) -> Position {
        Position(self.durable.load(Ordering::Acquire))
    }

    /// Moves the durable position; only the syncer of the group's virtual log calls it.
    pub fn set_durable(&self, position: Position) {
        assert!(
            self.durable() <= position,
            "the durable position never decreases"
        );
        self.durable.store(position.0, Ordering::Release);
    }

    /// Returns the end of the bytes that consumers may read that need not wait for durability.
    pub fn high_watermark(&self) -> Position {
        Position(self.early.load(Ordering::Acquire)).max(self.durable())
    }

    /// Lets appended chunks be read before they are durable; under the lane's lock, or by the syncer of
    /// the group's virtual log.
    pub fn set_high_watermark(&self, position: Position) {
        self.early.store(position.0, Ordering::Release);
    }

    pub fn synced(&self) -> Position {
        Position(self.synced.load(Ordering::Acquire))
    }

    pub fn end(&self) -> Option<GroupEnd> {
        self.end.get().copied()
    }

    /// Closes the group for ever.
    pub fn close(&self, end: GroupEnd) {
        let first = self.end.set(end).is_ok();
        assert!(first, "group {} is closed twice", self.id);
    }

    /// Returns the damage behind the high watermark, if bytes are missing there.
    pub fn damage(&self) -> Option<&LogError> {
        self.damage.get()
    }

    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub fn add_entry(&self, entry: IndexEntry) {
        self.unwritten_entries.lock().push_back(entry);
    }

    /// Adds the point of an entry to the index in memory; those before it were added.
    pub fn add_point(&self, entry: &IndexEntry) {
        if let Some(index) = &mut *self.index.write() {
            index.add(entry);
        }
    }

    /// Adds a transaction that was aborted by the chunk that is about to be appended.
    pub fn add_aborted(&self, aborted: AbortedTransaction) {
        if let Some(index) = &mut *self.index.write() {
            index.add_aborted(aborted);
        }
    }

    /// Lets `look` see the index, if memory has it.
    pub fn look_at_index<R>(&self, look: impl Fn(&SparseIndex) -> R) -> Option<R> {
        let seen = self.index.read().as_ref().map(look);
        if !self.index_used.load(Ordering::Relaxed) {
            self.index_used.store(true, Ordering::Relaxed);
        }
        seen
    }

    /// Takes over an index that was read from its file. `false` when memory has it already.
    pub fn set_index(&self, loaded: SparseIndex) -> bool {
        let mut index = self.index.write();
        let is_news = index.is_none() && !self.is_removed();
        if is_news {
            *index = Some(loaded);
        }
        is_news
    }

    /// Whether the index in memory was used since the last call.
    pub fn index_is_used(&self) -> bool {
        self.index_used.swap(false, Ordering::Relaxed)
    }

    /// Forgets the index in memory, if the file has all of it.
    pub fn forget_index(&self) {
        if self.is_settled() {
            *self.index.write() = None;
        }
    }

    /// Returns the entry at its beginning, if that is not in the index file yet.
    pub fn first_unwritten_entry(&self) -> Option<IndexEntry> {
        // No entry is on its way to the file.
        let _writing = self.file.lock();
        let entries = self.unwritten_entries.lock();
        let first = entries
            .front()
            .filter(|entry| entry.position == Position(0));
        first.cloned()
    }

    /// Whether there are entries that are not in the index file yet.
    pub fn has_unwritten_entries(&self) -> bool {
        !self.unwritten_entries.lock().is_empty()
    }

    /// Whether it is closed, and its file and index are complete and durable.
    pub fn is_settled(&self) -> bool {
        self.end().is_some_and(|end| end.position <= self.synced())
            && self.unwritten_entries.lock().is_empty()
    }

    /// Whether a compaction has made it: then there may be gaps between the offsets of its records.
    pub fn is_rewritten(&self) -> bool {
        self.generation.is_rewritten()
    }

    /// The leader epoch of its first chunk.
    pub fn leader_epoch(&self) -> i32 {
        self.leader_epoch
    }

    /// The identity of the stream.
    pub fn identity(&self) -> Uuid {
        self.identity
    }

    /// Returns the parts of its file's name.
    pub fn name(&self) -> GroupName {
        GroupName {
            lane: self.lane,
            id: self.id,
            first_offset: self.first_offset,
            generation: self.generation,
        }
    }

    pub fn path(&self, dir: &DataDir) -> PathBuf {
        dir.group_path(&self.name())
    }

    pub fn index_path(&self, dir: &DataDir) -> PathBuf {
        dir.index_path(&self.name())
    }
}

//! Lanes: the parallel places of a streamlet where appends happen, each an ordered series of groups.
//!
//! An [`append`] checks a chunk, copies it into the head segment and pushes a reference to it onto the lane's
//! [`virtual_log`]; a syncer takes it from the [`sync_queue`] and moves the lane's durable offset. A lane needs no more of the
//! log for that than the [`context`].
//!
//! The groups of a lane are a gapless series, oldest first; only the last one may be open. Offsets only grow. The lock of the
//! [`head`] is taken before the locks of the virtual log and of the queue, and no I/O is done under it.
//!
//! A lane knows neither how its chunks become durable nor how they are read.

pub mod append;
pub mod close;
pub mod compaction_marks;
pub mod context;
pub mod cursors;
pub mod end;
pub mod epochs;
pub mod fetch_ends;
pub mod groups;
pub mod head;
pub mod holds;
pub mod persist_signal;
pub mod recent_reads;
pub mod replaced;
pub mod residents;
pub mod secondary;
pub mod shared;
pub mod start;
pub mod stored;
pub mod sync_queue;
pub mod unsynced;
pub mod virtual_log;
pub mod watchers;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use event_listener::{Event, IntoNotification as _};
use millstream_base::{GroupId, Offset, Position, ProducerId, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::compact::stats::CompactionStats;
use crate::error::{LogError, Result};
use crate::group::Group;
use crate::ids::LaneId;
use crate::keys::index::KeyIndex;
use crate::keys::kind::KeyKind;
use crate::keys::table::KeyStats;
use crate::lane::end::LaneEnd;
use crate::lane::epochs::Epochs;
use crate::lane::fetch_ends::FetchEnds;
use crate::lane::head::{Head, OpenGroup};
use crate::lane::holds::LaneHolds;
use crate::lane::recent_reads::RecentReads;
use crate::lane::secondary::SecondaryIndexes;
use crate::lane::shared::{StreamShared, StreamletShared};
use crate::lane::start::LaneStart;
use crate::lane::stored::StoredLane;
use crate::lane::unsynced::Unsynced;
use crate::lane::virtual_log::VirtualLog;
use crate::lane::watchers::{LaneHeads, Watchers};
use crate::memory::pool::BLOCK_BYTES_MIN;
use crate::producers::Producers;
use crate::producers::unstable::Unstable;
use crate::settings::config::Durability;

#[derive(Debug)]
pub struct LaneState {
    pub id: LaneId,
    /// The lane's number among all of the stream: its partition for Kafka's clients.
    pub partition: u32,
    pub stream: Arc<StreamShared>,
    pub streamlet: Arc<StreamletShared>,
    pub virtual_log: Arc<VirtualLog>,
    head: Mutex<Head>,
    /// Stored groups, oldest first; the last one may be open. Added by appends, taken away by
    /// retention.
    groups: RwLock<VecDeque<Arc<Group>>>,
    /// The end of the newest group that was removed since the start: a reader at this position
    /// has missed nothing. Changed under the lock of `groups`.
    removed_end: Mutex<Option<(GroupId, Position)>>,
    /// The offset behind the last durable record. Stored by the syncer (`Release`), loaded by
    /// threads that wait for it (`Acquire`).
    durable_offset: AtomicU64,
    /// The offset behind the last record that may be read before it is durable; 0 where none may.
    /// Stored (`Release`) under the lock of `head`, of a [`Durability::Written`] stream by the syncer of
    /// the virtual log; loaded by readers (`Acquire`).
    early_offset: AtomicU64,
    /// The end of the bytes in the files of a [`Durability::Written`] stream that are not durable.
    pub unsynced: Unsynced,
    /// Notified when `durable_offset` moves, or the offset that producers' answers wait for, and when neither will.
    pub durable_moved: Event,
    /// Notified when there is more to read, and when the stream is deleted.
    pub watchers: Watchers,
    /// The failure after which the lane refuses writes until the next start.
    fault: OnceLock<LogError>,
    /// The first damage that a read found. Set by readers.
    read_fault: OnceLock<LogError>,
    /// Bytes that the start truncated from the last group's file.
    pub truncated_bytes: u64,
    /// Its leader epochs.
    pub epochs: Epochs,
    /// Compaction has dropped no deletion from here on that is the newest version of its key. Raised (`Release`) by compaction
    /// before a group takes its place that lacks one; loaded (`Acquire`) by watches after they have read.
    deletions_from: AtomicU64,
    /// Each record because of which compaction has dropped an older one of its key is before this offset. Raised (`Release`) by
    /// compaction before a group takes its place that lacks records; loaded (`Acquire`) by look-ups of older versions after they
    /// have read.
    versions_from: AtomicU64,
    /// Its start, if records were deleted from it.
    pub start: LaneStart,
    /// The transactions that hold back consumers of committed records.
    pub unstable: Unstable,
    /// The ends of the last fetches.
    pub fetch_ends: FetchEnds,
    /// The ends of the last reads of any kind, for eviction.
    recent_reads: RecentReads,
    /// The offsets whose versions compaction keeps.
    pub holds: LaneHolds,
    /// Held by a compaction from its beginning to its end.
    pub compacting: Mutex<()>,
    /// Held while groups are taken away or replaced. No append takes it. Locked before the locks of the groups.
    pub changing_groups: Mutex<()>,
    /// The number of replacements of groups since the start. Changed under the write lock of `groups`.
    swaps: AtomicU64,
    /// The index of its keys. Made by the first lookup, or with the first key file.
    keys: OnceLock<Box<KeyIndex>>,
    /// The indexes of its secondary keys, made as that one is.
    secondary: SecondaryIndexes,
    /// Figures about its compaction, from the first look of the thread that compacts on. Changed by that thread.
    compaction_stats: Mutex<Option<Box<CompactionStats>>>,
}

impl LaneState {
    pub fn new(
        id: LaneId,
        partition: u32,
        stream: Arc<StreamShared>,
        streamlet: Arc<StreamletShared>,
        virtual_log: Arc<VirtualLog>,
        stored: StoredLane,
    ) -> LaneState {
        let open = stored
            .groups
            .back()
            .filter(|group| group.end().is_none())
            .map(|group| OpenGroup {
                group: Arc::clone(group),
                writer: None,
                position: group.durable(),
                is_memory_only: stream.durability == Durability::Memory,
                bytes_max: stream.limits.group_bytes_max(),
                max_timestamp: stored.max_timestamp.unwrap_or(Timestamp(i64::MIN)),
                fingerprint: stored.fingerprint,
                indexed_at: stored.indexed_at,
                changed: stored.unindexed,
                aborted: stored.aborted,
                aborted_count: group
                    .look_at_index(|index| index.aborted_count())
                    .unwrap_or_default(),
            });
        let unstable = Unstable::new(stored.producers.transactions());
        let fault = OnceLock::new();
        if let Some(error) = stored.fault {
            let _ = fault.set(error);
        }
        LaneState {
            id,
            partition,
            stream,
            streamlet,
            virtual_log,
            head: Mutex::new(Head {
                next_offset: stored.next_offset,
                producers: stored.producers,
                open,
                segment_bytes: BLOCK_BYTES_MIN,
                appended_at: Duration::ZERO,
            }),
            groups: RwLock::new(stored.groups),
            removed_end: Mutex::default(),
            durable_offset: AtomicU64::new(stored.next_offset.0),
            early_offset: AtomicU64::new(0),
            unsynced: Unsynced::default(),
            durable_moved: Event::new(),
            watchers: Watchers::default(),
            fault,
            read_fault: OnceLock::new(),
            truncated_bytes: stored.truncated_bytes,
            epochs: Epochs::new(stored.epochs),
            deletions_from: AtomicU64::new(stored.deletions_from.0),
            versions_from: AtomicU64::new(stored.versions_from.0),
            start: LaneStart::default(),
            unstable,
            fetch_ends: FetchEnds::default(),
            recent_reads: RecentReads::default(),
            holds: LaneHolds::default(),
            compacting: Mutex::new(()),
            changing_groups: Mutex::new(()),
            swaps: AtomicU64::new(0),
            keys: OnceLock::new(),
            secondary: SecondaryIndexes::default(),
            compaction_stats: Mutex::default(),
        }
    }

    /// Whether the lane is never written to disk.
    pub fn is_memory_only(&self) -> bool {
        self.stream.durability == Durability::Memory
    }

    /// About when the last append was: see [`AppendContext::recently`](context::AppendContext::recently).
    pub fn appended_at(&self) -> Duration {
        self.head.lock().appended_at
    }

    /// The largest timestamp of the open group.
    pub fn open_max_timestamp(&self) -> Option<Timestamp> {
        let head = self.head.lock();
        head.open
            .as_ref()
            .filter(|open| open.position > Position(0))
            .map(|open| open.max_timestamp)
    }

    /// Calls `look` with the states of the producers.
    pub fn with_producers<R>(&self, look: impl FnOnce(&Producers) -> R) -> R {
        look(&self.head.lock().producers)
    }

    /// The offset that comes next.
    pub fn next_offset(&self) -> Offset {
        self.head.lock().next_offset
    }

    /// Its end, durable or not.
    pub fn end(&self) -> LaneEnd {
        LaneEnd::of(&self.head.lock())
    }

    /// The producers that the lane remembers.
    pub fn producer_ids(&self) -> Vec<ProducerId> {
        self.with_producers(|producers| producers.iter().map(|(id, _)| id).collect())
    }

    pub fn durable_offset(&self) -> Offset {
        Offset(self.durable_offset.load(Ordering::Acquire))
    }

    /// Up to where consumers may read that need not wait for durability: with
    /// [`Durability::Async`] all that was appended, with [`Durability::Written`] all that is in the files.
    pub fn high_watermark(&self) -> Offset {
        Offset(self.early_offset.load(Ordering::Acquire)).max(self.durable_offset())
    }

    /// The offset before which all transactions have ended for good, never beyond the high watermark.
    pub fn last_stable_offset(&self) -> Offset {
        let high_watermark = self.high_watermark();
        let stable = self.unstable.first(high_watermark);
        stable.max(self.earliest_offset().min(high_watermark))
    }

    /// Returns the offset before which all transactions have ended, and no crash takes that back. It is behind the last stable
    /// offset in a stream whose consumers see records that are not durable.
    pub fn stable_for_good(&self) -> Offset {
        let durable = self.durable_offset();
        let stable = self.unstable.first_for_good(durable);
        stable.max(self.earliest_offset().min(durable))
    }

    /// Returns when the oldest open transaction began; `None` without one.
    pub fn oldest_transaction(&self) -> Option<Timestamp> {
        self.with_producers(|producers| producers.oldest_transaction())
    }

    /// Moves the high watermark of a [`Durability::Written`] stream and wakes the lane's waiters; the caller has
    /// moved the high watermark of the group before.
    pub fn set_written_offset(&self, offset: Offset) {
        self.early_offset.store(offset.0, Ordering::Release);
        self.wake();
    }

    /// Moves the durable offset and wakes the lane's waiters; the caller has moved the durable
    /// position of the group before.
    pub fn set_durable_offset(&self, offset: Offset) {
        assert!(
            self.durable_offset() <= offset,
            "the durable offset never decreases"
        );
        self.durable_offset.store(offset.0, Ordering::Release);
        self.wake();
    }

    /// Wakes the threads, tasks and watches that wait for the lane: an offset has moved, or never will again.
    pub fn wake(&self) {
        // One fence for all: a waiter that is about to wait either is seen below, or sees the change
        // (a listener looks again after it is made, and so does a watch that is armed).
        fence(Ordering::SeqCst);
        self.durable_moved.notify(usize::MAX.relaxed());
        self.stream.durable_moved.notify(usize::MAX.relaxed());
        if self.watchers.is_any() {
            self.watchers.notify(&self.heads());
        }
    }

    /// As [`LaneState::wake`], for readers of chunks that are not durable yet.
    fn notify_watchers(&self) {
        fence(Ordering::SeqCst);
        if self.watchers.is_any() {
            self.watchers.notify(&self.heads());
        }
    }

    /// Returns the lane's heads at this moment.
    pub fn heads(&self) -> LaneHeads {
        LaneHeads {
            durable: self.durable_offset(),
            high_watermark: self.high_watermark(),
            is_removed: self.is_removed(),
        }
    }

    pub fn fault(&self) -> Option<&LogError> {
        self.fault.get()
    }

    /// Returns an error if the lane ends because the chunks behind its end are damaged or missing: reads at its end fail
    /// with it.
    pub fn check_end(&self) -> Result<()> {
        match self.fault() {
            Some(damage @ LogError::Corrupted { .. }) => {
                let last = self.last_group();
                match last.is_none_or(|last| last.damage().is_some()) {
                    true => Err(damage.clone()),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// The first damage that a read found.
    pub fn read_fault(&self) -> Option<&LogError> {
        self.read_fault.get()
    }

    /// Takes note of damage that a read found.
    pub fn set_read_fault(&self, fault: &LogError) {
        if self.read_fault.get().is_none() {
            let _ = self.read_fault.set(fault.clone());
        }
    }

    /// Notes the damage that the start has found.
    pub fn found_fault(&self, fault: LogError) {
        let _ = self.fault.set(fault);
    }

    /// Makes the lane refuse writes until the next start.
    pub fn set_fault(&self, fault: &LogError) {
        if self.fault.set(fault.clone()).is_ok() {
            tracing::error!(stream = %self.stream.name, lane = ?self.id, %fault, "lane refuses writes");
        }
        self.wake();
    }

    /// Whether its stream is deleted.
    pub fn is_removed(&self) -> bool {
        self.stream.removed.load(Ordering::Acquire)
    }

    /// Returns the offset from which on no deletion was dropped that is the newest version of its key: a reader that has all
    /// records before it misses none.
    pub fn deletions_from(&self) -> Offset {
        Offset(self.deletions_from.load(Ordering::Acquire))
    }

    /// Notes that a deletion before `offset` was dropped. A group without it takes its place afterwards.
    pub fn raise_deletions_from(&self, offset: Offset) {
        self.deletions_from.fetch_max(offset.0, Ordering::Release);
    }

    /// Returns the offset before which all records are that made compaction drop older ones of their keys.
    pub fn versions_from(&self) -> Offset {
        Offset(self.versions_from.load(Ordering::Acquire))
    }

    /// Notes that records were dropped since there are newer ones of their keys before `offset`. A group without them takes its
    /// place afterwards.
    pub fn raise_versions_from(&self, offset: Offset) {
        self.versions_from.fetch_max(offset.0, Ordering::Release);
    }

    /// Returns the index of the lane's keys, which may be empty, and may be of another number of partitions.
    pub fn key_index(&self, partitions: u32) -> &KeyIndex {
        self.stream.keyed.note_index();
        self.keys.get_or_init(|| {
            let has_files = !self.is_memory_only();
            let (kind, partition) = (KeyKind::Primary, self.partition);
            Box::new(KeyIndex::new(kind, partition, partitions, has_files))
        })
    }

    /// Returns the index of the lane's keys, if there is one.
    pub fn made_key_index(&self) -> Option<&KeyIndex> {
        self.keys.get().map(|keys| &**keys)
    }

    /// Returns the size of the index of the lane's keys, if there is one.
    pub fn key_stats(&self) -> Option<KeyStats> {
        self.made_key_index().map(|index| self.stats_of(index))
    }

    /// Returns figures about its compaction, if it is compacted.
    pub fn compaction_stats(&self) -> Option<CompactionStats> {
        self.compaction_stats.lock().as_deref().cloned()
    }

    /// Changes the figures about its compaction.
    pub fn change_compaction_stats(&self, change: impl FnOnce(&mut CompactionStats)) {
        change(self.compaction_stats.lock().get_or_insert_default());
    }

    /// Forgets the figures about its compaction: it is not compacted any more.
    pub fn forget_compaction_stats(&self) {
        *self.compaction_stats.lock() = None;
    }
}

//! A lane: one of the places of a streamlet where appends happen; an ordered series of groups.

pub mod virtual_log;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use event_listener::{Event, IntoNotification as _};
use hashbrown::HashSet;
use millstream_base::disk::PAGE_BYTES;
use millstream_base::{Cursor, GroupId, Offset, Position, ProducerId, StreamId, Timestamp};
use millstream_record::{ChunkHeader, EndMarker, set_place};
use parking_lot::{Mutex, MutexGuard, RwLock};
use uuid::Uuid;

use crate::commit::written::Written;
use crate::core::{Core, Resident};
use crate::error::{LogError, Result};
use crate::group::{Group, GroupEnd};
use crate::handle::watch::Watchers;
use crate::ids::LaneId;
use crate::index::{Fingerprint, MARK_BYTES, Mark, MarkKind};
use crate::lane::virtual_log::{Pushed, VirtualLog};
use crate::log::deletion::LaneStart;
use crate::memory::pool::{BLOCK_BYTES_MIN, BufferWriter};
use crate::producers::transactions::{AbortedTransaction, Unstable};
use crate::producers::{Producers, TransactionStep, Verdict};
use crate::read::fetch::FetchEnds;
use crate::settings::config::{Durability, StreamConfig};
use crate::stream::LiveLimits;

/// What chunks carry as the epoch of their partition's leader: a lane has one for ever.
const LEADER_EPOCH: i32 = 0;

/// A group is closed when more transactions were aborted in it: who reads it has all of them in
/// memory.
const ABORTED_MAX: usize = 16_384;

/// Where a reader stands in a lane that has no groups yet: ids start from 1.
const BEFORE_ALL: GroupId = GroupId(0);

/// What a stream's lanes share.
#[derive(Debug)]
pub struct StreamShared {
    pub id: StreamId,
    /// As [`StreamInfo::uuid`](crate::StreamInfo::uuid).
    pub uuid: Uuid,
    pub name: String,
    pub config: RwLock<StreamConfig>,
    /// As in `config`, where it never changes: every append asks.
    pub durability: Durability,
    /// What bounds its chunks and groups.
    pub limits: LiveLimits,
    /// Notified when the durable head of any lane moves.
    pub durable_moved: Event,
    /// Notified when lanes are added.
    pub grown: Event,
    pub removed: AtomicBool,
}

/// Shared by the lanes of one streamlet.
#[derive(Debug)]
pub struct StreamletShared {
    pub next_group: AtomicU64,
}

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
    /// Where the newest group ended that was taken away since the start: a reader that stands there
    /// has missed nothing. Changed under the lock of `groups`.
    removed_end: Mutex<Option<(GroupId, Position)>>,
    /// The offset behind the last durable record. Stored by the syncer (`Release`), loaded by
    /// whoever waits for it (`Acquire`).
    durable_offset: AtomicU64,
    /// The offset behind the last record that may be read before it is durable; 0 where none may.
    /// Stored (`Release`) under the lock of `head`, of a [`Durability::Written`] stream by the syncer of
    /// the virtual log; loaded by readers (`Acquire`).
    early_offset: AtomicU64,
    /// What is in the files of a [`Durability::Written`] stream, and not durable.
    pub written: Written,
    /// Notified when `durable_offset` moves, or what producers are answered for, and when neither will.
    pub durable_moved: Event,
    /// Told when there is more to read, and when the stream is deleted.
    pub watchers: Watchers,
    /// Why the lane refuses writes until the next start.
    fault: OnceLock<LogError>,
    /// The first damage that a read met. Set by readers.
    read_fault: OnceLock<LogError>,
    /// Bytes that the start cut from the last group's file.
    pub cut_bytes: u64,
    /// Whether the catalog knows that the lane has data. Stored and loaded by `had_data`.
    pub has_data_noted: AtomicBool,
    /// Where it begins, if something was deleted from it.
    pub start: LaneStart,
    /// What consumers wait for that read only what is committed.
    pub unstable: Unstable,
    /// Where fetches go on.
    pub fetch_ends: FetchEnds,
    /// Where readers of this lane stand: what eviction asks.
    marks: Mutex<Vec<Weak<ReaderMark>>>,
}

/// Where a reader stands; stored by the reader, loaded by eviction.
#[derive(Debug, Default)]
pub struct ReaderMark {
    pub group: AtomicU64,
    pub position: AtomicU64,
}

impl ReaderMark {
    /// Tells where the reader is. Only for eviction's choice: a torn pair costs a read from disk, nothing
    /// else.
    pub fn publish(&self, group: GroupId, position: Position) {
        self.position.store(position.0, Ordering::Relaxed);
        self.group.store(group.0, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Head {
    next_offset: Offset,
    producers: Producers,
    open: Option<OpenGroup>,
    segment_bytes: usize,
    /// About when the last append was: see [`Core::recently`].
    appended_at: Duration,
}

/// The group that appends go to.
#[derive(Debug)]
struct OpenGroup {
    group: Arc<Group>,
    /// The head segment, if there is one.
    writer: Option<BufferWriter>,
    position: Position,
    /// Whether it is never written to disk, and so has places but no index.
    is_scratch: bool,
    /// Where the group is full.
    bytes_max: u64,
    max_timestamp: Timestamp,
    /// Of what was appended.
    fingerprint: Fingerprint,
    marked_at: Position,
    /// Producers that appended since the last mark.
    changed: HashSet<ProducerId>,
    /// Transactions that were aborted since the last mark.
    aborted: Vec<AbortedTransaction>,
    /// How many transactions were aborted in all of the group.
    aborted_count: usize,
}

/// What recovery found of a lane.
#[derive(Debug, Default)]
pub struct StoredLane {
    pub groups: VecDeque<Arc<Group>>,
    pub next_offset: Offset,
    pub producers: Producers,
    /// Producers that appended to the last group behind its last mark.
    pub unmarked: HashSet<ProducerId>,
    /// Transactions that were aborted in the last group behind its last mark.
    pub aborted: Vec<AbortedTransaction>,
    /// Of the last group, if it is open.
    pub max_timestamp: Option<Timestamp>,
    /// Of the last group.
    pub fingerprint: Fingerprint,
    /// Where the last mark of the last group is.
    pub marked_at: Position,
    /// Bytes that the start cut from the last group's file.
    pub cut_bytes: u64,
    pub fault: Option<LogError>,
}

impl StoredLane {
    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.fault.is_none() && self.next_offset == Offset(0)
    }
}

/// Where a chunk was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The offset of its first record.
    pub base_offset: Offset,
    /// The offset behind its last record: durable when the lane's durable offset has reached it.
    pub next_offset: Offset,
    /// Whether it had been stored before.
    pub duplicate: bool,
    /// The time that its records have got with this append, where the stream's settings say so.
    pub append_time: Option<Timestamp>,
}

pub enum AppendStep {
    Done(Appended),
    /// A buffer is missing; try again when one came free.
    NeedsBuffer,
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
                is_scratch: stream.durability == Durability::Memory,
                bytes_max: stream.limits.group_bytes_max(),
                max_timestamp: stored.max_timestamp.unwrap_or(Timestamp(i64::MIN)),
                fingerprint: stored.fingerprint,
                marked_at: stored.marked_at,
                changed: stored.unmarked,
                aborted: stored.aborted,
                aborted_count: group
                    .look_at_places(|places| places.aborted_count())
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
            written: Written::default(),
            durable_moved: Event::new(),
            watchers: Watchers::default(),
            fault,
            read_fault: OnceLock::new(),
            cut_bytes: stored.cut_bytes,
            has_data_noted: AtomicBool::new(false),
            start: LaneStart::default(),
            unstable,
            fetch_ends: FetchEnds::default(),
            marks: Mutex::default(),
        }
    }

    /// Appends a chunk of data whose header and checksum were checked.
    pub fn append(
        self: &Arc<Self>,
        core: &Core,
        header: &ChunkHeader,
        chunk: &[u8],
    ) -> Result<AppendStep> {
        let head = self.head.lock();
        self.check_open(core)?;
        if let Verdict::Duplicate(base_offset) = head.producers.check(header)? {
            return Ok(AppendStep::Done(Appended {
                base_offset,
                next_offset: base_offset.plus(u64::from(header.last_offset_delta) + 1),
                duplicate: true,
                append_time: None,
            }));
        }
        self.store(core, head, header, chunk, None)
    }

    /// Appends the chunk that says `marker`.
    pub fn append_marker(
        self: &Arc<Self>,
        core: &Core,
        header: &ChunkHeader,
        chunk: &[u8],
        marker: &EndMarker,
    ) -> Result<AppendStep> {
        let head = self.head.lock();
        self.check_open(core)?;
        head.producers.check_marker(marker)?;
        self.store(core, head, header, chunk, Some(marker))
    }

    /// Whether the lane takes anything. The caller holds its lock, so that a log that is closed waits
    /// for what came before.
    #[inline]
    fn check_open(&self, core: &Core) -> Result<()> {
        if self.stream.removed.load(Ordering::Relaxed) {
            return Err(LogError::UnknownStream {
                name: self.stream.name.clone(),
            });
        }
        if let Some(fault) = self.fault.get() {
            return Err(fault.clone());
        }
        if core.closed.load(Ordering::Relaxed) {
            return Err(LogError::Closed);
        }
        Ok(())
    }

    /// Stores a chunk that is new.
    ///
    /// The order of the steps matters: nothing is changed before everything that can fail has been
    /// done, and the reference is pushed under the lane's lock, so that the virtual log has the
    /// lane's chunks in their order.
    #[inline(always)]
    fn store(
        self: &Arc<Self>,
        core: &Core,
        mut head: MutexGuard<'_, Head>,
        header: &ChunkHeader,
        chunk: &[u8],
        marker: Option<&EndMarker>,
    ) -> Result<AppendStep> {
        if core.is_disk_full() {
            return Err(core.disk_full_error());
        }

        // Step 1: make room.
        if !head.has_room(chunk.len()) && !self.open_segment(core, &mut head, chunk.len())? {
            return Ok(AppendStep::NeedsBuffer);
        }

        // Step 2: copy.
        let base_offset = head.next_offset;
        let next_offset = base_offset.plus(u64::from(header.last_offset_delta) + 1);
        let Head {
            open, producers, ..
        } = &mut *head;
        let open = open.as_mut().expect("there is room in it");
        if is_mark_due(open.position, open.marked_at) {
            open.mark(MarkKind::Within, base_offset, producers);
        }
        let position = open.position;
        let writer = open.writer.as_mut().expect("there is room in it");
        let at = writer.filled();
        writer
            .extend::<std::convert::Infallible>(chunk.len(), |free| {
                free.copy_from_slice(chunk);
                set_place(free, base_offset, LEADER_EPOCH);
                Ok(chunk.len())
            })
            .unwrap_or_else(|never| match never {});

        // Step 3: account for it.
        open.fingerprint.add(position, header.crc, chunk.len());
        open.position = position.plus(chunk.len() as u64);
        open.max_timestamp = open.max_timestamp.max(header.max_timestamp);
        if header.producer_id != ProducerId::NONE {
            open.changed.insert(header.producer_id);
            match marker {
                Some(marker) => {
                    let timestamp = header.max_timestamp;
                    self.end_transaction(open, producers, marker, base_offset, timestamp);
                }
                None => {
                    if producers.appended(header, base_offset) == TransactionStep::Begun {
                        self.unstable.begin(base_offset);
                    }
                }
            }
        }
        head.next_offset = next_offset;
        head.appended_at = core.recently();

        // Step 4: hand it to the virtual log.
        let open = head.open.as_ref().expect("just written to");
        let mut pushed = Pushed::InLine;
        if open.is_scratch {
            open.group.set_durable(open.position);
            self.set_durable_offset(next_offset);
        } else {
            let writer = open.writer.as_ref().expect("just written to");
            pushed = self.virtual_log.push(
                self,
                &open.group,
                position,
                writer.buffer(),
                at..at + chunk.len(),
                next_offset,
            );
            if self.stream.durability == Durability::Async {
                open.group.set_readable(open.position);
                self.early_offset.store(next_offset.0, Ordering::Release);
            }
        }
        drop(head);
        if self.stream.durability == Durability::Async {
            self.tell_watchers();
        }
        match pushed {
            Pushed::InLine => {}
            Pushed::First => core.queue.add(Arc::clone(&self.virtual_log)),
            Pushed::Due => core.queue.hurry(&self.virtual_log),
        }
        Ok(AppendStep::Done(Appended {
            base_offset,
            next_offset,
            duplicate: false,
            append_time: None,
        }))
    }

    /// Takes note of the marker at `offset`.
    fn end_transaction(
        &self,
        open: &mut OpenGroup,
        producers: &mut Producers,
        marker: &EndMarker,
        offset: Offset,
        timestamp: Timestamp,
    ) {
        let Some(ended) = producers.ended(marker, offset, timestamp) else {
            return;
        };
        if let Some(aborted) = ended.aborted() {
            open.add_aborted(aborted);
        }
        self.unstable.end(&ended, self.durable_offset());
    }

    /// Opens a segment with room for `bytes`, and a group where the last one is full. `false` when
    /// the pool has no buffer.
    fn open_segment(&self, core: &Core, head: &mut Head, bytes: usize) -> Result<bool> {
        let full = head.open.as_ref().is_some_and(|open| open.writer.is_some());
        let wanted = if full {
            // The last one was filled, not given back: the lane is busy.
            (head.segment_bytes * 2).min(self.stream.limits.segment_bytes_max())
        } else {
            BLOCK_BYTES_MIN
        };
        let Some(mut writer) = core.pool.allocate_segment(wanted, bytes) else {
            return Ok(false);
        };
        head.segment_bytes = writer.room();
        core.segment_opened();

        let Head {
            open,
            producers,
            next_offset,
            ..
        } = head;
        if let Some(open) = open
            && open.writer.take().is_some()
        {
            open.group.close_segment(open.position);
        }
        if open.as_ref().is_some_and(|open| !open.takes(bytes)) {
            close_group(open, *next_offset, producers);
        }
        let open = match open {
            Some(open) => open,
            None => open.insert(self.new_group(*next_offset)),
        };
        open.mark(MarkKind::SegmentStart, *next_offset, producers);
        // Behind a lead of so many bytes its pages lie in memory as in the file: they are written
        // without a copy.
        let lead = open.position.0 as usize % PAGE_BYTES;
        let lead = if lead + bytes <= writer.room() {
            lead
        } else {
            0
        };
        writer.skip(lead);
        let buffer = Arc::clone(writer.buffer());
        let segment = open.group.open_segment(open.position, buffer, lead);
        open.writer = Some(writer);
        core.add_resident(Resident {
            lane: self.id,
            group: Arc::clone(&open.group),
            segment,
        });
        Ok(true)
    }

    fn new_group(&self, first_offset: Offset) -> OpenGroup {
        let id = GroupId(self.streamlet.next_group.fetch_add(1, Ordering::Relaxed));
        let group = Arc::new(Group::new(self.id, id, first_offset));
        self.groups.write().push_back(Arc::clone(&group));
        OpenGroup {
            group,
            writer: None,
            position: Position(0),
            is_scratch: self.is_scratch(),
            bytes_max: self.stream.limits.group_bytes_max(),
            max_timestamp: Timestamp(i64::MIN),
            fingerprint: Fingerprint::default(),
            marked_at: Position(0),
            changed: HashSet::new(),
            aborted: Vec::new(),
            aborted_count: 0,
        }
    }

    /// Closes the head segment, so that its buffer can be given back: the lane is idle, or memory is
    /// short. `false` when there is none, or when it holds what is not durable yet.
    pub fn close_head_segment(&self) -> bool {
        let mut head = self.head.lock();
        let Some(open) = &mut head.open else {
            return false;
        };
        if open.writer.is_none() || open.group.durable() < open.position {
            return false;
        }
        open.writer = None;
        open.group.close_segment(open.position);
        true
    }

    /// Closes the open group of a lane that is never written to disk, so that its memory can be
    /// taken.
    pub fn close_scratch_group(&self) {
        debug_assert!(self.is_scratch());
        let mut head = self.head.lock();
        head.close_group();
    }

    /// Closes the open group, so that retention or compaction can take it, and begins the next one
    /// at the same offset. `None` when the open group is empty or holds what is not durable yet.
    pub fn roll(&self) -> Option<Arc<Group>> {
        if self.fault().is_some() {
            // A group that goes on behind what is missing would hide that.
            return None;
        }
        let mut head = self.head.lock();
        let next_offset = head.next_offset;
        let open = head.open.as_ref()?;
        if open.position == Position(0) || open.group.durable() < open.position {
            return None;
        }
        head.close_group();
        let mut next = self.new_group(next_offset);
        next.mark(MarkKind::SegmentStart, next_offset, &head.producers);
        let group = Arc::clone(&next.group);
        head.open = Some(next);
        Some(group)
    }

    /// Gives up what is not durable, and begins a group behind what is, so that all before it can be
    /// removed. The lane has a fault, so nothing comes into that group, and none of what is given up
    /// is remembered of its producers.
    pub fn give_up(&self) -> Arc<Group> {
        assert!(self.fault().is_some(), "an append may come");
        let mut head = self.head.lock();
        let durable = self.durable_offset();
        head.next_offset = durable;
        self.early_offset.store(0, Ordering::Release);
        if let Some(OpenGroup {
            group, position, ..
        }) = &head.open
            && *position == Position(0)
            && group.first_offset == durable
        {
            return Arc::clone(group);
        }
        head.close_group();
        let next = head.open.insert(self.new_group(durable));
        Arc::clone(&next.group)
    }

    /// Marks the end of the open group, so that the next start need not read what is before.
    pub fn mark_end(&self) {
        if self.fault().is_some() {
            // The index of a damaged group tells the next start what is missing.
            return;
        }
        let mut head = self.head.lock();
        let Head {
            open,
            producers,
            next_offset,
            ..
        } = &mut *head;
        if let Some(open) = open
            && open.marked_at < open.position
            && open.group.durable() == open.position
        {
            open.mark(MarkKind::Within, *next_offset, producers);
        }
    }

    /// Whether the lane is never written to disk.
    pub fn is_scratch(&self) -> bool {
        self.stream.durability == Durability::Memory
    }

    /// About when the last append was: see [`Core::recently`].
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

    /// Lets `look` see what is known of the producers.
    pub fn with_producers<R>(&self, look: impl FnOnce(&Producers) -> R) -> R {
        look(&self.head.lock().producers)
    }

    /// The offset that comes next.
    pub fn next_offset(&self) -> Offset {
        self.head.lock().next_offset
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
    pub fn readable_offset(&self) -> Offset {
        Offset(self.early_offset.load(Ordering::Acquire)).max(self.durable_offset())
    }

    /// Moves the readable offset of a [`Durability::Written`] stream and wakes the lane's waiters; the caller has
    /// moved the group's readable offset before.
    pub fn set_written_offset(&self, offset: Offset) {
        self.early_offset.store(offset.0, Ordering::Release);
        self.wake();
    }

    /// Moves the durable offset and wakes the lane's waiters; the caller has moved the group's durable
    /// head before.
    pub fn set_durable_offset(&self, offset: Offset) {
        assert!(
            self.durable_offset() <= offset,
            "the durable head never goes back"
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
            self.watchers.tell(self);
        }
    }

    /// The same for those alone who read what is not durable yet.
    fn tell_watchers(&self) {
        fence(Ordering::SeqCst);
        if self.watchers.is_any() {
            self.watchers.tell(self);
        }
    }

    pub fn fault(&self) -> Option<&LogError> {
        self.fault.get()
    }

    /// An error where the lane ends since what comes behind is damaged or missing: those who read to its
    /// end are told.
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

    /// The first damage that a read met.
    pub fn read_fault(&self) -> Option<&LogError> {
        self.read_fault.get()
    }

    /// Takes note of damage that a read met.
    pub fn set_read_fault(&self, fault: &LogError) {
        if self.read_fault.get().is_none() {
            let _ = self.read_fault.set(fault.clone());
        }
    }

    /// The start has found what is wrong.
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

    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.groups.read().iter().cloned().collect()
    }

    pub fn first_group(&self) -> Option<Arc<Group>> {
        self.groups.read().front().cloned()
    }

    pub fn last_group(&self) -> Option<Arc<Group>> {
        self.groups.read().back().cloned()
    }

    pub fn group(&self, id: GroupId) -> Option<Arc<Group>> {
        let groups = self.groups.read();
        let n = groups.binary_search_by_key(&id, |group| group.id).ok()?;
        Some(Arc::clone(&groups[n]))
    }

    /// The first group after `id`.
    pub fn group_after(&self, id: GroupId) -> Option<Arc<Group>> {
        let groups = self.groups.read();
        let n = groups.partition_point(|group| group.id <= id);
        groups.get(n).cloned()
    }

    /// The group that goes on behind `position` of `group`, if this is where `group` ends.
    pub fn group_behind(&self, group: &Group, position: Position) -> Option<Arc<Group>> {
        let ended = group.end().is_some_and(|end| position >= end.position);
        ended.then(|| self.group_after(group.id)).flatten()
    }

    /// The group that goes on behind `position` of a group that is not there any more, if this is
    /// where that group ended and nothing behind it was taken away.
    pub fn group_behind_removed(&self, id: GroupId, position: Position) -> Option<Arc<Group>> {
        let groups = self.groups.read();
        let ended = *self.removed_end.lock() == Some((id, position));
        ended.then(|| groups.front().cloned()).flatten()
    }

    /// The group that holds `offset`, or the last one if it lies behind all.
    pub fn group_of_offset(&self, offset: Offset) -> Option<Arc<Group>> {
        let groups = self.groups.read();
        let after = groups.partition_point(|group| group.first_offset <= offset);
        groups.get(after.checked_sub(1)?).cloned()
    }

    /// Groups before `group` that are not whole in their files, oldest first.
    pub fn unsettled_before(&self, group: GroupId) -> Vec<Arc<Group>> {
        let groups = self.groups.read();
        let before = groups.partition_point(|other| other.id < group);
        let mut unsettled: Vec<Arc<Group>> = groups
            .range(..before)
            .rev()
            .take_while(|other| !other.is_settled())
            .cloned()
            .collect();
        unsettled.reverse();
        unsettled
    }

    /// Takes the oldest group out of the lane, if it is `id`.
    pub fn remove_first(&self, id: GroupId) -> Option<Arc<Group>> {
        let mut groups = self.groups.write();
        if groups.front()?.id != id {
            return None;
        }
        let removed = groups.pop_front()?;
        *self.removed_end.lock() = removed.end().map(|end| (id, end.position));
        Some(removed)
    }

    /// The earliest offset that is stored and was not deleted.
    pub fn earliest_offset(&self) -> Offset {
        let first = || self.first_group().map(|group| group.first_offset);
        let stored = first().unwrap_or_else(|| {
            // The first group may be made meanwhile.
            let next = self.next_offset();
            first().unwrap_or(next)
        });
        stored.max(self.start.offset())
    }

    /// Whether all that the lane holds was deleted.
    pub fn is_emptied(&self) -> bool {
        self.start.offset() > Offset(0) && self.start.offset() >= self.next_offset()
    }

    /// Where reading begins in the groups that are stored; `None` when there are none.
    pub fn first_place(&self) -> Option<(GroupId, Position)> {
        let start = self.start.place();
        start
            .filter(|(group, _)| self.group(*group).is_some())
            .or_else(|| Some((self.first_group()?.id, Position(0))))
    }

    /// Where a reader of this lane starts, also one that is there before the first group: the id that
    /// comes next may go to another lane of the streamlet.
    pub fn first_cursor(&self) -> Cursor {
        let (group, position) = self.first_place().unwrap_or((BEFORE_ALL, Position(0)));
        self.cursor(group, position)
    }

    /// Where reading starts; for a lane without groups with the group that comes next.
    pub fn earliest_cursor(&self) -> Cursor {
        let (group, position) = self.first_place().unwrap_or_else(|| {
            let next = self.streamlet.next_group.load(Ordering::Relaxed);
            (GroupId(next), Position(0))
        });
        self.cursor(group, position)
    }

    pub fn cursor(&self, group: GroupId, position: Position) -> Cursor {
        Cursor {
            stream: self.id.stream,
            streamlet: self.id.streamlet,
            group,
            segment: self
                .group(group)
                .map_or_else(Default::default, |group| group.segment_at(position)),
            position,
        }
    }

    pub fn add_reader(&self, mark: &Arc<ReaderMark>) {
        let mut marks = self.marks.lock();
        marks.retain(|mark| mark.strong_count() > 0);
        marks.push(Arc::downgrade(mark));
    }

    /// Whether every reader of the lane has passed a position.
    pub fn readers_passed(&self, group: GroupId, position: Position) -> bool {
        self.marks
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .all(|mark| {
                let at = (
                    mark.group.load(Ordering::Relaxed),
                    mark.position.load(Ordering::Relaxed),
                );
                at >= (group.0, position.0)
            })
    }
}

impl Head {
    fn close_group(&mut self) {
        close_group(&mut self.open, self.next_offset, &self.producers);
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let writer = open.writer.as_ref();
            writer.is_some_and(|writer| writer.room() >= bytes) && open.takes(bytes)
        })
    }
}

impl OpenGroup {
    /// Whether a chunk of so many bytes still belongs to this group.
    fn takes(&self, bytes: usize) -> bool {
        self.position == Position(0) || self.position.0 + bytes as u64 <= self.bytes_max
    }

    fn add_aborted(&mut self, aborted: AbortedTransaction) {
        self.group.add_aborted(aborted);
        self.aborted.push(aborted);
        self.aborted_count += 1;
        if self.aborted_count >= ABORTED_MAX {
            self.bytes_max = 0;
        }
    }

    /// Notes what holds at the end of the group: `producers` must not know what comes after.
    fn mark(&mut self, kind: MarkKind, offset: Offset, producers: &Producers) {
        let stable = producers.stable(offset);
        let producers = if self.is_scratch {
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
        self.marked_at = self.position;
        let mark = Mark {
            kind,
            position: self.position,
            offset,
            max_timestamp: self.max_timestamp,
            stable,
            producers,
            aborted: std::mem::take(&mut self.aborted),
            fingerprint: self.fingerprint,
        };
        self.group.add_place(&mark);
        if !self.is_scratch {
            self.group.add_mark(mark);
        }
    }
}

/// Whether a mark is to be made before the chunk at `position`: after the group's first chunk, so that the
/// file can be told from others, and then every 64 KiB.
pub fn is_mark_due(position: Position, marked_at: Position) -> bool {
    position.0 - marked_at.0 >= MARK_BYTES || (marked_at == Position(0) && position > marked_at)
}

/// Closes the open group; `next_offset` is the offset that its successor starts with.
fn close_group(open: &mut Option<OpenGroup>, next_offset: Offset, producers: &Producers) {
    let Some(mut open) = open.take() else {
        return;
    };
    if open.writer.is_some() {
        open.group.close_segment(open.position);
    }
    if !open.aborted.is_empty() {
        // The last mark says nothing of transactions, so that it is found from the file's end.
        open.mark(MarkKind::Within, next_offset, producers);
    }
    let end = Mark {
        kind: MarkKind::GroupEnd,
        position: open.position,
        offset: next_offset,
        max_timestamp: open.max_timestamp,
        stable: producers.stable(next_offset),
        producers: Vec::new(),
        aborted: Vec::new(),
        fingerprint: open.fingerprint,
    };
    open.group.close(GroupEnd::of(&end));
    open.group.add_mark(end);
}

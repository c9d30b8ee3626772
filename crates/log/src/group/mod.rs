//! A group: a series of segments, and a file that they end up in.
//!
//! Life of a segment: *head* (appends go to it) → *closed* → *persisted* (its bytes are in the
//! group's file and synced) → *evicted* (its buffer went back to the pool; reads go to the file).
//!
//! Positions of a group: `synced ≤ written ≤ head` and `durable ≤ readable ≤ head`, and none goes back. What
//! lies between `synced` and `durable` is in the journal; what lies between `durable` and `synced`
//! is about to become durable. Of a [`Durability::Written`](crate::Durability::Written) stream
//! `durable ≤ synced ≤ readable ≤ written`.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use millstream_base::disk::Access;
use millstream_base::{DiskFile, GroupId, Offset, Position, SegmentIndex, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::ids::{GroupName, LaneId};
use crate::index::places::Places;
use crate::index::{Index, IndexWriter, Mark, MarkKind};
use crate::memory::pool::{Buffer, Slice};
use crate::producers::transactions::AbortedTransaction;

/// When more group files are open than this, a busy lane's file is closed after each commit too:
/// with their indexes they stay well below what a process may open.
const OPEN_FILES_MAX: usize = 128;

/// How a closed group ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupEnd {
    pub position: Position,
    /// The offset behind the last record: the lane's next group starts with it, unless something is
    /// missing between them.
    pub offset: Offset,
    /// The largest timestamp in the group.
    pub max_timestamp: Timestamp,
    /// Before this offset all transactions have ended here.
    pub stable: Offset,
}

impl GroupEnd {
    /// What the mark says that closes the group.
    pub fn of(mark: &Mark) -> GroupEnd {
        GroupEnd {
            position: mark.position,
            offset: mark.offset,
            max_timestamp: mark.max_timestamp,
            stable: mark.stable,
        }
    }
}

#[derive(Debug)]
pub struct Group {
    pub lane: LaneId,
    pub id: GroupId,
    pub first_offset: Offset,
    /// Written by the lane when it moves on; read by consumers and retention.
    end: OnceLock<GroupEnd>,
    /// The durable head. Stored by the syncer (`Release`) after the sync; loaded by readers
    /// (`Acquire`), who then find the bytes before it in a segment or in the file.
    durable: AtomicU64,
    /// What may be read before it is durable; else 0. Stored (`Release`) by the lane when the bytes are
    /// in their segment, or by the syncer when they are in the file.
    early: AtomicU64,
    /// Bytes that the file holds for good. Stored under the lock of `file`; loaded by eviction and
    /// by the journal.
    synced: AtomicU64,
    /// Set when retention or deletion takes the group away; under the lock of `file`.
    removed: AtomicBool,
    /// Set with `failed` of `file`, for those who must not wait for its lock.
    failed: AtomicBool,
    /// In the order of their positions. The lane adds them, eviction takes their buffers.
    segments: RwLock<Vec<Segment>>,
    /// Marks that wait until the file is synced up to them. The lane adds, write-back takes.
    marks: Mutex<VecDeque<Mark>>,
    /// Why what comes behind the last readable byte is missing, if it is. Set by recovery.
    damage: OnceLock<LogError>,
    /// What the index says, for readers. The lane adds; `None` when it is to be read from the index.
    places: RwLock<Option<Places>>,
    /// Whether the places were used since they were asked for the last time.
    places_used: AtomicBool,
    file: Mutex<GroupFile>,
    /// Held while the file is synced: of two syncs at a time only one would be told of a failed write.
    /// Taken before the lock of `file`, which is free meanwhile, so that the file can be written.
    syncing: Mutex<()>,
}

#[derive(Debug)]
struct Segment {
    base: Position,
    /// `None` for the head.
    end: Option<Position>,
    /// `None` when evicted.
    buffer: Option<Arc<Buffer>>,
    /// Bytes of the buffer before the first one of the segment.
    lead: usize,
}

struct GroupFile {
    /// Kept open only while a busy lane syncs straight into it; the index likewise.
    open: Option<Arc<CountedFile>>,
    index: Option<IndexWriter>,
    /// Bytes of the file that were written, synced or not.
    written: u64,
    /// Bytes of the index file; 0 when there is none yet.
    index_len: u64,
    /// Whether the file has a name that survives a crash.
    named: bool,
    /// Why the file must not be written any more.
    failed: Option<LogError>,
}

/// An open file that is counted while it is open.
struct CountedFile {
    file: Box<dyn DiskFile>,
    count: Arc<AtomicUsize>,
}

impl CountedFile {
    fn new(file: Box<dyn DiskFile>, count: &Arc<AtomicUsize>) -> CountedFile {
        count.fetch_add(1, Ordering::Relaxed);
        CountedFile {
            file,
            count: Arc::clone(count),
        }
    }
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for GroupFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupFile")
            .field("written", &self.written)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// What is known of a group that lies on disk.
#[derive(Debug)]
pub struct StoredGroup {
    /// Its durable head.
    pub position: Position,
    /// What its file holds for good; the rest is in memory, and in the journal.
    pub synced: Position,
    pub end: Option<GroupEnd>,
    /// Bytes of the index file.
    pub index_len: u64,
    /// Segment starts; empty when they are not loaded.
    pub segments: Vec<Position>,
    /// Of the last segments, which hold what is not synced.
    pub buffers: Vec<Arc<Buffer>>,
    /// Marks that are not in the index yet.
    pub marks: Vec<Mark>,
    /// What all of its marks say; `None` when they are not loaded.
    pub places: Option<Places>,
    /// Whether the file's name survives a crash.
    pub named: bool,
    /// Why what comes behind `position` is missing, if it is.
    pub damage: Option<LogError>,
}

/// How bytes are written to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// Through the cache of the operating system, so that they outlast the process as soon as they are written.
    Cached,
    /// Past the cache where they are many: they are synced at once.
    BypassCache,
}

/// Whether a write-back leaves the file open for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepOpen {
    Yes,
    No,
}

impl KeepOpen {
    /// For a busy lane's file.
    pub fn of_busy(dir: &DataDir) -> KeepOpen {
        match dir.open_group_files.load(Ordering::Relaxed) <= OPEN_FILES_MAX {
            true => KeepOpen::Yes,
            false => KeepOpen::No,
        }
    }
}

impl Group {
    /// A group that starts empty, in memory.
    pub fn new(lane: LaneId, id: GroupId, first_offset: Offset) -> Group {
        Group {
            lane,
            id,
            first_offset,
            end: OnceLock::new(),
            durable: AtomicU64::new(0),
            early: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            segments: RwLock::new(Vec::new()),
            marks: Mutex::new(VecDeque::new()),
            damage: OnceLock::new(),
            places: RwLock::new(Some(Places::default())),
            places_used: AtomicBool::new(false),
            file: Mutex::new(GroupFile {
                open: None,
                index: None,
                written: 0,
                index_len: 0,
                named: false,
                failed: None,
            }),
            syncing: Mutex::new(()),
        }
    }

    /// A group that recovery found on disk.
    pub fn stored(lane: LaneId, id: GroupId, first_offset: Offset, stored: StoredGroup) -> Group {
        let group = Group::new(lane, id, first_offset);
        let (durable, synced) = (stored.position.0, stored.synced.0);
        group.durable.store(durable, Ordering::Relaxed);
        group.synced.store(synced, Ordering::Relaxed);
        {
            let mut file = group.file.lock();
            file.written = synced;
            file.index_len = stored.index_len;
            file.named = stored.named;
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
        *group.marks.lock() = stored.marks.into();
        *group.places.write() = stored.places;
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

    /// Moves the durable head; only the syncer of the group's virtual log calls it.
    pub fn set_durable(&self, position: Position) {
        assert!(
            self.durable() <= position,
            "the durable head never goes back"
        );
        self.durable.store(position.0, Ordering::Release);
    }

    /// Up to where consumers that need not wait for durability may read.
    pub fn readable(&self) -> Position {
        Position(self.early.load(Ordering::Acquire)).max(self.durable())
    }

    /// Lets what was appended be read before it is durable; under the lane's lock, or by the syncer of
    /// the group's virtual log.
    pub fn set_readable(&self, position: Position) {
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

    /// Why what comes behind the last readable byte is missing, if it is.
    pub fn damage(&self) -> Option<&LogError> {
        self.damage.get()
    }

    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub fn add_mark(&self, mark: Mark) {
        self.marks.lock().push_back(mark);
    }

    /// Adds what a mark says of a place; all that come before were added.
    pub fn add_place(&self, mark: &Mark) {
        if let Some(places) = &mut *self.places.write() {
            places.add(mark);
        }
    }

    /// Adds a transaction that was aborted by the chunk that is about to be appended.
    pub fn add_aborted(&self, aborted: AbortedTransaction) {
        if let Some(places) = &mut *self.places.write() {
            places.add_aborted(aborted);
        }
    }

    /// Lets `look` see the places, if they are known.
    pub fn look_at_places<R>(&self, look: impl Fn(&Places) -> R) -> Option<R> {
        let seen = self.places.read().as_ref().map(look);
        if !self.places_used.load(Ordering::Relaxed) {
            self.places_used.store(true, Ordering::Relaxed);
        }
        seen
    }

    /// Takes over what was read from the index. `false` when it is known already.
    pub fn set_places(&self, loaded: Places) -> bool {
        let mut places = self.places.write();
        let is_news = places.is_none() && !self.is_removed();
        if is_news {
            *places = Some(loaded);
        }
        is_news
    }

    /// Whether the places were used since this was asked for the last time.
    pub fn places_are_used(&self) -> bool {
        self.places_used.swap(false, Ordering::Relaxed)
    }

    /// Forgets the places, if the index has all of them.
    pub fn forget_places(&self) {
        if self.is_settled() {
            *self.places.write() = None;
        }
    }

    /// Whether there are marks that are not in the index yet.
    pub fn has_marks(&self) -> bool {
        !self.marks.lock().is_empty()
    }

    /// Opens the next segment at `base`.
    pub fn open_segment(&self, base: Position, buffer: Arc<Buffer>, lead: usize) -> SegmentIndex {
        let mut segments = self.segments.write();
        if let Some(last) = segments.last() {
            assert_eq!(last.end, Some(base), "segments leave no gap");
        }
        segments.push(Segment {
            base,
            end: None,
            buffer: Some(buffer),
            lead,
        });
        SegmentIndex(segments.len() as u32 - 1)
    }

    /// Closes the head segment at `end`.
    pub fn close_segment(&self, end: Position) {
        let mut segments = self.segments.write();
        let last = segments.last_mut().expect("a lane closes what it opened");
        assert!(last.end.is_none() && last.base <= end);
        last.end = Some(end);
    }

    /// How many segments the group has had so far, as far as they are known.
    pub fn segment_count(&self) -> u32 {
        self.segments.read().len() as u32
    }

    /// Loads the segments' places from the index, where they are not known yet.
    pub fn load_segments(&self, dir: &DataDir) -> Result<()> {
        if self.segment_count() > 0 || self.synced() == Position(0) {
            return Ok(());
        }
        let path = self.index_path(dir);
        let index = Index::read(&*dir.disk, &path, &self.name())
            .map_err(|error| LogError::io("read index", &path, error))?;
        let mut starts: Vec<Position> = index
            .marks
            .iter()
            .filter(|mark| mark.kind == MarkKind::SegmentStart)
            .map(|mark| mark.position)
            .collect();
        if starts.first() != Some(&Position(0)) {
            starts.insert(0, Position(0));
        }
        let mut segments = self.segments.write();
        if segments.is_empty() {
            let ends: Vec<Position> = starts
                .iter()
                .skip(1)
                .copied()
                .chain([self.synced()])
                .collect();
            segments.extend(starts.iter().zip(ends).map(|(&base, end)| Segment {
                base,
                end: Some(end),
                buffer: None,
                lead: 0,
            }));
        }
        Ok(())
    }

    /// The segments that take memory.
    pub fn segments_in_memory(&self) -> Vec<SegmentIndex> {
        let segments = self.segments.read();
        let indexed = (0..).map(SegmentIndex).zip(segments.iter());
        let in_memory = indexed.filter(|(_, segment)| segment.buffer.is_some());
        in_memory.map(|(index, _)| index).collect()
    }

    /// The segment that holds `position`, or the last one for the group's end.
    pub fn segment_at(&self, position: Position) -> SegmentIndex {
        let segments = self.segments.read();
        let after = segments.partition_point(|segment| segment.base <= position);
        SegmentIndex(after.saturating_sub(1) as u32)
    }

    /// Where a segment starts.
    pub fn segment_base(&self, segment: SegmentIndex) -> Option<Position> {
        self.segments
            .read()
            .get(segment.0 as usize)
            .map(|segment| segment.base)
    }

    /// What memory holds of `[from, to)` in the segment of `from`; `None` when it is evicted.
    pub fn slice_in_memory(&self, from: Position, to: Position) -> Option<Slice> {
        let segments = self.segments.read();
        let after = segments.partition_point(|segment| segment.base <= from);
        let segment = segments.get(after.checked_sub(1)?)?;
        let end = segment.end.map_or(to, |end| end.min(to));
        if end <= from {
            return None;
        }
        let buffer = segment.buffer.as_ref()?;
        let start = segment.lead + (from.0 - segment.base.0) as usize;
        Some(buffer.slice(start..start + (end.0 - from.0) as usize))
    }

    /// Whether memory holds the segment of a position.
    pub fn is_in_memory(&self, position: Position) -> bool {
        let segments = self.segments.read();
        let after = segments.partition_point(|segment| segment.base <= position);
        let segment = after.checked_sub(1).and_then(|last| segments.get(last));
        segment.is_some_and(|segment| segment.buffer.is_some())
    }

    /// Gives the buffer of a segment back, if it is closed and persisted. `true` when it did, or
    /// when it was gone already.
    pub fn evict(&self, segment: SegmentIndex) -> bool {
        let synced = self.synced();
        let mut segments = self.segments.write();
        let Some(segment) = segments.get_mut(segment.0 as usize) else {
            return true;
        };
        if self.is_removed() || segment.end.is_some_and(|end| end <= synced) {
            segment.buffer = None;
        }
        let is_evicted = segment.buffer.is_none();
        drop(segments);
        if is_evicted {
            self.forget_places_if_cold();
        }
        is_evicted
    }

    /// Forgets the places of a group that no longer takes memory otherwise: who needs them again has
    /// them read from the index.
    fn forget_places_if_cold(&self) {
        let segments = self.segments.read();
        // Eviction goes through them from the first to the last.
        let in_memory = |segment: &Segment| segment.buffer.is_some();
        if !segments.iter().rev().any(in_memory) {
            self.forget_places();
        }
    }

    /// The end of a segment, if it is closed.
    pub fn segment_end(&self, segment: SegmentIndex) -> Option<Position> {
        self.segments
            .read()
            .get(segment.0 as usize)
            .and_then(|segment| segment.end)
    }

    /// Writes what memory holds up to `to` into the file, without syncing it, and returns how far
    /// the file is written then. The lane's earlier groups must be written whole before.
    pub fn write_back(
        &self,
        dir: &DataDir,
        to: Position,
        mode: WriteMode,
        keep_open: KeepOpen,
    ) -> Result<Position> {
        let mut file = self.file.lock();
        if self.is_removed() || (to.0 <= file.written && file.named) {
            return Ok(Position(file.written));
        }
        if let Some(error) = &file.failed {
            return Err(error.clone());
        }
        let from = Position(file.written);
        let to = to.max(from);
        let slices = self.slices(from, to);
        let mut parts: Vec<IoSlice<'_>> = slices.iter().map(|slice| IoSlice::new(slice)).collect();
        let handle = self.open(dir, &mut file)?;
        match mode {
            WriteMode::Cached => handle.file.write_all_at(&mut parts, from.0),
            WriteMode::BypassCache => handle.file.write_past_cache_at(&mut parts, from.0),
        }
        .map_err(|error| LogError::io("write", self.path(dir), error))?;
        file.written = to.0;
        if keep_open == KeepOpen::No {
            file.open = None;
        }
        Ok(to)
    }

    /// The open file; created where there is none.
    fn open(&self, dir: &DataDir, file: &mut GroupFile) -> Result<Arc<CountedFile>> {
        let counted = match &mut file.open {
            Some(counted) => counted,
            closed => {
                dir.create_stream_dir(self.lane.stream)?;
                let path = self.path(dir);
                let handle = dir
                    .disk
                    .open(&path, Access::Create)
                    .map_err(|error| LogError::io("open", path, error))?;
                closed.insert(Arc::new(CountedFile::new(handle, &dir.open_group_files)))
            }
        };
        Ok(Arc::clone(counted))
    }

    /// Slices of memory that together hold `[from, to)`.
    fn slices(&self, from: Position, to: Position) -> Vec<Slice> {
        let mut slices = Vec::new();
        let mut at = from;
        while at < to {
            let slice = self
                .slice_in_memory(at, to)
                .expect("what is not persisted is never evicted");
            at = at.plus(slice.len() as u64);
            slices.push(slice);
        }
        slices
    }

    /// Syncs what was written. A failure is final: what the file holds then is unknown.
    pub fn sync(&self, dir: &DataDir, keep_open: KeepOpen) -> Result<()> {
        let _one = self.syncing.lock();
        let mut file = self.file.lock();
        if self.is_removed() {
            return Ok(());
        }
        if let Some(error) = &file.failed {
            return Err(error.clone());
        }
        let path = self.path(dir);
        if file.named && file.written == self.synced().0 {
            // Only its end may have come since.
            let to = self.synced();
            self.note_synced(dir, &mut file, to, keep_open);
            return Ok(());
        }
        let handle = self.open(dir, &mut file)?;
        let (to, is_named) = (Position(file.written), file.named);
        drop(file);
        let mut result = handle
            .file
            .sync()
            .map_err(|error| LogError::io("sync", &path, error));
        drop(handle);
        if result.is_ok() && !is_named {
            result = dir.sync_stream_dir(self.lane.stream);
        }
        let mut file = self.file.lock();
        if self.is_removed() {
            return Ok(());
        }
        if let Err(error) = result {
            let fault = LogError::LaneFault {
                what: error.to_string(),
            };
            self.failed.store(true, Ordering::Relaxed);
            file.failed = Some(fault.clone());
            return Err(fault);
        }
        if let Some(error) = &file.failed {
            return Err(error.clone());
        }
        // The whole data directory may have been synced meanwhile.
        let to = to.max(self.synced());
        self.note_synced(dir, &mut file, to, keep_open);
        Ok(())
    }

    /// Takes note that the first `to` bytes are synced: the caller synced the whole data directory
    /// after [`Group::write_back`] had returned that position.
    pub fn synced_with_all(&self, dir: &DataDir, to: Position) {
        let mut file = self.file.lock();
        if file.failed.is_none() && !self.is_removed() && self.synced() <= to {
            self.note_synced(dir, &mut file, to, KeepOpen::No);
        }
    }

    /// Marks the file as unusable: a sync of the whole data directory failed.
    pub fn fail(&self, fault: &LogError) {
        self.failed.store(true, Ordering::Relaxed);
        self.file.lock().failed.get_or_insert_with(|| fault.clone());
    }

    /// Whether there is a file whose name survives a crash.
    pub fn has_file(&self) -> bool {
        self.file.lock().named
    }

    /// Whether it is closed, and its file and index hold all of it for good.
    pub fn is_settled(&self) -> bool {
        self.end().is_some_and(|end| end.position <= self.synced()) && self.marks.lock().is_empty()
    }

    /// Whether the file must not be written any more.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    fn note_synced(&self, dir: &DataDir, file: &mut GroupFile, to: Position, keep_open: KeepOpen) {
        if !file.named {
            file.named = true;
            dir.named.lock().push(self.lane);
        }
        debug_assert!(self.synced() <= to && to.0 <= file.written);
        self.synced.store(to.0, Ordering::Release);
        self.write_marks(dir, file, to);
        self.forget_places_if_cold();
        let done = self.end().is_some_and(|end| end.position <= to);
        let keep_open = keep_open == KeepOpen::Yes && KeepOpen::of_busy(dir) == KeepOpen::Yes;
        if done || (!keep_open && to.0 == file.written) {
            file.open = None;
            file.index = None;
        }
    }

    /// Writes the marks whose positions are synced. The index can be rebuilt from the file, so a
    /// failure costs time at the next start and nothing else.
    fn write_marks(&self, dir: &DataDir, file: &mut GroupFile, to: Position) {
        let ready: Vec<Mark> = {
            let mut marks = self.marks.lock();
            let count = marks.partition_point(|mark| mark.position <= to);
            marks.drain(..count).collect()
        };
        if ready.is_empty() {
            return;
        }
        let GroupFile {
            index, index_len, ..
        } = file;
        let written = (|| {
            if index.is_none() {
                *index = Some(IndexWriter::open(
                    &*dir.disk,
                    &self.index_path(dir),
                    &self.name(),
                    *index_len,
                )?);
            }
            let writer = index.as_mut().expect("opened above");
            writer.append(&ready)?;
            Ok::<u64, std::io::Error>(writer.len())
        })();
        match written {
            Ok(len) => *index_len = len,
            Err(error) => {
                tracing::warn!(group = %self.id, stream = %self.lane.stream, %error,
                    "index not written; the next start reads the group's file instead");
                *index = None;
                let mut marks = self.marks.lock();
                for mark in ready.into_iter().rev() {
                    marks.push_front(mark);
                }
            }
        }
    }

    /// Removes the index of a closed group for ever: the group is about to be removed.
    pub fn remove_index(&self, dir: &DataDir) -> Result<()> {
        let mut file = self.file.lock();
        file.index = None;
        // So it is not made anew.
        self.marks.lock().clear();
        remove_file(dir, self.index_path(dir))
    }

    /// Takes the group away: frees its buffers and removes its files. The names are gone for good
    /// after the folder is synced.
    pub fn remove(&self, dir: &DataDir) -> Result<()> {
        let mut file = self.file.lock();
        remove_file(dir, self.index_path(dir))?;
        remove_file(dir, self.path(dir))?;
        self.forget(&mut file);
        Ok(())
    }

    /// Takes the group away as [`Group::remove`] does, and makes its file that of a later group of its
    /// lane, which is empty: to begin a file needs room. Its index must be gone for good. After a
    /// failure it is unknown which of the two the file is.
    pub fn hand_file_over(&self, dir: &DataDir, later: &Group) -> Result<()> {
        let mut file = self.file.lock();
        let mut later_file = later.file.lock();
        if later_file.named || later_file.written > 0 {
            // Something came meanwhile.
            drop((file, later_file));
            return self.remove(dir);
        }
        let (from, to) = (self.path(dir), later.path(dir));
        dir.disk
            .rename(&from, &to)
            .map_err(|error| LogError::io("rename", from, error))?;
        self.forget(&mut file);
        later_file.open = None;
        dir.sync_dir(&dir.stream_dir(self.lane.stream))?;
        later_file.named = true;
        // A crash before this leaves chunks whose offsets do not fit the name: the start cuts them.
        dir.disk
            .open(&to, Access::Write)
            .and_then(|handle| handle.set_len(0).and_then(|()| handle.sync()))
            .map_err(|error| LogError::io("cut", to, error))
    }

    fn forget(&self, file: &mut GroupFile) {
        self.removed.store(true, Ordering::Release);
        file.open = None;
        file.index = None;
        for segment in self.segments.write().iter_mut() {
            segment.buffer = None;
        }
        *self.places.write() = None;
        self.marks.lock().clear();
    }

    /// What its file is named after.
    pub fn name(&self) -> GroupName {
        (self.lane, self.id, self.first_offset)
    }

    pub fn path(&self, dir: &DataDir) -> PathBuf {
        dir.group_path(self.lane, self.id, self.first_offset)
    }

    pub fn index_path(&self, dir: &DataDir) -> PathBuf {
        self.path(dir).with_extension("index")
    }
}

fn remove_file(dir: &DataDir, path: PathBuf) -> Result<()> {
    match dir.disk.remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(LogError::io("remove", path, error))
        }
        _ => Ok(()),
    }
}

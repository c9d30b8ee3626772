//! What a start does with what it finds on disk.
//!
//! 1. For each lane, list its groups' files. All but the last are whole; the last is read from its
//!    last mark on, up to its last whole chunk. A file or an index of another group is not read.
//!    What was read back may never have reached the medium (a sync that failed before the process
//!    ended), so the part behind the last mark is written again, and everything is synced.
//! 2. Replay the journal: what the files lack goes into segments in the pool, as it was there before
//!    the end of the last run. Only where the pool is too small for that it goes to the files now.
//! 3. What a write that was cut off left behind the whole chunks, and the journal did not bring back, is
//!    moved aside. More than such a write can leave is damage: the file stays as it is.
//! 4. The log is ready. In the background the segments of step 2 are persisted as any others, as soon
//!    as the disk has room for them; then the old journal, which holds them until then, is removed.
//!
//! Each step can be cut off and done again, and none but the last needs room on a full disk: where there
//! is none for what is torn, it is cut without a copy.

pub mod finish;
pub mod truncated;
pub mod unfinished;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use millstream_base::disk::Access;
use millstream_base::{
    ByteSize, DiskFile, GroupId, LaneIndex, Offset, Position, ProducerId, StreamId, StreamletIndex,
    Timestamp,
};
use millstream_record::{Chunk, ChunkHeader, Chunks, HEADER_BYTES};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::group::{Group, GroupEnd, StoredGroup};
use crate::ids::{GroupName, LaneId};
use crate::index::places::Places;
use crate::index::{Fingerprint, Index, IndexWriter, Mark, MarkKind};
use crate::journal::{OldJournal, RecoveredRun};
use crate::lane::LaneState;
use crate::lane::head::is_mark_due;
use crate::lane::stored::StoredLane;
use crate::lane::virtual_log::COMMIT_BYTES_MAX;
use crate::memory::pool::{Arena, Buffer, BufferWriter, Pool};
use crate::producers::transactions::AbortedTransaction;
use crate::producers::{ProducerState, Producers};
use crate::recovery::truncated::Torn;

/// Bytes that wait to be written again to their files, over all lanes.
const BUFFERED_BYTES_MAX: usize = 64 << 20;

/// How much of a file is read at once when it is checked.
const SCAN_BYTES: usize = 1 << 20;

/// What lies on disk, lane by lane.
#[derive(Default)]
pub struct Recovered {
    lanes: BTreeMap<LaneId, RecoveredLane>,
    buffered_bytes: usize,
    /// Files were written that are not synced yet.
    is_unsynced: bool,
}

struct RecoveredLane {
    /// Whole groups before the tail.
    closed: Vec<ClosedGroup>,
    /// The first group that is not whole, or the last one.
    tail: Tail,
    /// Groups behind the tail that have files. They were written after the tail, and nothing of
    /// them is given up by the journal before the tail is synced: the journal fills the gap.
    waiting: VecDeque<(GroupId, Offset)>,
    /// What is wrong with it, unless the journal heals it.
    damage: Option<Damage>,
    /// Bytes that were cut from the lane's last file.
    cut_bytes: u64,
    /// What was read of its files may not be synced; some of it was written again.
    is_unsynced: bool,
}

struct ClosedGroup {
    id: GroupId,
    first_offset: Offset,
    end: GroupEnd,
    index_len: u64,
    /// Marks that are not in the index yet: those of a group that the replay closed.
    marks: Vec<Mark>,
    /// Segment starts; empty when they are not loaded.
    segments: Vec<Position>,
    /// What all of its marks say; `None` when they are not loaded.
    places: Option<Places>,
    replayed: Replayed,
    damage: Option<LogError>,
}

/// What a group holds in memory, behind what its file holds.
struct Replayed {
    /// Where the file ends, and the segments start.
    from: Position,
    /// They are the last ones of the group.
    segments: Vec<BufferWriter>,
    /// Whether there is a file. Its name survives a crash.
    has_file: bool,
}

struct Damage {
    error: LogError,
    /// Data up to here was acknowledged, and must be there for the lane to go on.
    healed_at: Position,
    /// The journal holds chunks that cannot be appended, since some before them are missing.
    has_gap: bool,
}

/// The last group of a lane while it is recovered.
struct Tail {
    id: GroupId,
    first_offset: Offset,
    position: Position,
    offset: Offset,
    max_timestamp: Timestamp,
    producers: Producers,
    /// Producers that appended behind the last mark.
    unmarked: HashSet<ProducerId>,
    /// Transactions that were aborted behind the last mark.
    aborted: Vec<AbortedTransaction>,
    fingerprint: Fingerprint,
    marked_at: Position,
    segments: Vec<Position>,
    places: Places,
    end: Option<GroupEnd>,
    /// Bytes of the index that are valid.
    index_len: u64,
    /// Marks to add to it.
    marks: Vec<Mark>,
    /// Bytes of the file that are to be written again; they end at `replayed.from`.
    buffer: Vec<u8>,
    /// The length of the file, where it does not end behind a whole chunk.
    cut_from: Position,
    replayed: Replayed,
    /// Why what comes behind it is missing, if it is.
    damage: Option<LogError>,
    /// The file is missing, or another group's: nothing may be written to it.
    is_foreign: bool,
}

/// Whether a run was replayed.
enum ReplayStep {
    Done,
    /// The pool has no block for its next chunk: try again when memory came free.
    NeedsBuffer,
}

impl Recovered {
    /// Steps 1 and 2. Answers what is there; the journal stays until the caller removes it.
    pub fn read(dir: &DataDir, pool: &Arc<Pool>, journal: &OldJournal) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        let mut is_unsynced = false;
        for stream in dir.list_streams()? {
            let mut by_lane: HashMap<LaneId, Vec<(GroupId, Offset)>> = HashMap::new();
            let (groups, indexes) = dir.list_groups(stream)?;
            // A group's index is made after its file, and gone for good before that is removed: one that
            // is alone tells of a file that was lost.
            for (lane, group, offset) in groups.into_iter().chain(indexes) {
                by_lane.entry(lane).or_default().push((group, offset));
            }
            for (lane, mut groups) in by_lane {
                groups.sort_unstable();
                let recovered_lane = RecoveredLane::read(dir, lane, &groups)?;
                recovered.buffered_bytes += recovered_lane.tail.buffer.len();
                is_unsynced |= recovered_lane.is_unsynced;
                recovered.lanes.insert(lane, recovered_lane);
                if recovered.buffered_bytes > BUFFERED_BYTES_MAX {
                    recovered.flush(dir)?;
                }
            }
        }
        if !journal.is_empty() || is_unsynced {
            recovered.flush(dir)?;
            dir.sync_streams()?;
        }
        for (lane, recovered_lane) in &mut recovered.lanes {
            recovered_lane.is_unsynced = false;
            // The index of a damaged group stays: it tells the next start what is missing.
            if recovered_lane.damage.is_none() {
                recovered_lane.tail.write_marks(dir, *lane);
            }
        }
        journal.replay(dir, |run, data| recovered.replay(dir, pool, run, data))?;
        let mut torn = Torn::new(COMMIT_BYTES_MAX.max(pool.block_bytes_max(Arena::Segments)));
        for (lane, recovered_lane) in &mut recovered.lanes {
            recovered_lane.skip_missing(dir, *lane, GroupId(u64::MAX))?;
            recovered_lane.cut(dir, *lane, &mut torn)?;
            recovered.is_unsynced |= recovered_lane.is_unsynced;
        }
        torn.sync(dir)?;
        if recovered.is_unsynced {
            dir.sync_streams()?;
        }
        Ok(recovered)
    }

    /// Whether the journal holds chunks of the stream that cannot be appended: removing it would lose
    /// them.
    pub fn has_gap(&self, stream: StreamId) -> bool {
        let damages = self.of_stream(stream);
        let mut damages = damages.filter_map(|lane| lane.damage.as_ref());
        damages.any(|damage| damage.has_gap)
    }

    fn of_stream(&self, stream: StreamId) -> impl Iterator<Item = &RecoveredLane> {
        let first = LaneId {
            stream,
            streamlet: StreamletIndex(0),
            lane: LaneIndex(0),
        };
        let lanes = self.lanes.range(first..);
        lanes
            .take_while(move |(lane, _)| lane.stream == stream)
            .map(|(_, lane)| lane)
    }

    /// Whether the stream lost bytes that looked like a write that was cut off, and that the journal
    /// did not bring back.
    pub fn was_cut(&self, stream: StreamId) -> bool {
        self.of_stream(stream).any(|lane| lane.cut_bytes > 0)
    }

    /// The streams of which something was found that is not taken out.
    pub fn streams(&self) -> BTreeSet<StreamId> {
        self.lanes.keys().map(|lane| lane.stream).collect()
    }

    /// Takes out what was found of a lane.
    pub fn take(&mut self, lane: LaneId) -> StoredLane {
        match self.lanes.remove(&lane) {
            Some(recovered) => recovered.into_stored(lane),
            None => StoredLane::default(),
        }
    }

    /// Moves what the journal gave the lanes that are left into their files.
    pub fn write_out_left(&mut self, dir: &DataDir) -> Result<()> {
        for (lane, recovered) in &mut self.lanes {
            recovered.write_out(dir, *lane)?;
        }
        dir.sync_streams()
    }

    fn replay(
        &mut self,
        dir: &DataDir,
        pool: &Arc<Pool>,
        run: RecoveredRun,
        data: &[u8],
    ) -> Result<()> {
        let mut emptied_at = None;
        loop {
            let begin = || RecoveredLane::begin(run.group, run.group_first_offset);
            let lane = self.lanes.entry(run.lane).or_insert_with(begin);
            if let ReplayStep::Done = lane.replay(dir, pool, run, data)? {
                return Ok(());
            }
            // A run may be longer than the pool, but each time it is empty some of it fits.
            let at = lane.tail.position;
            if emptied_at.replace(at) == Some(at) {
                let block = ByteSize(pool.block_bytes_max(Arena::Segments) as u64);
                return Err(LogError::BadSetting {
                    setting: "pool",
                    why: format!(
                        "the journal holds a chunk larger than its largest block, {block}"
                    ),
                });
            }
            self.empty_pool(dir, pool)?;
        }
    }

    /// Moves what was replayed into the files: the pool is smaller than it was, or cut up.
    fn empty_pool(&mut self, dir: &DataDir, pool: &Pool) -> Result<()> {
        let of_lane = |lane: &RecoveredLane| {
            let closed = lane.closed.iter().map(|group| &group.replayed);
            let all = closed.chain([&lane.tail.replayed]);
            all.map(Replayed::bytes).sum::<u64>()
        };
        let bytes = self.lanes.values().map(of_lane).sum();
        self.is_unsynced = true;
        for (lane, recovered) in &mut self.lanes {
            recovered
                .write_out(dir, *lane)
                .map_err(|error| match error.is_disk_full() {
                    true => LogError::NoRoomToStart {
                        dir: dir.root.clone(),
                        bytes: ByteSize(bytes),
                        pool: ByteSize(pool.size_bytes(Arena::Segments) as u64),
                    },
                    false => error,
                })?;
        }
        Ok(())
    }

    fn flush(&mut self, dir: &DataDir) -> Result<()> {
        for (lane, recovered) in &mut self.lanes {
            recovered.tail.flush(dir, *lane)?;
        }
        self.buffered_bytes = 0;
        Ok(())
    }
}

impl RecoveredLane {
    /// A lane that only the journal knows.
    fn begin(group: GroupId, first_offset: Offset) -> RecoveredLane {
        RecoveredLane {
            closed: Vec::new(),
            tail: Tail::begin(group, first_offset, Producers::default()),
            waiting: VecDeque::new(),
            damage: None,
            cut_bytes: 0,
            is_unsynced: false,
        }
    }

    /// Cuts what a write that was cut off left behind the tail, after the journal was replayed.
    fn cut(&mut self, dir: &DataDir, lane: LaneId, torn: &mut Torn) -> Result<()> {
        let Tail {
            position, cut_from, ..
        } = self.tail;
        let lost = cut_from.0.saturating_sub(position.0);
        if cut_from <= self.tail.replayed.from || self.damage.is_some() {
            return Ok(());
        }
        let path = dir.group_path(lane, self.tail.id, self.tail.first_offset);
        if lost > torn.bytes_max() {
            let what = format!(
                "what follows is no whole chunk, and {lost} bytes are more than a write that was cut off leaves"
            );
            let error = LogError::corrupted(path, position, what);
            self.tail.damage = Some(error.clone());
            self.damage = Some(Damage::for_ever(error));
            return Ok(());
        }
        let file = open(dir, &path, Access::Write)?;
        if lost > 0 {
            torn.keep(dir, lane, &*file, &path, position..cut_from)?;
            self.cut_bytes = lost;
        }
        file.set_len(self.tail.replayed.from.0)
            .map_err(|error| LogError::io("cut", &path, error))?;
        self.is_unsynced = true;
        Ok(())
    }

    fn read(dir: &DataDir, lane: LaneId, groups: &[(GroupId, Offset)]) -> Result<RecoveredLane> {
        let (first, first_offset) = *groups.first().expect("a lane with files");
        let mut recovered = RecoveredLane {
            waiting: groups.iter().copied().collect(),
            ..RecoveredLane::begin(first, first_offset)
        };
        recovered.read_files(dir, lane)?;
        Ok(recovered)
    }

    /// Reads the groups that wait, up to the first one that is not whole.
    fn read_files(&mut self, dir: &DataDir, lane: LaneId) -> Result<()> {
        // Those behind the closed groups, unless the last of them was not read.
        let mut producers = Some(std::mem::take(&mut self.tail.producers));
        while let Some((id, first_offset)) = self.waiting.pop_front() {
            if let Some((_, next_offset)) = self.waiting.front()
                && let Some(end) = indexed_end(dir, lane, id, first_offset)?
                && end.offset == *next_offset
            {
                self.closed.push(ClosedGroup::stored(id, first_offset, end));
                producers = None;
                continue;
            }
            let is_last = self.waiting.is_empty();
            let known = || match producers.take() {
                Some(producers) => Ok(producers),
                None => producers_after(dir, lane, &self.closed),
            };
            let (mut tail, damage) = Tail::read(dir, lane, id, first_offset, is_last, known)?;
            tail.damage = damage.as_ref().map(|damage| damage.error.clone());
            // A file that has an index was synced, with its name, up to the last mark.
            self.is_unsynced |= tail.index_len == 0 || !tail.buffer.is_empty();
            self.tail = tail;
            self.damage = self.damage.take().or(damage);
            if !self.close_if_whole(dir, lane)? {
                break;
            }
            producers = Some(std::mem::take(&mut self.tail.producers));
        }
        Ok(())
    }

    /// Closes the tail if the lane's next file goes on where it ends.
    fn close_if_whole(&mut self, dir: &DataDir, lane: LaneId) -> Result<bool> {
        if self
            .waiting
            .front()
            .is_none_or(|(_, next_offset)| self.tail.offset != *next_offset)
        {
            return Ok(false);
        }
        self.tail.close();
        self.tail.flush(dir, lane)?;
        self.begin_group(self.tail.id, self.tail.offset);
        Ok(true)
    }

    /// Begins the next group behind the tail, which is closed.
    fn begin_group(&mut self, id: GroupId, first_offset: Offset) {
        let producers = std::mem::take(&mut self.tail.producers);
        let next = Tail::begin(id, first_offset, producers);
        let closed = std::mem::replace(&mut self.tail, next);
        self.closed.push(closed.into_closed());
    }

    /// Moves what was replayed into the files.
    fn write_out(&mut self, dir: &DataDir, lane: LaneId) -> Result<()> {
        for group in &mut self.closed {
            let path = dir.group_path(lane, group.id, group.first_offset);
            group.replayed.write_out(dir, lane, path)?;
        }
        self.tail.flush(dir, lane)?;
        let path = dir.group_path(lane, self.tail.id, self.tail.first_offset);
        self.tail.replayed.write_out(dir, lane, path)
    }

    /// Goes on behind a gap before `to` that nothing has filled: the lane can be read but not written.
    fn skip_missing(&mut self, dir: &DataDir, lane: LaneId, to: GroupId) -> Result<()> {
        while let Some((next, next_offset)) = self.waiting.front()
            && *next <= to
        {
            let tail = &mut self.tail;
            let error = tail.damage.get_or_insert_with(|| {
                let what = format!(
                    "the group ends before offset {}, the lane's next file begins with {next_offset}",
                    tail.offset
                );
                let path = dir.group_path(lane, tail.id, tail.first_offset);
                LogError::corrupted(path, tail.position, what)
            });
            let forever = || Damage::for_ever(error.clone());
            let damage = self.damage.get_or_insert_with(forever);
            damage.healed_at = Position(u64::MAX);
            tail.close();
            // The index of a damaged group tells the next start what is missing.
            tail.marks.clear();
            self.begin_group(self.tail.id, self.tail.offset);
            self.read_files(dir, lane)?;
            self.tail.flush(dir, lane)?;
        }
        Ok(())
    }

    /// Adds what the lane lacks of a run. Done again, it goes on where it stopped.
    fn replay(
        &mut self,
        dir: &DataDir,
        pool: &Arc<Pool>,
        run: RecoveredRun,
        data: &[u8],
    ) -> Result<ReplayStep> {
        let first = self.closed.first().map_or(self.tail.id, |group| group.id);
        // Groups before the first are removed, those before the last are whole.
        if run.group < first || run.group < self.tail.id {
            return Ok(ReplayStep::Done);
        }
        if run.group > self.tail.id {
            self.skip_missing(dir, run.lane, run.group)?;
        }
        if run.group < self.tail.id {
            return Ok(ReplayStep::Done);
        }
        if run.group == self.tail.id && self.tail.is_foreign {
            // What would be written to a file that is not the lane's stays in the journal.
            self.note_gap(dir, run);
            return Ok(ReplayStep::Done);
        }
        if run.group > self.tail.id {
            let fits = self.tail.offset == run.group_first_offset && run.position == Position(0);
            if !fits || self.damage.is_some() {
                self.note_gap(dir, run);
                return Ok(ReplayStep::Done);
            }
            self.tail.close();
            self.begin_group(run.group, run.group_first_offset);
        }
        if run.position > self.tail.position {
            self.note_gap(dir, run);
            return Ok(ReplayStep::Done);
        }
        let known = (self.tail.position.0 - run.position.0) as usize;
        if known >= data.len() {
            return Ok(ReplayStep::Done);
        }
        for chunk in Chunks::trusted(&data[known..]) {
            let fits = |chunk: &Chunk<'_>| chunk.header().base_offset == self.tail.offset;
            let Some(chunk) = chunk.ok().filter(fits) else {
                self.note_gap(dir, run);
                return Ok(ReplayStep::Done);
            };
            if !self.tail.make_room(pool, chunk.bytes().len()) {
                return Ok(ReplayStep::NeedsBuffer);
            }
            self.tail.replay(&chunk);
        }
        if self
            .damage
            .as_ref()
            .is_some_and(|damage| !damage.has_gap && damage.healed_at <= self.tail.position)
        {
            self.damage = None;
            self.tail.damage = None;
        }
        if self.damage.is_none() && self.close_if_whole(dir, run.lane)? {
            self.read_files(dir, run.lane)?;
            self.tail.flush(dir, run.lane)?;
        }
        Ok(ReplayStep::Done)
    }

    fn note_gap(&mut self, dir: &DataDir, run: RecoveredRun) {
        let path = dir.group_path(run.lane, self.tail.id, self.tail.first_offset);
        let damage = self.damage.get_or_insert_with(|| {
            let what = format!(
                "the journal goes on at byte {} of group {}, and what comes before that is missing",
                run.position, run.group
            );
            Damage::for_ever(LogError::corrupted(path, self.tail.position, what))
        });
        damage.has_gap = true;
        self.tail.damage.get_or_insert_with(|| damage.error.clone());
    }

    fn into_stored(self, id: LaneId) -> StoredLane {
        let mut groups: VecDeque<Arc<Group>> = self
            .closed
            .into_iter()
            .map(|group| {
                let stored = StoredGroup {
                    position: group.end.position,
                    end: Some(group.end),
                    index_len: group.index_len,
                    segments: group.segments,
                    marks: group.marks,
                    places: group.places,
                    synced: group.replayed.from,
                    named: group.replayed.has_file,
                    damage: group.damage,
                    buffers: group.replayed.into_buffers(),
                };
                Arc::new(Group::stored(id, group.id, group.first_offset, stored))
            })
            .collect();
        let tail = self.tail;
        if tail.replayed.has_file || tail.position > Position(0) || tail.damage.is_some() {
            let stored = StoredGroup {
                position: tail.position,
                end: tail.end,
                index_len: tail.index_len,
                segments: tail.segments,
                // The index of a damaged group tells the next start what is missing.
                marks: match self.damage {
                    None => tail.marks,
                    Some(_) => Vec::new(),
                },
                places: Some(tail.places),
                synced: tail.replayed.from,
                named: tail.replayed.has_file,
                damage: tail.damage,
                buffers: tail.replayed.into_buffers(),
            };
            let group = Group::stored(id, tail.id, tail.first_offset, stored);
            groups.push_back(Arc::new(group));
        }
        StoredLane {
            groups,
            next_offset: tail.offset,
            producers: tail.producers,
            unmarked: tail.unmarked,
            aborted: tail.aborted,
            max_timestamp: Some(tail.max_timestamp),
            fingerprint: tail.fingerprint,
            marked_at: tail.marked_at,
            cut_bytes: self.cut_bytes,
            fault: self.damage.map(|damage| damage.error),
        }
    }
}

impl ClosedGroup {
    fn stored(id: GroupId, first_offset: Offset, end: GroupEnd) -> ClosedGroup {
        ClosedGroup {
            id,
            first_offset,
            end,
            // Nothing is added to its index any more.
            index_len: 0,
            marks: Vec::new(),
            segments: Vec::new(),
            places: None,
            replayed: Replayed {
                from: end.position,
                segments: Vec::new(),
                has_file: true,
            },
            damage: None,
        }
    }
}

impl Replayed {
    /// Of a group without a file.
    fn begin() -> Replayed {
        Replayed {
            from: Position(0),
            segments: Vec::new(),
            has_file: false,
        }
    }

    fn bytes(&self) -> u64 {
        let segments = self.segments.iter();
        segments.map(|segment| segment.filled() as u64).sum()
    }

    /// Moves the segments into the file.
    fn write_out(&mut self, dir: &DataDir, lane: LaneId, path: PathBuf) -> Result<()> {
        if self.segments.is_empty() {
            return Ok(());
        }
        dir.create_stream_dir(lane.stream)?;
        let file = open(dir, &path, Access::Create)?;
        self.has_file = true;
        for segment in self.segments.drain(..) {
            let bytes = segment.buffer().slice(0..segment.filled());
            file.write_at(&bytes, self.from.0)
                .map_err(|error| LogError::io("write", &path, error))?;
            self.from = self.from.plus(bytes.len() as u64);
        }
        Ok(())
    }

    fn into_buffers(self) -> Vec<Arc<Buffer>> {
        let segments = self.segments.into_iter();
        segments
            .map(|segment| Arc::clone(segment.buffer()))
            .collect()
    }
}

impl Damage {
    fn for_ever(error: LogError) -> Damage {
        Damage {
            error,
            healed_at: Position(u64::MAX),
            has_gap: false,
        }
    }
}

impl Tail {
    fn begin(id: GroupId, first_offset: Offset, producers: Producers) -> Tail {
        let mut tail = Tail {
            id,
            first_offset,
            position: Position(0),
            offset: first_offset,
            max_timestamp: Timestamp(i64::MIN),
            producers,
            unmarked: HashSet::new(),
            aborted: Vec::new(),
            fingerprint: Fingerprint::default(),
            marked_at: Position(0),
            segments: Vec::new(),
            places: Places::default(),
            end: None,
            index_len: 0,
            marks: Vec::new(),
            buffer: Vec::new(),
            cut_from: Position(0),
            replayed: Replayed::begin(),
            damage: None,
            is_foreign: false,
        };
        tail.mark(MarkKind::SegmentStart);
        tail
    }

    /// Reads a group. What is torn is cut from the last one of a lane. Those that a lost index
    /// leaves unknown, `producers` gives: the lane's before this group.
    fn read(
        dir: &DataDir,
        lane: LaneId,
        id: GroupId,
        first_offset: Offset,
        is_last: bool,
        mut producers: impl FnMut() -> Result<Producers>,
    ) -> Result<(Tail, Option<Damage>)> {
        let path = dir.group_path(lane, id, first_offset);
        let file = match dir.disk.open(&path, Access::Write) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let what = "the file is missing, though its index is there";
                let error = LogError::corrupted(path, Position(0), what);
                let mut tail = Tail::begin(id, first_offset, producers()?);
                tail.is_foreign = true;
                return Ok((tail, Some(Damage::for_ever(error))));
            }
            file => file.map_err(|error| LogError::io("open", &path, error))?,
        };
        let len = file
            .len()
            .map_err(|error| LogError::io("read", &path, error))?;
        let index = read_index(dir, &(lane, id, first_offset))?;
        let is_old = index.len == 0;
        let known = index.marks.last().map_or(Position(0), |mark| mark.position);
        let begin = |producers| {
            let mut tail = Tail::begin(id, first_offset, producers);
            tail.replayed.has_file = true;
            tail
        };

        // Step 0: whether file and index are this group's.
        if let Some(what) = foreign(&*file, &path, first_offset, &index)? {
            let error = LogError::corrupted(&path, Position(0), what);
            let mut tail = begin(producers()?);
            tail.is_foreign = true;
            return Ok((tail, Some(Damage::for_ever(error))));
        }

        // Step 1: what the marks say. Marks of a file that lost its end do not count.
        let mut tail = match index.marks.is_empty() {
            true => begin(producers()?),
            false => Tail {
                index_len: index.len,
                marks: Vec::new(),
                ..begin(Producers::default())
            },
        };
        let mut end = None;
        for mut mark in index.marks {
            if mark.position.0 > len {
                break;
            }
            if mark.kind == MarkKind::GroupEnd {
                end = Some(mark);
                break;
            }
            if is_old {
                // Written anew, in the format of today.
                if mark.position > Position(0) {
                    mark.fingerprint.first_crc = first_crc(&*file, &path)?;
                }
                tail.marks.push(mark.clone());
            }
            tail.restore(mark);
        }

        // Step 2: what the file says behind the last mark.
        let broken = tail.scan(&*file, &path, Position(len))?;
        let mut damage = None;
        if tail.position < known {
            let what = match broken {
                Some(what) if tail.position.0 < len => what,
                _ => format!("the file ends here, but {known} bytes of it were synced"),
            };
            damage = Some(Damage {
                error: LogError::corrupted(&path, tail.position, what),
                healed_at: known,
                has_gap: false,
            });
            // The index says more than the file holds: if the journal heals that, the index is
            // written anew.
            tail = begin(producers()?);
            tail.scan(&*file, &path, Position(len))?;
        }

        // Step 3: what is torn is cut when the journal was replayed; the rest of what has no mark is
        // written again.
        if len > tail.position.0 && damage.is_none() && is_last {
            tail.cut_from = Position(len);
        }
        if let Some(mark) = end
            && damage.is_none()
        {
            // Closed and synced, so there is nothing to write again.
            tail.buffer.clear();
            tail.end = Some(GroupEnd::of(&mark));
            tail.marks.clear();
        }
        tail.replayed.from = tail.position;
        Ok((tail, damage))
    }

    /// Adds the chunks of the group's file from here on to `to`. Answers what is wrong where it
    /// stopped early.
    fn scan(
        &mut self,
        file: &dyn DiskFile,
        path: &PathBuf,
        to: Position,
    ) -> Result<Option<String>> {
        scan(file, path, self.position, to, |chunk| {
            let fits = chunk.header().base_offset == self.offset;
            if fits {
                // Before the chunk is added: a buffer with something in it tells of a rewrite.
                if self.buffer.len() >= SCAN_BYTES {
                    self.write(file, path, self.position)?;
                }
                self.note(chunk);
                self.buffer.extend_from_slice(chunk.bytes());
            }
            Ok(fits)
        })
    }

    fn restore(&mut self, mark: Mark) {
        self.places.add(&mark);
        for aborted in &mark.aborted {
            self.places.add_aborted(*aborted);
        }
        self.position = mark.position;
        self.offset = mark.offset;
        self.max_timestamp = mark.max_timestamp;
        self.fingerprint = mark.fingerprint;
        self.marked_at = mark.position;
        if mark.kind == MarkKind::SegmentStart && mark.position > Position(0) {
            self.segments.push(mark.position);
        }
        for (id, state) in mark.producers {
            self.producers.restore(id, state);
        }
    }

    /// Makes room in memory for a chunk of so many bytes, in segments that grow as those of appends do:
    /// a pool that was large enough for these is so again. `false` when the pool has none.
    fn make_room(&mut self, pool: &Arc<Pool>, bytes: usize) -> bool {
        let last = self.replayed.segments.last();
        if last.is_some_and(|segment| segment.room() >= bytes) {
            return true;
        }
        if bytes > pool.block_bytes_max(Arena::Segments) {
            return false;
        }
        let wanted = last.map_or(0, |segment| 2 * segment.buffer().capacity());
        let Some(segment) = pool.allocate_segment(wanted, bytes) else {
            return false;
        };
        if self.segments.last() != Some(&self.position) {
            self.mark(MarkKind::SegmentStart);
        }
        self.replayed.segments.push(segment);
        true
    }

    /// Adds a chunk from the journal behind the others.
    fn replay(&mut self, chunk: &Chunk<'_>) {
        self.note(chunk);
        let chunk = chunk.bytes();
        let segment = self.replayed.segments.last_mut();
        segment
            .expect("room was made")
            .extend::<std::convert::Infallible>(chunk.len(), |free| {
                free.copy_from_slice(chunk);
                Ok(chunk.len())
            })
            .unwrap_or_else(|never| match never {});
    }

    /// Takes note of a chunk that comes behind the others.
    fn note(&mut self, chunk: &Chunk<'_>) {
        if is_mark_due(self.position, self.marked_at) {
            self.mark(MarkKind::Within);
        }
        let header = chunk.header();
        let bytes = chunk.bytes().len();
        self.fingerprint.add(self.position, header.crc, bytes);
        self.position = self.position.plus(bytes as u64);
        let ended = self.producers.stored(chunk);
        if let Some(aborted) = ended.and_then(|ended| ended.aborted()) {
            self.places.add_aborted(aborted);
            self.aborted.push(aborted);
        }
        if header.producer_id != ProducerId::NONE {
            self.unmarked.insert(header.producer_id);
        }
        self.offset = header.next_offset();
        self.max_timestamp = self.max_timestamp.max(header.max_timestamp);
    }

    fn mark(&mut self, kind: MarkKind) {
        let producers = if self.position == Position(0) {
            let all = self.producers.iter();
            all.map(|(id, state)| (id, state.clone())).collect()
        } else {
            self.unmarked
                .drain()
                .filter_map(|id| self.producers.get(id).map(|state| (id, state.clone())))
                .collect()
        };
        if kind == MarkKind::SegmentStart {
            self.segments.push(self.position);
        }
        self.marked_at = self.position;
        let aborted = std::mem::take(&mut self.aborted);
        let mark = self.make_mark(kind, producers, aborted);
        self.places.add(&mark);
        self.marks.push(mark);
    }

    /// A mark for the end of what there is.
    fn make_mark(
        &self,
        kind: MarkKind,
        producers: Vec<(ProducerId, ProducerState)>,
        aborted: Vec<AbortedTransaction>,
    ) -> Mark {
        Mark {
            kind,
            position: self.position,
            offset: self.offset,
            max_timestamp: self.max_timestamp,
            stable: self.producers.stable(self.offset),
            producers,
            aborted,
            fingerprint: self.fingerprint,
        }
    }

    fn close(&mut self) {
        if self.end.is_some() {
            return;
        }
        if !self.aborted.is_empty() {
            // The last mark says nothing of transactions, so that it is found from the file's end.
            self.mark(MarkKind::Within);
        }
        let end = self.make_mark(MarkKind::GroupEnd, Vec::new(), Vec::new());
        self.end = Some(GroupEnd::of(&end));
        self.marks.push(end);
    }

    /// Writes again what is buffered.
    fn flush(&mut self, dir: &DataDir, lane: LaneId) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let path = dir.group_path(lane, self.id, self.first_offset);
        let file = open(dir, &path, Access::Write)?;
        self.write(&*file, &path, self.replayed.from)
    }

    /// Writes what is buffered, which ends at `to`.
    fn write(&mut self, file: &dyn DiskFile, path: &Path, to: Position) -> Result<()> {
        let start = to.0 - self.buffer.len() as u64;
        file.write_at(&self.buffer, start)
            .map_err(|error| LogError::io("write", path, error))?;
        self.buffer = Vec::new();
        Ok(())
    }

    /// Adds the marks to the index; the file is synced.
    fn write_marks(&mut self, dir: &DataDir, lane: LaneId) {
        if self.marks.is_empty() || !self.replayed.has_file {
            return;
        }
        let path = dir
            .group_path(lane, self.id, self.first_offset)
            .with_extension("index");
        let name = (lane, self.id, self.first_offset);
        let written = IndexWriter::open(&*dir.disk, &path, &name, self.index_len)
            .and_then(|mut writer| writer.append(&self.marks).map(|()| writer.len()));
        match written {
            Ok(len) => {
                self.index_len = len;
                self.marks.clear();
            }
            // The group takes them over.
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "index not written yet");
            }
        }
    }

    /// The group, which is closed.
    fn into_closed(self) -> ClosedGroup {
        // The others' are in the index, and nobody may want them.
        let is_needed = !self.marks.is_empty() || !self.replayed.segments.is_empty();
        ClosedGroup {
            id: self.id,
            first_offset: self.first_offset,
            end: self.end.expect("closed before the next one begins"),
            index_len: self.index_len,
            marks: self.marks,
            segments: self.segments,
            places: is_needed.then_some(self.places),
            replayed: self.replayed,
            damage: self.damage,
        }
    }
}

fn open(dir: &DataDir, path: &PathBuf, access: Access) -> Result<Box<dyn DiskFile>> {
    dir.disk
        .open(path, access)
        .map_err(|error| LogError::io("open", path, error))
}

/// Reads chunks of a group's file from `from` to `to`, checks each, and gives it to `each`, which
/// says whether it fits. Answers what is wrong where it stopped early.
fn scan(
    file: &dyn DiskFile,
    path: &PathBuf,
    from: Position,
    to: Position,
    mut each: impl FnMut(&Chunk<'_>) -> Result<bool>,
) -> Result<Option<String>> {
    let mut window = Vec::new();
    let mut at = from;
    let mut wanted = SCAN_BYTES;
    while at < to {
        let len = usize::try_from(to.0 - at.0)
            .unwrap_or(usize::MAX)
            .min(wanted);
        window.resize(len, 0);
        let count = file
            .read_full_at(&mut window, at.0)
            .map_err(|error| LogError::io("read", path, error))?;
        let mut chunks = Chunks::new(&window[..count]);
        let mut end = 0;
        while let Some(chunk) = chunks.next() {
            match chunk {
                Ok(chunk) => {
                    if !each(&chunk)? {
                        let found = chunk.header().base_offset;
                        return Ok(Some(format!("offset {found} does not come here")));
                    }
                    end = chunks.position();
                }
                // The window ends within this chunk: read on from its start, all of it.
                Err(millstream_record::ChunkError::Truncated { needed, .. })
                    if at.0 + ((end + needed) as u64) <= to.0 && needed <= i32::MAX as usize =>
                {
                    wanted = needed.max(SCAN_BYTES);
                    break;
                }
                Err(error) => return Ok(Some(error.to_string())),
            }
        }
        if end > 0 {
            wanted = SCAN_BYTES;
        }
        at = at.plus(end as u64);
    }
    Ok(None)
}

/// How a closed group ends, if its index says so and the file has that length.
fn indexed_end(
    dir: &DataDir,
    lane: LaneId,
    id: GroupId,
    first_offset: Offset,
) -> Result<Option<GroupEnd>> {
    let path = dir.group_path(lane, id, first_offset);
    let index_path = path.with_extension("index");
    let mark = Index::read_end(&*dir.disk, &index_path, &(lane, id, first_offset))
        .map_err(|error| LogError::io("read", &index_path, error))?;
    let Some(mark) = mark else {
        return Ok(None);
    };
    let file = match dir.disk.open(&path, Access::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| LogError::io("open", &path, error))?,
    };
    let len = file
        .len()
        .map_err(|error| LogError::io("read", &path, error))?;
    let is_whole =
        len >= mark.position.0 && other_file(&*file, &path, first_offset, &mark)?.is_none();
    Ok(is_whole.then_some(GroupEnd::of(&mark)))
}

fn read_index(dir: &DataDir, name: &GroupName) -> Result<Index> {
    let path = dir
        .group_path(name.0, name.1, name.2)
        .with_extension("index");
    Index::read(&*dir.disk, &path, name).map_err(|error| LogError::io("read", &path, error))
}

/// Why a group's file is another's, if its index tells.
pub fn foreign_file(dir: &DataDir, name: &GroupName) -> Result<Option<String>> {
    let path = dir.group_path(name.0, name.1, name.2);
    let file = open(dir, &path, Access::Read)?;
    foreign(&*file, &path, name.2, &read_index(dir, name)?)
}

/// Why file and index are not those of one group, if they are not.
fn foreign(
    file: &dyn DiskFile,
    path: &PathBuf,
    first_offset: Offset,
    index: &Index,
) -> Result<Option<String>> {
    if let Some((lane, group, offset)) = index.foreign {
        return Ok(Some(format!(
            "the index beside this file is that of stream {}, streamlet {}, lane {}, group {group} from \
             offset {offset}; one of the two was copied here",
            lane.stream, lane.streamlet, lane.lane
        )));
    }
    match index.marks.last() {
        Some(mark) => other_file(file, path, first_offset, mark),
        None => Ok(None),
    }
}

/// Why this is not the file that the mark was made for, if whole chunks of another one are in it. One
/// that is damaged is left to those who read.
fn other_file(
    file: &dyn DiskFile,
    path: &PathBuf,
    first_offset: Offset,
    mark: &Mark,
) -> Result<Option<String>> {
    let Fingerprint {
        first_crc,
        last_crc,
        last_bytes,
    } = mark.fingerprint;
    if last_bytes == 0 {
        return Ok(None);
    }
    let last = mark.position.0.saturating_sub(u64::from(last_bytes));
    let mut what = None;
    for (at, crc) in [(0, first_crc), (last, last_crc)] {
        let header = read_header(file, path, at)?;
        let is_same = |header: &ChunkHeader| header.crc == crc;
        if header.as_ref().is_some_and(is_same) {
            continue;
        }
        let Some(header) = header else {
            continue;
        };
        scan(file, path, Position(at), mark.position, |_| {
            what = Some(format!(
                "a chunk at byte {at} is not the one that was written there, though it is whole \
                 (offset {}, the group begins with {first_offset}): another file was copied here",
                header.base_offset
            ));
            Ok(false)
        })?;
    }
    Ok(what)
}

fn first_crc(file: &dyn DiskFile, path: &PathBuf) -> Result<u32> {
    Ok(read_header(file, path, 0)?.map_or(0, |header| header.crc))
}

fn read_header(file: &dyn DiskFile, path: &PathBuf, at: u64) -> Result<Option<ChunkHeader>> {
    let mut header = [0; HEADER_BYTES];
    let count = file
        .read_full_at(&mut header, at)
        .map_err(|error| LogError::io("read", path, error))?;
    Ok(ChunkHeader::parse(&header[..count]).ok())
}

/// The producers that a lane knows behind its closed groups. A group's index begins with all of
/// them; this is for one whose index is lost.
fn producers_after(dir: &DataDir, lane: LaneId, closed: &[ClosedGroup]) -> Result<Producers> {
    let ends = closed.iter();
    let ends = ends.map(|group| (group.id, group.first_offset, group.end.position));
    producers_behind(dir, lane, &ends.collect::<Vec<_>>())
}

/// The producers that a lane knows behind groups, each with its first offset and its end.
fn producers_behind(
    dir: &DataDir,
    lane: LaneId,
    groups: &[(GroupId, Offset, Position)],
) -> Result<Producers> {
    let mut producers = Producers::default();
    let mut from = Position(0);
    let mut unread = groups;
    for (at, (id, first_offset, _)) in groups.iter().enumerate().rev() {
        unread = &groups[at..];
        let index = read_index(dir, &(lane, *id, *first_offset))?;
        if index.marks.is_empty() {
            continue;
        }
        let marks = index.marks.into_iter();
        for mark in marks.filter(|mark| mark.kind != MarkKind::GroupEnd) {
            from = mark.position;
            for (id, state) in mark.producers {
                producers.restore(id, state);
            }
        }
        break;
    }
    for (id, first_offset, end) in unread {
        let path = dir.group_path(lane, *id, *first_offset);
        let file = open(dir, &path, Access::Read)?;
        scan(&*file, &path, from, *end, |chunk| {
            producers.stored(chunk);
            Ok(true)
        })?;
        from = Position(0);
    }
    Ok(producers)
}

/// The places of a closed group whose index is torn or lost, as far as its chunks are whole: what
/// `index` says, and behind that what the group's file does.
pub fn reread(dir: &DataDir, lane: &LaneState, group: &Group, index: Index) -> Result<Places> {
    let Some(end) = group.end().filter(|_| !group.is_removed()) else {
        return Ok(Places::of(&index));
    };
    let mut producers = Producers::default();
    if index.marks.is_empty() {
        let before = lane.groups().into_iter();
        let before = before.filter(|other| other.id < group.id);
        let before = before.filter_map(|group| {
            let end = group.end()?;
            Some((group.id, group.first_offset, end.position))
        });
        producers = producers_behind(dir, group.lane, &before.collect::<Vec<_>>())?;
    }
    let mut tail = Tail::begin(group.id, group.first_offset, producers);
    if !index.marks.is_empty() {
        tail.places = Places::default();
    }
    index.marks.into_iter().for_each(|mark| tail.restore(mark));
    let path = group.path(dir);
    let file = open(dir, &path, Access::Read)?;
    let from = tail.position;
    let broken = scan(&*file, &path, from, end.position, |chunk| {
        tail.note(chunk);
        Ok(true)
    })?;
    if let Some(what) = broken {
        let damage = LogError::corrupted(&path, tail.position, what);
        tail.places.set_damage(damage);
    }
    Ok(tail.places)
}

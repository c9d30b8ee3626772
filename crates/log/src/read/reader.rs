//! Reading: from the segments in memory, or from the groups' files where those are evicted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_base::{Cursor, GroupId, LaneIndex, Offset, Position, StreamletIndex, Timestamp};
use millstream_record::{Chunk, ChunkHeader, Chunks};

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::group::{Group, GroupEnd};
use crate::index::MARK_BYTES;
use crate::index::places::{Place, look_at};
use crate::lane::LaneState;
use crate::lane::reader_position::ReaderPosition;
use crate::memory::pool::Slice;
use crate::read::catch_up::{Purpose, read_file};
use crate::stream::StreamState;

/// How much is read at once to find one chunk in a group's file: marks are not further apart, unless
/// a chunk is larger.
const FIND_BYTES: usize = 2 * MARK_BYTES as usize;

/// Whole chunks of one lane that follow each other.
#[derive(Debug, Clone)]
pub struct ReadChunks {
    /// Where they start.
    pub cursor: Cursor,
    /// The lane within the streamlet.
    pub lane: LaneIndex,
    /// Their bytes, in place where memory has them.
    pub bytes: Slice,
    /// Where reading goes on.
    pub next: Cursor,
}

impl ReadChunks {
    /// The chunks, one by one; their checksums were checked when they came in.
    pub fn chunks(&self) -> Chunks<'_> {
        Chunks::trusted(&self.bytes)
    }
}

/// What is durable behind a position of a group, at most `bytes_max` unless one chunk is larger.
/// `None` at the durable head.
pub fn read_group(
    core: &Core,
    group: &Arc<Group>,
    from: Position,
    bytes_max: usize,
) -> Result<Option<Slice>> {
    let Some(slice) = read_durable(core, group, from, bytes_max)? else {
        return Ok(None);
    };
    let whole =
        ChunkHeader::parse(&slice).is_ok_and(|header| header.total_bytes as usize <= slice.len());
    if !whole {
        return Err(no_chunk(group, from));
    }
    Ok(Some(cut_at_chunk(slice, bytes_max)))
}

/// What is durable behind a position of a group, where a chunk starts: all that memory has of its
/// segment, or whole chunks from the file, at most `bytes_max` unless one chunk is larger. `None` at
/// the durable head.
pub fn read_durable(
    core: &Core,
    group: &Arc<Group>,
    from: Position,
    bytes_max: usize,
) -> Result<Option<Slice>> {
    read_up_to(
        core,
        group,
        from,
        bytes_max,
        Group::durable,
        Purpose::ReadOn,
    )
}

/// The same for what may be read, be it durable or not.
pub fn read_readable(
    core: &Core,
    group: &Arc<Group>,
    from: Position,
    bytes_max: usize,
) -> Result<Option<Slice>> {
    let purpose = Purpose::ReadOn;
    read_up_to(core, group, from, bytes_max, Group::readable, purpose)
}

fn read_up_to(
    core: &Core,
    group: &Arc<Group>,
    from: Position,
    bytes_max: usize,
    head: fn(&Group) -> Position,
    purpose: Purpose,
) -> Result<Option<Slice>> {
    let read = read_at(core, group, from, bytes_max, head, purpose);
    read.inspect_err(|error| core.tell_damaged_read(group.lane, error))
}

fn read_at(
    core: &Core,
    group: &Arc<Group>,
    from: Position,
    bytes_max: usize,
    head: fn(&Group) -> Position,
    purpose: Purpose,
) -> Result<Option<Slice>> {
    loop {
        let head = head(group);
        if from >= head {
            return match group.damage() {
                Some(damage) => Err(damage.clone()),
                None => Ok(None),
            };
        }
        if let Some(slice) = group.slice_in_memory(from, head) {
            return Ok(Some(slice));
        }
        if group.is_removed() {
            return Ok(None);
        }
        let synced = group.synced().min(head);
        if from < synced {
            let read = read_file(core, group, from..synced, bytes_max, purpose);
            // Its file went meanwhile, or became another group's.
            return match group.is_removed() {
                true => Ok(None),
                false => read.map(Some),
            };
        }
        // The head moved on, or eviction was faster: look again.
        std::hint::spin_loop();
    }
}

fn no_chunk(group: &Group, position: Position) -> LogError {
    LogError::BadCursor {
        cursor: Cursor {
            stream: group.lane.stream,
            streamlet: group.lane.streamlet,
            group: group.id,
            segment: group.segment_at(position),
            position,
        },
        why: "no chunk starts there".to_owned(),
    }
}

/// Cuts a slice of whole chunks behind the last one that ends within `bytes_max`.
fn cut_at_chunk(slice: Slice, bytes_max: usize) -> Slice {
    if slice.len() <= bytes_max {
        return slice;
    }
    let mut chunks = Chunks::trusted(&slice);
    let mut end = 0;
    while chunks.next().is_some() {
        if end > 0 && chunks.position() > bytes_max {
            break;
        }
        end = chunks.position();
    }
    slice.slice(0..end)
}

/// Reads one lane, chunk by chunk, in order.
#[derive(Debug)]
pub struct LaneReader {
    core: Arc<Core>,
    lane: Arc<LaneState>,
    group: GroupId,
    position: Position,
    mark: Arc<ReaderPosition>,
}

impl LaneReader {
    pub(crate) fn new(core: Arc<Core>, lane: Arc<LaneState>, cursor: Cursor) -> LaneReader {
        let mark = Arc::new(ReaderPosition::default());
        lane.add_reader(&mark);
        let reader = LaneReader {
            core,
            lane,
            group: cursor.group,
            position: cursor.position,
            mark,
        };
        reader.publish();
        reader
    }

    /// Where it stands.
    pub fn cursor(&self) -> Cursor {
        self.lane.cursor(self.group, self.position)
    }

    /// The lane within its streamlet.
    pub fn lane(&self) -> LaneIndex {
        self.lane.id.lane
    }

    /// What is durable from here on, at most about `bytes_max`; `None` when there is nothing yet.
    ///
    /// # Errors
    /// When retention has removed what comes next, or the disk does not give back what was stored.
    pub fn read(&mut self, bytes_max: usize) -> Result<Option<ReadChunks>> {
        loop {
            if self.lane.stream.removed.load(Ordering::Acquire) {
                return Err(LogError::UnknownStream {
                    name: self.lane.stream.name.clone(),
                });
            }
            let Some(group) = self.lane.group(self.group) else {
                let Some(first) = self.lane.first_group() else {
                    return self.lane.check_end().map(|()| None);
                };
                // Group ids are shared by the lanes of a streamlet: a reader that started before
                // the lane's first group was made does not know its id.
                let is_before_all =
                    self.position == Position(0) && self.lane.earliest_offset() == Offset(0);
                let behind = self.lane.group_behind_removed(self.group, self.position);
                let Some(next) = behind.or_else(|| is_before_all.then_some(first)) else {
                    return Err(LogError::CursorRemoved {
                        cursor: self.cursor(),
                        earliest: self.lane.earliest_cursor(),
                    });
                };
                self.group = next.id;
                self.position = Position(0);
                self.publish();
                continue;
            };
            if self.lane.start.is_behind(&group, self.position) {
                return Err(LogError::CursorRemoved {
                    cursor: self.cursor(),
                    earliest: self.lane.earliest_cursor(),
                });
            }
            if let Some(bytes) = read_group(&self.core, &group, self.position, bytes_max)? {
                let cursor = self.cursor();
                self.position = self.position.plus(bytes.len() as u64);
                self.publish();
                return Ok(Some(ReadChunks {
                    cursor,
                    lane: self.lane.id.lane,
                    bytes,
                    next: self.cursor(),
                }));
            }
            if group.is_removed() {
                continue;
            }
            let Some(next) = self.lane.group_behind(&group, self.position) else {
                return Ok(None);
            };
            self.group = next.id;
            self.position = Position(0);
            self.publish();
        }
    }

    fn publish(&self) {
        self.mark.publish(self.group, self.position);
    }
}

/// Reads all lanes of a stream in turn.
#[derive(Debug)]
pub struct StreamReader {
    core: Arc<Core>,
    stream: Arc<StreamState>,
    lanes: Vec<LaneReader>,
    turn: usize,
    from: From,
}

/// Where a reader starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// With the oldest that is stored.
    Earliest,
    /// With what comes next.
    Latest,
}

impl StreamReader {
    pub(crate) fn new(core: Arc<Core>, stream: Arc<StreamState>, from: From) -> StreamReader {
        let mut reader = StreamReader {
            core,
            stream,
            lanes: Vec::new(),
            turn: 0,
            from,
        };
        reader.add_lanes();
        // Lanes that are added later are read from their beginning.
        reader.from = From::Earliest;
        reader
    }

    fn add_lanes(&mut self) {
        for partition in self.lanes.len() as u32..self.stream.lane_count() {
            let lane = self.stream.partition(partition);
            let lane = lane.expect("streams have no less lanes than before");
            let cursor = match self.from {
                From::Earliest => lane.first_cursor(),
                From::Latest => lane.last_group().map_or_else(
                    || lane.first_cursor(),
                    |group| lane.cursor(group.id, group.durable()),
                ),
            };
            self.lanes
                .push(LaneReader::new(Arc::clone(&self.core), lane, cursor));
        }
    }

    /// What is durable in the next lane that has something; `None` when none has.
    ///
    /// # Errors
    /// See [`LaneReader::read`].
    pub fn read(&mut self, bytes_max: usize) -> Result<Option<ReadChunks>> {
        self.add_lanes();
        for _ in 0..self.lanes.len() {
            self.turn = (self.turn + 1) % self.lanes.len();
            if let Some(chunks) = self.lanes[self.turn].read(bytes_max)? {
                return Ok(Some(chunks));
            }
        }
        Ok(None)
    }

    /// Where it stands in each lane.
    pub fn cursors(&self) -> Vec<Cursor> {
        self.lanes.iter().map(LaneReader::cursor).collect()
    }

    /// Continues a lane somewhere else.
    ///
    /// # Errors
    /// When the cursor names no lane of the stream.
    pub fn seek(
        &mut self,
        streamlet: StreamletIndex,
        lane: LaneIndex,
        cursor: Cursor,
    ) -> Result<()> {
        self.add_lanes();
        let reader = self
            .lanes
            .iter_mut()
            .find(|reader| reader.lane.id.streamlet == streamlet && reader.lane.id.lane == lane);
        let Some(reader) = reader else {
            return Err(LogError::UnknownLane {
                stream: self.stream.shared.name.clone(),
                what: format!("lane {lane} of streamlet {streamlet}"),
            });
        };
        reader.group = cursor.group;
        reader.position = cursor.position;
        reader.publish();
        Ok(())
    }
}

/// The place of a chunk in its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub group: GroupId,
    pub position: Position,
    pub base_offset: Offset,
}

/// Shows the chunks of a group that may be read to `look`, with their positions, until it answers. It begins
/// behind the last place that `is_before` says yes to.
pub fn search<R>(
    core: &Core,
    group: &Arc<Group>,
    is_before: impl Fn(&Place) -> bool,
    mut look: impl FnMut(Position, &Chunk<'_>) -> Option<R>,
) -> Result<Option<R>> {
    let place = look_at(core, group, |places| places.last_before(&is_before))?;
    let mut at = place.map_or(Position(0), |place| place.position);
    let read = |at| {
        let purpose = Purpose::LookUp;
        read_up_to(core, group, at, FIND_BYTES, Group::readable, purpose)
    };
    while let Some(slice) = read(at)? {
        let mut chunks = Chunks::trusted(&slice);
        let mut start = 0;
        while let Some(chunk) = chunks.next() {
            let position = at.plus(start as u64);
            let chunk = chunk
                .map_err(|error| LogError::corrupted(group.path(&core.dir), position, error))?;
            if let Some(found) = look(position, &chunk) {
                return Ok(Some(found));
            }
            start = chunks.position();
        }
        at = at.plus(slice.len() as u64);
    }
    Ok(None)
}

/// Where the chunk that holds `offset` starts; the durable head for the offset behind it.
pub fn seek_offset(core: &Core, lane: &LaneState, offset: Offset) -> Result<Found> {
    let out_of_range = || LogError::OffsetOutOfRange {
        offset,
        earliest: lane.earliest_offset(),
        end: lane.durable_offset(),
    };
    if offset > lane.durable_offset() || offset < lane.earliest_offset() {
        return Err(out_of_range());
    }
    let Some(group) = lane.group_of_offset(offset) else {
        let cursor = lane.earliest_cursor();
        return Ok(Found {
            group: cursor.group,
            position: cursor.position,
            base_offset: offset,
        });
    };
    let found = search(
        core,
        &group,
        |place| place.offset <= offset,
        |position, chunk| {
            let header = chunk.header();
            (header.last_offset() >= offset).then_some(Found {
                group: group.id,
                position,
                base_offset: header.base_offset,
            })
        },
    )?;
    Ok(found.unwrap_or(Found {
        group: group.id,
        position: group.durable(),
        base_offset: offset,
    }))
}

/// Where the first chunk with a record at or after `timestamp` starts.
pub fn seek_timestamp(
    core: &Core,
    lane: &LaneState,
    timestamp: Timestamp,
) -> Result<Option<Found>> {
    let start = lane.earliest_offset();
    for group in lane.groups() {
        let is_older = |end: GroupEnd| end.max_timestamp < timestamp || end.offset <= start;
        if group.end().is_some_and(is_older) {
            continue;
        }
        let found = search(
            core,
            &group,
            |place| place.max_timestamp < timestamp,
            |position, chunk| {
                let header = chunk.header();
                let is_wanted = header.max_timestamp >= timestamp && header.last_offset() >= start;
                is_wanted.then_some(Found {
                    group: group.id,
                    position,
                    base_offset: header.base_offset,
                })
            },
        )?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

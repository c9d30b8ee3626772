//! Reading: from the segments in memory, or from the groups' files where those are evicted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_base::{Cursor, LaneIndex, Offset, Position, StreamletIndex};
use millstream_record::{ChunkHeader, Chunks};

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::group::Group;
use crate::lane::LaneState;
use crate::lane::groups::GroupBehind;
use crate::lane::recent_reads::ReadSpan;
use crate::memory::buffer::Slice;
use crate::read::from_cursor::read_from_cursor;
use crate::read::seek::position_in;
use crate::stream::StreamState;

/// Whole chunks of one lane that follow each other.
#[derive(Debug, Clone)]
pub struct ReadChunks {
    /// The cursor of the first one.
    pub cursor: Cursor,
    /// The lane within the streamlet.
    pub lane: LaneIndex,
    /// Their bytes, in place where memory has them.
    pub bytes: Slice,
    /// The cursor behind them, where reading goes on.
    pub next: Cursor,
}

impl ReadChunks {
    /// The chunks, one by one; their checksums were checked when they came in.
    pub fn chunks(&self) -> Chunks<'_> {
        Chunks::trusted(&self.bytes)
    }
}

/// Reads one partition, chunk by chunk, in order.
#[derive(Debug)]
pub struct PartitionReader {
    core: Arc<Core>,
    lane: Arc<LaneState>,
    place: ReaderPlace,
}

/// The position of a reader.
#[derive(Debug)]
enum ReaderPlace {
    /// The position of this cursor: the reader has not found its group yet.
    Cursor(Cursor),
    /// In a group, which a compaction may have replaced: its files stay until the reader leaves it.
    Group(Arc<Group>, Position),
}

impl PartitionReader {
    pub(crate) fn new(core: Arc<Core>, lane: Arc<LaneState>, cursor: Cursor) -> PartitionReader {
        PartitionReader {
            core,
            lane,
            place: ReaderPlace::Cursor(cursor),
        }
    }

    /// Returns its position.
    pub fn cursor(&self) -> Cursor {
        match &self.place {
            ReaderPlace::Cursor(cursor) => *cursor,
            ReaderPlace::Group(group, position) => group.cursor(*position),
        }
    }

    /// The lane within its streamlet.
    pub fn lane(&self) -> LaneIndex {
        self.lane.id.lane
    }

    /// Reads durable chunks from here on, at most about `bytes_max`; `None` when there is nothing yet.
    ///
    /// # Errors
    /// When retention has removed the next chunks, the reader began where no chunk starts, or the disk does not return
    /// the stored bytes.
    pub fn read(&mut self, bytes_max: usize) -> Result<Option<ReadChunks>> {
        let core = Arc::clone(&self.core);
        loop {
            if self.lane.stream.removed.load(Ordering::Acquire) {
                return Err(LogError::UnknownStream {
                    name: self.lane.stream.name.clone(),
                });
            }
            let Some((group, position)) = self.enter()? else {
                return self.lane.check_end().map(|()| None);
            };
            if self.lane.start.is_behind(&group, position) {
                return Err(self.removed());
            }
            let read = read_from_cursor(&core.reads, &self.lane, &group, position, bytes_max)?;
            if let Some(bytes) = read {
                // In a replaced group the position does not show whether the chunk was deleted.
                let first = ChunkHeader::parse(&bytes).map(|header| header.next_offset());
                if first.is_ok_and(|next| next <= self.lane.earliest_offset()) {
                    return Err(self.removed());
                }
                let behind = position.plus(bytes.len() as u64);
                self.place = ReaderPlace::Group(Arc::clone(&group), behind);
                let span = ReadSpan::within(&group, position, behind);
                self.lane.note_read(span, core.clock.monotonic());
                return Ok(Some(ReadChunks {
                    cursor: group.cursor(position),
                    lane: self.lane.id.lane,
                    bytes,
                    next: group.cursor(behind),
                }));
            }
            if group.is_removed() {
                continue;
            }
            let behind = self.lane.group_behind(&group, position);
            if behind.is_some()
                && let Some(end) = group.end()
                && self.lane.earliest_offset() > end.offset
            {
                return Err(self.removed());
            }
            match behind {
                None => return Ok(None),
                Some(GroupBehind::At(next)) => self.place = ReaderPlace::Group(next, Position(0)),
                Some(GroupBehind::Within(next, offset)) => {
                    let at = position_in(&core.reads, &self.lane, &next, offset)?;
                    self.place = ReaderPlace::Group(next, at);
                }
            }
        }
    }

    /// Returns the group where it stands, and the position in it; `None` if the lane has no groups.
    fn enter(&mut self) -> Result<Option<(Arc<Group>, Position)>> {
        let (id, position) = match &self.place {
            ReaderPlace::Group(group, position) if !group.is_removed() => {
                return Ok(Some((Arc::clone(group), *position)));
            }
            ReaderPlace::Group(group, position) => (group.id, *position),
            ReaderPlace::Cursor(cursor) => {
                if let Some((group, position)) = self.lane.group_of(cursor) {
                    self.place = ReaderPlace::Group(Arc::clone(&group), position);
                    return Ok(Some((group, position)));
                }
                (cursor.group, cursor.position)
            }
        };
        let Some(first) = self.lane.first_group() else {
            return Ok(None);
        };
        // Group ids are shared by the lanes of a streamlet: a reader that started before
        // the lane's first group was made does not know its id.
        let is_before_all = position == Position(0) && self.lane.earliest_offset() == Offset(0);
        let behind = self.lane.group_behind_removed(id, position);
        let Some(next) = behind.or_else(|| is_before_all.then_some(first)) else {
            return Err(self.removed());
        };
        self.place = ReaderPlace::Group(Arc::clone(&next), Position(0));
        Ok(Some((next, Position(0))))
    }

    fn removed(&self) -> LogError {
        LogError::CursorRemoved {
            cursor: self.cursor(),
            earliest: self.lane.earliest_cursor(),
        }
    }
}

/// Reads all partitions of a stream in turn.
#[derive(Debug)]
pub struct StreamReader {
    core: Arc<Core>,
    stream: Arc<StreamState>,
    lanes: Vec<PartitionReader>,
    turn: usize,
    from: ReadStart,
}

/// The start of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadStart {
    /// With the oldest stored record.
    Earliest,
    /// With the next record that is appended.
    Latest,
}

impl StreamReader {
    pub(crate) fn new(core: Arc<Core>, stream: Arc<StreamState>, from: ReadStart) -> StreamReader {
        let mut reader = StreamReader {
            core,
            stream,
            lanes: Vec::new(),
            turn: 0,
            from,
        };
        reader.add_lanes();
        // Lanes that are added later are read from their beginning.
        reader.from = ReadStart::Earliest;
        reader
    }

    fn add_lanes(&mut self) {
        for partition in self.lanes.len() as u32..self.stream.partition_count() {
            let lane = self.stream.partition(partition);
            let lane = lane.expect("streams have no less lanes than before");
            let cursor = match self.from {
                ReadStart::Earliest => lane.first_cursor(),
                ReadStart::Latest => lane.last_group().map_or_else(
                    || lane.first_cursor(),
                    |group| group.cursor(group.durable()),
                ),
            };
            self.lanes
                .push(PartitionReader::new(Arc::clone(&self.core), lane, cursor));
        }
    }

    /// Reads durable chunks of the next partition that has some; `None` when none has.
    ///
    /// # Errors
    /// See [`PartitionReader::read`].
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

    /// Returns its position in each partition.
    pub fn cursors(&self) -> Vec<Cursor> {
        self.lanes.iter().map(PartitionReader::cursor).collect()
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
            return Err(LogError::UnknownPartition {
                stream: self.stream.shared.name.clone(),
                what: format!("lane {lane} of streamlet {streamlet}"),
            });
        };
        reader.place = ReaderPlace::Cursor(cursor);
        Ok(())
    }
}

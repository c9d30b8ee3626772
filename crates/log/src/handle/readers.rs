//! Reading: from the segments in memory, or from the groups' files where those are evicted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_base::{Cursor, GroupId, LaneIndex, Offset, Position, StreamletIndex};
use millstream_record::Chunks;

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::lane::LaneState;
use crate::lane::reader_position::ReaderPosition;
use crate::memory::buffer::Slice;
use crate::read::from_cursor::read_from_cursor;
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
    group: GroupId,
    position: Position,
    standing: Arc<ReaderPosition>,
}

impl PartitionReader {
    pub(crate) fn new(core: Arc<Core>, lane: Arc<LaneState>, cursor: Cursor) -> PartitionReader {
        let standing = Arc::new(ReaderPosition::default());
        lane.add_reader(&standing);
        let reader = PartitionReader {
            core,
            lane,
            group: cursor.group,
            position: cursor.position,
            standing,
        };
        reader.publish();
        reader
    }

    /// Returns its position.
    pub fn cursor(&self) -> Cursor {
        self.lane.cursor(self.group, self.position)
    }

    /// The lane within its streamlet.
    pub fn lane(&self) -> LaneIndex {
        self.lane.id.lane
    }

    /// Reads durable chunks from here on, at most about `bytes_max`; `None` when there is nothing yet.
    ///
    /// # Errors
    /// When retention has removed the next chunks, the reader began where no chunk starts, or the disk does not give back
    /// what was stored.
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
            if let Some(bytes) = read_from_cursor(
                &self.core.reads,
                &self.lane,
                &group,
                self.position,
                bytes_max,
            )? {
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
        self.standing.publish(self.group, self.position);
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
                    |group| lane.cursor(group.id, group.durable()),
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
        reader.group = cursor.group;
        reader.position = cursor.position;
        reader.publish();
        Ok(())
    }
}

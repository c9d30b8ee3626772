//! Search for the chunk of an offset or a time: the index leads near it, then chunk headers are read.

use std::sync::Arc;

use millstream_base::{Cursor, Offset, Position, Timestamp};
use millstream_record::{Chunk, Chunks};

use crate::error::{LogError, Result};
use crate::group::Group;
use crate::group::end::GroupEnd;
use crate::ids::Generation;
use crate::index::entry::INDEX_INTERVAL_BYTES;
use crate::index::sparse::IndexPoint;
use crate::lane::LaneState;
use crate::lane::start::StartPlace;
use crate::read::catch_up::Purpose;
use crate::read::context::ReadContext;
use crate::read::group::read_up_to;

/// How much is read at once to find one chunk in a group's file: entries are not further apart, unless
/// a chunk is larger.
const FIND_BYTES: usize = 2 * INDEX_INTERVAL_BYTES as usize;

/// The place of a chunk in its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkPosition {
    pub cursor: Cursor,
    /// The generation of the group.
    pub generation: Generation,
    pub base_offset: Offset,
}

impl ChunkPosition {
    fn of(group: &Group, position: Position, base_offset: Offset) -> ChunkPosition {
        ChunkPosition {
            cursor: group.cursor(position),
            generation: group.name().generation,
            base_offset,
        }
    }
}

impl From<&ChunkPosition> for StartPlace {
    fn from(found: &ChunkPosition) -> StartPlace {
        StartPlace {
            group: found.cursor.group,
            generation: found.generation,
            position: found.cursor.position,
        }
    }
}

/// Calls `look` with the readable chunks of a group and their positions, until it returns a result. It begins
/// behind the last point for which `is_before` holds.
pub fn search<R>(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Arc<Group>,
    is_before: impl Fn(&IndexPoint) -> bool,
    look: impl FnMut(Position, &Chunk<'_>) -> Option<R>,
) -> Result<Option<R>> {
    search_up_to(reads, lane, group, Group::high_watermark, is_before, look)
}

/// As [`search`], with the chunks up to another head.
pub fn search_up_to<R>(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Arc<Group>,
    head: impl Fn(&Group) -> Position,
    is_before: impl Fn(&IndexPoint) -> bool,
    mut look: impl FnMut(Position, &Chunk<'_>) -> Option<R>,
) -> Result<Option<R>> {
    let place = reads
        .indexes
        .look_at(lane, group, |index| index.last_before(&is_before))?;
    let mut at = place.map_or(Position(0), |point| point.position);
    let read = |at| {
        let purpose = Purpose::LookUp;
        read_up_to(reads, lane, group, at, FIND_BYTES, &head, purpose)
    };
    while let Some(slice) = read(at)? {
        let mut chunks = Chunks::trusted(&slice);
        let mut start = 0;
        while let Some(chunk) = chunks.next() {
            let position = at.plus(start as u64);
            let chunk = chunk
                .map_err(|error| LogError::corrupted(group.path(&reads.dir), position, error))?;
            if let Some(found) = look(position, &chunk) {
                return Ok(Some(found));
            }
            start = chunks.position();
        }
        at = at.plus(slice.len() as u64);
    }
    Ok(None)
}

/// Returns the position in a group of the chunk that holds `offset`; its end if the group has none.
pub fn position_in(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Arc<Group>,
    offset: Offset,
) -> Result<Position> {
    let found = search(
        reads,
        lane,
        group,
        |point| point.offset <= offset,
        |position, chunk| (chunk.header().last_offset() >= offset).then_some(position),
    )?;
    Ok(found.unwrap_or_else(|| group.high_watermark()))
}

/// Returns the position of the chunk that holds `offset`; the durable position for the offset behind the last one.
pub fn seek_offset(reads: &ReadContext, lane: &LaneState, offset: Offset) -> Result<ChunkPosition> {
    let out_of_range = || LogError::OffsetOutOfRange {
        offset,
        earliest: lane.earliest_offset(),
        end: lane.durable_offset(),
    };
    if offset > lane.durable_offset() || offset < lane.earliest_offset() {
        return Err(out_of_range());
    }
    let Some(group) = lane.group_of_offset(offset) else {
        return Ok(ChunkPosition {
            cursor: lane.earliest_cursor(),
            generation: Generation::FIRST,
            base_offset: offset,
        });
    };
    let found = search(
        reads,
        lane,
        &group,
        |point| point.offset <= offset,
        |position, chunk| {
            let header = chunk.header();
            let is_it = header.last_offset() >= offset;
            is_it.then(|| ChunkPosition::of(&group, position, header.base_offset))
        },
    )?;
    Ok(found.unwrap_or_else(|| ChunkPosition::of(&group, group.durable(), offset)))
}

/// Returns the position of the first chunk with a record at or after `timestamp`.
pub fn seek_timestamp(
    reads: &ReadContext,
    lane: &LaneState,
    timestamp: Timestamp,
) -> Result<Option<ChunkPosition>> {
    let start = lane.earliest_offset();
    search_timestamp(reads, lane, timestamp, start, |group, position, chunk| {
        let base_offset = chunk.header().base_offset;
        Some(ChunkPosition::of(group, position, base_offset))
    })
}

/// Calls `look` with the lane's chunks, from the offset `start` on, that may hold a record at or after `timestamp`, until
/// it returns a result.
pub fn search_timestamp<R>(
    reads: &ReadContext,
    lane: &LaneState,
    timestamp: Timestamp,
    start: Offset,
    mut look: impl FnMut(&Group, Position, &Chunk<'_>) -> Option<R>,
) -> Result<Option<R>> {
    for group in lane.groups() {
        let is_older = |end: GroupEnd| end.max_timestamp < timestamp || end.offset <= start;
        if group.end().is_some_and(is_older) {
            continue;
        }
        let found = search(
            reads,
            lane,
            &group,
            |point| point.max_timestamp < timestamp,
            |position, chunk| {
                let header = chunk.header();
                let may_hold_it =
                    header.max_timestamp >= timestamp && header.last_offset() >= start;
                may_hold_it.then(|| look(&group, position, chunk))?
            },
        )?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

//! Reads from positions that a client names: they may be no chunk's start.
//!
//! Bytes within a chunk look like a damaged chunk. So before a read reports damage, it walks to its position from the last
//! index entry before it, over chunks that it checks. If the walk passes over the position, the client named a wrong one.
//! If the walk finds damage, the damage is real, whatever position the client wanted.

use std::sync::Arc;

use millstream_base::Position;
use millstream_record::ChunkHeader;

use crate::error::{LogError, Result};
use crate::group::Group;
use crate::lane::LaneState;
use crate::memory::buffer::Slice;
use crate::read::catch_up::Purpose;
use crate::read::context::ReadContext;
use crate::read::group::{read_at, read_durable, truncate_to_chunks};
use crate::read::seek::search;

/// Reads durable chunks from a position of a group on, at most `bytes_max` unless one chunk is larger. `None` at the
/// durable position.
///
/// # Errors
/// [`LogError::BadCursor`] when no chunk starts at the position, or it lies beyond the group's durable bytes.
pub fn read_from_cursor(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Arc<Group>,
    from: Position,
    bytes_max: usize,
) -> Result<Option<Slice>> {
    let durable = group.durable();
    if from > durable {
        return Err(beyond_end(group, from));
    }
    let whole = |slice| truncate_to_chunks(slice, bytes_max);
    if from == Position(0) || from == durable {
        // A chunk starts there, if any does.
        return Ok(read_durable(reads, lane, group, from, bytes_max)?.map(whole));
    }
    let purpose = Purpose::ReadOn;
    let read = read_at(reads, lane, group, from, bytes_max, Group::durable, purpose);
    let is_doubtful = match &read {
        Ok(Some(slice)) => !looks_like_chunk(lane, group, slice),
        Ok(None) => false,
        Err(error) => matches!(error, LogError::Corrupted { .. }),
    };
    if is_doubtful && !starts_chunk(reads, lane, group, from)? {
        return Err(no_chunk(group, from));
    }
    let read = read.inspect_err(|error| reads.damage.report_read(&*reads.clock, lane, error));
    Ok(read?.map(whole))
}

/// Returns whether a chunk starts at a position of a group, or the group's durable bytes end there. Reports damage that it
/// finds on the way.
pub fn starts_chunk(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Arc<Group>,
    position: Position,
) -> Result<bool> {
    if position == Position(0) || position == group.durable() {
        return Ok(true);
    }
    let found = search(
        reads,
        lane,
        group,
        |point| point.position <= position,
        |start, _| (start >= position).then_some(start),
    )?;
    Ok(found == Some(position))
}

/// Returns the error for a position that is no chunk's start.
pub fn no_chunk(group: &Group, position: Position) -> LogError {
    LogError::BadCursor {
        cursor: group.cursor(position),
        why: "no chunk starts there; use the cursor behind an earlier read, or one at the start of the group"
            .to_owned(),
    }
}

/// Returns the error for a position behind all durable bytes of a group: bytes that were lost are damage.
pub fn beyond_end(group: &Group, position: Position) -> LogError {
    let bad_cursor = || LogError::BadCursor {
        cursor: group.cursor(position),
        why: format!("the group holds {} bytes", group.durable()),
    };
    group.damage().cloned().unwrap_or_else(bad_cursor)
}

/// Whether bytes begin like a chunk at this place. Bytes within a chunk do so only if a producer crafted them.
fn looks_like_chunk(lane: &LaneState, group: &Group, slice: &Slice) -> bool {
    let offsets = group.first_offset..lane.durable_offset();
    ChunkHeader::parse(slice).is_ok_and(|header| {
        header.total_bytes as usize <= slice.len() && offsets.contains(&header.base_offset)
    })
}

//! Reads chunks into the [tail](crate::keys::tail) of a lane's keys, durable or not.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::Position;
use millstream_record::{Chunk, Chunks, EndMarker, Records};

use crate::error::{LogError, Result};
use crate::group::Group;
use crate::keys::tail::KeyTail;
use crate::lane::LaneState;
use crate::lane::end::LaneEnd;
use crate::lane::groups::GroupBehind;
use crate::memory::buffer::Slice;
use crate::read::catch_up::Purpose;
use crate::read::context::ReadContext;
use crate::read::group::read_up_to;
use crate::read::keys::update::in_chunk;
use crate::read::seek::search_up_to;

/// The bytes of chunks that one read fetches.
const READ_BYTES: usize = 1 << 20;

/// The most bytes that are read under the lock of a lane's head.
const BYTES_UNDER_LOCK: usize = 64 << 10;

/// Adds the records up to the end of a lane. `false` if groups went or were replaced meanwhile: then the tail is of no use
/// any more.
///
/// # Errors
/// When chunks cannot be read.
pub fn read_tail(
    reads: &ReadContext,
    lane: &LaneState,
    tail: &mut KeyTail,
    end: &LaneEnd,
) -> Result<bool> {
    if tail.next() < end.offset && tail.place().is_none() {
        let Some((group, position)) = first_place(reads, lane, tail, end)? else {
            return Ok(false);
        };
        tail.advance(tail.next(), (group.id, position));
    }
    let head = |group: &Group| end.in_group(group);
    let read =
        |group: &_, at| read_up_to(reads, lane, group, at, READ_BYTES, head, Purpose::LookUp);
    let wait_max = reads.decompression_wait_max;
    let has_all = read_with(reads, lane, tail, end, read, wait_max)?;
    Ok(has_all && lane.swaps() == tail.swaps())
}

/// Adds the records up to the end of a lane, under the lock of its head: from memory, and few. `false` if they are too many,
/// or not in memory.
///
/// # Errors
/// When chunks cannot be read.
pub fn read_tail_under_lock(
    reads: &ReadContext,
    lane: &LaneState,
    tail: &mut KeyTail,
    end: &LaneEnd,
) -> Result<bool> {
    if tail.next() < end.offset && tail.place().is_none() {
        return Ok(false);
    }
    let mut bytes = 0;
    let read = |group: &Arc<Group>, at| {
        let slice = group.slice_in_memory(at, end.in_group(group));
        bytes += slice.as_ref().map_or(0, |slice| slice.len());
        Ok(slice.filter(|_| bytes <= BYTES_UNDER_LOCK))
    };
    match read_with(reads, lane, tail, end, read, Duration::ZERO) {
        Err(LogError::DecompressionBusy { .. }) => Ok(false),
        has_all => has_all,
    }
}

/// Returns the place of the chunk that begins at the tail's end; `None` if its group went.
fn first_place(
    reads: &ReadContext,
    lane: &LaneState,
    tail: &KeyTail,
    end: &LaneEnd,
) -> Result<Option<(Arc<Group>, Position)>> {
    let next = tail.next();
    let Some(group) = lane.group_of_offset(next) else {
        return Ok(None);
    };
    let head = |group: &Group| end.in_group(group);
    let found = search_up_to(
        reads,
        lane,
        &group,
        head,
        |point| point.offset <= next,
        |position, chunk| (chunk.header().last_offset() >= next).then_some(position),
    )?;
    let position = found.unwrap_or_else(|| head(&group));
    Ok(Some((group, position)))
}

/// Adds the records up to the end of a lane that `read` reads: from a position of a group, or nothing at the group's end.
/// `false` if it does not read all.
fn read_with(
    reads: &ReadContext,
    lane: &LaneState,
    tail: &mut KeyTail,
    end: &LaneEnd,
    mut read: impl FnMut(&Arc<Group>, Position) -> Result<Option<Slice>>,
    wait_max: Duration,
) -> Result<bool> {
    // The group of its place may be gone, if all records were deleted.
    if tail.next() >= end.offset {
        return Ok(true);
    }
    let Some((id, mut position)) = tail.place() else {
        return Ok(false);
    };
    let Some(mut group) = lane.group(id) else {
        return Ok(false);
    };
    while tail.next() < end.offset {
        if let Some(slice) = read(&group, position)? {
            position = add_slice(reads, lane, tail, &group, position, &slice, wait_max)?;
            continue;
        }
        match lane.group_behind(&group, position) {
            Some(GroupBehind::At(next)) => (group, position) = (next, Position(0)),
            Some(GroupBehind::Within(..)) | None => return Ok(false),
        }
    }
    Ok(true)
}

/// Adds the records of chunks at a position of a group. Returns the position behind them.
fn add_slice(
    reads: &ReadContext,
    lane: &LaneState,
    tail: &mut KeyTail,
    group: &Group,
    position: Position,
    slice: &Slice,
    wait_max: Duration,
) -> Result<Position> {
    let mut chunks = Chunks::trusted(slice);
    let mut behind = position;
    while let Some(chunk) = chunks.next() {
        let chunk =
            chunk.map_err(|error| LogError::corrupted(group.path(&reads.dir), behind, error))?;
        add_chunk(reads, tail, &chunk, wait_max).map_err(|error| in_chunk(lane, &chunk, error))?;
        behind = position.plus(chunks.position() as u64);
        tail.advance(chunk.header().next_offset(), (group.id, behind));
    }
    Ok(behind)
}

fn add_chunk(
    reads: &ReadContext,
    tail: &mut KeyTail,
    chunk: &Chunk<'_>,
    wait_max: Duration,
) -> Result<()> {
    let header = chunk.header();
    if header.attributes.is_control() {
        if let Some(marker) = EndMarker::of(chunk) {
            tail.end(marker.producer_id, marker.end, header.base_offset);
        }
        return Ok(());
    }
    let is_transactional = header.attributes.is_transactional();
    let transaction = is_transactional.then_some(header.producer_id);
    let add = |records: Records<'_>| {
        for record in records {
            tail.add(&record?, transaction);
        }
        Ok::<(), LogError>(())
    };
    reads.decompression.with_records(chunk, wait_max, add)?
}

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
    read_with(reads, lane, tail, end, read, wait_max)
}

/// Adds the records up to the end of a lane, under the lock of its head: from memory, and few. `false` if they are too many,
/// or not in memory, or if groups were replaced meanwhile.
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
/// `false` if it does not read all, or if groups were replaced.
fn read_with(
    reads: &ReadContext,
    lane: &LaneState,
    tail: &mut KeyTail,
    end: &LaneEnd,
    read: impl FnMut(&Arc<Group>, Position) -> Result<Option<Slice>>,
    wait_max: Duration,
) -> Result<bool> {
    let has_all = read_all(reads, lane, tail, end, read, wait_max);
    // A rewritten group has the id of the first group that it replaces, and other chunks at the tail's position.
    match lane.swaps() == tail.swaps() {
        true => has_all,
        false => Ok(false),
    }
}

fn read_all(
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

#[cfg(test)]
mod tests {
    use millstream_base::{ByteSize, LaneIndex, Offset, StreamletIndex, Timestamp};
    use millstream_record::{ChunkBuilder, Compression};

    use super::*;
    use crate::ids::LaneId;
    use crate::log::Log;
    use crate::settings::config::{Background, LogConfig, StreamConfig};
    use crate::settings::defaults::{CLEANUP_POLICY, COMPACT};

    #[test]
    fn a_tail_whose_group_was_compacted_does_not_go_on_with_the_next_group() {
        let dir = tempfile::tempdir().unwrap();
        let config = LogConfig {
            background: Background::Manual,
            ..LogConfig::with_pool(dir.path(), ByteSize(4 << 20))
        };
        let log = Log::open(config).unwrap();
        let settings = [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into();
        let config = StreamConfig {
            settings,
            ..StreamConfig::default()
        };
        let stream = log.create_stream("s", config).unwrap();
        let partition = stream.partition(0).unwrap();
        let core = &log.inner.core;
        let id = LaneId {
            stream: stream.id(),
            streamlet: StreamletIndex(0),
            lane: LaneIndex(0),
        };
        let lane = core.lane(id).unwrap();
        let append = |count: u64| {
            for _ in 0..count {
                let mut builder = ChunkBuilder::new(Compression::None);
                builder
                    .push(Timestamp(0), Some(b"k"), Some(&[7; 100]), &[])
                    .unwrap();
                partition.append(builder.finish(None).unwrap()).unwrap();
            }
        };
        append(20);
        let mut tail = KeyTail::new(Offset(0), lane.swaps());
        assert!(read_tail(&core.reads, &lane, &mut tail, &lane.end()).unwrap());
        append(20);
        while log.step() {}
        lane.roll().unwrap();
        while log.step() {}
        log.persist();
        while log.step() {}
        log.compact().unwrap();
        let (group, position) = tail.place().unwrap();
        let rewritten = lane.group(group).unwrap();
        assert!(rewritten.is_rewritten() && rewritten.end().unwrap().position < position);

        append(1);
        let end = lane.end();
        for read in [read_tail_under_lock, read_tail] {
            let mut tail = tail.clone();
            assert!(!read(&core.reads, &lane, &mut tail, &end).unwrap());
        }
    }
}

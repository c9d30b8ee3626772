//! Reading of one group: from its segments in memory, or from its file where these are evicted.

use std::sync::Arc;

use millstream_base::Position;
use millstream_record::Chunks;

use crate::error::Result;
use crate::group::Group;
use crate::lane::LaneState;
use crate::memory::buffer::Slice;
use crate::read::catch_up::Purpose;
use crate::read::context::ReadContext;

/// Reads durable chunks behind a position of a group, where a chunk starts, at most `bytes_max` unless one chunk is larger.
/// `None` at the durable position.
pub fn read_group(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Arc<Group>,
    from: Position,
    bytes_max: usize,
) -> Result<Option<Slice>> {
    let slice = read_durable(reads, lane, group, from, bytes_max)?;
    Ok(slice.map(|slice| truncate_to_chunks(slice, bytes_max)))
}

/// Reads durable bytes behind a position of a group, where a chunk starts: all that memory has of its
/// segment, or whole chunks from the file, at most `bytes_max` unless one chunk is larger. `None` at
/// the durable position.
pub fn read_durable(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Arc<Group>,
    from: Position,
    bytes_max: usize,
) -> Result<Option<Slice>> {
    read_up_to(
        reads,
        lane,
        group,
        from,
        bytes_max,
        Group::durable,
        Purpose::ReadOn,
    )
}

/// Reads readable bytes, durable or not, as [`read_durable`] reads durable ones.
pub fn read_up_to_high_watermark(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Arc<Group>,
    from: Position,
    bytes_max: usize,
) -> Result<Option<Slice>> {
    let purpose = Purpose::ReadOn;
    read_up_to(
        reads,
        lane,
        group,
        from,
        bytes_max,
        Group::high_watermark,
        purpose,
    )
}

pub fn read_up_to(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Arc<Group>,
    from: Position,
    bytes_max: usize,
    head: impl Fn(&Group) -> Position,
    purpose: Purpose,
) -> Result<Option<Slice>> {
    let read = read_at(reads, lane, group, from, bytes_max, head, purpose);
    read.inspect_err(|error| reads.damage.report_read(&*reads.clock, lane, error))
}

/// As [`read_up_to`], without a report of damage.
pub fn read_at(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Arc<Group>,
    from: Position,
    bytes_max: usize,
    head: impl Fn(&Group) -> Position,
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
            let read = reads
                .catch_up
                .read(lane, group, from..synced, bytes_max, purpose);
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

/// Cuts a slice of whole chunks behind the last one that ends within `bytes_max`.
pub fn truncate_to_chunks(slice: Slice, bytes_max: usize) -> Slice {
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

//! Fetching: whole chunks from an offset on, without a copy, for a caller that knows only the offset.
//!
//! A fetch leaves no listener and no lock behind. The sparse index leads near the offset. The lane remembers where its
//! last few fetches ended, since their consumers usually go on there, so most fetches parse only the headers of the
//! chunks near the end.

use std::sync::Arc;

use bytes::Bytes;
use millstream_base::{Offset, Position};
use millstream_record::{Chunks, HEADER_BYTES};

use crate::error::{LogError, Result};
use crate::group::Group;
use crate::index::sparse::IndexPoint;
use crate::lane::LaneState;
use crate::lane::fetch_ends::FetchEnd;
use crate::lane::groups::GroupBehind;
use crate::lane::recent_reads::ReadSpan;
use crate::memory::buffer::Slice;
use crate::read::context::ReadContext;
use crate::read::group::read_up_to_high_watermark;
use crate::read::seek::position_in;

/// The most pieces of one fetch; more than one call of the operating system writes.
const PIECES_MAX: usize = 1024;

/// Whole chunks of one lane that follow each other.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Slices of them, in place if memory has them. No piece is empty.
    pub pieces: Vec<Slice>,
    /// The sum of the pieces' lengths.
    pub bytes: usize,
    /// The offset behind the last chunk, or the requested offset if there is none.
    pub next: Offset,
    /// The part of the lane that they come from; `None` if there are none.
    pub span: Option<ReadSpan>,
    /// The groups of the pieces. Compaction drops no markers of the lane while a group is held that it has replaced, so the
    /// log still knows the aborted transactions of these chunks.
    _held: Vec<Arc<Group>>,
}

/// The result of a fetch whose first chunk alone is larger than the requested bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtLeast {
    /// This chunk.
    OneChunk,
    /// Nothing.
    Nothing,
}

impl Fetched {
    /// The pieces, to be sent: each keeps its memory until it is dropped.
    pub fn into_bytes(self) -> impl Iterator<Item = Bytes> {
        self.pieces.into_iter().map(Bytes::from)
    }
}

impl From<Slice> for Bytes {
    fn from(slice: Slice) -> Bytes {
        Bytes::from_owner(slice)
    }
}

pub fn fetch(
    reads: &ReadContext,
    lane: &LaneState,
    from: Offset,
    end: Offset,
    bytes_max: usize,
    at_least: AtLeast,
) -> Result<Fetched> {
    if lane.is_removed() {
        return Err(LogError::UnknownStream {
            name: lane.stream.name.clone(),
        });
    }
    let out_of_range = || LogError::OffsetOutOfRange {
        offset: from,
        earliest: lane.earliest_offset(),
        end: lane.high_watermark(),
    };
    let high_watermark = lane.high_watermark();
    if from < lane.earliest_offset() || from > high_watermark {
        return Err(out_of_range());
    }
    let end = end.min(high_watermark);
    let mut fetched = Fetched {
        pieces: Vec::new(),
        bytes: 0,
        next: from,
        span: None,
        _held: Vec::new(),
    };
    if from >= end {
        return match from >= high_watermark {
            true => lane.check_end().map(|()| fetched),
            false => Ok(fetched),
        };
    }
    let (mut group, mut position) = locate(reads, lane, from)?.ok_or_else(out_of_range)?;
    let begin = (group.id, position);
    while fetched.pieces.len() < PIECES_MAX {
        let is_first = fetched.pieces.is_empty();
        let left = bytes_max.saturating_sub(fetched.bytes);
        if !is_first && left < HEADER_BYTES {
            break;
        }
        let slice = match read_up_to_high_watermark(reads, lane, &group, position, left) {
            Err(_) if !is_first => break,
            read => read?,
        };
        let Some(slice) = slice else {
            if group.is_removed() && is_first {
                return Err(out_of_range());
            }
            match lane.group_behind(&group, position) {
                Some(GroupBehind::At(next)) => (group, position) = (next, Position(0)),
                Some(GroupBehind::Within(..)) => {
                    let found = locate(reads, lane, fetched.next)?;
                    (group, position) = found.ok_or_else(out_of_range)?;
                }
                None => break,
            }
            continue;
        };
        let bounds = FetchBounds {
            end,
            bytes_max: left,
            at_least_one: is_first && at_least == AtLeast::OneChunk,
        };
        let (bytes, next) = bounds.of(reads, lane, &group, position, &slice)?;
        if bytes == 0 {
            break;
        }
        position = position.plus(bytes as u64);
        fetched.bytes += bytes;
        fetched.next = next;
        let is_cut = bytes < slice.len();
        fetched.pieces.push(slice.slice(0..bytes));
        let is_held = |held: &Arc<Group>| Arc::ptr_eq(held, &group);
        if !fetched._held.last().is_some_and(is_held) {
            fetched._held.push(Arc::clone(&group));
        }
        if is_cut {
            break;
        }
    }
    let end = FetchEnd {
        offset: fetched.next,
        group: group.id,
        generation: group.name().generation,
        position,
    };
    lane.fetch_ends.put(from, end);
    fetched.span = (fetched.bytes > 0).then_some(ReadSpan {
        from: begin,
        to: (group.id, position),
    });
    Ok(fetched)
}

/// Returns whether a record is in memory: for one where an earlier fetch has ended, whether its chunk is, and for others,
/// whether the chunk at the index entry before it is.
pub fn is_in_memory(lane: &LaneState, offset: Offset) -> bool {
    let known = lane.fetch_ends.of(offset).and_then(|end| {
        let group = lane.group(end.group)?;
        (group.name().generation == end.generation).then_some((group, end.position))
    });
    if let Some((group, position)) = known {
        return position >= group.high_watermark() || group.is_in_memory(position);
    }
    let Some(group) = lane.group_of_offset(offset) else {
        return true;
    };
    // A group has its index in memory while it has segments there.
    let before = |point: &IndexPoint| point.offset <= offset;
    let Some(point) = group.look_at_index(|index| index.last_before(before)) else {
        return false;
    };
    group.is_in_memory(point.map_or(Position(0), |point| point.position))
}

/// Returns the group and the position of the chunk that holds `offset`.
pub fn locate(
    reads: &ReadContext,
    lane: &LaneState,
    offset: Offset,
) -> Result<Option<(Arc<Group>, Position)>> {
    if let Some(end) = lane.fetch_ends.of(offset)
        && let Some(group) = lane.group(end.group)
        && group.name().generation == end.generation
    {
        return Ok(Some((group, end.position)));
    }
    let Some(group) = lane.group_of_offset(offset) else {
        return Ok(None);
    };
    let position = position_in(reads, lane, &group, offset)?;
    Ok(Some((group, position)))
}

/// The bounds of a fetch.
pub struct FetchBounds {
    /// The fetch takes chunks that begin before this offset.
    pub end: Offset,
    pub bytes_max: usize,
    /// Whether the fetch takes the first chunk of any size.
    pub at_least_one: bool,
}

impl FetchBounds {
    /// Returns the number of bytes that the fetch takes of `slice`, which starts at `position` with a chunk, and the
    /// offset behind them.
    pub fn of(
        &self,
        reads: &ReadContext,
        lane: &LaneState,
        group: &Arc<Group>,
        position: Position,
        slice: &[u8],
    ) -> Result<(usize, Offset)> {
        // The fetch takes the chunks before this point.
        let to = position.plus(self.bytes_max.min(slice.len()) as u64);
        let is_wanted = |point: &IndexPoint| point.position <= to && point.offset < self.end;
        let place = reads
            .indexes
            .look_at(lane, group, |index| index.last_before(is_wanted))?;
        let place = place.filter(|point| point.position > position);
        let known = place.map_or(0, |point| (point.position.0 - position.0) as usize);
        let mut bytes = known;
        let mut next = place.map_or(self.end, |point| point.offset);
        let mut chunks = Chunks::trusted(&slice[known..]);
        while let Some(chunk) = chunks.next() {
            let chunk = chunk.map_err(|error| {
                let at = position.plus(bytes as u64);
                LogError::corrupted(group.path(&reads.dir), at, error)
            })?;
            let behind = known + chunks.position();
            let is_too_large = behind > self.bytes_max && !(self.at_least_one && bytes == 0);
            if chunk.header().base_offset >= self.end || is_too_large {
                break;
            }
            bytes = behind;
            next = chunk.header().next_offset();
        }
        Ok((bytes, next))
    }
}

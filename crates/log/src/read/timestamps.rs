//! Records by their timestamps, as Kafka's clients ask for them.
//!
//! Index and headers lead to one chunk, and only its records are walked. The producer's header
//! counts where they contradict it.

use std::sync::Arc;

use millstream_base::{Offset, Timestamp};
use millstream_record::{Chunk, Records};

use crate::error::{LogError, Result};
use crate::group::Group;
use crate::index::sparse::IndexPoint;
use crate::lane::LaneState;
use crate::read::context::ReadContext;
use crate::read::seek::{search, search_timestamp};

pub fn record_at(
    reads: &ReadContext,
    lane: &LaneState,
    timestamp: Timestamp,
) -> Result<Option<(Offset, Timestamp)>> {
    let start = lane.earliest_offset();
    let found = search_timestamp(reads, lane, timestamp, start, |_, _, chunk| {
        first_in(reads, chunk, timestamp, start)
    })?;
    found.transpose()
}

/// The first record of a chunk at or after `timestamp` that is not before `start`.
fn first_in(
    reads: &ReadContext,
    chunk: &Chunk<'_>,
    timestamp: Timestamp,
    start: Offset,
) -> Option<Result<(Offset, Timestamp)>> {
    let header = chunk.header();
    let find = |records: Records<'_>| {
        let found = records
            .map_while(std::result::Result::ok)
            .find(|record| record.timestamp >= timestamp && record.offset >= start);
        found.map(|record| (record.offset, record.timestamp))
    };
    let wait_max = reads.decompression_wait_max;
    match reads.decompression.with_records(chunk, wait_max, find) {
        Ok(Some(found)) => Some(Ok(found)),
        Ok(None) | Err(LogError::Chunk(_)) => match header.base_offset < start {
            // The record may be in an earlier chunk.
            true => None,
            false => Some(Ok((header.base_offset, header.max_timestamp))),
        },
        Err(error) => Some(Err(error)),
    }
}

pub fn newest_record(
    reads: &ReadContext,
    lane: &LaneState,
    end: Offset,
) -> Result<Option<(Offset, Timestamp)>> {
    let end = end.min(lane.high_watermark());
    let mut newest: Option<(Timestamp, Arc<Group>)> = None;
    for group in lane.groups() {
        if group.first_offset >= end {
            break;
        }
        let found = newest_in(reads, lane, &group, end)?;
        if newest.as_ref().is_none_or(|(newest, _)| *newest < found) {
            newest = Some((found, group));
        }
    }
    let Some((timestamp, group)) = newest else {
        return Ok(None);
    };
    let found = search(
        reads,
        lane,
        &group,
        |point| point.max_timestamp < timestamp,
        |_, chunk| {
            let header = chunk.header();
            let has_it = header.max_timestamp >= timestamp && header.base_offset < end;
            has_it.then(|| first_in(reads, chunk, timestamp, Offset(0)))?
        },
    )?;
    found.transpose()
}

/// The largest timestamp of the chunks of a group that are before `end`.
fn newest_in(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Arc<Group>,
    end: Offset,
) -> Result<Timestamp> {
    if let Some(known) = group.end().filter(|known| known.offset <= end) {
        return Ok(known.max_timestamp);
    }
    let is_before = |point: &IndexPoint| point.offset < end;
    let place = reads
        .indexes
        .look_at(lane, group, |index| index.last_before(is_before))?;
    let mut newest = place.map_or(Timestamp(i64::MIN), |point| point.max_timestamp);
    search(reads, lane, group, is_before, |_, chunk| {
        let header = chunk.header();
        if header.base_offset >= end {
            return Some(());
        }
        newest = newest.max(header.max_timestamp);
        None
    })?;
    Ok(newest)
}

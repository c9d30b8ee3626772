//! Reads the records that a key index points to.

use millstream_record::{Chunk, ChunkError, Chunks, Records};

use crate::error::{LogError, Result};
use crate::group::Group;
use crate::lane::LaneState;
use crate::read::catch_up::Purpose;
use crate::read::context::ReadContext;
use crate::read::group::read_up_to;
use crate::read::keys::find::KeyPlace;
use crate::read::keys::update::{TRIES_MAX, check_stored, in_chunk, may_be_removed, not_stored};
use crate::read::keys::version::{KeyVersion, copy_of};
use crate::read::seek::search;

/// A record that the index points to.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub key: &'a [u8],
    pub place: &'a KeyPlace,
}

/// Reads records, whose offsets must rise. `None` are those that were removed meanwhile. Copies the records and nothing else.
///
/// # Errors
/// When chunks cannot be read, or the stream is deleted.
pub fn read_versions(
    reads: &ReadContext,
    lane: &LaneState,
    wanted: &[Wanted<'_>],
) -> Result<Vec<Option<KeyVersion>>> {
    let mut versions = Vec::with_capacity(wanted.len());
    while versions.len() < wanted.len() {
        match versions_of_chunk(reads, lane, &wanted[versions.len()..])? {
            Some(found) => versions.extend(found.into_iter().map(Some)),
            None => versions.push(None),
        }
    }
    Ok(versions)
}

/// Reads the records of the chunk that holds the first one; `None` if that was removed.
fn versions_of_chunk(
    reads: &ReadContext,
    lane: &LaneState,
    wanted: &[Wanted<'_>],
) -> Result<Option<Vec<KeyVersion>>> {
    let offset = wanted[0].place.offset;
    if let Some(versions) = versions_at_place(reads, lane, wanted)? {
        return Ok(Some(versions));
    }
    for _ in 0..TRIES_MAX {
        check_stored(lane)?;
        if offset < lane.earliest_offset() {
            return Ok(None);
        }
        let Some(group) = lane.group_of_offset(offset) else {
            std::thread::yield_now();
            continue;
        };
        let found = search(
            reads,
            lane,
            &group,
            |point| point.offset <= offset,
            |_, chunk| {
                let is_there = chunk.header().last_offset() >= offset;
                is_there.then(|| pick(reads, lane, chunk, wanted))
            },
        );
        match found.and_then(Option::transpose) {
            Ok(Some(versions)) => return Ok(Some(versions)),
            Err(error) if !group.is_removed() && !may_be_removed(lane, offset, &error) => {
                return Err(error);
            }
            _ => std::thread::yield_now(),
        }
    }
    Err(not_stored(lane, offset))
}

/// Reads the records of the chunk whose place is known; `None` if it is not known, or the chunk is not there: then it is
/// searched for.
fn versions_at_place(
    reads: &ReadContext,
    lane: &LaneState,
    wanted: &[Wanted<'_>],
) -> Result<Option<Vec<KeyVersion>>> {
    let KeyPlace { offset, chunk } = wanted[0].place;
    let Some((group, position)) = chunk else {
        return Ok(None);
    };
    let (head, purpose) = (Group::durable, Purpose::LookUp);
    let Ok(Some(slice)) = read_up_to(reads, lane, group, *position, 1, head, purpose) else {
        return Ok(None);
    };
    let Some(Ok(chunk)) = Chunks::trusted(&slice).next() else {
        return Ok(None);
    };
    let header = chunk.header();
    match (header.base_offset..header.next_offset()).contains(offset) {
        true => pick(reads, lane, &chunk, wanted).map(Some),
        false => Ok(None),
    }
}

/// Copies the wanted records of a chunk, which has at least the first one.
fn pick(
    reads: &ReadContext,
    lane: &LaneState,
    chunk: &Chunk<'_>,
    wanted: &[Wanted<'_>],
) -> Result<Vec<KeyVersion>> {
    let last = chunk.header().last_offset();
    let count = wanted.partition_point(|wanted| wanted.place.offset <= last);
    let wanted = &wanted[..count];
    let wait_max = reads.decompression_wait_max;
    let picked = reads
        .decompression
        .with_records(chunk, wait_max, |records| pick_from(records, wanted));
    let picked = picked.and_then(|picked| picked.map_err(LogError::Chunk));
    let picked = picked.map_err(|error| in_chunk(lane, chunk, error))?;
    match picked.len() == count {
        true => Ok(picked),
        // The log holds other records than the index has read.
        false => Err(LogError::KeysChanged {
            stream: lane.stream.name.clone(),
            partition: lane.partition,
            offset: wanted[picked.len()].place.offset,
        }),
    }
}

/// Copies the wanted records, up to the first one that is not there.
fn pick_from(records: Records<'_>, wanted: &[Wanted<'_>]) -> Result<Vec<KeyVersion>, ChunkError> {
    let mut picked = Vec::with_capacity(wanted.len());
    for record in records {
        let Some(wanted) = wanted.get(picked.len()) else {
            break;
        };
        let record = record?;
        if record.offset < wanted.place.offset {
            continue;
        }
        let is_it = record.offset == wanted.place.offset && record.key == Some(wanted.key);
        match record.value.filter(|_| is_it) {
            Some(value) => picked.push(copy_of(&record, value)),
            None => break,
        }
    }
    Ok(picked)
}

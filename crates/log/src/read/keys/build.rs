//! Makes a key file of a closed group from the group's chunks.

use std::sync::Arc;

use millstream_base::Position;
use millstream_base::partition_of_key;
use millstream_record::{Chunk, Chunks, Records};

use crate::error::{LogError, Result};
use crate::group::Group;
use crate::group::end::GroupEnd;
use crate::keys::file::sort::KeySorter;
use crate::keys::file::{KeyCounts, KeyFileError};
use crate::keys::kind::KeyKind;
use crate::lane::LaneState;
use crate::read::aborted::AbortedIndex;
use crate::read::context::ReadContext;
use crate::read::group::read_group;
use crate::read::keys::update::{check_stored, in_chunk};

/// The bytes of chunks that one read fetches.
const READ_BYTES: usize = 1 << 20;

/// Makes a key file of a group, with the committed records that the lane still has. All transactions with records in the
/// group have ended. The caller has the right to make key files of the lane.
///
/// # Errors
/// When the group cannot be read or the file cannot be written, the stream is deleted, or the log ends.
pub fn build_key_file(
    reads: &ReadContext,
    lane: &LaneState,
    kind: &KeyKind,
    group: &Arc<Group>,
    end: &GroupEnd,
) -> Result<KeyCounts> {
    let Some(_building) = reads.key_files.begin_build() else {
        return Err(LogError::Closed);
    };
    // With the right to make key files: before it is given back, the stream's folder stays.
    check_stored(lane)?;
    let (dir, name) = (&reads.dir, group.name());
    if let KeyKind::Secondary(index) = kind {
        dir.note_secondary(lane.id.stream, index);
    }
    let path = dir.unfinished_key_file_path(&name, kind);
    let finished = dir.key_file_path(&name, kind);
    let sorted = sort_keys(reads, lane, kind, group, end).and_then(|counts| {
        let named = dir.disk.rename(&path, &finished);
        named.map_err(|error| LogError::io("rename", &path, error))?;
        Ok(counts)
    });
    if sorted.is_err() {
        let _ = dir.disk.remove_file(&path);
    } else if group.is_removed_for_good() {
        // Perhaps the removal of the group has missed it.
        let _ = dir.disk.remove_file(&finished);
    }
    sorted
}

/// Writes the sorted keys of a group into the unfinished key file.
fn sort_keys(
    reads: &ReadContext,
    lane: &LaneState,
    kind: &KeyKind,
    group: &Arc<Group>,
    end: &GroupEnd,
) -> Result<KeyCounts> {
    let name = group.name();
    let path = reads.dir.unfinished_key_file_path(&name, kind);
    let written = |error| match error {
        KeyFileError::Io(error) => LogError::io("write", &path, error),
        KeyFileError::Damaged { position, what } => {
            LogError::corrupted(&path, Position(position), what)
        }
    };
    let disk = &*reads.dir.disk;
    let (kind, file) = (kind.clone(), path.clone());
    let mut sorter = KeySorter::new(disk, file, name, kind, end.offset, reads.memory.sorted_keys);
    // Deleted records may be damaged.
    let start = lane.start.place().filter(|start| start.is_in(group));
    let first_offset = group.first_offset.max(lane.earliest_offset());
    let aborted = AbortedIndex::read(reads, lane, first_offset, end.offset)?;
    let mut at = start.map_or(Position(0), |start| start.position);
    while at < end.position {
        check_stored(lane)?;
        if reads.key_files.is_closing() {
            return Err(LogError::Closed);
        }
        let Some(slice) = read_group(reads, lane, group, at, READ_BYTES)? else {
            // Removed, or not yet readable.
            return Err(LogError::OffsetOutOfRange {
                offset: first_offset,
                earliest: lane.earliest_offset(),
                end: lane.high_watermark(),
            });
        };
        let mut chunks = Chunks::trusted(&slice);
        let mut begin = 0;
        while let Some(chunk) = chunks.next() {
            let position = at.plus(begin as u64);
            let chunk = chunk
                .map_err(|error| LogError::corrupted(group.path(&reads.dir), position, error))?;
            let header = chunk.header();
            sorter.note_chunk(header);
            if !header.attributes.is_control() && !aborted.holds(header) {
                let added = with_records(reads, lane, &chunk, |records| {
                    add_records(&mut sorter, lane, position, records)
                });
                added?.map_err(written)?;
            }
            begin = chunks.position();
        }
        at = at.plus(slice.len() as u64);
    }
    sorter.finish().map_err(written)
}

/// Calls `add` with the records of a chunk. The inner error is an error of `add`.
fn with_records(
    reads: &ReadContext,
    lane: &LaneState,
    chunk: &Chunk<'_>,
    add: impl FnOnce(Records<'_>) -> Result<std::result::Result<(), KeyFileError>>,
) -> Result<std::result::Result<(), KeyFileError>> {
    let wait_max = reads.decompression_wait_max;
    let added = reads.decompression.with_records(chunk, wait_max, add);
    let added = added.and_then(|added| added);
    added.map_err(|error| in_chunk(lane, chunk, error))
}

fn add_records(
    sorter: &mut KeySorter<'_>,
    lane: &LaneState,
    chunk: Position,
    records: Records<'_>,
) -> Result<std::result::Result<(), KeyFileError>> {
    let partitions = lane.stream.partition_count() as usize;
    let is_owned = |key: &[u8]| partition_of_key(key, partitions) == lane.partition as usize;
    for record in records {
        let record = record.map_err(LogError::Chunk)?;
        if let Err(error) = sorter.add_record(&record, chunk, is_owned) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

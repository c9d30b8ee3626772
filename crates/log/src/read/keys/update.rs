//! Reads on from where a key index ends: key files stand for the records of closed groups that have not been read.

use millstream_base::Offset;
use millstream_record::{Chunk, ChunkError, Chunks};

use crate::error::{LogError, Result};
use crate::keys::index::{KeyIndex, Update};
use crate::keys::kind::KeyKind;
use crate::keys::table::{KeyStats, KeyTable};
use crate::lane::LaneState;
use crate::read::aborted::AbortedIndex;
use crate::read::context::ReadContext;
use crate::read::fetch::{AtLeast, Fetched, fetch};
use crate::read::keys::cover::cover_next;

/// The bytes of chunks that one read fetches.
const READ_BYTES: usize = 1 << 20;

/// How often a read is tried again that finds nothing where something must be: the first group is just being removed, which
/// other threads see in several steps.
pub const TRIES_MAX: usize = 1_000;

/// Calls `look` with the table of a lane's keys, with all records that were committed before this call. `partitions` returns
/// how many partitions the stream has.
///
/// # Errors
/// When chunks cannot be read, or the stream is deleted.
pub fn look_at_keys<R>(
    reads: &ReadContext,
    lane: &LaneState,
    partitions: impl Fn() -> u32,
    look: impl Fn(&KeyTable) -> R,
) -> Result<R> {
    let index = lane.key_index(partitions());
    look_at_index(reads, lane, index, partitions, look)
}

/// As [`look_at_keys`], for any of a lane's key indexes.
///
/// # Errors
/// As there.
pub fn look_at_index<R>(
    reads: &ReadContext,
    lane: &LaneState,
    index: &KeyIndex,
    partitions: impl Fn() -> u32,
    look: impl Fn(&KeyTable) -> R,
) -> Result<R> {
    let until = lane.last_stable_offset();
    loop {
        check_stored(lane)?;
        lane.stream.keyed.note_index();
        let partitions = partitions();
        if let Some(seen) = index.look(until, partitions, &look) {
            if until >= lane.durable_offset() {
                // Newer versions may be among lost chunks.
                lane.check_end()?;
            }
            return Ok(seen);
        }
        update(reads, lane, index, partitions, until)?;
    }
}

/// Returns the state of a lane's key index, if that has all records that were committed before this call, and reading them
/// took no time.
pub fn current_index(lane: &LaneState, partitions: u32) -> Option<&KeyIndex> {
    let until = lane.last_stable_offset();
    let index = lane.made_key_index()?;
    index.look(until, partitions, |_| ())?;
    // The look-up of every record finds the error.
    let is_whole = until < lane.durable_offset() || lane.check_end().is_ok();
    (is_whole && !lane.is_removed()).then_some(index)
}

/// Fails if the stream is deleted.
pub fn check_stored(lane: &LaneState) -> Result<()> {
    match lane.is_removed() {
        true => Err(LogError::UnknownStream {
            name: lane.stream.name.clone(),
        }),
        false => Ok(()),
    }
}

/// Adds all records before `until`, or lets key files stand for them.
fn update(
    reads: &ReadContext,
    lane: &LaneState,
    index: &KeyIndex,
    partitions: u32,
    until: Offset,
) -> Result<()> {
    let update = index.update();
    update.set_partitions(partitions);
    let mut tries = 0;
    loop {
        // Not only before: this may take long.
        check_stored(lane)?;
        let earliest = lane.earliest_offset();
        update.sweep(earliest);
        let from = update.next().max(earliest);
        if from >= until {
            update.advance(from);
            note_left_out(lane, index.kind(), &index.stats());
            return Ok(());
        }
        if cover_next(reads, lane, index, &update, until) {
            continue;
        }
        let added = add_next(reads, lane, index.kind(), &update, from..until);
        match added {
            Ok(()) if update.next() > from => tries = 0,
            Err(error) if tries == TRIES_MAX || !may_be_removed(lane, from, &error) => {
                // The stream may have been deleted during the read.
                return Err(check_stored(lane).err().unwrap_or(error));
            }
            Ok(()) if tries == TRIES_MAX => return Err(not_stored(lane, from)),
            _ => {
                tries += 1;
                std::thread::yield_now();
            }
        }
    }
}

/// Takes note of the records of a lane that look-ups do not find: those with keys of other partitions, or with secondary keys
/// that the index leaves out.
pub fn note_left_out(lane: &LaneState, kind: &KeyKind, stats: &KeyStats) {
    let stream = &lane.stream;
    let (keyed, name, partition) = (&stream.keyed, &stream.name, lane.partition);
    match kind {
        KeyKind::Primary => keyed.note_misplaced(name, partition, stats.misplaced),
        KeyKind::Secondary(_) => keyed.note_left_out(name, partition, stats.without_key),
    }
}

/// Adds the next records of a range of offsets.
fn add_next(
    reads: &ReadContext,
    lane: &LaneState,
    kind: &KeyKind,
    update: &Update<'_>,
    offsets: std::ops::Range<Offset>,
) -> Result<()> {
    let (from, until) = (offsets.start, offsets.end);
    let fetched = fetch(reads, lane, from, until, READ_BYTES, AtLeast::OneChunk)?;
    let aborted = AbortedIndex::read(reads, lane, from, fetched.next)?;
    let added = Added { kind, from };
    add_chunks(reads, lane, update, added, &fetched, &aborted)
}

/// The records to add to an index.
#[derive(Clone, Copy)]
struct Added<'a> {
    kind: &'a KeyKind,
    from: Offset,
}

fn add_chunks(
    reads: &ReadContext,
    lane: &LaneState,
    update: &Update<'_>,
    added: Added<'_>,
    fetched: &Fetched,
    aborted: &AbortedIndex,
) -> Result<()> {
    for piece in &fetched.pieces {
        for chunk in Chunks::trusted(piece) {
            let chunk = chunk.map_err(|error| unreadable(lane, update.next(), error))?;
            let header = chunk.header();
            let is_control = header.attributes.is_control();
            if !is_control && !aborted.holds(header) {
                add_chunk(reads, lane, update, added, &chunk)?;
            }
            update.advance(header.next_offset());
        }
    }
    Ok(())
}

fn add_chunk(
    reads: &ReadContext,
    lane: &LaneState,
    update: &Update<'_>,
    added: Added<'_>,
    chunk: &Chunk<'_>,
) -> Result<()> {
    let wait_max = reads.decompression_wait_max;
    let added = reads
        .decompression
        .with_records(chunk, wait_max, |records| {
            update.add(records, added.from, |record| {
                if *added.kind == KeyKind::Primary {
                    reads.hot_keys.renew(lane.id, record, update.epoch());
                }
            })
        });
    let added = added.and_then(|added| added.map_err(LogError::Chunk));
    added.map_err(|error| in_chunk(lane, chunk, error))
}

/// Names the chunk whose records cannot be read.
pub fn in_chunk(lane: &LaneState, chunk: &Chunk<'_>, error: LogError) -> LogError {
    match error {
        LogError::Chunk(error) => unreadable(lane, chunk.header().base_offset, error),
        error => error,
    }
}

fn unreadable(lane: &LaneState, offset: Offset, error: ChunkError) -> LogError {
    LogError::KeysUnreadable {
        stream: lane.stream.name.clone(),
        partition: lane.partition,
        offset,
        error: Box::new(error),
    }
}

/// Whether a read at `offset` may have failed because the group there is being removed.
pub fn may_be_removed(lane: &LaneState, offset: Offset, error: &LogError) -> bool {
    let group = lane.group_of_offset(offset);
    offset < lane.earliest_offset()
        || group.is_none_or(|group| group.is_removed())
        || matches!(error, LogError::OffsetOutOfRange { .. })
}

/// The error for an offset that the lane should hold.
pub fn not_stored(lane: &LaneState, offset: Offset) -> LogError {
    LogError::OffsetOutOfRange {
        offset,
        earliest: lane.earliest_offset(),
        end: lane.high_watermark(),
    }
}

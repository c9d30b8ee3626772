//! Reads records from the log that a member may get.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::Offset;
use millstream_log::{AbortedTransaction, AtLeast, LogError, StreamPartition};
use millstream_record::{ChunkHeader, Chunks};
use millstream_wire::ResponseError;

use super::ShareService;
use crate::error::response_error;
use crate::groups::MemberId;
use crate::shares::record::Key;
use crate::shares::{AcquiredRun, Isolation, SharePartition, ShareSettings};

/// The bytes of one read: the bound on records is usually reached within it.
const READ_BYTES: usize = 1 << 20;

/// The most reads in one pass over a share-partition: released records lie scattered, so that one read may not reach
/// enough of them.
const READS_MAX: usize = 64;

/// The member that reads, and the bounds of its request.
pub struct Wanted<'a> {
    pub member: &'a MemberId,
    pub settings: &'a ShareSettings,
    pub records_left: u64,
    /// How many records beyond `records_left` it may get with the last chunk.
    pub excess_max: u64,
    pub bytes_left: usize,
    pub at_least: AtLeast,
}

/// The records of a share-partition that a member got.
#[derive(Default)]
pub struct Read {
    /// The chunks, each whole.
    pub pieces: Vec<Bytes>,
    pub bytes: usize,
    /// The records in them that the member has acquired.
    pub acquired: Vec<AcquiredRun>,
    pub records: u64,
    /// The ledger has to be durable up to this offset before the broker answers.
    pub durable: Option<Offset>,
    /// The time of the next lock time-out, which may make records available again.
    pub deadline: Option<Duration>,
}

impl ShareService {
    /// Gives a member records of a share-partition. `is_permitted` says under a lock whether the share-partition may
    /// come into being.
    pub(super) fn read(
        &self,
        key: &Key,
        lane: &StreamPartition,
        wanted: &Wanted<'_>,
        is_permitted: impl Fn() -> bool,
    ) -> Result<Read, ResponseError> {
        let settings = wanted.settings;
        let kept = self.find_or_begin(key, lane, settings, is_permitted)?;
        let mut kept = kept.lock();
        let mut read = Read {
            durable: kept.begun,
            ..Read::default()
        };
        if kept.is_gone {
            return Ok(read);
        }
        let now = self.now();
        kept.shares.expire(now, settings);
        kept.shares.advance(lane.earliest_offset());
        let end = match settings.isolation {
            Isolation::ReadUncommitted => lane.high_watermark(),
            Isolation::ReadCommitted => lane.last_stable_offset(),
        };
        // A full table of runs stops first deliveries, never redeliveries.
        let limit = match self.is_full() {
            true => end.min(kept.shares.end()),
            false => end,
        };
        let start = kept.shares.start();
        let has_some = kept.shares.available(start, limit, settings).is_some();
        if has_some && wanted.records_left > 0 {
            let mut shares = kept.shares.clone();
            let acquired = acquire(&mut shares, lane, limit, now, wanted, &mut read);
            match acquired {
                _ if !read.acquired.is_empty() => {
                    self.put(key, &mut kept, shares)?;
                }
                // All memory for reads from disk is in use for the moment, or retention has removed the records: a
                // later fetch reads again.
                Ok(()) | Err(LogError::ReadBudget | LogError::OffsetOutOfRange { .. }) => {
                    // Keep the skipped records finished; otherwise the next read would skip them again.
                    kept.shares = shares;
                }
                Err(error) => return Err(response_error(&error)),
            }
        }
        self.count(&mut kept);
        read.deadline = kept.shares.next_deadline();
        Ok(read)
    }
}

/// Reads from the first available record on, and acquires as many records as the member wants.
fn acquire(
    shares: &mut SharePartition,
    lane: &StreamPartition,
    limit: Offset,
    now: Duration,
    wanted: &Wanted<'_>,
    read: &mut Read,
) -> Result<(), LogError> {
    let settings = wanted.settings;
    let mut from = shares.start();
    for _ in 0..READS_MAX {
        if read.records >= wanted.records_left {
            break;
        }
        let Some(range) = shares.available(from, limit, settings) else {
            break;
        };
        let room = wanted.bytes_left.saturating_sub(read.bytes);
        let at_least = match read.bytes {
            0 => wanted.at_least,
            _ => AtLeast::Nothing,
        };
        let fetched = lane.fetch(range.start, range.end, room.min(READ_BYTES), at_least)?;
        if fetched.pieces.is_empty() {
            break;
        }
        let aborted = match settings.isolation {
            Isolation::ReadUncommitted => Vec::new(),
            Isolation::ReadCommitted => lane.aborted_transactions(range.start, fetched.next)?,
        };
        from = fetched.next;
        let mut at = range.start;
        for piece in fetched.into_bytes() {
            at = acquire_of(&piece, at..limit, &aborted, shares, now, wanted, read)?;
        }
    }
    Ok(())
}

/// Acquires the wanted records in the chunks of a piece. Records before `range` are already handled. Returns the
/// offset behind the chunks.
fn acquire_of(
    piece: &Bytes,
    range: Range<Offset>,
    aborted: &[AbortedTransaction],
    shares: &mut SharePartition,
    now: Duration,
    wanted: &Wanted<'_>,
    read: &mut Read,
) -> Result<Offset, LogError> {
    let mut at = range.start;
    let mut chunks = Chunks::trusted(piece);
    let mut begin = 0;
    // The chunks of the piece that are given, as far as they follow each other.
    let mut given = 0..0;
    while let Some(chunk) = chunks.next() {
        let header = *chunk?.header();
        let end = chunks.position();
        let place = begin..end;
        begin = end;
        if at < header.base_offset {
            // The log holds no records at these offsets any more.
            shares.skip(at..header.base_offset);
        }
        let records = at.max(header.base_offset)..header.next_offset().min(range.end);
        at = at.max(header.next_offset());
        if records.start >= records.end {
            continue;
        }
        if header.attributes.is_control() || is_aborted(&header, aborted) {
            shares.skip(records);
            continue;
        }
        let left = wanted.records_left.saturating_sub(read.records);
        if left == 0 {
            break;
        }
        // The rest of a chunk is acquired too if it is small: otherwise a later response would send the chunk again
        // for it.
        let count = records.end.0 - records.start.0;
        let records_max = match count <= left.saturating_add(wanted.excess_max) {
            true => count,
            false => left,
        };
        let acquired = shares.acquire(records, records_max, wanted.member, now, wanted.settings);
        if acquired.is_empty() {
            continue;
        }
        read.add(acquired);
        if place.start != given.end || given.is_empty() {
            read.give(piece, given);
            given = place.start..place.start;
        }
        given.end = place.end;
    }
    read.give(piece, given);
    Ok(at)
}

impl Read {
    fn add(&mut self, acquired: Vec<AcquiredRun>) {
        for run in acquired {
            self.records += run.last.0 - run.first.0 + 1;
            match self.acquired.last_mut() {
                Some(last)
                    if last.last.0 + 1 == run.first.0 && last.deliveries == run.deliveries =>
                {
                    last.last = run.last;
                }
                _ => self.acquired.push(run),
            }
        }
    }

    fn give(&mut self, piece: &Bytes, chunks: Range<usize>) {
        if !chunks.is_empty() {
            self.bytes += chunks.len();
            self.pieces.push(piece.slice(chunks));
        }
    }
}

/// Whether the records of a chunk belong to an aborted transaction.
fn is_aborted(header: &ChunkHeader, aborted: &[AbortedTransaction]) -> bool {
    header.attributes.is_transactional()
        && aborted.iter().any(|transaction| {
            transaction.producer == header.producer_id
                && transaction.first_offset <= header.base_offset
                && header.base_offset <= transaction.last_offset
        })
}

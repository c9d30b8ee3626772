//! Reads records from the log that a member may get.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::Offset;
use millstream_log::{AbortedTransaction, AtLeast, LogError, ReadSpan, StreamPartition};
use millstream_record::{Chunk, ChunkHeader, Chunks};
use millstream_wire::ResponseError;

use super::ShareService;
use super::keys::KeyReader;
use crate::error::response_error;
use crate::groups::MemberId;
use crate::shares::record::Key;
use crate::shares::{AcquiredRun, Isolation, Order, SharePartition, ShareSettings};

/// The bytes of one read: the bound on records is usually reached within it.
pub const READ_BYTES: usize = 1 << 20;

/// The most reads in one pass over a share-partition: released records lie scattered, so that one read may not reach
/// enough of them.
pub const READS_MAX: usize = 64;

/// The pause before the next read after an error that [passes](is_passing).
const PAUSE: Duration = Duration::from_millis(20);

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
    /// When to read again, if nothing happens before: at the next lock time-out, or at once.
    pub deadline: Option<Duration>,
    /// Whether the read made records available that had to wait for others of their key.
    pub has_unblocked: bool,
}

impl ShareService {
    /// Gives a member records of a share-partition. `is_permitted` says under a lock whether the share-partition may
    /// come into being.
    pub fn read(
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
        kept.shares.set_order(settings.order);
        let keys = KeyReader {
            lane,
            hasher: &self.key_hasher,
        };
        let end = match settings.isolation {
            Isolation::ReadUncommitted => lane.high_watermark(),
            Isolation::ReadCommitted => lane.last_stable_offset(),
        };
        let unblocked = kept.shares.unblocked_count();
        let again = match keys.learn(&mut kept.shares) {
            Ok(()) if !kept.shares.knows_keys() => Some(now),
            Err(error) if is_passing(&error) => Some(now + PAUSE),
            Err(error) => return Err(response_error(&error)),
            Ok(()) => {
                // A full table of runs stops first deliveries, never redeliveries.
                let limit = match self.is_full() {
                    true => end.min(kept.shares.end()),
                    false => end,
                };
                let start = kept.shares.start();
                let has_some = kept.shares.available(start, limit, settings).is_some();
                match has_some && wanted.records_left > 0 {
                    true => {
                        let kept = &mut *kept;
                        let mut acquiring = Acquiring {
                            shares: &mut kept.shares,
                            last_read: &mut kept.last_read,
                            keys,
                            limit,
                            now,
                            wanted,
                            read: &mut read,
                        };
                        let again = acquiring.all();
                        if !read.acquired.is_empty() {
                            self.store_soon(key, kept);
                        }
                        again?
                    }
                    false => None,
                }
            }
        };
        self.count(key, &mut kept);
        read.has_unblocked = kept.shares.unblocked_count() != unblocked;
        let deadlines = [again, kept.shares.next_deadline()].into_iter().flatten();
        read.deadline = deadlines.min();
        Ok(read)
    }
}

/// Whether a later read may find records that this one did not: all memory for reads or for decompression is in use, or
/// retention has removed the records.
fn is_passing(error: &LogError) -> bool {
    matches!(
        error,
        LogError::ReadBudget
            | LogError::DecompressionBusy { .. }
            | LogError::OffsetOutOfRange { .. }
    )
}

/// A read of a share-partition.
struct Acquiring<'a> {
    shares: &'a mut SharePartition,
    last_read: &'a mut Option<ReadSpan>,
    keys: KeyReader<'a>,
    /// The end of the records that the member may get.
    limit: Offset,
    now: Duration,
    wanted: &'a Wanted<'a>,
    read: &'a mut Read,
}

impl Acquiring<'_> {
    /// Acquires as many records as the member wants. Returns when to read again, if this read got none and yet did not
    /// come to the end.
    fn all(&mut self) -> Result<Option<Duration>, ResponseError> {
        let state = |shares: &SharePartition| (shares.end(), shares.unfinished());
        let before = state(self.shares);
        match self.try_all() {
            Err(error) if is_passing(&error) => return Ok(Some(self.now + PAUSE)),
            Err(error) if self.read.acquired.is_empty() => return Err(response_error(&error)),
            Ok(()) | Err(_) => {}
        }
        let has_more = || self.available(self.shares.start()).is_some();
        let goes_on = self.read.acquired.is_empty() && state(self.shares) != before && has_more();
        Ok(goes_on.then_some(self.now))
    }

    fn available(&self, from: Offset) -> Option<Range<Offset>> {
        let settings = self.wanted.settings;
        self.shares.available(from, self.limit, settings)
    }

    fn left(&self) -> u64 {
        self.wanted.records_left.saturating_sub(self.read.records)
    }

    /// Reads from the first available record on.
    fn try_all(&mut self) -> Result<(), LogError> {
        let lane = self.keys.lane;
        let mut from = self.shares.start();
        for _ in 0..READS_MAX {
            if self.left() == 0 {
                break;
            }
            let Some(range) = self.available(from) else {
                break;
            };
            let is_first = self.read.bytes == 0;
            if !is_first && range.start == self.shares.end() && self.is_nearly_full() {
                break;
            }
            let room = self.wanted.bytes_left.saturating_sub(self.read.bytes);
            let at_least = match is_first {
                true => self.wanted.at_least,
                false => AtLeast::Nothing,
            };
            let fetched = lane.fetch(range.start, range.end, room.min(READ_BYTES), at_least)?;
            if fetched.pieces.is_empty() {
                break;
            }
            if let Some(span) = fetched.span
                && fetched.next > self.shares.end()
            {
                // The group goes on with new records there; it may have taken a part only of the last chunk before.
                let last = self.last_read.replace(span);
                lane.note_read(last.map_or(span, |last| span.behind(last)));
            }
            let aborted = match self.wanted.settings.isolation {
                Isolation::ReadUncommitted => Vec::new(),
                Isolation::ReadCommitted => lane.aborted_transactions(range.start, fetched.next)?,
            };
            from = fetched.next;
            let mut at = range.start;
            for piece in fetched.into_bytes() {
                at = self.acquire_of(&piece, at, &aborted)?;
            }
        }
        Ok(())
    }

    /// Whether a group that is ordered by key has so little room that a chunk is better decompressed later, for more of
    /// its records.
    fn is_nearly_full(&self) -> bool {
        let settings = self.wanted.settings;
        settings.order == Order::Key && self.shares.room(settings) < settings.record_locks_max / 4
    }

    /// Acquires the wanted records in the chunks of a piece. Records before `at` are already handled. Returns the offset
    /// behind the chunks.
    fn acquire_of(
        &mut self,
        piece: &Bytes,
        mut at: Offset,
        aborted: &[AbortedTransaction],
    ) -> Result<Offset, LogError> {
        let mut chunks = Chunks::trusted(piece);
        let mut begin = 0;
        // The chunks of the piece that are given, as far as they follow each other.
        let mut given = 0..0;
        while let Some(chunk) = chunks.next() {
            let chunk = chunk?;
            let header = *chunk.header();
            let end = chunks.position();
            let place = begin..end;
            begin = end;
            if at < header.base_offset {
                // The log holds no records at these offsets any more.
                self.shares.skip(at..header.base_offset);
            }
            let records = at.max(header.base_offset)..header.next_offset().min(self.limit);
            at = at.max(header.next_offset());
            if records.start >= records.end {
                continue;
            }
            if header.attributes.is_control() || is_aborted(&header, aborted) {
                self.shares.skip(records);
                continue;
            }
            if let Err(error) = self.enter(&chunk, &records) {
                self.read.give(piece, given);
                return Err(error);
            }
            if self.left() == 0 {
                match self.wanted.settings.order {
                    Order::None => break,
                    // The records that come next enter while the chunks are at hand.
                    Order::Key => continue,
                }
            }
            if self.acquire(records) {
                if place.start != given.end || given.is_empty() {
                    self.read.give(piece, given);
                    given = place.start..place.start;
                }
                given.end = place.end;
            }
        }
        self.read.give(piece, given);
        Ok(at)
    }

    /// Takes the records of a chunk that were never delivered into the part in flight, if the group is ordered by key.
    fn enter(&mut self, chunk: &Chunk<'_>, records: &Range<Offset>) -> Result<(), LogError> {
        let settings = self.wanted.settings;
        let end = self.shares.end();
        let is_next = records.start <= end && end < records.end;
        if settings.order == Order::Key && is_next && self.shares.room(settings) > 0 {
            let keys = self.keys.of(chunk)?;
            self.shares.enter(records.end, &keys, settings);
        }
        Ok(())
    }

    /// Acquires wanted records of a chunk; returns whether there are some.
    fn acquire(&mut self, records: Range<Offset>) -> bool {
        let left = self.left();
        // The rest of a chunk is acquired too if it is small: otherwise a later response would send the chunk again
        // for it.
        let count = records.end.0 - records.start.0;
        let records_max = match count <= left.saturating_add(self.wanted.excess_max) {
            true => count,
            false => left,
        };
        let (member, settings) = (self.wanted.member, self.wanted.settings);
        let shares = &mut self.shares;
        let acquired = shares.acquire(records, records_max, member, self.now, settings);
        let has_some = !acquired.is_empty();
        self.read.add(acquired);
        has_some
    }
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

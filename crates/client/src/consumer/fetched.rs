//! What a fetch has brought.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use millstream_base::Offset;
use millstream_record::{Chunk, ChunkHeader, EndMarker, Filter, Record, Scratch, TransactionEnd};
use millstream_wire::messages::fetch_response::AbortedTransaction;
use tokio::sync::OwnedSemaphorePermit;

use super::{OnDamage, SkippedRecords};
use crate::error::ClientError;
use crate::offsets::TopicPartition;
use crate::push::{DamagedRecords, Lease, Torn, give};

/// Records of one partition, in their order. Its memory is that of the connection it came from, or the server's
/// own, and is free for what comes next when this is dropped. See [`DeliveryPath::Shared`] for how long it may be
/// kept.
#[derive(Debug)]
pub struct Fetched {
    pub(super) place: TopicPartition,
    /// Records before are in the first chunk, and were not asked for.
    pub(super) from: Offset,
    /// Behind the last record.
    pub(super) next: Offset,
    /// What may be read up to now.
    pub(super) end: Offset,
    pub(super) records: Records,
    /// What is not handed out, unless the server has left it out.
    pub(super) filter: Option<Arc<Filter>>,
    /// What becomes of records that cannot be read.
    pub(super) on_damage: OnDamage,
    /// What they take of what may be fetched ahead, unless they lie in the server's memory.
    pub(super) _room: Option<OwnedSemaphorePermit>,
}

/// Where records lie.
#[derive(Debug)]
pub(super) enum Records {
    /// In what was answered to a fetch; the last chunk may be cut off.
    Pulled(Bytes, Vec<AbortedTransaction>),
    /// In what was answered to somebody who subscribed.
    Pushed(Bytes),
    /// In the server's memory; nowhere, where all was left out.
    Shared(Option<Lease>),
}

/// How records came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryPath {
    /// They were fetched.
    Pulled,
    /// They were sent to a subscriber.
    Pushed,
    /// They lie in the memory of the server, which is on this machine. They stay there until [`Fetched`] is
    /// dropped, but the server takes back what is kept for too long: for minutes, or for a second when memory is
    /// short. Then reading it fails ([`ClientError::TakenBack`]), and it comes again with the next call.
    Shared,
}

impl Fetched {
    /// Where it comes from.
    pub fn place(&self) -> &TopicPartition {
        &self.place
    }

    /// The stream's name.
    pub fn topic(&self) -> &Arc<str> {
        &self.place.topic
    }

    /// The partition.
    pub fn partition(&self) -> i32 {
        self.place.partition
    }

    /// Behind its last record.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// Behind the last record that could be read when it was fetched.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Its size as it was sent, in bytes.
    pub fn bytes(&self) -> usize {
        match &self.records {
            Records::Pulled(bytes, _) | Records::Pushed(bytes) => bytes.len(),
            Records::Shared(lease) => lease.as_ref().map_or(0, |lease| lease.bytes().len()),
        }
    }

    /// How it came.
    pub fn path(&self) -> DeliveryPath {
        match self.records {
            Records::Pulled(..) => DeliveryPath::Pulled,
            Records::Pushed(..) => DeliveryPath::Pushed,
            Records::Shared(_) => DeliveryPath::Shared,
        }
    }

    /// Gives each record to `take`, until that breaks. Compressed ones are decompressed into `scratch`.
    /// There may be none at all, where a transaction has ended or a filter has kept nothing.
    ///
    /// # Errors
    /// When what was sent is damaged, and not to be [skipped](OnDamage::Skip); or the server has taken its memory back ([`ClientError::TakenBack`]): then
    /// the last records that `take` had may be wrong, and all are handed out again by the next call of
    /// [`Consumer::next`](crate::Consumer::next).
    pub fn each(
        &self,
        scratch: &mut Scratch,
        mut take: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let filter = self.filter.as_deref();
        let mut take = |record: &Record<'_>| match filter {
            Some(filter) if !filter.matches(record) => ControlFlow::Continue(()),
            _ => take(record),
        };
        match &self.records {
            Records::Pulled(bytes, aborted) => {
                let whole = &bytes[..whole_bytes(bytes)];
                self.each_of(whole, aborted, scratch, &mut take)
            }
            Records::Pushed(bytes) => self.each_of(bytes, &[], scratch, &mut take),
            Records::Shared(Some(lease)) => {
                lease.each(self.from, scratch, &mut take, |damaged| self.skip(damaged))
            }
            Records::Shared(None) => Ok(()),
        }
    }

    fn each_of(
        &self,
        chunks: &[u8],
        aborted: &[AbortedTransaction],
        scratch: &mut Scratch,
        take: &mut impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let mut aborted = Aborted::new(aborted);
        let mut start = 0;
        for (header, end) in headers(chunks) {
            let chunk = Chunk::parse(&chunks[start..end]);
            start = end;
            let given = match chunk {
                Ok(chunk) if aborted.hides(&chunk) || header.attributes.is_control() => continue,
                Ok(chunk) => give(&chunk, self.from, scratch, take),
                Err(error) => Err(DamagedRecords {
                    offsets: self.from.max(header.base_offset)..header.next_offset(),
                    error,
                }),
            };
            match given {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return Ok(()),
                Err(damaged) => self.skip(damaged)?,
            }
        }
        match &chunks[start..] {
            [] => Ok(()),
            rest => Ok(Chunk::parse(rest).map(drop)?),
        }
    }

    /// Tells of records that cannot be read, if they are to be skipped.
    fn skip(&self, damaged: DamagedRecords) -> Result<(), ClientError> {
        let OnDamage::Skip(tell) = &self.on_damage else {
            return Err(damaged.error.into());
        };
        tell(&SkippedRecords {
            place: self.place.clone(),
            offsets: damaged.offsets,
            reason: damaged.error.to_string(),
        });
        Ok(())
    }

    /// Copies the records into memory of their own. They no longer count against
    /// [`prefetch_bytes`](crate::ConsumerConfig::prefetch_bytes), nor does the server's memory hold them. Call it for records that
    /// are kept for long.
    ///
    /// # Errors
    /// When the server has taken its memory back, as with [`each`](Self::each).
    pub fn detach(&mut self) -> Result<(), ClientError> {
        let copy = match &self.records {
            // The rest of the answer that they came with is not to be kept.
            Records::Pulled(bytes, aborted) => {
                Records::Pulled(Bytes::copy_from_slice(bytes), aborted.clone())
            }
            Records::Pushed(bytes) => Records::Pushed(Bytes::copy_from_slice(bytes)),
            Records::Shared(Some(lease)) => {
                let bytes = Bytes::copy_from_slice(lease.bytes());
                lease.check()?;
                Records::Pushed(bytes)
            }
            Records::Shared(None) => Records::Shared(None),
        };
        self.records = copy;
        self._room = None;
        Ok(())
    }

    /// Returns whether the records can still be read. Records in the server's memory that cannot are handed out again by
    /// the next call of [`Consumer::next`](crate::Consumer::next).
    ///
    /// # Errors
    /// When the server has taken its memory back.
    pub fn check(&self) -> Result<(), ClientError> {
        match &self.records {
            Records::Shared(Some(lease)) => lease.check(),
            _ => Ok(()),
        }
    }

    /// The offset that was asked for: records before it may be in the first chunk, and are not given.
    pub fn from(&self) -> Offset {
        self.from
    }

    /// Whether it can still be read.
    pub(super) fn is_live(&self) -> bool {
        match &self.records {
            Records::Shared(Some(lease)) => lease.is_live(),
            _ => true,
        }
    }

    /// Is set when it was read and was not there any more.
    pub(super) fn torn(&self) -> Option<Arc<OnceLock<Torn>>> {
        match &self.records {
            Records::Shared(Some(lease)) => Some(Arc::clone(lease.torn())),
            _ => None,
        }
    }
}

/// The offset behind the last whole chunk; `None` if there is none. Brokers may cut the last one off.
pub(super) fn end_of(records: &[u8]) -> Option<Offset> {
    headers(records)
        .last()
        .map(|(header, _)| header.last_offset().plus(1))
}

fn whole_bytes(records: &[u8]) -> usize {
    headers(records).last().map_or(0, |(_, end)| end)
}

/// The headers of whole chunks, and where these end. What is damaged is found when records are read.
fn headers(records: &[u8]) -> impl Iterator<Item = (ChunkHeader, usize)> {
    let mut end = 0;
    std::iter::from_fn(move || {
        let header = ChunkHeader::parse(&records[end..]).ok()?;
        let next = end + header.total_bytes as usize;
        if next > records.len() {
            return None;
        }
        end = next;
        Some((header, end))
    })
}

/// Which chunks belong to transactions that were aborted: for each of these the broker tells where its
/// first record is, and a marker is where it ends.
struct Aborted {
    /// First offsets, the lowest on top, and producers.
    coming: BinaryHeap<Reverse<(i64, i64)>>,
    open: HashSet<i64>,
}

impl Aborted {
    fn new(transactions: &[AbortedTransaction]) -> Aborted {
        let all = transactions.iter();
        let coming = all.map(|aborted| Reverse((aborted.first_offset, aborted.producer_id.0)));
        Aborted {
            coming: coming.collect(),
            open: HashSet::new(),
        }
    }

    fn hides(&mut self, chunk: &Chunk<'_>) -> bool {
        let header = chunk.header();
        let last = i64::try_from(header.last_offset().0).unwrap_or(i64::MAX);
        while let Some(Reverse((first, producer))) = self.coming.peek().copied()
            && first <= last
        {
            self.coming.pop();
            self.open.insert(producer);
        }
        let producer = header.producer_id.0;
        if let Some(marker) = EndMarker::of(chunk) {
            if marker.end == TransactionEnd::Abort {
                self.open.remove(&producer);
            }
            return true;
        }
        header.attributes.is_transactional() && self.open.contains(&producer)
    }
}

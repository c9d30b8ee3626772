//! The records that a fetch returns.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use millstream_base::Offset;
use millstream_record::{
    Chunk, ChunkHeader, Decompressor, EndMarker, Filter, Record, TransactionEnd,
};
use millstream_wire::messages::fetch_response::AbortedTransaction;
use tokio::sync::OwnedSemaphorePermit;

use super::{OnDamage, SkippedRecords};
use crate::error::ClientError;
use crate::offsets::TopicPartition;
use crate::push::{DamagedRecords, Lease, Torn, give};

/// Records of one partition, in their order. Dropping it frees their memory for later records, which is either the
/// receive buffer of a connection or shared with the server. [`DeliveryPath::Shared`] limits how long it may be held.
#[derive(Debug)]
pub struct Fetched {
    pub(super) place: TopicPartition,
    /// The partition's leader epoch at the time of the fetch; -1 if it is not known.
    pub(super) epoch: i32,
    /// The offset of the first record to return; the first chunk may also hold earlier ones.
    pub(super) from: Offset,
    /// The offset behind the last record.
    pub(super) next: Offset,
    /// The end of the readable records at the time of the fetch.
    pub(super) end: Offset,
    pub(super) records: Records,
    /// The filter to apply here; `None` if there is none, or the server has applied it.
    pub(super) filter: Option<Arc<Filter>>,
    /// The reaction to records that cannot be read.
    pub(super) on_damage: OnDamage,
    /// Their share of the memory for fetching ahead, unless they lie in the server's memory.
    pub(super) _room: Option<OwnedSemaphorePermit>,
}

/// The place of the records in memory.
#[derive(Debug)]
pub(super) enum Records {
    /// In the answer to a fetch; its last chunk may be truncated.
    Pulled(Bytes, Vec<AbortedTransaction>),
    /// In an answer to a subscriber over the network.
    Pushed(Bytes),
    /// In the server's memory; `None` if the filter left out every record.
    Shared(Option<Lease>),
}

/// The path by which records arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryPath {
    /// They were fetched.
    Pulled,
    /// They were sent to a subscriber.
    Pushed,
    /// They lie in the memory of the server, which is on this machine. They stay there until [`Fetched`] is dropped,
    /// but the server takes memory back that a client holds for too long: for minutes, or for a second when memory is
    /// short. Reading it then fails ([`ClientError::TakenBack`]), and the next call returns the records again.
    Shared,
}

impl Fetched {
    /// Returns the partition of the records.
    pub fn place(&self) -> &TopicPartition {
        &self.place
    }

    /// Returns the stream's name.
    pub fn topic(&self) -> &Arc<str> {
        &self.place.topic
    }

    /// Returns the index of the partition.
    pub fn partition(&self) -> i32 {
        self.place.partition
    }

    /// Returns the leader epoch in which the records were read; -1 if the server does not send it. [`Client::epoch_ends`]
    /// finds out with it whether the server still has the records.
    ///
    /// [`Client::epoch_ends`]: crate::Client::epoch_ends
    pub fn leader_epoch(&self) -> i32 {
        self.epoch
    }

    /// Returns the offset behind the last record.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// Returns the end of the readable records at the time of the fetch.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Returns the size on the wire, in bytes.
    pub fn bytes(&self) -> usize {
        match &self.records {
            Records::Pulled(bytes, _) | Records::Pushed(bytes) => bytes.len(),
            Records::Shared(lease) => lease.as_ref().map_or(0, |lease| lease.bytes().len()),
        }
    }

    /// Returns the path by which the records arrived.
    pub fn path(&self) -> DeliveryPath {
        match self.records {
            Records::Pulled(..) => DeliveryPath::Pulled,
            Records::Pushed(..) => DeliveryPath::Pushed,
            Records::Shared(_) => DeliveryPath::Shared,
        }
    }

    /// Gives each record to `take`, until that breaks. Decompresses compressed ones with `decompressor`. There may be none
    /// at all, after the end of a transaction or behind a filter.
    ///
    /// # Errors
    /// When the records are damaged and the settings do not [skip](OnDamage::Skip) damage; or when the server has taken
    /// its memory back ([`ClientError::TakenBack`]): then the last records that `take` received may be wrong, and the
    /// next call of [`Consumer::next`](crate::Consumer::next) returns all of them again.
    pub fn each(
        &self,
        decompressor: &mut Decompressor,
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
                self.each_of(whole, aborted, decompressor, &mut take)
            }
            Records::Pushed(bytes) => self.each_of(bytes, &[], decompressor, &mut take),
            Records::Shared(Some(lease)) => {
                let offsets = self.from..self.next;
                lease.each(offsets, decompressor, &mut take, |damaged| {
                    self.skip(damaged)
                })
            }
            Records::Shared(None) => Ok(()),
        }
    }

    fn each_of(
        &self,
        chunks: &[u8],
        aborted: &[AbortedTransaction],
        decompressor: &mut Decompressor,
        take: &mut impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let mut aborted = Aborted::new(aborted);
        let (mut start, mut next) = (0, self.from);
        for (header, end) in headers(chunks) {
            let chunk = Chunk::parse(&chunks[start..end]);
            (start, next) = (end, header.next_offset());
            let given = match chunk {
                Ok(chunk) if aborted.hides(&chunk) || header.attributes.is_control() => continue,
                Ok(chunk) => give(&chunk, self.from, decompressor, take),
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
            rest => match Chunk::parse(rest) {
                Ok(_) => Ok(()),
                Err(error) => self.skip(DamagedRecords {
                    offsets: next..self.next,
                    error,
                }),
            },
        }
    }

    /// Reports unreadable records to the user, if the settings skip them.
    fn skip(&self, damaged: DamagedRecords) -> Result<(), ClientError> {
        let OnDamage::Skip(report) = &self.on_damage else {
            return Err(damaged.in_partition(&self.place));
        };
        report(&SkippedRecords {
            place: self.place.clone(),
            offsets: damaged.offsets,
            reason: damaged.error.to_string(),
        });
        Ok(())
    }

    /// Copies the records into memory of their own. They no longer count against
    /// [`prefetch_bytes`](crate::ConsumerConfig::prefetch_bytes), and no longer hold the server's memory. Call it for
    /// records that the caller holds for long.
    ///
    /// # Errors
    /// When the server has taken its memory back, as with [`each`](Self::each).
    pub fn detach(&mut self) -> Result<(), ClientError> {
        let copy = match &self.records {
            // Copies only these records, so that the rest of the answer can be freed.
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

    /// Returns whether the records can still be read. If the server has taken their memory back, the next call of
    /// [`Consumer::next`](crate::Consumer::next) returns them again.
    ///
    /// # Errors
    /// When the server has taken its memory back.
    pub fn check(&self) -> Result<(), ClientError> {
        match &self.records {
            Records::Shared(Some(lease)) => lease.check(),
            _ => Ok(()),
        }
    }

    /// Returns the offset of the fetch; [`each`](Self::each) omits earlier records of the first chunk.
    pub fn from(&self) -> Offset {
        self.from
    }

    /// Returns the error with which the subscription of records in the server's memory has ended; `None` while they can be
    /// read.
    pub(super) fn end_of_subscription(&self) -> Option<ClientError> {
        match &self.records {
            Records::Shared(Some(lease)) => lease.end_of_subscription(),
            _ => None,
        }
    }

    /// Returns the cell that is set once a read finds the server's memory taken back.
    pub(super) fn torn(&self) -> Option<Arc<OnceLock<Torn>>> {
        match &self.records {
            Records::Shared(Some(lease)) => Some(Arc::clone(lease.torn())),
            _ => None,
        }
    }
}

/// Returns the offset behind the last whole chunk; `None` if there is none. Brokers may truncate the last chunk.
pub(super) fn end_of(records: &[u8]) -> Option<Offset> {
    headers(records)
        .last()
        .map(|(header, _)| header.last_offset().plus(1))
}

fn whole_bytes(records: &[u8]) -> usize {
    headers(records).last().map_or(0, |(_, end)| end)
}

/// Returns the headers of whole chunks, and the end of each. Damage is detected later, when the records are read.
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

/// Finds the chunks of aborted transactions: the broker lists the first offset of each, and a marker ends it.
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

//! What a fetch has brought.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use millstream_base::Offset;
use millstream_record::{Chunk, ChunkHeader, Chunks, EndMarker, Record, Scratch, TransactionEnd};
use millstream_wire::messages::fetch_response::AbortedTransaction;
use tokio::sync::OwnedSemaphorePermit;

use crate::error::ClientError;
use crate::offsets::TopicPartition;

/// Records of one partition, in their order. Its memory is that of the connection it came from, and is
/// free for further fetches when this is dropped.
#[derive(Debug)]
pub struct Fetched {
    pub(super) place: TopicPartition,
    /// Records before are in the first chunk, and were not asked for.
    pub(super) from: Offset,
    /// Behind the last record.
    pub(super) next: Offset,
    /// What may be read up to now.
    pub(super) end: Offset,
    pub(super) records: Bytes,
    pub(super) aborted: Vec<AbortedTransaction>,
    pub(super) _room: OwnedSemaphorePermit,
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
        self.records.len()
    }

    /// Gives each record to `take`, until that breaks. Compressed ones are decompressed into `scratch`.
    /// There may be none at all, where a transaction has ended.
    ///
    /// # Errors
    /// When what was sent is damaged.
    pub fn each(
        &self,
        scratch: &mut Scratch,
        mut take: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let whole = &self.records[..whole_bytes(&self.records)];
        let mut aborted = Aborted::new(&self.aborted);
        for chunk in Chunks::new(whole) {
            let chunk = chunk?;
            if aborted.hides(&chunk) || chunk.header().attributes.is_control() {
                continue;
            }
            for record in chunk.records(scratch)? {
                let record = record?;
                if record.offset >= self.from && take(&record).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
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

//! Transactions in a lane: which are open, which were aborted, and up to where all have ended.
//!
//! A transaction begins in a lane with its producer's first transactional chunk, and ends with a
//! marker, a chunk that the broker appends. Which are open is part of what the lane knows of its
//! producers, and which were aborted part of what a group's index says; both come back with these.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_record::{EndMarker, TransactionEnd, check};
use parking_lot::Mutex;

use crate::core::Core;
use crate::error::Result;
use crate::index::places::look_at;
use crate::lane::{Appended, LaneState};
use crate::log::{Lane, append_when_room};
use crate::producers::{NO_COORDINATOR, ProducerState};

/// A transaction that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenTransaction {
    /// The offset of its first record in the lane.
    pub first_offset: Offset,
    /// The largest timestamp of its first chunk in the lane.
    pub started: Timestamp,
}

/// A transaction whose records do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Whose it was. Its transactional records in the range are those that do not count.
    pub producer: ProducerId,
    /// The offset of its first record in the lane.
    pub first_offset: Offset,
    /// The offset of the marker.
    pub last_offset: Offset,
}

/// A transaction that a marker has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedTransaction {
    pub producer: ProducerId,
    pub first_offset: Offset,
    /// The offset of the marker.
    pub last_offset: Offset,
    pub end: TransactionEnd,
}

impl EndedTransaction {
    /// The same, if it was aborted.
    pub fn aborted(&self) -> Option<AbortedTransaction> {
        (self.end == TransactionEnd::Abort).then_some(AbortedTransaction {
            producer: self.producer,
            first_offset: self.first_offset,
            last_offset: self.last_offset,
        })
    }
}

/// What a lane knows of a producer: what Kafka's `DescribeProducers` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerInfo {
    /// The producer.
    pub producer: ProducerId,
    /// Its incarnation.
    pub epoch: ProducerEpoch,
    /// The number of the last record that it appended with this epoch.
    pub last_sequence: Option<Sequence>,
    /// The largest timestamp of its last chunk, or that of its last marker.
    pub last_timestamp: Timestamp,
    /// The coordinator's incarnation in its last marker.
    pub coordinator_epoch: Option<i32>,
    /// The transaction that it is in.
    pub transaction: Option<OpenTransaction>,
}

impl Lane {
    /// Ends the transaction that a producer has in the lane. The marker takes one offset; it is
    /// appended also where the producer has no transaction here, as one that is sent again. A higher
    /// epoch than the producer's fences off what comes of the former ones.
    ///
    /// # Errors
    /// When the marker's epochs are older than what the lane has seen of this producer
    /// ([`LogError::ProducerFenced`](crate::LogError::ProducerFenced),
    /// [`LogError::CoordinatorFenced`](crate::LogError::CoordinatorFenced)), and as
    /// [`Lane::append`]. Nothing is stored then.
    pub fn append_marker(&self, marker: &EndMarker) -> Result<Appended> {
        let chunk = marker.to_chunk(self.core.clock.now())?;
        let header = check(&chunk)?;
        append_when_room(&self.core, || {
            self.lane.append_marker(&self.core, &header, &chunk, marker)
        })
    }

    /// Up to where all transactions have ended for good: what a consumer may see that reads only what
    /// is committed. Never beyond the [readable](Lane::readable_offset) offset.
    pub fn last_stable_offset(&self) -> Offset {
        let readable = self.lane.readable_offset();
        let stable = self.lane.unstable.first(readable);
        stable.max(self.lane.earliest_offset().min(readable))
    }

    /// The aborted transactions that have records from `from` up to `to`, in the order of their ends.
    /// Those are complete that begin before the last stable offset.
    ///
    /// # Errors
    /// When the disk does not give back what was stored.
    pub fn aborted_transactions(
        &self,
        from: Offset,
        to: Offset,
    ) -> Result<Vec<AbortedTransaction>> {
        aborted_transactions(&self.core, &self.lane, from, to)
    }

    /// What the lane knows of its producers, in the order of their ids.
    pub fn producers(&self) -> Vec<ProducerInfo> {
        let mut producers = self.lane.with_producers(|producers| {
            let all = producers.iter();
            all.map(|(id, state)| ProducerInfo::of(id, state))
                .collect::<Vec<_>>()
        });
        producers.sort_unstable_by_key(|info| info.producer);
        producers
    }
}

impl ProducerInfo {
    fn of(producer: ProducerId, state: &ProducerState) -> ProducerInfo {
        let epoch = state.coordinator_epoch;
        ProducerInfo {
            producer,
            epoch: state.epoch,
            last_sequence: state.chunks.back().map(|past| past.last),
            last_timestamp: state.last_timestamp,
            coordinator_epoch: (epoch != NO_COORDINATOR).then_some(epoch),
            transaction: state.transaction,
        }
    }
}

fn aborted_transactions(
    core: &Core,
    lane: &LaneState,
    from: Offset,
    to: Offset,
) -> Result<Vec<AbortedTransaction>> {
    let mut aborted = Vec::new();
    let mut next = lane.group_of_offset(from).or_else(|| lane.first_group());
    while let Some(group) = next {
        aborted.extend(look_at(core, &group, |places| places.aborted(from, to))??);
        // What ends behind a group begins behind what is stable there.
        let is_last = group.end().is_none_or(|end| end.stable >= to);
        next = match is_last {
            true => None,
            false => lane.group_after(group.id),
        };
    }
    Ok(aborted)
}

/// The transactions of a lane that consumers of what is committed wait for: those that have not ended,
/// and those whose marker is not durable.
#[derive(Debug, Default)]
pub struct Unstable {
    /// How many there are, for a lane without any. Stored under the lock.
    count: AtomicUsize,
    transactions: Mutex<UnstableTransactions>,
}

#[derive(Debug, Default)]
struct UnstableTransactions {
    /// Where they begin; and the offset of the marker, if there is one.
    by_first: BTreeMap<Offset, Option<Offset>>,
    /// Those with a marker, in the order of the markers: marker, and where it begins.
    ended: VecDeque<(Offset, Offset)>,
}

impl Unstable {
    /// Takes over what is open after a start.
    pub fn new(open: impl Iterator<Item = Offset>) -> Unstable {
        let by_first: BTreeMap<Offset, Option<Offset>> = open.map(|first| (first, None)).collect();
        Unstable {
            count: AtomicUsize::new(by_first.len()),
            transactions: Mutex::new(UnstableTransactions {
                by_first,
                ended: VecDeque::new(),
            }),
        }
    }

    /// A transaction begins with a chunk that is about to be made durable.
    pub fn begin(&self, first: Offset) {
        let mut transactions = self.transactions.lock();
        transactions.by_first.insert(first, None);
        self.count
            .store(transactions.by_first.len(), Ordering::Relaxed);
    }

    /// A transaction has a marker, which is about to be made durable.
    pub fn end(&self, ended: &EndedTransaction, durable: Offset) {
        let mut transactions = self.transactions.lock();
        let (first, marker) = (ended.first_offset, ended.last_offset);
        transactions.by_first.insert(first, Some(marker));
        transactions.ended.push_back((marker, first));
        self.settle(&mut transactions, durable);
    }

    /// Where the first of them begins, or `readable` when all that begin before it have ended: the
    /// readable offset, which the caller must have loaded before.
    pub fn first(&self, readable: Offset) -> Offset {
        // A chunk is counted before it is handed on, so whoever sees that it is
        // readable sees the count.
        if self.count.load(Ordering::Relaxed) == 0 {
            return readable;
        }
        let mut transactions = self.transactions.lock();
        self.settle(&mut transactions, readable);
        let first = transactions.by_first.keys().next();
        first.map_or(readable, |first| readable.min(*first))
    }

    /// Forgets those whose markers may be read.
    fn settle(&self, transactions: &mut UnstableTransactions, readable: Offset) {
        while let Some((marker, first)) = transactions.ended.front()
            && *marker < readable
        {
            transactions.by_first.remove(first);
            transactions.ended.pop_front();
        }
        self.count
            .store(transactions.by_first.len(), Ordering::Relaxed);
    }
}

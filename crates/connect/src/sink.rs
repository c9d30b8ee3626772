//! Streams as sinks.

use std::collections::HashSet;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use millstream_base::{Clock, Offset, ProducerEpoch, ProducerId, SystemClock, Timestamp};
use millstream_client::partition_of_key;
use millstream_flow::{BoxError, Sink, SinkStart};
use millstream_log::{AbortedTransaction, LogError, Stream, StreamPartition};
use millstream_record::{EndMarker, Header, TransactionEnd};
use serde::{Deserialize, Serialize};

use crate::flow_transactions::FlowTransactionId;
use crate::producer::{CHUNK_BYTES, IN_FLIGHT_BYTES_MAX, StreamProducer};

/// Transactions of one sink that are not decided, and the one that is open. Beyond that the flow waits for
/// checkpoints to be complete.
const TRANSACTIONS_MAX: usize = 8;

/// The number of ranks of an earlier run whose transactions are searched.
const RANKS_MAX: u32 = 1024;

/// A record in the making; its buffers are used for one record after another.
#[derive(Debug, Default)]
pub struct EncodedRecord {
    /// The record's time: the present time, unless it is set.
    pub timestamp: Timestamp,
    /// The primary key; an empty one is none, unless [`has_empty_key`](Self::has_empty_key) is set.
    pub key: Vec<u8>,
    /// Whether an empty `key` is a key of 0 bytes.
    pub has_empty_key: bool,
    /// The value.
    pub value: Vec<u8>,
    /// Whether it has no value: the record deletes its key.
    pub is_deletion: bool,
    /// The headers, name and value; those named `k.<name>` are secondary keys.
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl EncodedRecord {
    /// Begins the next one.
    pub(crate) fn begin(&mut self, now: Timestamp) {
        self.timestamp = now;
        self.key.clear();
        self.has_empty_key = false;
        self.value.clear();
        self.is_deletion = false;
        self.headers.clear();
    }

    pub(crate) fn key(&self) -> Option<&[u8]> {
        (self.has_empty_key || !self.key.is_empty()).then_some(&self.key)
    }

    pub(crate) fn value(&self) -> Option<&[u8]> {
        (!self.is_deletion).then_some(&self.value)
    }

    /// The headers, which most records have none of: then nothing is allocated.
    pub(crate) fn headers(&self) -> Vec<Header<'_>> {
        let headers = self.headers.iter().map(|(name, value)| Header {
            name,
            value: value.as_deref(),
        });
        headers.collect()
    }
}

/// Appends the results of a flow to a stream: `encode` turns an item into a record, and the record's key decides its
/// partition, as Kafka's own clients choose it. Records without a key fill one chunk after another of all partitions.
///
/// With checkpoints, readers of committed records see each result *exactly once*, for any operators between sources and
/// sink, on any number of ranks. The sink appends results in transactions, one for each checkpoint, which are
/// [committed](Sink::commit) as soon as the checkpoint is complete on all ranks; so readers see them about one
/// checkpoint interval later. Those of a flow that was killed stay open until it is started again, and readers wait at
/// them.
///
/// Without checkpoints each result is stored *at least once*: it is durable before sources commit.
///
/// [`ServerSink`](crate::ServerSink) does the same with a stream of a server.
pub struct StreamSink<F> {
    partitions: Vec<StreamPartition>,
    encode: F,
    record: EncodedRecord,
    clock: SystemClock,
    /// Producers of all partitions, once the flow has begun: one set for each transaction that may be under way.
    slots: Vec<Slot>,
    /// The slot that takes records.
    open: Option<usize>,
    /// The id of the sink's transactions; `None` without checkpoints.
    id: Option<FlowTransactionId>,
    /// The partition whose turn it is to get records without a key, and the bytes of these so far.
    turn: (usize, usize),
    /// Separate for records and for markers, since different callers wait for them.
    waiting: Option<Waiting>,
    waiting_for_markers: Option<Waiting>,
    /// The worker that waits for a slot.
    waker: Option<Waker>,
}

/// A transaction, or room for one: in each partition it has the same producer id.
struct Slot {
    producer: ProducerId,
    /// By partition.
    producers: Vec<StreamProducer>,
    state: SlotState,
}

enum SlotState {
    Free,
    /// Takes records.
    Open,
    Prepared {
        checkpoint: u64,
        named: Vec<NamedTransaction>,
        /// After the commit: the markers that have to become durable, by partition.
        markers: Option<Vec<(usize, Offset)>>,
    },
}

/// A transaction in one partition, as a checkpoint names it. Its producer has no other one that begins there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct NamedTransaction {
    producer: ProducerId,
    partition: u32,
    first_offset: Offset,
}

/// For everything of a partition before an offset to become durable.
struct Waiting {
    partition: u32,
    offset: Offset,
    durable: Pin<Box<dyn Future<Output = Result<(), LogError>> + Send>>,
}

impl<F> StreamSink<F> {
    /// Returns a sink into the present partitions of `stream`.
    ///
    /// # Errors
    /// When the stream was deleted.
    pub fn new(stream: &Stream, encode: F) -> Result<Self, LogError> {
        let partitions = (0..stream.partition_count()).map(|partition| stream.partition(partition));
        Ok(StreamSink {
            partitions: partitions.collect::<Result<_, _>>()?,
            encode,
            record: EncodedRecord::default(),
            clock: SystemClock::default(),
            slots: Vec::new(),
            open: None,
            id: None,
            turn: (0, 0),
            waiting: None,
            waiting_for_markers: None,
            waker: None,
        })
    }

    /// The slot that takes records; `None` while all are under way.
    fn open(&mut self, waker: &Waker) -> Option<usize> {
        if self.open.is_none() {
            let is_free = |slot: &Slot| matches!(slot.state, SlotState::Free);
            self.open = self.slots.iter().position(is_free);
            match self.open {
                Some(open) => self.slots[open].state = SlotState::Open,
                None => self.waker = Some(waker.clone()),
            }
        }
        self.open
    }

    /// Returns whether few enough bytes are on their way to the disk.
    fn has_room(&mut self, open: usize, waker: &Waker) -> Result<bool, LogError> {
        loop {
            let producers = &mut self.slots[open].producers;
            let in_flight: Vec<usize> = producers
                .iter_mut()
                .map(|it| it.in_flight_bytes())
                .collect();
            let most = (0..in_flight.len()).max_by_key(|partition| in_flight[*partition]);
            let Some(most) = most.filter(|_| in_flight.iter().sum::<usize>() > IN_FLIGHT_BYTES_MAX)
            else {
                return Ok(true);
            };
            let Some(oldest) = producers[most].oldest_end() else {
                return Ok(true);
            };
            if !is_durable(&mut self.waiting, &self.partitions[most], oldest, waker)? {
                return Ok(false);
            }
        }
    }

    /// The partition of the record that was encoded last.
    fn partition(&mut self) -> usize {
        if let Some(key) = self.record.key() {
            return partition_of_key(key, self.partitions.len());
        }
        let (partition, bytes) = self.turn;
        self.turn = match bytes + self.record.value.len() {
            full @ CHUNK_BYTES.. => ((partition + 1) % self.partitions.len(), full - CHUNK_BYTES),
            bytes => (partition, bytes),
        };
        partition
    }

    /// Returns producers that continue behind the last chunks of this producer id in the partitions.
    fn slot(&self, producer: ProducerId, is_transactional: bool) -> Slot {
        let producers = self.partitions.iter().map(|handle| {
            let mut of_partition =
                StreamProducer::of_partition(handle.clone(), producer, is_transactional);
            let mut known = handle.producers().into_iter();
            let known = known.find(|known| known.producer == producer);
            if let Some(last) = known.and_then(|known| known.last_sequence) {
                of_partition.set_sequence(last.plus(1));
            }
            of_partition
        });
        Slot {
            producer,
            producers: producers.collect(),
            state: SlotState::Free,
        }
    }

    /// Returns the key of the record that was encoded last.
    pub(crate) fn last_key(&self) -> &[u8] {
        &self.record.key
    }

    /// Aborts the open transaction after an error, so that its records count never, and takes records again in another
    /// one. If it cannot be aborted, its records count with later ones.
    pub(crate) fn give_up(&mut self) -> Result<(), LogError> {
        let Some(open) = self.open else {
            return Ok(());
        };
        let slot = &mut self.slots[open];
        slot.producers.iter_mut().for_each(StreamProducer::discard);
        for one in slot.named(&self.partitions) {
            let abort = marker(one.producer, TransactionEnd::Abort);
            self.partitions[one.partition as usize].append_marker(&abort)?;
        }
        slot.state = SlotState::Free;
        self.open = None;
        Ok(())
    }

    /// Returns the producer ids of the sink's transactions on all ranks; none before it has begun.
    pub(crate) fn producers_of_all_ranks(&self) -> HashSet<ProducerId> {
        let id = self.id.as_ref();
        id.map_or_else(HashSet::new, |id| producers(id, 0..RANKS_MAX))
    }

    /// Returns a transaction that was aborted by force although a checkpoint names it, as long as the log has its records.
    pub(crate) fn aborted(&self, prepared: Option<&[u8]>) -> Result<Option<String>, BoxError> {
        let named: Vec<NamedTransaction> = match prepared {
            Some(prepared) => postcard::from_bytes(prepared)?,
            None => Vec::new(),
        };
        for one in named {
            let Some(handle) = self.partitions.get(one.partition as usize) else {
                continue;
            };
            let first = one.first_offset;
            let aborted = handle.aborted_transactions(first, Offset(first.0 + 1))?;
            let is_it =
                |it: &AbortedTransaction| (it.producer, it.first_offset) == (one.producer, first);
            if aborted.iter().any(is_it) {
                let (producer, partition) = (one.producer.0, one.partition);
                return Ok(Some(format!(
                    "the transaction of producer {producer} at offset {first} of partition {partition}"
                )));
            }
        }
        Ok(None)
    }

    /// Decides the transactions that an earlier run left open: commits those that the checkpoint names, and aborts all
    /// others.
    fn decide(
        &self,
        id: &FlowTransactionId,
        ranks: u32,
        named: &HashSet<NamedTransaction>,
    ) -> Result<(), LogError> {
        let own = producers(id, (id.rank..RANKS_MAX).step_by(ranks.max(1) as usize));
        for (partition, handle) in self.partitions.iter().enumerate() {
            for known in handle.producers() {
                let Some(transaction) = known.transaction else {
                    continue;
                };
                if !own.contains(&known.producer) {
                    continue;
                }
                let is_named = named.contains(&NamedTransaction {
                    producer: known.producer,
                    partition: partition as u32,
                    first_offset: transaction.first_offset,
                });
                let end = match is_named {
                    true => TransactionEnd::Commit,
                    false => TransactionEnd::Abort,
                };
                let appended = handle.append_marker(&marker(known.producer, end))?;
                handle.wait_durable(appended.next_offset)?;
            }
        }
        Ok(())
    }
}

impl<T, F> Sink<T> for StreamSink<F>
where
    F: FnMut(&T, &mut EncodedRecord) + Send + 'static,
{
    /// Takes all or nothing: nothing while too much is on its way to the disk.
    fn push(&mut self, items: &[T], waker: &Waker) -> Result<usize, BoxError> {
        let Some(open) = self.open(waker) else {
            return Ok(0);
        };
        if !self.has_room(open, waker)? {
            return Ok(0);
        }
        for item in items {
            self.record.begin(self.clock.now());
            (self.encode)(item, &mut self.record);
            let partition = self.partition();
            let record = &self.record;
            let producer = &mut self.slots[open].producers[partition];
            let (key, value) = (record.key(), record.value());
            producer.add(record.timestamp, key, value, &record.headers())?;
        }
        Ok(items.len())
    }

    /// Everything has arrived when it is durable.
    fn flush(&mut self, waker: &Waker) -> Result<bool, BoxError> {
        let Some(open) = self.open else {
            return Ok(true);
        };
        for partition in 0..self.partitions.len() {
            self.slots[open].producers[partition].append()?;
        }
        for partition in 0..self.partitions.len() {
            let newest = self.slots[open].producers[partition].newest_end();
            if let Some(newest) = newest
                && !is_durable(
                    &mut self.waiting,
                    &self.partitions[partition],
                    newest,
                    waker,
                )?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn waits_for_commit(&self) -> bool {
        true
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        if !start.takes_checkpoints {
            self.slots = vec![self.slot(ProducerId::NONE, false)];
            return Ok(());
        }
        let named: Vec<NamedTransaction> = match start.prepared {
            Some(prepared) => postcard::from_bytes(prepared)?,
            None => Vec::new(),
        };
        let id = FlowTransactionId::of(start);
        self.decide(&id, start.ranks, &named.into_iter().collect())?;
        let slots = (0..TRANSACTIONS_MAX).map(|slot| self.slot(producer_id(&id.slot(slot)), true));
        self.slots = slots.collect();
        self.id = Some(id);
        Ok(())
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        if self.id.is_none() {
            return Ok(Vec::new());
        }
        if let Some(open) = self.open {
            let named = self.slots[open].named(&self.partitions);
            // A transaction without records stays open.
            if !named.is_empty() {
                self.slots[open].state = SlotState::Prepared {
                    checkpoint,
                    named,
                    markers: None,
                };
                self.open = None;
            }
        }
        let named = self.slots.iter().flat_map(|slot| match &slot.state {
            SlotState::Prepared { named, .. } => &named[..],
            SlotState::Free | SlotState::Open => &[],
        });
        Ok(postcard::to_stdvec(&named.collect::<Vec<_>>())?)
    }

    fn commit(&mut self, checkpoint: u64, waker: &Waker) -> Result<bool, BoxError> {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let SlotState::Prepared {
                checkpoint: prepared_for,
                named,
                markers,
            } = &mut slot.state
            else {
                continue;
            };
            if *prepared_for > checkpoint {
                continue;
            }
            if markers.is_none() {
                let mut appended = Vec::with_capacity(named.len());
                for one in named {
                    let partition = one.partition as usize;
                    let marker = marker(one.producer, TransactionEnd::Commit);
                    let end = self.partitions[partition].append_marker(&marker)?;
                    appended.push((partition, end.next_offset));
                }
                *markers = Some(appended);
            }
            for (partition, offset) in markers.clone().unwrap_or_default() {
                let waiting = &mut self.waiting_for_markers;
                if !is_durable(waiting, &self.partitions[partition], offset, waker)? {
                    return Ok(false);
                }
            }
            self.slots[index].state = SlotState::Free;
            self.waker.take().inspect(Waker::wake_by_ref);
        }
        Ok(true)
    }
}

/// Returns whether everything of a partition before `offset` is durable; if not, `waker` is woken when it may be.
fn is_durable(
    waiting: &mut Option<Waiting>,
    handle: &StreamPartition,
    offset: Offset,
    waker: &Waker,
) -> Result<bool, LogError> {
    let partition = handle.index();
    let current = match waiting {
        Some(current) if (current.partition, current.offset) == (partition, offset) => current,
        _ => {
            let handle = handle.clone();
            waiting.insert(Waiting {
                partition,
                offset,
                durable: Box::pin(async move { handle.durable(offset).await }),
            })
        }
    };
    let mut context = Context::from_waker(waker);
    match current.durable.as_mut().poll(&mut context) {
        Poll::Pending => Ok(false),
        Poll::Ready(result) => {
            *waiting = None;
            result.map(|()| true)
        }
    }
}

impl Slot {
    /// Returns the identity of its transaction in each partition in which it has records.
    fn named(&self, partitions: &[StreamPartition]) -> Vec<NamedTransaction> {
        let partitions = partitions.iter().enumerate();
        let named = partitions.filter_map(|(partition, handle)| {
            let mut known = handle.producers().into_iter();
            let known = known.find(|known| known.producer == self.producer)?;
            Some(NamedTransaction {
                producer: self.producer,
                partition: partition as u32,
                first_offset: known.transaction?.first_offset,
            })
        });
        named.collect()
    }
}

fn marker(producer: ProducerId, end: TransactionEnd) -> EndMarker {
    EndMarker {
        producer_id: producer,
        // One process writes to a log, and one sink of it has this id: there is no producer to fence.
        producer_epoch: ProducerEpoch(0),
        end,
        coordinator_epoch: 0,
    }
}

/// Returns the producer ids of a sink's transactions on these ranks.
fn producers(id: &FlowTransactionId, ranks: impl Iterator<Item = u32>) -> HashSet<ProducerId> {
    let of_ranks = ranks.flat_map(|rank| {
        let id = FlowTransactionId { rank, ..id.clone() };
        (0..TRANSACTIONS_MAX).map(move |slot| producer_id(&id.slot(slot)))
    });
    of_ranks.collect()
}

/// Returns the producer id of a sink's transactions: a hash (FNV-1a) of their transactional id on a server. It lies
/// above all ids that servers assign, which count from 0.
fn producer_id(id: &str) -> ProducerId {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    const ABOVE_SERVERS: u64 = 1 << 62;
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    let hash = id.bytes().fold(BASIS, step);
    ProducerId(((hash % ABOVE_SERVERS) | ABOVE_SERVERS) as i64)
}

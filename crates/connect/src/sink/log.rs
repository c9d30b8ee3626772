//! A stream of a log in the process, to write to.

use std::collections::HashSet;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use millstream_base::{Offset, ProducerEpoch, ProducerId};
use millstream_client::{Turn, partition_of_key};
use millstream_log::{AbortedTransaction, LogError, Stream, StreamPartition};
use millstream_record::{EndMarker, TransactionEnd};
use serde::{Deserialize, Serialize};

use super::{Destination, EncodedRecord, RecordSink, Room, TRANSACTIONS_MAX};
use crate::flow_transactions::FlowTransactionId;
use crate::producer::{CHUNK_BYTES, IN_FLIGHT_BYTES_MAX, StreamProducer};

/// The number of ranks of an earlier run whose transactions are searched.
const RANKS_MAX: u32 = 1024;

/// A [sink](RecordSink) into a stream of a log in the process.
pub type StreamSink<F> = RecordSink<F, LogDestination>;

/// A stream of a log in the process.
pub struct LogDestination {
    partitions: Vec<StreamPartition>,
    /// A chunk is sent when it has grown to this.
    chunk_bytes: usize,
    /// The partition whose turn it is, for records without a key.
    turn: Turn,
}

/// Producers of one transaction after the other: in each partition it has the same producer id.
pub struct LogProducer {
    id: ProducerId,
    /// By partition.
    producers: Vec<StreamProducer>,
    /// The transaction is being ended.
    ending: Option<Ending>,
    waiting: Option<Waiting>,
}

/// The markers at the end of a transaction.
#[derive(Default)]
struct Ending {
    /// The ends of those that are appended, by partition. They have to become durable.
    markers: Vec<(usize, Offset)>,
    /// Whether all are appended.
    is_appended: bool,
}

/// A transaction in one partition, as a checkpoint names it. Its producer has no other one that begins there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NamedTransaction {
    producer: ProducerId,
    partition: u32,
    first_offset: Offset,
}

/// Waits for everything of a partition before an offset to become durable.
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
        let destination = LogDestination {
            partitions: partitions.collect::<Result<_, _>>()?,
            chunk_bytes: CHUNK_BYTES,
            turn: Turn::default(),
        };
        Ok(RecordSink::of(stream.name(), encode, destination))
    }

    /// Sends chunks that are smaller than [`CHUNK_BYTES`]: a look-up of a key reads a whole chunk.
    pub(crate) fn set_chunk_bytes(&mut self, chunk_bytes: usize) {
        self.destination.chunk_bytes = chunk_bytes;
    }

    /// Returns the producer ids of the sink's transactions on all ranks; none before it has begun.
    pub(crate) fn producers_of_all_ranks(&self) -> HashSet<ProducerId> {
        let id = self.id.as_ref();
        id.map_or_else(HashSet::new, |id| producers(id, 0..RANKS_MAX))
    }
}

impl LogDestination {
    /// Returns a producer that continues behind its last chunks in the partitions.
    fn make(&self, id: ProducerId, is_transactional: bool) -> LogProducer {
        let producers = self.partitions.iter().map(|handle| {
            let mut of_partition =
                StreamProducer::of_partition(handle.clone(), id, is_transactional);
            of_partition.set_chunk_bytes(self.chunk_bytes);
            let mut known = handle.producers().into_iter();
            let known = known.find(|known| known.producer == id);
            if let Some(last) = known.and_then(|known| known.last_sequence) {
                of_partition.set_sequence(last.plus(1));
            }
            of_partition
        });
        LogProducer {
            id,
            producers: producers.collect(),
            ending: None,
            waiting: None,
        }
    }

    /// Returns the open transactions of a producer, by partition.
    fn open(&self, id: ProducerId) -> Vec<NamedTransaction> {
        let partitions = self.partitions.iter().enumerate();
        let open = partitions.filter_map(|(partition, handle)| {
            let mut known = handle.producers().into_iter();
            let known = known.find(|known| known.producer == id)?;
            Some(NamedTransaction {
                producer: id,
                partition: partition as u32,
                first_offset: known.transaction?.first_offset,
            })
        });
        open.collect()
    }
}

impl Destination for LogDestination {
    type Producer = LogProducer;
    type Name = NamedTransaction;
    type Error = LogError;

    fn plain(&mut self) -> Result<LogProducer, LogError> {
        Ok(self.make(ProducerId::NONE, false))
    }

    fn aborted(&self, names: &[NamedTransaction]) -> Result<Option<String>, LogError> {
        for named in names {
            let Some(handle) = self.partitions.get(named.partition as usize) else {
                continue;
            };
            let first = named.first_offset;
            let aborted = handle.aborted_transactions(first, Offset(first.0 + 1))?;
            let is_it =
                |it: &AbortedTransaction| (it.producer, it.first_offset) == (named.producer, first);
            if aborted.iter().any(is_it) {
                let (producer, partition) = (named.producer.0, named.partition);
                return Ok(Some(format!(
                    "the transaction of producer {producer} at offset {first} of partition {partition}"
                )));
            }
        }
        Ok(None)
    }

    fn recover(
        &mut self,
        id: &FlowTransactionId,
        ranks: u32,
        names: Vec<NamedTransaction>,
    ) -> Result<Vec<LogProducer>, LogError> {
        let named: HashSet<_> = names.into_iter().collect();
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
        Ok(Vec::new())
    }

    fn producer(&mut self, id: String, _waker: &Waker) -> Result<Option<LogProducer>, LogError> {
        Ok(Some(self.make(producer_id(&id), true)))
    }

    /// The first record of a partition begins it there.
    fn begin(&self, _producer: &LogProducer) -> Result<(), LogError> {
        Ok(())
    }

    /// Few enough bytes have to be on their way to the disk.
    fn has_room(&mut self, producer: &mut LogProducer, waker: &Waker) -> Result<bool, LogError> {
        loop {
            let (mut sum, mut most) = (0, (0, 0));
            for (partition, of_partition) in producer.producers.iter_mut().enumerate() {
                let bytes = of_partition.in_flight_bytes();
                sum += bytes;
                most = most.max((bytes, partition));
            }
            let (_, partition) = most;
            let Some(oldest) = producer.producers[partition].oldest_end() else {
                return Ok(true);
            };
            if sum <= IN_FLIGHT_BYTES_MAX {
                return Ok(true);
            }
            let handle = &self.partitions[partition];
            if !is_durable(&mut producer.waiting, handle, oldest, waker)? {
                return Ok(false);
            }
        }
    }

    #[inline]
    fn offer(
        &mut self,
        producer: &mut LogProducer,
        record: &EncodedRecord,
        _waker: &Waker,
    ) -> Result<bool, LogError> {
        let (key, value) = (record.key(), record.value());
        let partitions = self.partitions.len();
        let partition = match key {
            Some(key) => partition_of_key(key, partitions),
            None => self.turn.next(record.value.len(), CHUNK_BYTES, partitions),
        };
        let producer = &mut producer.producers[partition];
        producer.add(record.timestamp, key, value, &record.headers())?;
        Ok(true)
    }

    /// All records are stored when they are durable.
    fn flush(&mut self, producer: &mut LogProducer, waker: &Waker) -> Result<bool, LogError> {
        for of_partition in &mut producer.producers {
            of_partition.append()?;
        }
        for (of_partition, handle) in producer.producers.iter().zip(&self.partitions) {
            if let Some(newest) = of_partition.newest_end()
                && !is_durable(&mut producer.waiting, handle, newest, waker)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn names(&self, producer: &LogProducer) -> Result<Vec<NamedTransaction>, LogError> {
        Ok(self.open(producer.id))
    }

    /// Partitions in which the transaction was ended by force get no marker.
    fn end(
        &mut self,
        producer: &mut LogProducer,
        end: TransactionEnd,
        waker: &Waker,
    ) -> Result<bool, LogError> {
        let ending = producer.ending.get_or_insert_default();
        if !ending.is_appended {
            producer
                .producers
                .iter_mut()
                .for_each(StreamProducer::discard);
            // After an error the markers before it have to become durable, too.
            for named in self.open(producer.id) {
                let partition = named.partition as usize;
                let appended =
                    self.partitions[partition].append_marker(&marker(producer.id, end))?;
                ending.markers.push((partition, appended.next_offset));
            }
            ending.is_appended = true;
        }
        for (partition, offset) in &ending.markers {
            let handle = &self.partitions[*partition];
            if !is_durable(&mut producer.waiting, handle, *offset, waker)? {
                return Ok(false);
            }
        }
        producer.ending = None;
        Ok(true)
    }

    fn room(&self, error: &LogError) -> Option<Room> {
        match error {
            LogError::DiskFull { .. } => {
                let partition = self.partitions.first()?.clone();
                Some(Box::pin(async move { partition.disk_room().await }))
            }
            _ => None,
        }
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

fn marker(producer: ProducerId, end: TransactionEnd) -> EndMarker {
    EndMarker {
        producer_id: producer,
        // A single process writes to a log, and a single sink of it has this id: there is no producer to fence.
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

/// Returns the producer id of a sink's transactions: a hash (FNV-1a) of their transactional id on a server, above the ids
/// that servers assign.
fn producer_id(id: &str) -> ProducerId {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    const FIRST: u64 = ProducerId::IN_PROCESS.0.cast_unsigned();
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    let hash = id.bytes().fold(BASIS, step);
    ProducerId(((hash % FIRST) | FIRST).cast_signed())
}

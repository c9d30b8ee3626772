//! Builds chunks of records and appends them to a partition.

use std::collections::VecDeque;

use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, StreamletIndex, Timestamp};
use millstream_log::{LogError, Stream, StreamPartition};
use millstream_record::{
    Chunk, ChunkBuilder, ChunkError, Compression, Decompressor, Header, Producer,
};

/// A chunk is sent when it has grown to this, as a rule. It stays in the processor's cache between building,
/// checksum and append.
pub const CHUNK_BYTES: usize = 256 << 10;

/// The most bytes that are appended and not yet durable before the producer waits.
pub const IN_FLIGHT_BYTES_MAX: usize = 64 << 20;

/// The largest size of a record in a chunk, beside its key, value and headers.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// Sends records to one partition of a stream: builds chunks, appends them, and waits for the disk
/// only beyond [`IN_FLIGHT_BYTES_MAX`].
#[derive(Debug)]
pub struct StreamProducer {
    partition: StreamPartition,
    builder: ChunkBuilder,
    /// A chunk is sent when it has grown to this.
    chunk_bytes: usize,
    producer: ProducerId,
    is_transactional: bool,
    /// The sequence of the next record to send.
    sequence: Sequence,
    /// Chunks that are appended and not known to be durable, oldest first.
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: usize,
    totals: ProducerTotals,
}

/// The counts of records by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProducerTotals {
    /// Records that were appended.
    pub appended_records: u64,
    /// Records that the partition had from an earlier run of the same producer.
    pub known_records: u64,
    /// Durable records of both kinds.
    pub durable_records: u64,
}

#[derive(Debug)]
struct InFlight {
    end: Offset,
    records: u64,
    bytes: usize,
}

impl StreamProducer {
    /// Returns a producer for streamlet 0 of a stream.
    ///
    /// With a producer id the records are numbered, and a later producer of the same id that sends
    /// the same records again from the first one on continues where this one was cut off: records
    /// that the partition already has are not stored again. This holds for 2^31 records.
    ///
    /// # Errors
    /// See [`StreamProducer::for_streamlet`].
    pub fn new(stream: &Stream, producer: ProducerId) -> Result<StreamProducer, LogError> {
        StreamProducer::for_streamlet(stream, StreamletIndex(0), producer)
    }

    /// As [`StreamProducer::new`], for any streamlet.
    ///
    /// # Errors
    /// When the stream has no such streamlet.
    pub fn for_streamlet(
        stream: &Stream,
        streamlet: StreamletIndex,
        producer: ProducerId,
    ) -> Result<StreamProducer, LogError> {
        let partition = stream.partition_for(streamlet, producer)?;
        Ok(StreamProducer::of_partition(partition, producer, false))
    }

    /// As [`StreamProducer::new`], for any partition.
    ///
    /// # Errors
    /// When the stream has no such partition.
    pub fn for_partition(
        stream: &Stream,
        partition: u32,
        producer: ProducerId,
    ) -> Result<StreamProducer, LogError> {
        let partition = stream.partition(partition)?;
        Ok(StreamProducer::of_partition(partition, producer, false))
    }

    /// Returns a producer for one partition, inside or outside of transactions.
    pub(crate) fn of_partition(
        partition: StreamPartition,
        producer: ProducerId,
        is_transactional: bool,
    ) -> Self {
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.set_transactional(is_transactional);
        StreamProducer {
            partition,
            builder,
            chunk_bytes: CHUNK_BYTES,
            producer,
            is_transactional,
            sequence: Sequence(0),
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            totals: ProducerTotals::default(),
        }
    }

    /// Adds a record. Sends a full chunk, and waits while too many bytes are not durable yet.
    ///
    /// # Errors
    /// When the chunk is refused ([`LogError::ChunkTooLarge`] and [`LogError::NoKey`] concern this very
    /// record), or earlier ones do not become durable. The producer then does not take the record; it
    /// keeps the earlier ones that could not be sent, and sends them with the next call.
    #[inline]
    pub fn push(
        &mut self,
        timestamp: Timestamp,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
    ) -> Result<(), LogError> {
        if self.in_flight_bytes > IN_FLIGHT_BYTES_MAX {
            self.wait_for_room()?;
        }
        self.add(timestamp, key, value, headers)
    }

    /// Sends the records that were added, if any, without waiting until they are durable.
    ///
    /// # Errors
    /// See [`StreamProducer::push`].
    pub fn send(&mut self) -> Result<(), LogError> {
        self.append()?;
        self.wait_for_room()
    }

    /// Sends the records that were added, and waits until everything is durable.
    ///
    /// # Errors
    /// See [`StreamProducer::push`].
    pub fn flush(&mut self) -> Result<(), LogError> {
        self.append()?;
        if let Some(newest) = self.in_flight.back() {
            self.partition.wait_durable(newest.end)?;
        }
        self.settle();
        Ok(())
    }

    /// Returns the counts of records so far.
    pub fn totals(&mut self) -> ProducerTotals {
        self.settle();
        self.totals
    }

    /// Returns the partition that the records go to.
    pub fn partition(&self) -> &StreamPartition {
        &self.partition
    }

    /// Sends chunks that are smaller than [`CHUNK_BYTES`].
    pub(crate) fn set_chunk_bytes(&mut self, chunk_bytes: usize) {
        self.chunk_bytes = chunk_bytes;
    }

    /// Goes on counting from another number, before anything was added.
    pub(crate) fn set_sequence(&mut self, sequence: Sequence) {
        self.sequence = sequence;
    }

    /// Adds a record, without waiting for the disk.
    #[inline]
    pub(crate) fn add(
        &mut self,
        timestamp: Timestamp,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
    ) -> Result<(), LogError> {
        self.partition.check_key(key)?;
        let headers_bytes = headers
            .iter()
            .map(|header| header.name.len() + header.value.map_or(0, <[u8]>::len));
        let payload = key.map_or(0, <[u8]>::len)
            + value.map_or(0, <[u8]>::len)
            + headers_bytes.sum::<usize>();
        // The stream may take smaller chunks only.
        let chunk_bytes = self.chunk_bytes.min(self.partition.chunk_bytes_max());
        // A large record goes alone, so that an error is about it.
        if self.builder.len() + payload + RECORD_OVERHEAD_BYTES > chunk_bytes {
            self.append()?;
        }
        self.builder.push(timestamp, key, value, headers)?;
        if self.builder.len() >= chunk_bytes {
            // The producer takes the record if it keeps the chunk: the next call reports the
            // obstacle.
            return match self.append() {
                Err(_) if !self.builder.is_empty() => Ok(()),
                result => result,
            };
        }
        Ok(())
    }

    #[cold]
    fn wait_for_room(&mut self) -> Result<(), LogError> {
        while let Some(oldest) = self.in_flight.front()
            && self.in_flight_bytes > IN_FLIGHT_BYTES_MAX
        {
            self.partition.wait_durable(oldest.end)?;
            self.settle();
        }
        Ok(())
    }

    /// Returns the end of the oldest chunk that is not known to be durable.
    pub(crate) fn oldest_end(&self) -> Option<Offset> {
        self.in_flight.front().map(|oldest| oldest.end)
    }

    /// Returns the end of the newest chunk, unless all chunks are known to be durable.
    pub(crate) fn newest_end(&self) -> Option<Offset> {
        self.in_flight.back().map(|newest| newest.end)
    }

    pub(crate) fn in_flight_bytes(&mut self) -> usize {
        self.settle();
        self.in_flight_bytes
    }

    /// Appends the chunk that is being built, and begins the next. Drops a chunk that the partition
    /// never accepts; after other failures a retry may succeed.
    pub(crate) fn append(&mut self) -> Result<(), LogError> {
        if self.builder.is_empty() {
            return Ok(());
        }
        let result = append(
            &self.partition,
            self.is_transactional,
            &mut self.builder,
            self.producer,
            &mut self.sequence,
        );
        if matches!(
            result,
            Ok(_)
                | Err(LogError::Chunk(_)
                    | LogError::ChunkTooLarge { .. }
                    | LogError::NoKey { .. }
                    | LogError::TimestampOutOfRange { .. })
        ) {
            self.builder.clear();
        }
        let sent = result?;
        self.totals.known_records += sent.known;
        self.totals.appended_records += sent.records - sent.known;
        self.in_flight_bytes += sent.bytes;
        self.in_flight.push_back(InFlight {
            end: sent.end,
            records: sent.records,
            bytes: sent.bytes,
        });
        Ok(())
    }

    /// Drops the records that are not appended.
    pub(crate) fn discard(&mut self) {
        self.builder.clear();
    }

    /// Counts the records that have become durable.
    fn settle(&mut self) {
        let durable = self.partition.durable_offset();
        while let Some(oldest) = self.in_flight.front() {
            if oldest.end > durable {
                break;
            }
            self.totals.durable_records += oldest.records;
            self.in_flight_bytes -= oldest.bytes;
            self.in_flight.pop_front();
        }
    }
}

struct Sent {
    /// The offset that is durable once the whole chunk is.
    end: Offset,
    records: u64,
    /// The number of them that the partition already had.
    known: u64,
    bytes: usize,
}

/// Appends the built chunk, without the records that the partition already has from its producer. A producer of transactions
/// never sends a number again, so the partition has records of another run with its id then.
fn append(
    partition: &StreamPartition,
    is_transactional: bool,
    builder: &mut ChunkBuilder,
    producer: ProducerId,
    sequence: &mut Sequence,
) -> Result<Sent, LogError> {
    let records = builder.record_count();
    let numbered = |sequence| {
        (producer != ProducerId::NONE).then_some(Producer {
            id: producer,
            epoch: ProducerEpoch(0),
            sequence,
        })
    };
    let chunk = builder.finish(numbered(*sequence))?;
    let bytes = chunk.len();
    let (end, known) = match partition.append(chunk) {
        Ok(appended) if appended.duplicate && is_transactional => {
            return Err(LogError::OutOfOrderSequence {
                producer,
                found: *sequence,
                expected: sequence.plus(records),
            });
        }
        Ok(appended) if appended.duplicate => (appended.next_offset, records),
        Ok(appended) => (appended.next_offset, 0),
        Err(LogError::OutOfOrderSequence {
            found, expected, ..
        }) if !is_transactional && is_ahead(expected, found) => {
            let known = (expected.0.wrapping_sub(found.0) & i32::MAX) as u32;
            if known < records {
                let rest = rest_of(chunk, known, numbered(expected))?;
                (partition.append(&rest)?.next_offset, known)
            } else {
                // A duplicate from an earlier producer: it lies somewhere before, and perhaps is not durable yet.
                (partition.next_offset(), records)
            }
        }
        Err(error) => return Err(error),
    };
    *sequence = sequence.plus(records);
    Ok(Sent {
        end,
        records: records.into(),
        known: known.into(),
        bytes,
    })
}

/// Returns whether a sequence follows another, within half of the number range.
fn is_ahead(sequence: Sequence, of: Sequence) -> bool {
    (sequence.0.wrapping_sub(of.0) & i32::MAX) < i32::MAX / 2
}

/// A chunk without its first records.
fn rest_of(chunk: &[u8], known: u32, producer: Option<Producer>) -> Result<Vec<u8>, ChunkError> {
    let mut builder = ChunkBuilder::new(Compression::None);
    let mut decompressor = Decompressor::default();
    for record in Chunk::trusted(chunk)?
        .records(&mut decompressor)?
        .skip(known as usize)
    {
        let record = record?;
        let headers: Vec<Header<'_>> = record.headers().collect();
        builder.push(record.timestamp, record.key, record.value, &headers)?;
    }
    Ok(builder.finish(producer)?.to_vec())
}

//! Rewrites chunks into chunks of only the records that remain, as compaction needs it.

use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};

use crate::builder::Place;
use crate::header::{Attributes, CHUNK_BYTES_MAX};
use crate::{
    Chunk, ChunkBuilder, ChunkError, ChunkHeader, Compression, Header, Record, Records,
    TimestampType,
};

/// The most bytes of a rewritten chunk before compression, its header included. Only a chunk of one record may be
/// larger. So a reader of one record decompresses little.
pub const REWRITTEN_BYTES_MAX: usize = 16 << 10;

/// The most offsets of one chunk.
const OFFSETS_MAX: u64 = 1 << 31;

/// The timestamps of a chunk without records.
const NO_TIMESTAMP: Timestamp = Timestamp(-1);

/// How a [`Rewriter`] compresses, and which tombstones and markers it drops.
#[derive(Debug, Clone, Copy)]
pub struct RewriteRules {
    /// The codec of the new chunks, and its level. Without one, a new chunk has the codec of the chunk that its first
    /// record comes from.
    pub compression: Option<(Compression, Option<i32>)>,
    /// The time of the rewrite: horizons up to this one have passed.
    pub now: Timestamp,
    /// The delete horizon of tombstones and markers that have none yet.
    pub horizon: Timestamp,
    /// Whether tombstones without a horizon get one: no older record of their keys is left.
    pub begins_tombstones: bool,
    /// Tombstones below this offset are dropped after their horizon, since no older record of their keys is left.
    pub tombstones_end: Offset,
    /// Markers below this offset are dropped after their horizon, since no record of their transactions needs them.
    pub markers_end: Offset,
}

/// The treatment of a record by a rewrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It remains.
    Stays,
    /// It becomes a tombstone: it loses its value and its headers.
    LosesValue,
    /// It is dropped, and its key is absent from then on: no older record of the key is left. It counts as a
    /// [deletion that was dropped](Rewriter::dropped_to).
    Expires,
    /// It is dropped.
    Goes,
}

/// Rewrites adjacent chunks of a partition, in the order of their offsets, into fewer chunks.
///
/// The new chunks follow the rules of Kafka's cleaned batches, and cover the same offsets without a gap:
///
/// - A record that remains has the same offset, time, key, value and headers, unless it [loses](Fate::LosesValue) the last two. Chunks that were not full are joined.
/// - A chunk's last offset delta reaches up to the next chunk's base offset. A stretch without records between two
///   others that nothing else covers becomes a chunk without records.
/// - Records lose their producer and their transaction: only committed records may remain.
/// - A chunk with tombstones has their delete horizon (KIP-534), once that has [begun](RewriteRules::begins_tombstones); a later
///   rewrite keeps it.
/// - Markers stay in chunks of their own, with their producer, until they are dropped.
///
/// Records of different leader epochs, types of timestamps, append times or horizons are in different chunks.
///
/// ```
/// use millstream_base::{Offset, Timestamp};
/// use millstream_record::{
///     Chunk, ChunkBuilder, Compression, Decompressor, Fate, RewriteRules, Rewriter,
/// };
///
/// let mut builder = ChunkBuilder::new(Compression::None);
/// for value in ["old", "new"] {
///     builder.push(Timestamp(1000), Some(b"key"), Some(value.as_bytes()), &[])?;
/// }
/// let chunk = Chunk::parse(builder.finish(None)?)?;
///
/// let rules = RewriteRules {
///     compression: None,
///     now: Timestamp(5000),
///     horizon: Timestamp(9000),
///     begins_tombstones: true,
///     tombstones_end: Offset(0),
///     markers_end: Offset(0),
/// };
/// let (mut decompressor, mut out) = (Decompressor::default(), Vec::new());
/// let mut rewriter = Rewriter::new(Offset(0), rules);
/// let records = chunk.records(&mut decompressor)?;
/// rewriter.push(
///     &chunk,
///     records,
///     |_, record| if record.offset == Offset(1) { Fate::Stays } else { Fate::Goes },
///     &mut out,
/// )?;
/// rewriter.finish(&mut out)?;
///
/// let new = Chunk::parse(&out)?;
/// assert_eq!((new.header().base_offset, new.header().next_offset()), (Offset(0), Offset(2)));
/// let record = new.records(&mut decompressor)?.next().expect("one record")?;
/// assert_eq!((record.offset, record.value), (Offset(1), Some(&b"new"[..])));
/// # Ok::<(), millstream_record::ChunkError>(())
/// ```
#[derive(Debug)]
pub struct Rewriter {
    rules: RewriteRules,
    /// The offset behind the last chunk that was taken.
    next: Offset,
    /// The base offset of the next new chunk: everything below is in chunks that are written.
    base: Offset,
    /// The leader epoch of the last chunk that was taken.
    leader_epoch: i32,
    /// The properties of the chunk whose records are in `builder`, which then has at least one.
    open: Option<Shared>,
    builder: ChunkBuilder,
    /// The codec of `builder`, and its level.
    codec: (Compression, Option<i32>),
    /// The offset behind the last tombstone that was dropped after its horizon, and the last value that has expired.
    dropped_to: Option<Offset>,
}

/// The properties that all records of a new chunk share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shared {
    leader_epoch: i32,
    /// The time of all records, where that is the time of their append.
    append_time: Option<Timestamp>,
    /// The horizon of the tombstones; `None` without tombstones.
    horizon: Option<Timestamp>,
}

impl Shared {
    /// Whether a record with `other`'s properties fits into the chunk. A horizon concerns tombstones only, so records
    /// with a value fit into any.
    fn takes(&self, other: &Shared) -> bool {
        let is_same =
            (self.leader_epoch, self.append_time) == (other.leader_epoch, other.append_time);
        is_same && (other.horizon.is_none() || other.horizon == self.horizon)
    }
}

impl Rewriter {
    /// Creates a rewriter whose first new chunk begins at `first`, as the first chunk to take does.
    pub fn new(first: Offset, rules: RewriteRules) -> Rewriter {
        Rewriter {
            rules,
            next: first,
            base: first,
            leader_epoch: -1,
            open: None,
            builder: ChunkBuilder::new(Compression::None),
            codec: (Compression::None, None),
            dropped_to: None,
        }
    }

    /// Takes the next chunk and its records, from the first one. `fate_of` decides about each record except
    /// markers. Appends to `out` the new chunks that are complete.
    ///
    /// # Errors
    /// When the chunk does not begin where the last one ended, a record is malformed, or records cannot be compressed.
    /// The rewrite cannot be continued then.
    pub fn push(
        &mut self,
        chunk: &Chunk<'_>,
        records: Records<'_>,
        mut fate_of: impl FnMut(&ChunkHeader, &Record<'_>) -> Fate,
        out: &mut Vec<u8>,
    ) -> Result<(), ChunkError> {
        let header = chunk.header();
        if header.base_offset != self.next {
            return Err(ChunkError::NotAdjacent {
                expected: self.next,
                base_offset: header.base_offset,
            });
        }
        self.next = header.next_offset();
        self.leader_epoch = header.leader_epoch;
        if header.attributes.is_control() {
            return self.push_marker(chunk, records, out);
        }
        let is_append_time = header.attributes.timestamp_type() == TimestampType::LogAppend;
        let append_time = is_append_time.then_some(header.max_timestamp);
        for record in records {
            let mut record = record?;
            match fate_of(header, &record) {
                Fate::Stays => {}
                Fate::LosesValue => record = record.without_value(),
                Fate::Expires => {
                    self.dropped_to = Some(record.offset.plus(1));
                    continue;
                }
                Fate::Goes => continue,
            }
            let is_tombstone = record.key.is_some() && record.value.is_none();
            if is_tombstone && self.is_over(header, record.offset, self.rules.tombstones_end) {
                self.dropped_to = Some(record.offset.plus(1));
                continue;
            }
            let begun = self.rules.begins_tombstones.then_some(self.rules.horizon);
            let horizon = header.delete_horizon().or(begun);
            let shared = Shared {
                leader_epoch: header.leader_epoch,
                append_time,
                horizon: horizon.filter(|_| is_tombstone),
            };
            self.push_record(&record, shared, header.attributes.compression(), out)?;
        }
        Ok(())
    }

    /// Ends the last new chunk where the last chunk that was taken ends, and appends it to `out`. The next new chunk
    /// begins there.
    ///
    /// # Errors
    /// When records cannot be compressed.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), ChunkError> {
        self.close(self.next, out)
    }

    /// Returns the offset behind the last live tombstone that was dropped after its horizon, or the last value that has
    /// [expired](Fate::Expires) if that is behind it: a reader that has not read up to there misses a deletion. `None` if none
    /// was dropped.
    pub fn dropped_to(&self) -> Option<Offset> {
        self.dropped_to
    }

    /// Whether a tombstone or marker at `offset` may be dropped.
    fn is_over(&self, header: &ChunkHeader, offset: Offset, end: Offset) -> bool {
        let has_passed = |horizon| horizon <= self.rules.now;
        offset < end && header.delete_horizon().is_some_and(has_passed)
    }

    /// Adds a record to the open chunk, or to a new one if it does not fit there.
    fn push_record(
        &mut self,
        record: &Record<'_>,
        shared: Shared,
        codec: Compression,
        out: &mut Vec<u8>,
    ) -> Result<(), ChunkError> {
        let headers: Vec<Header<'_>> = record.headers().collect();
        let push = |builder: &mut ChunkBuilder, place, bytes_max| {
            let Record {
                timestamp,
                key,
                value,
                ..
            } = *record;
            builder.push_at(place, bytes_max, timestamp, key, value, &headers)
        };
        if let Some(open) = self.open
            && open.takes(&shared)
            && let Some(offset_delta) = self.offset_delta(record.offset)
        {
            let (base_timestamp, _) = self.builder.timestamps();
            let place = Place {
                base_timestamp,
                offset_delta,
            };
            match push(&mut self.builder, place, REWRITTEN_BYTES_MAX) {
                Err(ChunkError::TooLarge { .. }) => {}
                pushed => return pushed,
            }
        }
        if self.open.is_some() || self.offset_delta(record.offset).is_none() {
            self.close(record.offset, out)?;
        }
        self.set_codec(self.rules.compression.unwrap_or((codec, None)))?;
        let place = Place {
            base_timestamp: shared.horizon.unwrap_or(record.timestamp),
            offset_delta: (record.offset.0 - self.base.0) as u32,
        };
        push(&mut self.builder, place, CHUNK_BYTES_MAX)?;
        self.open = Some(shared);
        Ok(())
    }

    /// The delta of an offset in a chunk that begins at the base; `None` where that is too far away.
    fn offset_delta(&self, offset: Offset) -> Option<u32> {
        let delta = offset.0 - self.base.0;
        (delta < OFFSETS_MAX).then_some(delta as u32)
    }

    /// Copies a marker's chunk, with a horizon where it has none, unless the marker is dropped.
    fn push_marker(
        &mut self,
        chunk: &Chunk<'_>,
        records: Records<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), ChunkError> {
        let header = chunk.header();
        if self.is_over(header, header.base_offset, self.rules.markers_end) {
            return Ok(());
        }
        self.close(header.base_offset, out)?;
        self.base = header.next_offset();
        if header.delete_horizon().is_some() {
            out.extend_from_slice(chunk.bytes());
            return Ok(());
        }
        self.set_codec((header.attributes.compression(), None))?;
        let base_timestamp = self.rules.horizon;
        for record in records {
            let record = record?;
            let headers: Vec<Header<'_>> = record.headers().collect();
            let place = Place {
                base_timestamp,
                offset_delta: (record.offset.0 - header.base_offset.0) as u32,
            };
            let Record {
                timestamp,
                key,
                value,
                ..
            } = record;
            let bytes_max = CHUNK_BYTES_MAX;
            self.builder
                .push_at(place, bytes_max, timestamp, key, value, &headers)?;
        }
        let marked = ChunkHeader {
            attributes: header.attributes.with_delete_horizon(true),
            base_timestamp,
            ..*header
        };
        out.extend_from_slice(self.builder.seal(marked)?);
        self.builder.clear();
        Ok(())
    }

    /// Ends the open chunk at `end`, and covers the remaining offsets up to there by chunks without records.
    fn close(&mut self, end: Offset, out: &mut Vec<u8>) -> Result<(), ChunkError> {
        if let Some(shared) = self.open.take() {
            let (base_timestamp, max_timestamp) = self.builder.timestamps();
            let attributes = Attributes::new(self.codec.0, false)
                .with_append_time(shared.append_time.is_some())
                .with_delete_horizon(shared.horizon.is_some());
            let header = ChunkHeader {
                leader_epoch: shared.leader_epoch,
                attributes,
                base_timestamp,
                max_timestamp,
                record_count: self.builder.record_count(),
                ..self.without_records(end)
            };
            out.extend_from_slice(self.builder.seal(header)?);
            self.builder.clear();
            self.base = header.next_offset();
        }
        while self.base < end {
            let header = self.without_records(end);
            self.set_codec((Compression::None, None))?;
            out.extend_from_slice(self.builder.seal(header)?);
            self.base = header.next_offset();
        }
        Ok(())
    }

    /// The header of a chunk without records from the base up to `end`, or as far as a chunk can reach.
    fn without_records(&self, end: Offset) -> ChunkHeader {
        let offsets = (end.0 - self.base.0).min(OFFSETS_MAX);
        ChunkHeader {
            base_offset: self.base,
            total_bytes: 0, // set with the checksum
            leader_epoch: self.leader_epoch,
            crc: 0,
            attributes: Attributes::new(Compression::None, false),
            last_offset_delta: (offsets - 1) as u32,
            base_timestamp: NO_TIMESTAMP,
            max_timestamp: NO_TIMESTAMP,
            producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch(-1),
            base_sequence: Sequence(-1),
            record_count: 0,
        }
    }

    fn set_codec(&mut self, codec: (Compression, Option<i32>)) -> Result<(), ChunkError> {
        if self.codec != codec {
            self.builder.set_compression(codec.0, codec.1)?;
            self.codec = codec;
        }
        Ok(())
    }
}

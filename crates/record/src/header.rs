//! The header of a chunk. Only this file knows its layout.

use std::ops::Range;

use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};

use crate::{ChunkError, Compression};

/// Bytes of a chunk's header, from the base offset through the record count.
pub const HEADER_BYTES: usize = 61;

/// Bytes of a chunk that its length field does not count: base offset and the length itself.
pub const LENGTH_PREFIX_BYTES: usize = 12;

/// The largest chunk that the length field (an `i32`) can state.
pub(crate) const CHUNK_BYTES_MAX: usize = LENGTH_PREFIX_BYTES + i32::MAX as usize;

/// The format's number, at the same position as in the older formats 0 and 1.
const MAGIC: i8 = 2;

// The positions of the fields, which are big-endian.
const BASE_OFFSET: Range<usize> = 0..8;
const BATCH_LENGTH: Range<usize> = 8..12;
const LEADER_EPOCH: Range<usize> = 12..16;
const MAGIC_AT: usize = 16;
const CRC: Range<usize> = 17..21;
const ATTRIBUTES: Range<usize> = 21..23;
const LAST_OFFSET_DELTA: Range<usize> = 23..27;
const BASE_TIMESTAMP: Range<usize> = 27..35;
const MAX_TIMESTAMP: Range<usize> = 35..43;
const PRODUCER_ID: Range<usize> = 43..51;
const PRODUCER_EPOCH: Range<usize> = 51..53;
const BASE_SEQUENCE: Range<usize> = 53..57;
const RECORD_COUNT: Range<usize> = 57..61;

/// The CRC covers all bytes from here on, so the broker may write the base offset and the leader epoch.
pub(crate) const CRC_START: usize = ATTRIBUTES.start;

const _: () = assert!(BATCH_LENGTH.end == LENGTH_PREFIX_BYTES && RECORD_COUNT.end == HEADER_BYTES);

/// The header of a chunk, with its fields checked against their bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Offset of the first record, or of the first record before compaction.
    pub base_offset: Offset,
    /// Size of the whole chunk, from [`HEADER_BYTES`] on.
    pub total_bytes: u32,
    /// The partition's leader epoch; -1 if unknown. Not covered by the CRC.
    pub leader_epoch: i32,
    /// CRC-32C of the bytes that follow it.
    pub crc: u32,
    /// Compression and flags.
    pub attributes: Attributes,
    /// Offset of the last record, counted from `base_offset`; at most `i32::MAX`.
    pub last_offset_delta: u32,
    /// The base of the records' timestamp deltas: mostly the first record's timestamp, and in some compacted chunks the
    /// [delete horizon](Self::delete_horizon).
    pub base_timestamp: Timestamp,
    /// The largest timestamp of the records.
    pub max_timestamp: Timestamp,
    /// The producer of the chunk; [`ProducerId::NONE`] without duplicate detection.
    pub producer_id: ProducerId,
    /// The producer's incarnation; -1 without a producer.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the first record; -1 without a producer.
    pub base_sequence: Sequence,
    /// Number of records; at most `last_offset_delta + 1`, fewer after compaction.
    pub record_count: u32,
}

/// The producer of a chunk, for duplicate detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Producer {
    /// The producer.
    pub id: ProducerId,
    /// Its incarnation.
    pub epoch: ProducerEpoch,
    /// The number of the chunk's first record.
    pub sequence: Sequence,
}

impl ChunkHeader {
    /// Reads the header at the start of `bytes`, which may hold more or less than the chunk.
    ///
    /// # Errors
    /// When there are fewer than [`HEADER_BYTES`], the format is not v2, or a field is out of its
    /// bounds. The CRC is not checked.
    pub fn parse(bytes: &[u8]) -> Result<ChunkHeader, ChunkError> {
        // Chunks of the old formats may be shorter than this header, so the format is checked first.
        if let Some(&magic) = bytes.get(MAGIC_AT)
            && magic as i8 != MAGIC
        {
            return Err(ChunkError::Magic(magic as i8));
        }
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(ChunkError::Truncated {
                part: "header",
                needed: HEADER_BYTES,
                have: bytes.len(),
            });
        };
        let base_offset = i64::from_be_bytes(field(bytes, BASE_OFFSET));
        let batch_length = i32::from_be_bytes(field(bytes, BATCH_LENGTH));
        let last_offset_delta = i32::from_be_bytes(field(bytes, LAST_OFFSET_DELTA));
        let record_count = i32::from_be_bytes(field(bytes, RECORD_COUNT));

        // The offset behind the chunk must be valid, too.
        let base_offset_max = i64::MAX - (1 << 31);
        let batch_length_min = (HEADER_BYTES - LENGTH_PREFIX_BYTES) as i32;
        Ok(ChunkHeader {
            base_offset: Offset(bounded("baseOffset", base_offset, 0, base_offset_max)? as u64),
            total_bytes: LENGTH_PREFIX_BYTES as u32
                + bounded_u32("batchLength", batch_length, batch_length_min, i32::MAX)?,
            leader_epoch: i32::from_be_bytes(field(bytes, LEADER_EPOCH)),
            crc: u32::from_be_bytes(field(bytes, CRC)),
            attributes: Attributes::parse(u16::from_be_bytes(field(bytes, ATTRIBUTES)))?,
            last_offset_delta: bounded_u32("lastOffsetDelta", last_offset_delta, 0, i32::MAX)?,
            base_timestamp: Timestamp(i64::from_be_bytes(field(bytes, BASE_TIMESTAMP))),
            max_timestamp: Timestamp(i64::from_be_bytes(field(bytes, MAX_TIMESTAMP))),
            producer_id: ProducerId(i64::from_be_bytes(field(bytes, PRODUCER_ID))),
            producer_epoch: ProducerEpoch(i16::from_be_bytes(field(bytes, PRODUCER_EPOCH))),
            base_sequence: Sequence(i32::from_be_bytes(field(bytes, BASE_SEQUENCE))),
            record_count: bounded_u32(
                "recordCount",
                record_count,
                0,
                last_offset_delta.saturating_add(1),
            )?,
        })
    }

    /// Checks that the chunk has a record for each offset, as producers send it. Only compaction and filters make
    /// gaps.
    ///
    /// # Errors
    /// When the numbers of records and of offsets differ.
    pub fn check_gapless(&self) -> Result<(), ChunkError> {
        let (count, last_offset_delta) = (self.record_count, self.last_offset_delta);
        match u64::from(count) == u64::from(last_offset_delta) + 1 {
            true => Ok(()),
            false => Err(ChunkError::OffsetGaps {
                count,
                last_offset_delta,
            }),
        }
    }

    /// The time from which compaction may drop the tombstones or the marker of the chunk (KIP-534). `None` before the
    /// first compaction, and for chunks without any.
    pub fn delete_horizon(&self) -> Option<Timestamp> {
        let has_horizon = self.attributes.0 & Attributes::DELETE_HORIZON != 0;
        has_horizon.then_some(self.base_timestamp)
    }

    /// Writes the header to the start of a chunk.
    pub(crate) fn write(&self, bytes: &mut [u8; HEADER_BYTES]) {
        let batch_length = self.total_bytes - LENGTH_PREFIX_BYTES as u32;
        bytes[BASE_OFFSET].copy_from_slice(&self.base_offset.0.to_be_bytes());
        bytes[BATCH_LENGTH].copy_from_slice(&batch_length.to_be_bytes());
        bytes[LEADER_EPOCH].copy_from_slice(&self.leader_epoch.to_be_bytes());
        bytes[MAGIC_AT] = MAGIC as u8;
        bytes[CRC].copy_from_slice(&self.crc.to_be_bytes());
        bytes[ATTRIBUTES].copy_from_slice(&self.attributes.0.to_be_bytes());
        bytes[LAST_OFFSET_DELTA].copy_from_slice(&self.last_offset_delta.to_be_bytes());
        bytes[BASE_TIMESTAMP].copy_from_slice(&self.base_timestamp.0.to_be_bytes());
        bytes[MAX_TIMESTAMP].copy_from_slice(&self.max_timestamp.0.to_be_bytes());
        bytes[PRODUCER_ID].copy_from_slice(&self.producer_id.0.to_be_bytes());
        bytes[PRODUCER_EPOCH].copy_from_slice(&self.producer_epoch.0.to_be_bytes());
        bytes[BASE_SEQUENCE].copy_from_slice(&self.base_sequence.0.to_be_bytes());
        bytes[RECORD_COUNT].copy_from_slice(&self.record_count.to_be_bytes());
    }

    /// Offset of the last record.
    pub fn last_offset(&self) -> Offset {
        self.base_offset.plus(u64::from(self.last_offset_delta))
    }

    /// The offset that follows the chunk: the next chunk's base offset, unless there is a gap.
    pub fn next_offset(&self) -> Offset {
        self.last_offset().plus(1)
    }
}

/// Writes the base offset into a chunk; the CRC does not cover it.
///
/// # Panics
/// If `bytes` are too short to be a chunk.
pub fn set_base_offset(bytes: &mut [u8], offset: Offset) {
    bytes[BASE_OFFSET].copy_from_slice(&offset.0.to_be_bytes());
}

/// Writes the base offset and the partition's leader epoch into a chunk; the CRC covers neither.
///
/// # Panics
/// If `bytes` are too short to be a chunk.
pub fn set_place(bytes: &mut [u8], offset: Offset, leader_epoch: i32) {
    set_base_offset(bytes, offset);
    bytes[LEADER_EPOCH].copy_from_slice(&leader_epoch.to_be_bytes());
}

/// Gives a whole chunk another producer, epoch and sequence, and computes its CRC again. A client needs it to
/// send a chunk that was never stored under a new producer id.
///
/// # Panics
/// Like [`set_base_offset`].
pub fn set_producer(bytes: &mut [u8], producer: Producer) {
    bytes[PRODUCER_ID].copy_from_slice(&producer.id.0.to_be_bytes());
    bytes[PRODUCER_EPOCH].copy_from_slice(&producer.epoch.0.to_be_bytes());
    bytes[BASE_SEQUENCE].copy_from_slice(&producer.sequence.0.to_be_bytes());
    set_crc(bytes);
}

/// Gives a whole chunk the time of its append, which becomes the time of all its records, and computes its CRC again.
///
/// # Panics
/// Like [`set_base_offset`].
pub fn set_append_time(bytes: &mut [u8], time: Timestamp) {
    let attributes = &mut bytes[ATTRIBUTES];
    attributes[1] |= Attributes::LOG_APPEND_TIME as u8;
    bytes[MAX_TIMESTAMP].copy_from_slice(&time.0.to_be_bytes());
    set_crc(bytes);
}

/// Turns an otherwise complete chunk into a control chunk.
pub(crate) fn set_control(bytes: &mut [u8]) {
    let attributes = &mut bytes[ATTRIBUTES];
    attributes[1] |= Attributes::CONTROL as u8;
    set_crc(bytes);
}

/// Writes the CRC-32C of an otherwise complete chunk.
pub(crate) fn set_crc(bytes: &mut [u8]) {
    let crc = millstream_base::crc32c(&bytes[CRC_START..]);
    bytes[CRC].copy_from_slice(&crc.to_be_bytes());
}

/// The meaning of the timestamps of a chunk's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// The time at which the producer made the record.
    Create,
    /// The time at which the broker appended the chunk: all records have the chunk's `max_timestamp`.
    LogAppend,
}

/// Compression and flags of a chunk. Unknown flags are retained, as in Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes(u16);

impl Attributes {
    const CODEC: u16 = 0b111;
    const LOG_APPEND_TIME: u16 = 1 << 3;
    const TRANSACTIONAL: u16 = 1 << 4;
    const CONTROL: u16 = 1 << 5;
    /// The base timestamp is the delete horizon.
    const DELETE_HORIZON: u16 = 1 << 6;

    /// Creates the attributes of data from a producer.
    pub(crate) fn new(compression: Compression, transactional: bool) -> Attributes {
        let transactional = if transactional {
            Self::TRANSACTIONAL
        } else {
            0
        };
        Attributes(compression as u16 | transactional)
    }

    /// Takes the attributes of a header.
    fn parse(bits: u16) -> Result<Attributes, ChunkError> {
        let codec = (bits & Self::CODEC) as u8;
        match Compression::from_codec(codec) {
            Some(_) => Ok(Attributes(bits)),
            None => Err(ChunkError::Codec(codec)),
        }
    }

    /// The same attributes, without compression.
    pub(crate) fn uncompressed(self) -> Attributes {
        self.with_compression(Compression::None)
    }

    /// The same attributes, with this compression.
    pub(crate) fn with_compression(self, compression: Compression) -> Attributes {
        Attributes(self.0 & !Self::CODEC | compression as u16)
    }

    /// The same attributes, for records with the time of their append if `is_append_time`.
    pub(crate) fn with_append_time(self, is_append_time: bool) -> Attributes {
        match is_append_time {
            true => Attributes(self.0 | Self::LOG_APPEND_TIME),
            false => self,
        }
    }

    /// The same attributes, for a base timestamp that is the delete horizon if `has_horizon`.
    pub(crate) fn with_delete_horizon(self, has_horizon: bool) -> Attributes {
        match has_horizon {
            true => Attributes(self.0 | Self::DELETE_HORIZON),
            false => self,
        }
    }

    /// The compression of the records.
    pub fn compression(self) -> Compression {
        Compression::from_codec((self.0 & Self::CODEC) as u8)
            .unwrap_or_else(|| unreachable!("Attributes are only made with a known codec"))
    }

    /// Returns the meaning of the records' timestamps.
    pub fn timestamp_type(self) -> TimestampType {
        if self.0 & Self::LOG_APPEND_TIME == 0 {
            TimestampType::Create
        } else {
            TimestampType::LogAppend
        }
    }

    /// Whether the chunk belongs to a transaction.
    pub fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Whether the chunk holds a marker, for instance a transaction's end, instead of data.
    pub fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }
}

/// The bytes of one field.
#[inline(always)]
fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], at: Range<usize>) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at]);
    field
}

fn bounded(field: &'static str, value: i64, min: i64, max: i64) -> Result<i64, ChunkError> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(ChunkError::Field {
            field,
            value,
            min,
            max,
        })
    }
}

/// Checks that a value is within `min..=max`, both of which are at least 0.
fn bounded_u32(field: &'static str, value: i32, min: i32, max: i32) -> Result<u32, ChunkError> {
    bounded(field, value.into(), min.into(), max.into()).map(|value| value as u32)
}

//! Builds chunks.

use std::fmt;

use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};

use crate::compressor::Compressor;
use crate::header::{self, Attributes, CHUNK_BYTES_MAX};
use crate::varint::{self, VARINT_BYTES_MAX};
use crate::{ChunkError, ChunkHeader, Compression, HEADER_BYTES, Header, Producer};

/// The fields of a record before its key: three varints, the attributes and the key's length.
const PREFIX_BYTES_MAX: usize = 4 * VARINT_BYTES_MAX + 1;

/// Builds chunks, one after another: [`push`](Self::push) records, [`finish`](Self::finish),
/// [`clear`](Self::clear), and so on. All chunks share the same buffers.
pub struct ChunkBuilder {
    compression: Compression,
    is_transactional: bool,
    /// Room for the header, then the uncompressed records.
    plain: Vec<u8>,
    record_count: u32,
    base_timestamp: Timestamp,
    max_timestamp: Timestamp,
    /// The compressor and the buffer of the compressed chunk.
    compressor: Option<(Compressor, Vec<u8>)>,
}

/// The numbers of a record that depend on its chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The base of the timestamp deltas, the same for all records of the chunk.
    pub base_timestamp: Timestamp,
    /// The record's offset, counted from the chunk's base offset.
    pub offset_delta: u32,
}

impl fmt::Debug for ChunkBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkBuilder")
            .field("compression", &self.compression)
            .field("record_count", &self.record_count)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl ChunkBuilder {
    /// Creates a builder of chunks with this compression.
    pub fn new(compression: Compression) -> ChunkBuilder {
        ChunkBuilder {
            compression,
            is_transactional: false,
            plain: vec![0; HEADER_BYTES],
            record_count: 0,
            base_timestamp: Timestamp::default(),
            max_timestamp: Timestamp::default(),
            compressor: Compressor::new(compression).map(|compressor| (compressor, Vec::new())),
        }
    }

    /// Sets whether this chunk and the following ones belong to a transaction.
    pub fn set_transactional(&mut self, is_transactional: bool) {
        self.is_transactional = is_transactional;
    }

    /// Sets the compression of this chunk and the following ones, at a level of that codec if one is given.
    ///
    /// # Errors
    /// When the codec refuses the level.
    pub(crate) fn set_compression(
        &mut self,
        compression: Compression,
        level: Option<i32>,
    ) -> Result<(), ChunkError> {
        let compressor = match level {
            Some(level) => Compressor::with_level(compression, level)?,
            None => Compressor::new(compression),
        };
        self.compression = compression;
        self.compressor = compressor.map(|compressor| (compressor, Vec::new()));
        Ok(())
    }

    /// Adds a record.
    ///
    /// # Errors
    /// When the chunk would become larger than the format allows (2 GiB); the record is not added.
    #[inline]
    pub fn push(
        &mut self,
        timestamp: Timestamp,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
    ) -> Result<(), ChunkError> {
        let base_timestamp = if self.record_count == 0 {
            timestamp
        } else {
            self.base_timestamp
        };
        let place = Place {
            base_timestamp,
            offset_delta: self.record_count,
        };
        self.push_at(place, CHUNK_BYTES_MAX, timestamp, key, value, headers)
    }

    /// Adds a record at a place that the caller chooses: the base of the timestamps is the same for all records of the
    /// chunk, and offset deltas rise.
    ///
    /// # Errors
    /// When the chunk would become larger than `bytes_max`; the record is not added.
    #[inline]
    pub(crate) fn push_at(
        &mut self,
        place: Place,
        bytes_max: usize,
        timestamp: Timestamp,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
    ) -> Result<(), ChunkError> {
        // Wraps as Java's arithmetic does: any two timestamps have a delta.
        let timestamp_delta = timestamp.0.wrapping_sub(place.base_timestamp.0);
        let offset_delta = i64::from(place.offset_delta);

        let record_bytes = 1
            + varint::len(timestamp_delta)
            + varint::len(offset_delta)
            + nullable_len(key)
            + nullable_len(value)
            + headers_len(headers);
        let total_bytes = self.plain.len() + varint::len(record_bytes as i64) + record_bytes;
        if total_bytes > bytes_max {
            return Err(ChunkError::TooLarge {
                bytes: total_bytes,
                max: bytes_max,
            });
        }

        // Writes all fields before the key with one copy.
        let mut prefix = [0; PREFIX_BYTES_MAX];
        let mut at = varint::write(&mut prefix, record_bytes as i64);
        at += 1; // the record's attributes, which are 0
        at += varint::write(&mut prefix[at..], timestamp_delta);
        at += varint::write(&mut prefix[at..], offset_delta);
        at += varint::write(&mut prefix[at..], length_or_null(key));
        self.plain.extend_from_slice(&prefix[..at]);
        self.plain.extend_from_slice(key.unwrap_or_default());
        put_nullable(&mut self.plain, value);
        put_number(&mut self.plain, headers.len() as i64);
        for header in headers {
            put_nullable(&mut self.plain, Some(header.name));
            put_nullable(&mut self.plain, header.value);
        }

        self.base_timestamp = place.base_timestamp;
        self.max_timestamp = if self.record_count == 0 {
            timestamp
        } else {
            self.max_timestamp.max(timestamp)
        };
        self.record_count += 1;
        Ok(())
    }

    /// Size of the chunk so far, uncompressed.
    pub fn len(&self) -> usize {
        self.plain.len()
    }

    /// Whether the chunk has no records.
    pub fn is_empty(&self) -> bool {
        self.record_count == 0
    }

    /// Number of records.
    pub fn record_count(&self) -> u32 {
        self.record_count
    }

    /// The chunk of the records pushed since [`clear`](Self::clear), with base offset 0.
    ///
    /// # Errors
    /// When there are no records, or they cannot be compressed.
    pub fn finish(&mut self, producer: Option<Producer>) -> Result<&[u8], ChunkError> {
        if self.is_empty() {
            return Err(ChunkError::Empty);
        }
        let producer = producer.unwrap_or(Producer {
            id: ProducerId::NONE,
            epoch: ProducerEpoch(-1),
            sequence: Sequence(-1),
        });
        let header = ChunkHeader {
            base_offset: Offset(0),
            total_bytes: 0, // set with the checksum
            leader_epoch: -1,
            crc: 0,
            attributes: Attributes::new(self.compression, self.is_transactional),
            last_offset_delta: self.record_count - 1,
            base_timestamp: self.base_timestamp,
            max_timestamp: self.max_timestamp,
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            base_sequence: producer.sequence,
            record_count: self.record_count,
        };
        self.seal(header)
    }

    /// The chunk of the records pushed so far, with this header; its size and checksum are set.
    ///
    /// # Errors
    /// When the records cannot be compressed.
    pub(crate) fn seal(&mut self, header: ChunkHeader) -> Result<&[u8], ChunkError> {
        let chunk = match &mut self.compressor {
            None => &mut self.plain,
            Some((compressor, compressed)) => {
                compressed.clear();
                compressed.resize(HEADER_BYTES, 0);
                compressor.compress(&self.plain[HEADER_BYTES..], compressed)?;
                compressed
            }
        };
        // Data that does not compress becomes larger.
        if chunk.len() > CHUNK_BYTES_MAX {
            return Err(ChunkError::TooLarge {
                bytes: chunk.len(),
                max: CHUNK_BYTES_MAX,
            });
        }
        let header = ChunkHeader {
            total_bytes: chunk.len() as u32,
            ..header
        };
        if let Some(bytes) = chunk.first_chunk_mut() {
            header.write(bytes);
        }
        header::set_crc(chunk);
        Ok(chunk)
    }

    /// The base and the largest of the timestamps.
    pub(crate) fn timestamps(&self) -> (Timestamp, Timestamp) {
        (self.base_timestamp, self.max_timestamp)
    }

    /// Drops the records, to begin the next chunk.
    pub fn clear(&mut self) {
        self.plain.truncate(HEADER_BYTES);
        self.record_count = 0;
    }
}

#[inline(always)]
fn length_or_null(bytes: Option<&[u8]>) -> i64 {
    bytes.map_or(-1, |bytes| bytes.len() as i64)
}

#[inline(always)]
fn nullable_len(bytes: Option<&[u8]>) -> usize {
    varint::len(length_or_null(bytes)) + bytes.map_or(0, <[u8]>::len)
}

#[inline]
fn headers_len(headers: &[Header<'_>]) -> usize {
    let each = headers
        .iter()
        .map(|header| nullable_len(Some(header.name)) + nullable_len(header.value));
    varint::len(headers.len() as i64) + each.sum::<usize>()
}

#[inline(always)]
fn put_number(to: &mut Vec<u8>, number: i64) {
    let mut bytes = [0; VARINT_BYTES_MAX];
    let count = varint::write(&mut bytes, number);
    to.extend_from_slice(&bytes[..count]);
}

#[inline(always)]
fn put_nullable(to: &mut Vec<u8>, bytes: Option<&[u8]>) {
    put_number(to, length_or_null(bytes));
    to.extend_from_slice(bytes.unwrap_or_default());
}

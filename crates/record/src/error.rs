//! Errors of chunks and their records.

use millstream_base::Offset;

use crate::Compression;
use crate::record::RECORD_BYTES_MIN;

/// Bytes are not a valid chunk, or records do not fit into a chunk.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The bytes end within a chunk.
    #[error("the {part} needs {needed} bytes and {have} are there: the chunk is cut off")]
    Truncated {
        /// The part that ends too early: "header" or "chunk".
        part: &'static str,
        /// The size of the part in bytes.
        needed: usize,
        /// The number of available bytes.
        have: usize,
    },
    /// Bytes follow the end of the chunk, where exactly one chunk is expected.
    #[error("the chunk's header states {total_bytes} bytes, but {have} are there")]
    Excess {
        /// The size that the header states.
        total_bytes: u32,
        /// The number of available bytes.
        have: usize,
    },
    /// The chunk is of another format than Kafka's record batch v2.
    #[error("magic is {0}; only record batches of format 2 (Kafka 0.11 and newer) are supported")]
    Magic(i8),
    /// A field of the header is out of its bounds.
    #[error("{field} is {value}, but must be from {min} to {max}")]
    Field {
        /// Name of the field in Kafka's format.
        field: &'static str,
        /// The value in the chunk.
        value: i64,
        /// The smallest allowed value.
        min: i64,
        /// The largest allowed value.
        max: i64,
    },
    /// The attributes name a compression that does not exist.
    #[error("compression codec is {0}; known are 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd")]
    Codec(u8),
    /// The checksum of the bytes is not the one that the producer computed.
    #[error("CRC-32C is {computed:#010x}, but the chunk states {stored:#010x}: it is damaged")]
    Crc {
        /// The checksum in the header.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// The chunk has fewer bytes than its number of records needs at least.
    #[error("recordCount is {count}, but {bytes} bytes of records hold at most {}", bytes / RECORD_BYTES_MIN)]
    RecordCount {
        /// The number of records in the header.
        count: u32,
        /// Size of the records, decompressed.
        bytes: usize,
    },
    /// The header's number of records differs from its number of offsets.
    #[error(
        "recordCount is {count}, but lastOffsetDelta is {last_offset_delta}: a producer numbers its records from 0, without gaps"
    )]
    OffsetGaps {
        /// The number of records in the header.
        count: u32,
        /// The last record's offset delta in the header.
        last_offset_delta: u32,
    },
    /// A chunk does not begin where the chunk before it ends.
    #[error("baseOffset is {base_offset}, but the chunk before ends at {expected}")]
    NotAdjacent {
        /// The offset behind the chunk before.
        expected: Offset,
        /// The chunk's base offset.
        base_offset: Offset,
    },
    /// A record contradicts the format.
    #[error("record {index}: {field} {fault}")]
    Record {
        /// The number of the record in the chunk, from 0.
        index: u32,
        /// The name of the field.
        field: &'static str,
        /// The fault.
        fault: RecordFault,
    },
    /// Bytes follow the last record.
    #[error("{bytes} bytes follow the last of {count} records")]
    RecordsExcess {
        /// The number of records in the header.
        count: u32,
        /// The number of bytes that follow.
        bytes: usize,
    },
    /// The compressed records cannot be decompressed.
    #[error("the records cannot be decompressed ({codec}): {reason}")]
    Decompress {
        /// The compression.
        codec: Compression,
        /// The message of the codec.
        reason: String,
    },
    /// The records become too large when decompressed.
    #[error("the records decompress to more than {limit} bytes ({codec})")]
    DecompressedSize {
        /// The compression.
        codec: Compression,
        /// The bound of the [`Decompressor`](crate::Decompressor).
        limit: usize,
    },
    /// The records cannot be compressed.
    #[error("the records cannot be compressed ({codec}): {reason}")]
    Compress {
        /// The compression.
        codec: Compression,
        /// The message of the codec.
        reason: String,
    },
    /// The chunk to build would be larger than the format allows.
    #[error(
        "the chunk would have {bytes} bytes, but at most {max} are possible: send less at once"
    )]
    TooLarge {
        /// The size that the chunk would have.
        bytes: usize,
        /// The largest chunk of the format.
        max: usize,
    },
    /// The chunk to build has no records.
    #[error("the chunk has no records: a chunk is sent with at least one")]
    Empty,
}

millstream_base::debug_as_display!(ChunkError);

/// The fault of a record's field.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// The record ends before the field does.
    #[error("is cut off")]
    CutOff,
    /// The bytes end within the number, or the number has more than 64 bits.
    #[error("is cut off or longer than 10 bytes")]
    Varint,
    /// The number is out of its bounds; a length's upper bound is the bytes that are left.
    #[error("is {value}, but must be from {min} to {max}")]
    Range {
        /// The value in the record.
        value: i64,
        /// The smallest allowed value.
        min: i64,
        /// The largest allowed value.
        max: i64,
    },
    /// The record's length covers more than its fields.
    #[error("covers {0} bytes more than the record's fields")]
    Excess(usize),
}

millstream_base::debug_as_display!(RecordFault);

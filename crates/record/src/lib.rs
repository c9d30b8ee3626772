//! Chunks and records: codec, checks, compression, filters. No I/O.
//!
//! A chunk is exactly one Kafka record batch (format v2), byte for byte: a [`ChunkHeader`] of
//! [`HEADER_BYTES`], then the records, plain or compressed. The format is Kafka's:
//! <https://kafka.apache.org/documentation/#recordbatch>.
//!
//! ```
//! use millstream_base::{Offset, Timestamp};
//! use millstream_record::{Chunk, ChunkBuilder, Compression, Header, Decompressor};
//!
//! let mut builder = ChunkBuilder::new(Compression::Lz4);
//! let city = Header { name: b"k.city", value: Some(b"Namur") };
//! builder.push(Timestamp(1000), Some(b"key"), Some(b"value"), &[city])?;
//! let bytes = builder.finish(None)?;
//!
//! let mut decompressor = Decompressor::default();
//! for record in Chunk::parse(bytes)?.records(&mut decompressor)? {
//!     let record = record?;
//!     assert_eq!((record.offset, record.value), (Offset(0), Some(&b"value"[..])));
//!     assert_eq!(record.secondary_keys().next(), Some((&b"city"[..], &b"Namur"[..])));
//! }
//! # Ok::<(), millstream_record::ChunkError>(())
//! ```

mod builder;
mod chunk;
mod compact;
mod compression;
mod compressor;
mod control;
mod decompressor;
mod error;
mod filter;
mod header;
mod life;
mod recompress;
mod record;
mod varint;

pub use builder::ChunkBuilder;
pub use chunk::{Chunk, Chunks, check, check_prefix};
pub use compact::{Fate, REWRITTEN_BYTES_MAX, RewriteRules, Rewriter};
pub use compression::{Compression, UnknownCompression};
pub use control::{EndMarker, TransactionEnd};
pub use decompressor::{Decompressor, MAX_DECOMPRESSED_BYTES};
pub use error::{ChunkError, RecordFault};
pub use filter::{FILTER_BYTES_MAX, FILTER_TERMS_MAX, Filter, FilterError, Selected};
pub use header::{
    Attributes, ChunkHeader, HEADER_BYTES, LENGTH_PREFIX_BYTES, Producer, TimestampType,
    set_append_time, set_base_offset, set_place, set_producer,
};
pub use life::{EXPIRES, Life, end_header, end_text, later};
pub use recompress::recompressed;
pub use record::{
    Header, Headers, Record, Records, SECONDARY_KEY_PREFIX, SECONDARY_KEYS_MAX, SecondaryKeys,
    secondary_key,
};

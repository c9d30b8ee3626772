//! One broker's storage.
//!
//! Streams of lanes of groups of segments (kera, chapters 5 to 7). A chunk is copied once, into a
//! segment in the pool; its reference goes to a virtual log, which makes it durable in the journal
//! or straight in its group's file; consumers see it from then on, in place.
//!
//! ```
//! use millstream_base::{StreamletIndex, Timestamp};
//! use millstream_log::{ReadStart, Log, LogConfig, StreamConfig};
//! use millstream_record::{ChunkBuilder, Compression, Decompressor};
//!
//! let dir = tempfile::tempdir()?;
//! let log = Log::open(LogConfig::new(dir.path()))?;
//! let stream = log.create_stream("lines", StreamConfig::default())?;
//!
//! let mut builder = ChunkBuilder::new(Compression::None);
//! builder.push(Timestamp(0), None, Some(b"hello"), &[])?;
//! let (lane, appended) = stream.append(StreamletIndex(0), builder.finish(None)?)?;
//! lane.acknowledge(&appended)?;
//!
//! let chunks = stream.reader(ReadStart::Earliest).read(1 << 20)?.expect("it is durable");
//! let mut decompressor = Decompressor::default();
//! for chunk in chunks.chunks() {
//!     for record in chunk?.records(&mut decompressor)? {
//!         assert_eq!(record?.value, Some(&b"hello"[..]));
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod abort;
mod catalog;
mod change;
mod commit;
mod compact;
mod core;
mod error;
mod files;
mod group;
mod handle;
mod hold;
mod ids;
mod index;
mod journal;
mod keys;
mod lane;
mod log;
mod memory;
mod names;
mod object;
mod persist;
mod priority;
mod produce;
mod producers;
mod random;
mod read;
mod recovery;
mod repair;
mod settings;
mod shared_group;
mod stream;
mod subscription;

pub use change::{
    CHANGE_OVERHEAD_BYTES, ChangeError, ChangeTransaction, Changed, KeyChange, KeyChanges,
    KeyCondition, NewValue,
};
pub use compact::PassReport;
pub use compact::stats::{CompactionStats, LogCompaction};
pub use error::{KEY_BYTES_MAX, LogError, NAMED_RECORDS_MAX, Result};
pub use files::{FORMAT, SOCKET};
pub use handle::info::{PartitionInfo, StreamInfo};
pub use handle::key_history::{HISTORY_VERSIONS_MAX, HistoryVersion, KeyHistory};
pub use handle::keys::{KeyEntry, KeyScan, SCAN_KEYS_MAX};
pub use handle::partition::StreamPartition;
pub use handle::readers::{PartitionReader, ReadChunks, ReadStart, StreamReader};
pub use handle::secondary::{SecondaryEntry, SecondaryIndexInfo, SecondaryPosition, SecondaryScan};
pub use handle::stream::Stream;
pub use handle::transactions::ProducerInfo;
pub use handle::watch::{Watch, Watched};
pub use hold::{HOLD_LIFE, HOLD_LIFE_MAX, HOLDS_MAX, Hold, ListedHold, NewHold};
pub use ids::LaneId;
pub use journal::format::FILE_BYTES_MIN as JOURNAL_FILE_BYTES_MIN;
pub use keys::expiry::{KEYED_CLOCK, KEYED_CLOCK_MIN, KeyedClock, TTL, WALL_CLOCK};
pub use keys::secondary::name::{INDEXES_MAX, SECONDARY, is_secondary_name, refuse_secondary};
pub use keys::secondary::{SECONDARY_KEY_BYTES_MAX, refuse_secondary_keys};
pub use keys::table::KeyStats;
pub use lane::append::Appended;
pub use lane::recent_reads::ReadSpan;
pub use log::Log;
pub use log::holds::BegunHold;
pub use log::stats::LogStats;
pub use memory::buffer::{Buffer, BufferWriter, Slice};
pub use memory::decompression::BYTES_MIN as DECOMPRESSION_BYTES_MIN;
pub use memory::pinned::PinnedSlice;
pub use memory::pool::{Arena, BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Pool};
pub use millstream_base::KeyRange;
pub use names::is_reserved;
pub use object::{OBJECT_RECORD_BYTES, ObjectInfo, ObjectReader};
pub use producers::transactions::{AbortedTransaction, OpenTransaction};
pub use read::catch_up::windows::WINDOW_BYTES;
pub use read::fetch::{AtLeast, Fetched};
pub use read::keys::hot::HotKeyStats;
pub use read::keys::version::{KeyHeader, KeyVersion};
pub use repair::salvage::{InternalStore, salvage};
pub use repair::{FilesAside, PartitionDamage};
pub use settings::compaction::{
    COMPACTION_LAG_MAX, COMPACTION_LAG_MIN, Compaction, DELETE_RETENTION, DIRTY_RATIO_MIN,
    FILE_DELETE_DELAY, KEYED_GROUP_BYTES_MAX,
};
pub use settings::config::{
    Background, COMPACTION_RATE_MIN, Durability, LogConfig, POOL_BYTES_MIN, SETTINGS_BYTES_MAX,
    SETTINGS_MAX, STREAM_PARTITIONS_MAX, StreamConfig,
};
pub use settings::defaults::{
    CLEANUP_POLICY, COMPACT, DELETE, RETENTION_BYTES, RETENTION_MS, StreamDefaults,
};
pub use settings::intake::{
    COMPRESSION, COMPRESSION_OF_PRODUCER, GZIP_LEVEL, LOG_APPEND_TIME, TIMESTAMP_AFTER_MAX,
    TIMESTAMP_BEFORE_MAX, TIMESTAMP_TYPE, UNCOMPRESSED, ZSTD_LEVEL,
};
pub use shared_group::{Commit, SharedGroup};
pub use stream::Shape;
pub use subscription::handed::{Handed, Next, SubscriptionError};
pub use subscription::lanes::Share;
pub use subscription::{Listening, Subscription};

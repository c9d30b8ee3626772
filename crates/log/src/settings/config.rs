//! Settings of the log and of its streams.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::Duration;

use millstream_base::ByteSize;
use millstream_base::machine::memory_bytes;
use serde::{Deserialize, Serialize};

use crate::error::{LogError, Result};
use crate::journal::format::FILE_BYTES_MIN;
use crate::memory::decompression::BYTES_MIN;
use crate::memory::pool::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};

/// The pool is never larger than this unless it is set.
const POOL_BYTES_DEFAULT_MAX: u64 = 1 << 30;

/// The most partitions of a node unless it is set: they take about 100 MB when all are empty.
const PARTITIONS_MAX_DEFAULT: u64 = 100_000;

/// The least rate of compaction, in bytes per second: below it, a pass over one group would take hours.
pub const COMPACTION_RATE_MIN: u64 = 4 << 10;

/// The smallest pool with which the log can work, in bytes.
pub const POOL_BYTES_MIN: u64 = 1 << 20;

/// Settings of one node's log.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// The data directory.
    pub dir: PathBuf,
    /// The most memory for segments; by default a sixteenth of the machine's, at most 1 GiB. Only data that is not in its file
    /// yet, or that readers near the head need, takes more than a small part of it. Other data is read from the disk.
    pub pool: ByteSize,
    /// Memory for catch-up reads, which is beside the pool; by default a sixteenth of it, or room for
    /// the two largest chunks.
    pub catch_up: ByteSize,
    /// Memory for the records of hot keys, of all keyed streams together; by default a sixteenth of the pool.
    pub hot_keys: ByteSize,
    /// How much the journal may hold that is not yet in group files. More means larger writes to
    /// the group files where lanes are many, and a longer restart after a crash.
    pub journal: ByteSize,
    /// The capacity of one journal file.
    pub journal_file: ByteSize,
    /// A lane without appends for this long gives its buffers back: a keyed one its head, another one all that no reader needs.
    pub idle_after: Duration,
    /// The interval at which retention checks for groups to remove.
    pub retention_every: Duration,
    /// How many bytes compaction reads and writes in a second at most. Without a pause it would take the disk from producers
    /// and consumers.
    pub compaction_rate: ByteSize,
    /// How long an append may wait for a free buffer.
    pub append_wait_max: Duration,
    /// Memory for all that is decompressed and rebuilt at a time: by filters of subscriptions, searches by time, and
    /// checks. Subscriptions wait for it; others fail after [`append_wait_max`](Self::append_wait_max). At least 64 MiB;
    /// with less than 167 MiB chunks that decompress to 32 MiB are refused to filters.
    pub decompression: ByteSize,
    /// Whether [`StreamPartition::append_foreign`](crate::StreamPartition::append_foreign) decompresses compressed chunks and walks their
    /// records, too. Then it also refuses chunks that decompress to more than [`decompression`](Self::decompression) allows.
    pub check_compressed: bool,
    /// The most partitions (lanes) of all streams and objects together. Each takes 1.2 KB of memory from its first
    /// record or reader on, and some 100 bytes before. Those that a data directory has are served, however many they
    /// are.
    pub partitions_max: u64,
    /// Whether threads do the background work, or the caller by [`crate::Log::step`].
    pub background: Background,
}

/// The threads that do the background work: syncing, persisting, retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// Threads of the log.
    Threads,
    /// The caller, step by step, so that a test decides about every interleaving.
    Manual,
}

impl LogConfig {
    /// The defaults, for the log in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> LogConfig {
        LogConfig::with_pool(
            dir,
            ByteSize((memory_bytes() / 16).clamp(64 << 20, POOL_BYTES_DEFAULT_MAX)),
        )
    }

    /// The defaults for a pool of this size.
    pub fn with_pool(dir: impl Into<PathBuf>, pool: ByteSize) -> LogConfig {
        LogConfig {
            dir: dir.into(),
            pool,
            catch_up: ByteSize((pool.0 / 16).max(2 * (pool.0 / 4).min(BLOCK_BYTES_MAX as u64))),
            hot_keys: ByteSize(pool.0 / 16),
            journal: ByteSize(512 << 20),
            journal_file: ByteSize(64 << 20),
            idle_after: Duration::from_secs(10),
            retention_every: Duration::from_secs(10),
            compaction_rate: ByteSize(64 << 20),
            append_wait_max: Duration::from_secs(30),
            decompression: ByteSize(256 << 20),
            check_compressed: true,
            partitions_max: PARTITIONS_MAX_DEFAULT,
            background: Background::Threads,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let two_files = self.journal_file.0.saturating_mul(2);
        let bounds = [
            ("pool", self.pool, POOL_BYTES_MIN, ""),
            ("decompression", self.decompression, BYTES_MIN, ""),
            ("journal_file", self.journal_file, FILE_BYTES_MIN, ""),
            (
                "compaction_rate",
                self.compaction_rate,
                COMPACTION_RATE_MIN,
                "",
            ),
            ("journal", self.journal, two_files, " (two journal files)"),
        ];
        for (setting, value, least, reason) in bounds {
            let bounds = format_args!("at least {}{reason}", ByteSize(least));
            check(setting, value, value.0 >= least, bounds)?;
        }
        Ok(())
    }
}

/// When a producer is answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When it is synced to disk. It was called `replicated` before, which is still understood.
    #[default]
    #[serde(alias = "replicated")]
    Sync,
    /// When it is in the file, in the system's cache; synced to disk within about a second. It outlasts
    /// the process, and not the power.
    Written,
    /// After the append; made durable soon after.
    Async,
    /// After the append; never written to disk. For data that may be lost.
    Memory,
}

impl Durability {
    /// The name that settings have for it.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Sync => "sync",
            Durability::Written => "written",
            Durability::Async => "async",
            Durability::Memory => "memory",
        }
    }
}

impl std::str::FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sync" | "replicated" => Ok(Durability::Sync),
            "written" => Ok(Durability::Written),
            "async" => Ok(Durability::Async),
            "memory" => Ok(Durability::Memory),
            _ => Err(format!(
                "unknown durability {text:?}; one of sync, written, async, memory"
            )),
        }
    }
}

/// Settings of one stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// Logical partitions (M).
    pub streamlets: u32,
    /// Lanes of each streamlet (Q), where producers append in parallel.
    pub lanes: u32,
    /// Virtual logs that the stream's lanes share.
    pub virtual_logs: u32,
    /// When a producer is answered.
    pub durability: Durability,
    /// The size of a group, in segments of the largest size (P). Groups of a compacted stream have at most
    /// [`KEYED_GROUP_BYTES_MAX`](crate::KEYED_GROUP_BYTES_MAX).
    pub group_segments: u32,
    /// The largest segment of a lane; lanes start with 64 KiB and double.
    pub segment: ByteSize,
    /// Closed groups whose newest record is older are removed, unless the setting `cleanup.policy` is only `compact`.
    pub retention_ms: Option<u64>,
    /// Closed groups are removed, oldest first, while the later ones of the lane hold at least this, with the same exception.
    pub retention: Option<ByteSize>,
    /// The largest chunk that the stream accepts, where that is less than a segment.
    pub chunk_bytes_max: Option<ByteSize>,
    /// Further settings, under the names that Kafka gives them. The log reads those about compression and timestamps,
    /// such as [`COMPRESSION`](crate::COMPRESSION), [`CLEANUP_POLICY`](crate::CLEANUP_POLICY) and those of
    /// [`Compaction`](crate::Compaction), and keeps the others for the callers that set them.
    pub settings: BTreeMap<String, String>,
}

impl Default for StreamConfig {
    fn default() -> Self {
        StreamConfig {
            streamlets: 1,
            lanes: 1,
            virtual_logs: 1,
            durability: Durability::Sync,
            group_segments: 16,
            segment: ByteSize(BLOCK_BYTES_MAX as u64),
            retention_ms: None,
            retention: None,
            chunk_bytes_max: None,
            settings: BTreeMap::new(),
        }
    }
}

/// The most lanes that one stream may have, over all its streamlets.
pub const STREAM_PARTITIONS_MAX: u64 = 65_536;

/// The most further settings of one stream …
pub const SETTINGS_MAX: usize = 256;

/// … and the most bytes that their names and values may take together: they are one record of the
/// catalog.
pub const SETTINGS_BYTES_MAX: usize = 16 << 10;

/// The most virtual logs of one stream.
const VIRTUAL_LOGS_MAX: u32 = 1024;

/// The most segments of one group.
const GROUP_SEGMENTS_MAX: u32 = 65_536;

/// Nothing that is worth a stream is smaller.
const CHUNK_BYTES_MAX_MIN: u64 = 128;

impl StreamConfig {
    /// Lanes over all streamlets.
    pub(crate) fn partition_count(&self) -> u64 {
        u64::from(self.streamlets) * u64::from(self.lanes)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let one_or_more = format_args!("at least 1");
        check(
            "streamlets",
            self.streamlets,
            self.streamlets > 0,
            one_or_more,
        )?;
        check("lanes", self.lanes, self.lanes > 0, one_or_more)?;
        let lanes_max = STREAM_PARTITIONS_MAX / u64::from(self.streamlets);
        check(
            "lanes",
            self.lanes,
            u64::from(self.lanes) <= lanes_max,
            format_args!("at most {lanes_max} for {} streamlets", self.streamlets),
        )?;
        check(
            "virtual_logs",
            self.virtual_logs,
            (1..=VIRTUAL_LOGS_MAX).contains(&self.virtual_logs),
            format_args!("1 to {VIRTUAL_LOGS_MAX}"),
        )?;
        check(
            "group_segments",
            self.group_segments,
            (1..=GROUP_SEGMENTS_MAX).contains(&self.group_segments),
            format_args!("1 to {GROUP_SEGMENTS_MAX}"),
        )?;
        let (least, most) = (BLOCK_BYTES_MIN as u64, BLOCK_BYTES_MAX as u64);
        check(
            "segment",
            self.segment,
            self.segment.0.is_power_of_two() && (least..=most).contains(&self.segment.0),
            format_args!(
                "a power of two from {} to {}",
                ByteSize(least),
                ByteSize(most)
            ),
        )?;
        if let Some(bytes) = self.chunk_bytes_max {
            let least = CHUNK_BYTES_MAX_MIN;
            check(
                "chunk_bytes_max",
                bytes,
                bytes.0 >= least,
                format_args!("at least {}", ByteSize(least)),
            )?;
        }
        let bytes = |(name, value): (&String, &String)| name.len() + value.len();
        let settings_bytes: usize = self.settings.iter().map(bytes).sum();
        let count = self.settings.len();
        check(
            "settings",
            format_args!("{count} of {} together", ByteSize(settings_bytes as u64)),
            count <= SETTINGS_MAX && settings_bytes <= SETTINGS_BYTES_MAX,
            format_args!(
                "at most {SETTINGS_MAX}, of {} together",
                ByteSize(SETTINGS_BYTES_MAX as u64)
            ),
        )
    }

    /// Fails if a stream with this configuration cannot change to `other`.
    pub(crate) fn check_change(&self, other: &StreamConfig) -> Result<()> {
        let fixed = [
            ("streamlets", self.streamlets == other.streamlets),
            ("lanes", self.lanes == other.lanes),
            ("virtual_logs", self.virtual_logs == other.virtual_logs),
            ("durability", self.durability == other.durability),
        ];
        for (setting, is_same) in fixed {
            if !is_same {
                return Err(LogError::BadSetting {
                    setting,
                    why: "it cannot be altered; to add streamlets or lanes, grow the stream"
                        .to_owned(),
                });
            }
        }
        other.check()
    }
}

/// Returns the error for a value out of its bounds, which names the setting, the value and the bounds.
fn check(
    setting: &'static str,
    value: impl Display,
    is_within: bool,
    bounds: fmt::Arguments<'_>,
) -> Result<()> {
    match is_within {
        true => Ok(()),
        false => Err(LogError::BadSetting {
            setting,
            why: format!("it is {value}, and must be {bounds}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_setting_names_its_value_and_bound() {
        let text = |checked: Result<()>| checked.unwrap_err().to_string();
        let pool = LogConfig::with_pool("/none", ByteSize(512 << 10));
        let expected = "setting pool refused: it is 512 KiB, and must be at least 1 MiB";
        assert_eq!(text(pool.check()), expected);

        let mut config = LogConfig::with_pool("/none", ByteSize(64 << 20));
        assert!(config.check().is_ok());
        config.journal = ByteSize(100 << 20);
        let expected = "setting journal refused: it is 100 MiB, and must be at least 128 MiB (two journal files)";
        assert_eq!(text(config.check()), expected);

        let segment = StreamConfig {
            segment: ByteSize(100_000),
            ..StreamConfig::default()
        };
        let expected = "setting segment refused: it is 97.7 KiB, and must be a power of two from 64 KiB to 8 MiB";
        assert_eq!(text(segment.check()), expected);

        let lanes = StreamConfig {
            streamlets: 2,
            lanes: 40_000,
            ..StreamConfig::default()
        };
        let expected =
            "setting lanes refused: it is 40000, and must be at most 32768 for 2 streamlets";
        assert_eq!(text(lanes.check()), expected);
    }

    #[test]
    fn the_former_name_of_the_durability_sync_is_accepted() {
        assert_eq!("replicated".parse(), Ok(Durability::Sync));
        assert_eq!("sync".parse(), Ok(Durability::Sync));
        let stored: Durability = serde_json::from_str("\"replicated\"").unwrap();
        assert_eq!(stored, Durability::Sync);
        assert_eq!(serde_json::to_string(&stored).unwrap(), "\"sync\"");
    }

    #[test]
    fn each_durability_parses_from_its_name() {
        use Durability::{Async, Memory, Sync, Written};
        for durability in [Sync, Written, Async, Memory] {
            assert_eq!(durability.name().parse(), Ok(durability));
            let stored = serde_json::to_string(&durability).unwrap();
            assert_eq!(stored, format!("\"{}\"", durability.name()));
        }
    }
}

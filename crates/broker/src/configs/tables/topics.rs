//! All settings of topics: those of Kafka 4.3, one of Kafka 4.4 for dead letters, and ours.

use millstream_base::ByteSize;
use millstream_log::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, CLEANUP_POLICY, COMPACT, COMPACTION_LAG_MAX,
    COMPACTION_LAG_MIN, COMPRESSION, DELETE, DELETE_RETENTION, DIRTY_RATIO_MIN, Durability,
    FILE_DELETE_DELAY, GZIP_LEVEL, KEYED_CLOCK, KeyedClock, RETENTION_BYTES, RETENTION_MS,
    SECONDARY, StreamConfig, TIMESTAMP_AFTER_MAX, TIMESTAMP_BEFORE_MAX, TIMESTAMP_TYPE, TTL,
    WALL_CLOCK, ZSTD_LEVEL, refuse_secondary,
};

use crate::configs::setting::Setting;
use crate::configs::value::Values;
use crate::shares::DEAD_LETTERS_ENABLE;

/// The default size of a group: that of a new stream.
pub const GROUP_BYTES_DEFAULT: &str = "134217728";

/// Kafka's least size of a segment.
const GROUP_BYTES_MIN: i32 = 1 << 20;

/// The most segments of a group: the log's bound.
const GROUP_SEGMENTS_MAX: u64 = 65_536;

/// No batch fits below this; Kafka accepts bounds that no batch can meet.
const CHUNK_BYTES_MIN: i32 = 128;

/// No bound, for settings that Kafka stores in 64 bits.
const UNBOUNDED: &str = "9223372036854775807";

/// A setting of topics.
#[derive(Debug, Clone, Copy)]
pub struct TopicSetting {
    pub setting: Setting,
    /// The broker's setting that applies to topics without a setting of their own.
    pub of_broker: Option<&'static str>,
    pub reader: Reader,
    /// The setting that this one may not exceed, if a topic has both.
    pub at_most: Option<&'static str>,
    /// The value is that of the topic's creation, and never changes.
    pub is_fixed_at_creation: bool,
}

/// The place where a setting of topics has its effect.
#[derive(Debug, Clone, Copy)]
pub enum Reader {
    /// It has none: the broker stores and shows the value.
    None,
    /// The log reads the value under the setting's name.
    Log,
    /// Share groups read it there.
    Shares,
    /// The stream's config has a field for it.
    Field(Field),
}

/// A field of a stream's config, in the texts of its setting.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Returns the value of a topic with a setting of its own. The flag says whether the topic was given one, in case
    /// the field does not show that.
    pub get: fn(&StreamConfig, bool) -> Option<String>,
    /// Sets the field, to its default if there is no value.
    pub put: fn(&mut StreamConfig, Option<&str>),
}

impl TopicSetting {
    const fn refusing(mut self, refuse: fn(&str) -> Option<String>) -> TopicSetting {
        self.setting = self.setting.refusing(refuse);
        self
    }

    const fn read_by_log(mut self) -> TopicSetting {
        self.reader = Reader::Log;
        self
    }

    const fn field(
        mut self,
        get: fn(&StreamConfig, bool) -> Option<String>,
        put: fn(&mut StreamConfig, Option<&str>),
    ) -> TopicSetting {
        self.reader = Reader::Field(Field { get, put });
        self
    }

    const fn read_by_shares(mut self) -> TopicSetting {
        self.reader = Reader::Shares;
        self
    }

    const fn at_most(mut self, other: &'static str) -> TopicSetting {
        self.at_most = Some(other);
        self
    }

    const fn fixed_at_creation(mut self) -> TopicSetting {
        self.is_fixed_at_creation = true;
        self
    }
}

const fn topic(
    name: &'static str,
    of_broker: Option<&'static str>,
    values: Values,
    default: &'static str,
    documentation: &'static str,
) -> TopicSetting {
    TopicSetting {
        setting: Setting::new(name, values, default, documentation),
        of_broker,
        reader: Reader::None,
        at_most: None,
        is_fixed_at_creation: false,
    }
}

/// All settings of topics, by their names. Others are refused, as Kafka does.
pub const SETTINGS: [TopicSetting; 38] = [
    topic(
        CLEANUP_POLICY,
        Some("log.cleanup.policy"),
        Values::List(&[COMPACT, DELETE]),
        DELETE,
        "The policy for old records: delete for their removal when their retention ends. With compact, the newest record of each key stays, records without a key are refused, and groups have at most 16 MiB. With both, retention counts, too.",
    ).refusing(refuse_policy).read_by_log(),
    topic(
        GZIP_LEVEL,
        Some(GZIP_LEVEL),
        Values::IntOrNone(1, 9),
        "-1",
        "How hard gzip tries where compression.type is gzip; -1 for its own choice.",
    ).read_by_log(),
    topic(
        "compression.lz4.level",
        Some("compression.lz4.level"),
        Values::Int(1, 17),
        "9",
        "Has no effect: the LZ4 of this server has one level.",
    ),
    topic(
        COMPRESSION,
        Some(COMPRESSION),
        Values::Choice(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
        "producer",
        "How batches are stored: producer for the codec that they came with, uncompressed, or the name of a codec. The server compresses batches with another codec anew.",
    ).read_by_log(),
    topic(
        ZSTD_LEVEL,
        Some(ZSTD_LEVEL),
        Values::Int(-131_072, 22),
        "3",
        "How hard zstd tries where compression.type is zstd.",
    ).read_by_log(),
    topic(
        DELETE_RETENTION,
        Some("log.cleaner.delete.retention.ms"),
        Values::Long(0),
        "86400000",
        "How long a tombstone stays after its first compaction.",
    ).read_by_log(),
    topic(
        DEAD_LETTERS_ENABLE,
        None,
        Values::Boolean,
        "false",
        "Whether share groups may write dead letters to the topic.",
    ).read_by_shares(),
    topic(
        FILE_DELETE_DELAY,
        Some("log.segment.delete.delay.ms"),
        Values::Long(0),
        "60000",
        "How long files that compaction replaced stay; those that retention removes leave the disk at once.",
    ).read_by_log(),
    topic(
        "flush.messages",
        Some("log.flush.interval.messages"),
        Values::Long(1),
        UNBOUNDED,
        "Has no effect: millstream.durability says when batches are synced to disk, which by default is before producers are answered.",
    ),
    topic(
        "flush.ms",
        Some("log.flush.interval.ms"),
        Values::Long(0),
        UNBOUNDED,
        "Has no effect: millstream.durability says when batches are synced to disk, which by default is before producers are answered.",
    ),
    topic(
        "follower.replication.throttled.replicas",
        None,
        Values::Replicas,
        "",
        "Has no effect: one broker has the only replica.",
    ),
    topic(
        "index.interval.bytes",
        Some("log.index.interval.bytes"),
        Values::Int(0, i32::MAX),
        "4096",
        "Has no effect: the log indexes in steps of its own.",
    ),
    topic(
        "leader.replication.throttled.replicas",
        None,
        Values::Replicas,
        "",
        "Has no effect: one broker has the only replica.",
    ),
    topic(
        "local.retention.bytes",
        Some("log.local.retention.bytes"),
        Values::Long(-2),
        "-2",
        "Has no effect: there is no remote storage, and retention.bytes counts.",
    ),
    topic(
        "local.retention.ms",
        Some("log.local.retention.ms"),
        Values::Long(-2),
        "-2",
        "Has no effect: there is no remote storage, and retention.ms counts.",
    ),
    topic(
        COMPACTION_LAG_MAX,
        Some("log.cleaner.max.compaction.lag.ms"),
        Values::Long(1),
        UNBOUNDED,
        "How long a record waits at most before it is compacted.",
    ).read_by_log(),
    topic(
        "max.message.bytes",
        Some("message.max.bytes"),
        Values::Int(CHUNK_BYTES_MIN, i32::MAX),
        "8388608",
        "The largest batch that is stored.",
    ).field(
        |config, _| Some(config.chunk_bytes_max?.0.to_string()),
        |config, value| config.chunk_bytes_max = number(value).map(ByteSize),
    ),
    topic(
        TIMESTAMP_AFTER_MAX,
        Some("log.message.timestamp.after.max.ms"),
        Values::Long(0),
        UNBOUNDED,
        "How far in the future a record's time may be; records of later times are refused. Counts where records keep their producer's time. Without bound by default, where Kafka takes an hour.",
    ).read_by_log(),
    topic(
        TIMESTAMP_BEFORE_MAX,
        Some("log.message.timestamp.before.max.ms"),
        Values::Long(0),
        UNBOUNDED,
        "How far in the past a record's time may be; records of earlier times are refused. Counts where records keep their producer's time.",
    ).read_by_log(),
    topic(
        TIMESTAMP_TYPE,
        Some("log.message.timestamp.type"),
        Values::Choice(&["CreateTime", "LogAppendTime"]),
        "CreateTime",
        "The timestamp of records: that of their producer, or the time of their append.",
    ).read_by_log(),
    topic(
        DIRTY_RATIO_MIN,
        Some("log.cleaner.min.cleanable.ratio"),
        Values::Ratio,
        "0.5",
        "The share of a partition's bytes that were written since the last compaction, from which on it is compacted again.",
    ).read_by_log(),
    topic(
        COMPACTION_LAG_MIN,
        Some("log.cleaner.min.compaction.lag.ms"),
        Values::Long(0),
        "0",
        "How long a record stays at least before compaction may remove it.",
    ).read_by_log().at_most(COMPACTION_LAG_MAX),
    topic(
        "min.insync.replicas",
        Some("min.insync.replicas"),
        Values::Int(1, i32::MAX),
        "1",
        "How many replicas have a batch before its producer is answered: 1, since there is one broker.",
    ).refusing(|copies| {
        let why = format!("{copies} replicas never have a batch, since there is one broker");
        (copies != "1").then_some(why)
    }),
    topic(
        "preallocate",
        Some("log.preallocate"),
        Values::Boolean,
        "false",
        "Has no effect: the log takes room on the disk in its own way.",
    ),
    topic(
        "remote.log.copy.disable",
        None,
        Values::Boolean,
        "false",
        "Has no effect: there is no remote storage.",
    ),
    topic(
        "remote.log.delete.on.disable",
        None,
        Values::Boolean,
        "false",
        "Has no effect: there is no remote storage.",
    ),
    topic(
        "remote.storage.enable",
        None,
        Values::Boolean,
        "false",
        "Whether old records move to remote storage, of which there is none.",
    ).refusing(|is_on| {
        (is_on == "true").then(|| "this server has no remote storage".to_owned())
    }),
    topic(
        RETENTION_BYTES,
        Some("log.retention.bytes"),
        Values::Long(-1),
        "-1",
        "Closed groups are removed, oldest first, while the later ones of the partition hold at least this many bytes; -1 for no bound. Does not count where cleanup.policy is compact alone.",
    ).field(
        |config, is_set| bound(config.retention.map(|bytes| bytes.0), is_set),
        |config, value| config.retention = number(value).map(ByteSize),
    ),
    topic(
        RETENTION_MS,
        Some("log.retention.ms"),
        Values::Long(-1),
        "-1",
        "Closed groups whose newest record is older are removed; -1 for never. Without bound by default, where Kafka takes a week. Does not count where cleanup.policy is compact alone.",
    ).field(
        |config, is_set| bound(config.retention_ms, is_set),
        |config, value| config.retention_ms = number(value),
    ),
    topic(
        "segment.bytes",
        Some("log.segment.bytes"),
        Values::Int(GROUP_BYTES_MIN, i32::MAX),
        GROUP_BYTES_DEFAULT,
        "The size of a group of segments, the unit that retention removes. Groups of a topic whose cleanup.policy has compact are at most 16 MiB.",
    ).field(group_bytes, put_group_bytes),
    topic(
        "segment.index.bytes",
        Some("log.index.size.max.bytes"),
        Values::Int(4, i32::MAX),
        "10485760",
        "Has no effect: an index is as large as its group needs.",
    ),
    topic(
        "segment.jitter.ms",
        Some("log.roll.jitter.ms"),
        Values::Long(0),
        "0",
        "Has no effect: groups are closed by their size.",
    ),
    topic(
        "segment.ms",
        Some("log.roll.ms"),
        Values::Long(1),
        "604800000",
        "Has no effect: groups are closed by their size, and by retention.ms when all of their records are too old.",
    ),
    topic(
        "unclean.leader.election.enable",
        Some("unclean.leader.election.enable"),
        Values::Boolean,
        "false",
        "Has no effect: one broker leads all partitions.",
    ),
    topic(
        "millstream.durability",
        None,
        Values::Checked(|text| text.parse::<Durability>().map(drop)),
        "sync",
        "When a producer is answered: sync (the batch is on disk), written (the system has it: only a loss of power loses the last second), async (at once; the last moments are lost when the server is killed), memory (never written). Set when the topic is created.",
    ).field(durability, put_durability)
    .fixed_at_creation(),
    topic(
        TTL,
        None,
        Values::Long(-1),
        "-1",
        "How long the values of a compacted topic live, from their record's time on; -1 for ever. Then look-ups find their keys absent, and compaction removes them. A record that names the end of its value in a header keeps that.",
    ).refusing(refuse_no_life).read_by_log(),
    topic(
        KEYED_CLOCK,
        None,
        Values::Checked(|text| text.parse::<KeyedClock>().map(drop)),
        WALL_CLOCK,
        "The clock that the ends of a compacted topic's values are compared with: wall, or a number of milliseconds, which is the time until another number is set. The program that owns the topic raises the number, and so says which values it needs no more: compaction drops them without tombstones. If a lower number is set, values are found again that compaction has not dropped.",
    ).read_by_log(),
    topic(
        SECONDARY,
        None,
        Values::Text,
        "",
        "The indexes of secondary keys of a compacted topic, up to 8 names separated by commas. A record is found by its headers k.<name>. The server makes a new index of the data that is there, and removes the files of one that is no longer named.",
    ).refusing(refuse_secondary).read_by_log(),
];

fn refuse_no_life(ttl: &str) -> Option<String> {
    let is_zero = ttl.trim().parse() == Ok(0);
    is_zero.then(|| {
        "values that live for 0 ms cannot be found: take 1 or more, or -1 for ever".to_owned()
    })
}

fn refuse_policy(policy: &str) -> Option<String> {
    let why = || format!("{policy:?} is no policy; {DELETE}, {COMPACT} or both are taken");
    policy.is_empty().then(why)
}

fn number(value: Option<&str>) -> Option<u64> {
    value?.parse().ok()
}

/// A bound of retention; -1 if the topic itself is set to have none.
fn bound(bound: Option<u64>, is_set: bool) -> Option<String> {
    let bound = bound.map(|bound| bound.to_string());
    bound.or_else(|| is_set.then(|| "-1".to_owned()))
}

fn group_bytes(config: &StreamConfig, is_set: bool) -> Option<String> {
    let bytes = |config: &StreamConfig| config.segment.0 * u64::from(config.group_segments);
    let is_own = is_set || bytes(config) != bytes(&StreamConfig::default());
    is_own.then(|| bytes(config).to_string())
}

/// A group is a whole number of segments, so its size is the requested one, or a little more.
fn put_group_bytes(config: &mut StreamConfig, value: Option<&str>) {
    let Some(bytes) = number(value) else {
        let default = StreamConfig::default();
        (config.segment, config.group_segments) = (default.segment, default.group_segments);
        return;
    };
    let segment = bytes
        .next_power_of_two()
        .clamp(BLOCK_BYTES_MIN as u64, BLOCK_BYTES_MAX as u64);
    config.segment = ByteSize(segment);
    config.group_segments = bytes.div_ceil(segment).clamp(1, GROUP_SEGMENTS_MAX) as u32;
}

fn durability(config: &StreamConfig, is_set: bool) -> Option<String> {
    let is_own = is_set || config.durability != StreamConfig::default().durability;
    is_own.then(|| config.durability.name().to_owned())
}

fn put_durability(config: &mut StreamConfig, value: Option<&str>) {
    let durability = value.and_then(|value| value.parse().ok());
    config.durability = durability.unwrap_or(StreamConfig::default().durability);
}

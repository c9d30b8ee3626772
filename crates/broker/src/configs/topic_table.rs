//! All settings of topics: those of Kafka 4.3, and ours.

use millstream_log::{
    COMPRESSION, GZIP_LEVEL, RETENTION_BYTES, RETENTION_MS, TIMESTAMP_AFTER_MAX,
    TIMESTAMP_BEFORE_MAX, TIMESTAMP_TYPE, ZSTD_LEVEL,
};

use super::setting::Setting;
use super::value::Values;

/// The setting that decides when producers are answered.
pub const DURABILITY: &str = "millstream.durability";

pub const CLEANUP: &str = "cleanup.policy";
pub const CHUNK_BYTES: &str = "max.message.bytes";
pub const GROUP_BYTES: &str = "segment.bytes";
pub const COPIES: &str = "min.insync.replicas";
pub const REMOTE: &str = "remote.storage.enable";
pub const COMPACTION_LAG_MIN: &str = "min.compaction.lag.ms";
pub const COMPACTION_LAG_MAX: &str = "max.compaction.lag.ms";

/// The policy of topics whose old records are deleted; the only policy supported.
pub const DELETE: &str = "delete";

/// Kafka's least size of a segment.
const GROUP_BYTES_MIN: i32 = 1 << 20;

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
}

const fn topic(
    name: &'static str,
    of_broker: Option<&'static str>,
    values: Values,
    default: &'static str,
    documentation: &'static str,
) -> TopicSetting {
    TopicSetting {
        setting: Setting {
            name,
            values,
            default,
            documentation,
        },
        of_broker,
    }
}

/// All settings of topics, by their names. Others are refused, as Kafka does.
pub const SETTINGS: [TopicSetting; 34] = [
    topic(
        CLEANUP,
        Some("log.cleanup.policy"),
        Values::List(&["compact", DELETE]),
        DELETE,
        "The policy for old records: they are deleted when retention no longer keeps them. Compaction is not supported yet.",
    ),
    topic(
        GZIP_LEVEL,
        Some(GZIP_LEVEL),
        Values::IntOrNone(1, 9),
        "-1",
        "How hard gzip tries where compression.type is gzip; -1 for its own choice.",
    ),
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
    ),
    topic(
        ZSTD_LEVEL,
        Some(ZSTD_LEVEL),
        Values::Int(-131_072, 22),
        "3",
        "How hard zstd tries where compression.type is zstd.",
    ),
    topic(
        "delete.retention.ms",
        Some("log.cleaner.delete.retention.ms"),
        Values::Long(0),
        "86400000",
        "Has no effect, since nothing is compacted.",
    ),
    topic(
        "file.delete.delay.ms",
        Some("log.segment.delete.delay.ms"),
        Values::Long(0),
        "60000",
        "Has no effect: files of removed groups leave the disk at once.",
    ),
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
        "Has no effect, since nothing is compacted.",
    ),
    topic(
        CHUNK_BYTES,
        Some("message.max.bytes"),
        Values::Int(CHUNK_BYTES_MIN, i32::MAX),
        "8388608",
        "The largest batch that is stored.",
    ),
    topic(
        TIMESTAMP_AFTER_MAX,
        Some("log.message.timestamp.after.max.ms"),
        Values::Long(0),
        UNBOUNDED,
        "How far in the future a record's time may be; records of later times are refused. Counts where records keep their producer's time. Without bound by default, where Kafka takes an hour.",
    ),
    topic(
        TIMESTAMP_BEFORE_MAX,
        Some("log.message.timestamp.before.max.ms"),
        Values::Long(0),
        UNBOUNDED,
        "How far in the past a record's time may be; records of earlier times are refused. Counts where records keep their producer's time.",
    ),
    topic(
        TIMESTAMP_TYPE,
        Some("log.message.timestamp.type"),
        Values::Choice(&["CreateTime", "LogAppendTime"]),
        "CreateTime",
        "The timestamp of records: that of their producer, or the time of their append.",
    ),
    topic(
        "min.cleanable.dirty.ratio",
        Some("log.cleaner.min.cleanable.ratio"),
        Values::Ratio,
        "0.5",
        "Has no effect, since nothing is compacted.",
    ),
    topic(
        COMPACTION_LAG_MIN,
        Some("log.cleaner.min.compaction.lag.ms"),
        Values::Long(0),
        "0",
        "Has no effect, since nothing is compacted.",
    ),
    topic(
        COPIES,
        Some("min.insync.replicas"),
        Values::Int(1, i32::MAX),
        "1",
        "How many replicas have a batch before its producer is answered: 1, since there is one broker.",
    ),
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
        REMOTE,
        None,
        Values::Boolean,
        "false",
        "Whether old records move to remote storage, of which there is none.",
    ),
    topic(
        RETENTION_BYTES,
        Some("log.retention.bytes"),
        Values::Long(-1),
        "-1",
        "Closed groups are removed, oldest first, while a partition holds more bytes than this; -1 for no bound.",
    ),
    topic(
        RETENTION_MS,
        Some("log.retention.ms"),
        Values::Long(-1),
        "-1",
        "Closed groups whose newest record is older are removed; -1 for never. Without bound by default, where Kafka takes a week.",
    ),
    topic(
        GROUP_BYTES,
        Some("log.segment.bytes"),
        Values::Int(GROUP_BYTES_MIN, i32::MAX),
        "134217728",
        "The size of a group of segments, the unit that retention removes.",
    ),
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
        DURABILITY,
        None,
        Values::Checked(|text| text.parse::<millstream_log::Durability>().map(drop)),
        "sync",
        "When a producer is answered: sync (the batch is on disk), written (the system has it: only a loss of power loses the last second), async (at once; the last moments are lost when the server is killed), memory (never written). Set when the topic is created.",
    ),
];

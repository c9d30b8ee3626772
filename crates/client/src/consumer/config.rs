//! The settings of a consumer.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Offset;
use millstream_record::Filter;

use crate::offsets::{Isolation, Start, TopicPartition};

/// The settings of a consumer.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// The position of a group in a partition without a committed offset, and of any consumer whose offset no longer
    /// exists; without it, either is an error.
    pub reset: Option<Reset>,
    /// Which records of transactions the consumer returns.
    pub isolation: Isolation,
    /// The way in which the consumer receives records.
    pub delivery: DeliveryMode,
    /// Selects the records that the consumer returns; all without it. A server that pushes applies the filter before
    /// it sends; otherwise the consumer applies it.
    pub filter: Option<Filter>,
    /// The consumer's reaction to damaged records.
    pub on_damage: OnDamage,
    /// The most memory for records that are fetched ahead, including the answers in flight, in bytes.
    pub prefetch_bytes: usize,
    /// The most bytes of one answer.
    pub answer_bytes_max: usize,
    /// The most bytes of one partition in an answer.
    pub partition_bytes_max: usize,
    /// The longest time that a server may wait for records before it sends an empty answer.
    pub wait_max: Duration,
    /// The interval of automatic commits of a group's offsets; without it, the consumer never commits automatically.
    pub auto_commit: Option<Duration>,
    /// The longest time that a group waits for this member to give up partitions that it assigns to others.
    pub rebalance_timeout: Duration,
    /// The longest pause between two calls of [`Consumer::next`](crate::Consumer::next): after it, the member leaves
    /// its group, so that others take over its partitions; with the next call it joins again.
    pub poll_interval_max: Duration,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        ConsumerConfig {
            reset: Some(Reset::Earliest),
            isolation: Isolation::Committed,
            delivery: DeliveryMode::default(),
            filter: None,
            on_damage: OnDamage::default(),
            prefetch_bytes: 16 << 20,
            answer_bytes_max: 8 << 20,
            partition_bytes_max: 1 << 20,
            wait_max: Duration::from_millis(500),
            auto_commit: Some(Duration::from_secs(1)),
            rebalance_timeout: Duration::from_secs(60),
            poll_interval_max: Duration::from_secs(300),
        }
    }
}

/// The way in which a consumer receives records. The records are the same either way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeliveryMode {
    /// The consumer fetches them.
    #[default]
    Pull,
    /// The server sends them as they become durable. It uses shared memory if it is on this machine, runs as the same
    /// user, and lets the client read every stream without a quota; else the network
    /// ([`Fetched::path`](crate::Fetched::path) returns the path taken). The consumer fetches as with `Pull` from a
    /// server without this request, for example Apache Kafka, and also if it reads open transactions
    /// ([`Isolation::Uncommitted`]), since servers push only committed records.
    Push,
}

/// The position in a partition without an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// At the first record.
    Earliest,
    /// Behind the last record.
    Latest,
}

impl From<Reset> for Start {
    fn from(reset: Reset) -> Start {
        match reset {
            Reset::Earliest => Start::Earliest,
            Reset::Latest => Start::Latest,
        }
    }
}

/// A consumer's reaction to damaged records: damaged in the server's log, or malformed by their producer.
#[derive(Clone, Default)]
pub enum OnDamage {
    /// The consumer fails there, with [`ResponseError::CorruptMessage`](crate::ResponseError::CorruptMessage) or
    /// [`ClientError::Damaged`](crate::ClientError::Damaged).
    #[default]
    Fail,
    /// The consumer calls this function with the offsets that it skips, and continues behind them. Behind damage in the
    /// log, that is the next offset that the server can find, perhaps some 64 KiB further on. If nothing behind the
    /// damage can be read, the consumer fails.
    Skip(Arc<dyn Fn(&SkippedRecords) + Send + Sync>),
}

impl fmt::Debug for OnDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OnDamage::Fail => "Fail",
            OnDamage::Skip(_) => "Skip",
        })
    }
}

/// Records that a consumer skipped since they are damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedRecords {
    /// Their partition.
    pub place: TopicPartition,
    /// Their offsets.
    pub offsets: Range<Offset>,
    /// The fault that makes them unreadable.
    pub reason: String,
}

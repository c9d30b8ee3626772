//! How a consumer works.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Offset;
use millstream_record::Filter;

use crate::offsets::{Isolation, Start, TopicPartition};

/// How a consumer works.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// Where a group begins in a partition that it has no offset of, and where anybody goes on whose
    /// offset is not there any more; without it, that is an error.
    pub reset: Option<Reset>,
    /// Which records of transactions are handed out.
    pub isolation: Isolation,
    /// How records come to it.
    pub delivery: DeliveryMode,
    /// Which records are handed out; all without it. A server that pushes leaves the others out before they are
    /// sent, else it is done here.
    pub filter: Option<Filter>,
    /// What the consumer does where records are damaged.
    pub on_damage: OnDamage,
    /// What is fetched ahead takes no more memory than this, and the answers that are under way.
    pub prefetch_bytes: usize,
    /// The most bytes of one answer.
    pub answer_bytes_max: usize,
    /// The most bytes of one partition in an answer.
    pub partition_bytes_max: usize,
    /// How long a server may wait for records before it answers that there are none.
    pub wait_max: Duration,
    /// How often a group's offsets are committed by themselves; never without it.
    pub auto_commit: Option<Duration>,
    /// How long a group waits for this member to give up partitions that others are to have.
    pub rebalance_timeout: Duration,
    /// A member whose user does not call [`Consumer::next`](crate::Consumer::next) for so long leaves its group, so that others
    /// work on its partitions; with the next call it joins again.
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

/// How records come to a consumer. They are the same either way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeliveryMode {
    /// The consumer fetches them.
    #[default]
    Pull,
    /// The server sends them as they become durable: through shared memory if it is on this machine, of the same
    /// user, and lets the client read every stream without a quota; else over the network
    /// ([`Fetched::path`](crate::Fetched::path) tells). A server that does not know how, such as Apache Kafka, is asked for them as with
    /// `Pull`, and so is any if records are wanted of transactions that are open
    /// ([`Isolation::Uncommitted`]), since only committed ones are sent.
    Push,
}

/// Where to go on without an offset.
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

/// What a consumer does where records are damaged: in the server's log, or since their producer made them wrong.
#[derive(Clone, Default)]
pub enum OnDamage {
    /// It fails there, with [`ResponseError::CorruptMessage`](crate::ResponseError::CorruptMessage) or
    /// [`ClientError::Chunk`](crate::ClientError::Chunk).
    #[default]
    Fail,
    /// It calls this with the offsets that it skips, and goes on behind them. Behind damage in the log that is the next
    /// offset that the server can find, some 64 KiB further perhaps. Where nothing behind can be read it fails.
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
    /// What is wrong with them.
    pub reason: String,
}

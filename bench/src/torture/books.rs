//! The records that were sent to each partition, and those that must be there.
//!
//! A partition has one writer at a time, which sends records in the order of their numbers. So the record at an offset
//! is the one of this number, independent of crashes of the server in between.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use millstream_base::{ByteSize, Offset};
use millstream_client::native::{Durability, StreamSettings};
use millstream_client::{Client, ClientConfig, TopicPartition};
use parking_lot::Mutex;

/// How long to wait before something is tried again that the server did not answer.
pub const BACKOFF: Duration = Duration::from_millis(50);

/// A consumer group, whose positions must outlast all that the records do.
pub const GROUP: &str = "torture";

struct Stream {
    name: &'static str,
    partitions: u32,
    durability: Durability,
    segment: ByteSize,
    group_segments: u32,
}

/// Groups are small, so that partitions have several files.
const STREAMS: [Stream; 4] = [
    Stream {
        name: "small",
        partitions: 1,
        durability: Durability::Sync,
        segment: ByteSize(64 << 10),
        group_segments: 1,
    },
    Stream {
        name: "sync",
        partitions: 2,
        durability: Durability::Sync,
        segment: ByteSize(1 << 20),
        group_segments: 1,
    },
    Stream {
        name: "async",
        partitions: 2,
        durability: Durability::Async,
        segment: ByteSize(256 << 10),
        group_segments: 2,
    },
    Stream {
        name: "written",
        partitions: 2,
        durability: Durability::Written,
        segment: ByteSize(256 << 10),
        group_segments: 1,
    },
];

/// The partitions, by the number of their writer, which decides how large records are: those of writer 3 are up to
/// 300 KB, which takes large segments.
const PARTITIONS: [(&str, u32); 7] = [
    ("small", 0),
    ("sync", 0),
    ("async", 0),
    ("sync", 1),
    ("async", 1),
    ("written", 0),
    ("written", 1),
];

/// All partitions of a trial.
pub struct Books {
    pub partitions: Vec<Partition>,
    /// The positions that the group has committed.
    pub committed: Mutex<BTreeMap<TopicPartition, Offset>>,
}

pub struct Partition {
    pub writer: usize,
    pub stream: &'static str,
    pub partition: u32,
    durability: Durability,
    /// The number of its stream, which names the folder.
    pub stream_id: u64,
    /// Behind the last record that was sent. Raised before it is.
    sent: AtomicU64,
    /// Behind the last record that the server acknowledged.
    acknowledged: AtomicU64,
    /// Behind the last record that the server called durable, of a stream that acknowledges earlier.
    durable: AtomicU64,
}

impl Books {
    /// Creates the streams.
    pub async fn open(client: &Client) -> Result<Books> {
        let mut streams = BTreeMap::new();
        for stream in &STREAMS {
            let settings = StreamSettings {
                streamlets: stream.partitions,
                lanes: 1,
                virtual_logs: 1,
                durability: stream.durability,
                group_segments: stream.group_segments,
                segment_bytes: stream.segment,
                ..StreamSettings::default()
            };
            client.create_stream(stream.name, settings).await?;
            let id = client.stream(stream.name).await?.stream.0;
            streams.insert(stream.name, (id, stream.durability));
        }
        let partitions = PARTITIONS.iter().enumerate();
        let partitions = partitions.map(|(writer, &(stream, partition))| {
            let (stream_id, durability) = streams[stream];
            Partition {
                writer,
                stream,
                partition,
                durability,
                stream_id,
                sent: AtomicU64::new(0),
                acknowledged: AtomicU64::new(0),
                durable: AtomicU64::new(0),
            }
        });
        Ok(Books {
            partitions: partitions.collect(),
            committed: Mutex::default(),
        })
    }

    /// Returns how many records of each partition the server has acknowledged.
    pub fn acknowledged(&self) -> Vec<u64> {
        let partitions = self.partitions.iter();
        partitions.map(Partition::acknowledged).collect()
    }

    /// Returns how many records each partition must hold after the server ended in this way.
    pub fn must_hold(&self, after: End) -> Vec<u64> {
        let partitions = self.partitions.iter();
        partitions
            .map(|partition| partition.must_hold(after))
            .collect()
    }
}

/// How the server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By SIGTERM.
    Clean,
    /// By SIGKILL.
    Kill,
    /// By a power failure: unsynced data is lost.
    PowerCut,
}

impl Partition {
    pub fn place(&self) -> TopicPartition {
        TopicPartition {
            topic: self.stream.into(),
            partition: self.partition as i32,
        }
    }

    pub fn name(&self) -> String {
        format!("{}/{}", self.stream, self.partition)
    }

    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// The number of the record that is sent next.
    pub fn send(&self) -> u64 {
        self.sent.fetch_add(1, Ordering::SeqCst)
    }

    pub fn acknowledge(&self, next: u64) {
        self.acknowledged.fetch_max(next, Ordering::SeqCst);
    }

    pub fn note_durable(&self, next: u64) {
        self.durable.fetch_max(next, Ordering::SeqCst);
    }

    /// Returns whether the server acknowledges records before they are durable.
    pub fn is_durable_later(&self) -> bool {
        self.durability != Durability::Sync
    }

    fn must_hold(&self, after: End) -> u64 {
        match (self.durability, after) {
            (Durability::Async, End::Kill | End::PowerCut)
            | (Durability::Written, End::PowerCut) => self.durable.load(Ordering::SeqCst),
            _ => self.acknowledged(),
        }
    }

    /// The next writer goes on at `end`, which is the first record that was not found.
    pub fn settle(&self, end: u64) {
        for counter in [&self.sent, &self.acknowledged, &self.durable] {
            counter.store(end, Ordering::SeqCst);
        }
    }
}

/// A client with connections of its own.
pub fn client(address: SocketAddr) -> Client {
    Client::new(ClientConfig {
        client_id: "torture".to_owned(),
        backoff: BACKOFF,
        ..ClientConfig::new(address.to_string())
    })
}

//! The pages of a node over HTTP.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_broker::{Broker, KeyReads, Status, Threads};
use millstream_flow::Running;
use millstream_log::{CompactionStats, KeyStats, Log, StreamInfo};
use millstream_serve::{Content, KEY_READERS_MAX, KEY_WRITERS_MAX, KeyedStreams, Metric};
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};

use crate::keyed::NodeStreams;
use crate::metrics;
use crate::watch::WatchBounds;

/// How long a view of the node is cached, so that many requests cost one look at the node.
const LOOK_EVERY: Duration = Duration::from_millis(900);

/// How many seconds of rates are kept for the page.
const RATES_MAX: usize = 60;

/// The threads that read partitions for their first look-ups of keys.
const KEY_REBUILDS_MAX: usize = 2;

/// The threads that look up older versions of keys at the same time.
const KEY_OLDER_READS_MAX: usize = 1;

/// The pages of a node, from before it has opened its log until it has closed it.
pub struct NodeContent {
    started_at: Instant,
    /// Returns the metrics of the program itself.
    own_metrics: fn() -> Vec<Metric>,
    state: RwLock<State>,
    looked: Mutex<Option<Arc<Look>>>,
    rates: Mutex<Rates>,
    key_reads: Arc<KeyReads>,
    key_writes: Threads,
    key_watches: Arc<WatchBounds>,
}

/// The state of a node.
enum State {
    Starting,
    Serving { log: Log, broker: Arc<Broker> },
    Stopping,
}

/// A cached view of a node.
pub struct Look {
    at: Instant,
    pub log: Log,
    /// The streams of users.
    pub streams: Vec<StreamInfo>,
    pub broker: Status,
}

/// Offsets that became durable, by second: those of records, and of markers of transactions.
#[derive(Default)]
struct Rates {
    last: Option<(Instant, u64)>,
    /// The newest last.
    per_second: VecDeque<f64>,
}

impl NodeContent {
    /// Returns the pages of a node that starts. `own_metrics` returns the metrics of the program itself.
    pub(crate) fn new(own_metrics: fn() -> Vec<Metric>) -> NodeContent {
        NodeContent {
            started_at: Instant::now(),
            own_metrics,
            state: RwLock::new(State::Starting),
            looked: Mutex::default(),
            rates: Mutex::default(),
            key_reads: Arc::new(KeyReads::new(
                KEY_READERS_MAX - KEY_OLDER_READS_MAX - KEY_REBUILDS_MAX,
                KEY_OLDER_READS_MAX,
                KEY_REBUILDS_MAX,
            )),
            key_writes: Threads::new(KEY_WRITERS_MAX),
            key_watches: Arc::new(WatchBounds::new()),
        }
    }

    /// Marks the node as serving.
    pub(crate) fn serves(&self, log: &Log, broker: &Arc<Broker>) {
        *self.state.write() = State::Serving {
            log: log.clone(),
            broker: Arc::clone(broker),
        };
    }

    /// Marks the node as stopping, and drops its log.
    pub(crate) fn stops(&self) {
        *self.state.write() = State::Stopping;
        *self.looked.lock() = None;
    }

    /// The broker, while it serves.
    pub(crate) fn broker(&self) -> Option<Arc<Broker>> {
        match &*self.state.read() {
            State::Serving { broker, .. } => Some(Arc::clone(broker)),
            State::Starting | State::Stopping => None,
        }
    }

    fn look(&self) -> Option<Arc<Look>> {
        let mut looked = self.looked.lock();
        if let Some(look) = &*looked
            && look.at.elapsed() < LOOK_EVERY
        {
            return Some(Arc::clone(look));
        }
        let (log, broker) = match &*self.state.read() {
            State::Serving { log, broker } => (log.clone(), Arc::clone(broker)),
            State::Starting | State::Stopping => return None,
        };
        let look = Arc::new(Look {
            at: Instant::now(),
            streams: streams(&log),
            broker: broker.status(),
            log,
        });
        *looked = Some(Arc::clone(&look));
        Some(look)
    }
}

/// The streams of users. A stream deleted meanwhile is left out.
fn streams(log: &Log) -> Vec<StreamInfo> {
    let names = log.stream_names().into_iter();
    names
        .filter_map(|name| Some(log.stream(&name).ok()?.info()))
        .collect()
}

/// Offsets that were ever durable, in all streams of users.
fn durable_offsets_ever(log: &Log) -> u64 {
    let names = log.stream_names().into_iter();
    let streams = names.filter_map(|name| log.stream(&name).ok());
    streams.map(|stream| stream.durable_offsets_ever()).sum()
}

/// The compaction of a stream: the sum of its partitions, and why some of them cannot be compacted; null if it is not
/// compacted.
fn compaction(stream: &StreamInfo) -> Value {
    let partitions = || {
        let partitions = stream.partitions.iter();
        partitions.filter_map(|lane| Some((lane.partition, lane.compaction.as_ref()?)))
    };
    if partitions().next().is_none() {
        return Value::Null;
    }
    let sum = |value: fn(&CompactionStats) -> u64| {
        let values = partitions().map(|(_, stats)| value(stats));
        values.sum::<u64>()
    };
    let faults = partitions().filter_map(|(partition, stats)| {
        let fault = stats.fault.as_ref()?;
        Some(json!({ "partition": partition, "fault": fault }))
    });
    let last = partitions().filter_map(|(_, stats)| stats.compacted_at);
    json!({
        "dirty_bytes": sum(|stats| stats.dirty_bytes),
        "total_bytes": sum(|stats| stats.total_bytes),
        "compactions": sum(|stats| stats.passes),
        "failed": sum(|stats| stats.failed),
        "bytes_before": sum(|stats| stats.bytes_before),
        "bytes_after": sum(|stats| stats.bytes_after),
        "last_ms": last.max().map(|last| last.0),
        "faults": faults.collect::<Vec<_>>(),
    })
}

/// The indexes by key of a stream together; null before the first lookup of a key.
fn keys(stream: &StreamInfo) -> Value {
    let indexes = || stream.partitions.iter().filter_map(|lane| lane.keys);
    let sum = |value: fn(KeyStats) -> u64| indexes().map(value).sum::<u64>();
    match indexes().next() {
        None => Value::Null,
        Some(_) => json!({
            "keys": sum(|keys| keys.keys),
            "bytes": sum(|keys| keys.bytes),
            "misplaced_records": sum(|keys| keys.misplaced),
            "keyless_records": sum(|keys| keys.without_key),
        }),
    }
}

impl Look {
    pub fn partitions(&self) -> u64 {
        let lanes = self
            .streams
            .iter()
            .map(|stream| stream.partitions.len() as u64);
        lanes.sum()
    }

    fn offsets(&self) -> u64 {
        self.streams.iter().map(offsets).sum()
    }

    fn bytes(&self) -> u64 {
        self.streams.iter().map(bytes).sum()
    }

    fn lag_records(&self) -> u64 {
        let topics = self.broker.groups.iter().flat_map(|group| &group.topics);
        topics.map(|topic| topic.lag_records).sum()
    }
}

/// Durable offsets: records, markers of transactions, and records that compaction has removed. The log does not count the
/// records alone.
fn offsets(stream: &StreamInfo) -> u64 {
    let lanes = stream.partitions.iter();
    lanes.map(|lane| lane.durable.0 - lane.earliest.0).sum()
}

fn bytes(stream: &StreamInfo) -> u64 {
    stream.partitions.iter().map(|lane| lane.bytes).sum()
}

impl Content for NodeContent {
    fn flows(&self) -> Vec<Arc<Running>> {
        Vec::new()
    }

    fn overview(&self) -> Value {
        let mut overview = json!({
            "name": "node",
            "uptime_s": self.started_at.elapsed().as_secs_f64(),
        });
        let Some(look) = self.look() else {
            return overview;
        };
        let rates = self.rates.lock();
        overview["streams"] = json!(look.streams.len());
        overview["partitions"] = json!(look.partitions());
        overview["groups"] = json!(look.broker.groups.len());
        overview["connections"] = json!(look.broker.connections);
        overview["durable_records"] = json!(look.offsets());
        overview["stored_bytes"] = json!(look.bytes());
        overview["lag_records"] = json!(look.lag_records());
        let compaction = look.log.stats().compaction;
        overview["compactions"] = json!(compaction.passes);
        overview["compactions_failed"] = json!(compaction.failed);
        overview["compaction_failing_partitions"] = json!(compaction.failing_partitions);
        overview["records_per_second"] = json!(rates.per_second.back().copied().unwrap_or(0.0));
        overview["last_records_per_second"] = json!(rates.per_second);
        overview
    }

    fn metrics(&self) -> Vec<Metric> {
        let uptime = self.started_at.elapsed();
        let Some(look) = self.look() else {
            return Vec::new();
        };
        let mut metrics = metrics::of(&look, uptime);
        metrics.extend((self.own_metrics)());
        metrics
    }

    fn streams(&self) -> Option<Value> {
        let look = self.look();
        let streams = look.iter().flat_map(|look| &look.streams);
        let streams = streams.map(|stream| {
            let faults = stream.partitions.iter().filter_map(|lane| {
                let fault = lane.fault.as_ref()?;
                Some(json!({ "partition": lane.partition, "fault": fault }))
            });
            json!({
                "stream": stream.name,
                "partitions": stream.partitions.len(),
                "durability": stream.config.durability,
                "records": offsets(stream),
                "bytes": bytes(stream),
                "faults": faults.collect::<Vec<_>>(),
                "keys": keys(stream),
                "compaction": compaction(stream),
            })
        });
        Some(streams.collect())
    }

    fn groups(&self) -> Option<Value> {
        let look = self.look();
        let groups = look.iter().flat_map(|look| &look.broker.groups);
        let groups = groups.map(|group| {
            let streams = group.topics.iter().map(|topic| {
                json!({
                    "stream": topic.stream,
                    "partitions": topic.partitions,
                    "lag_records": topic.lag_records,
                })
            });
            json!({
                "group": group.name,
                "state": group.state,
                "is_of_flow": group.is_of_flow,
                "members": group.members,
                "streams": streams.collect::<Vec<_>>(),
            })
        });
        Some(groups.collect())
    }

    fn keyed(&self) -> Option<Arc<dyn KeyedStreams>> {
        match &*self.state.read() {
            State::Serving { log, broker } => Some(Arc::new(NodeStreams {
                log: log.clone(),
                transactions: Arc::clone(broker.key_transactions()),
                reads: Arc::clone(&self.key_reads),
                writes: self.key_writes.clone(),
                watches: Arc::clone(&self.key_watches),
            })),
            State::Starting | State::Stopping => None,
        }
    }

    fn readiness(&self) -> Result<(), String> {
        match &*self.state.read() {
            State::Starting => Err("it starts".to_owned()),
            State::Serving { .. } => Ok(()),
            State::Stopping => Err("it stops".to_owned()),
        }
    }

    fn tick(&self) {
        let log = match &*self.state.read() {
            State::Serving { log, .. } => log.clone(),
            State::Starting | State::Stopping => return,
        };
        let (now, offsets) = (Instant::now(), durable_offsets_ever(&log));
        let mut rates = self.rates.lock();
        if let Some((at, before)) = rates.last.replace((now, offsets)) {
            let seconds = (now - at).as_secs_f64().max(1e-3);
            if rates.per_second.len() == RATES_MAX {
                rates.per_second.pop_front();
            }
            // The total falls when streams are deleted.
            let rate = offsets.saturating_sub(before) as f64 / seconds;
            rates.per_second.push_back((rate * 1e3).round() / 1e3);
        }
    }
}

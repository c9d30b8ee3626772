//! Orders in the partitions of a stream, and how many of each key there are in each window.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{ByteSize, SystemRandom, TcpNetwork, Timestamp};
use millstream_broker::{BrokerConfig, Server};
use millstream_client::ClientConfig;
use millstream_connect::CheckpointDir;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{
    BoxError, Checkpointing, Emit, Flow, FlowSettings, Parts, Resume, Running, Sink, Source,
    Watermarks, Windowed,
};
use millstream_log::{Log, LogConfig, Stream, StreamConfig};
use millstream_record::{ChunkBuilder, Compression, Record};
use tempfile::{TempDir, tempdir};

/// The difference between the times of successive orders of a partition.
const STEP_MS: u64 = 10;

pub const WINDOW_MS: i64 = 1000;

/// Orders of a chunk.
const CHUNK: usize = 50;

/// Large orders of a chunk, and the bytes of one.
const LARGE_CHUNK: usize = 5;
pub const LARGE_BYTES: usize = 10 << 10;

/// The longest wait for an expected event.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// By start of a window and key, the orders.
pub type Counted = BTreeMap<(i64, u64), u64>;

/// A log, a server of it, and the stream `s`, each of whose streamlets is one partition.
pub struct Setting {
    pub log: Log,
    pub stream: Stream,
    /// `None` while it is away.
    server: Option<Server>,
    config: BrokerConfig,
    _dir: TempDir,
}

impl Setting {
    /// The server shares its memory.
    pub fn new(partitions: u32) -> Setting {
        Setting::with(partitions, |config, dir| {
            config.local_socket = Some(dir.to_owned())
        })
    }

    /// A server whose configuration is changed, which may lie in the log's folder.
    pub fn with(partitions: u32, change: impl FnOnce(&mut BrokerConfig, &Path)) -> Setting {
        let dir = tempdir().unwrap();
        let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
        let mut config = BrokerConfig::new(([127, 0, 0, 1], 0).into());
        change(&mut config, dir.path());
        let server = start(&config, &log);
        // It comes back at the same address.
        config.listeners[0].address = server.local_address();
        let stream_config = StreamConfig {
            streamlets: partitions,
            ..StreamConfig::default()
        };
        let stream = log.create_stream("s", stream_config).unwrap();
        Setting {
            log,
            stream,
            server: Some(server),
            config,
            _dir: dir,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.config.listeners[0].address
    }

    /// The server goes away.
    pub fn stop_server(&mut self) {
        self.server = None;
    }

    /// The server comes back.
    pub fn start_server(&mut self) {
        self.server = Some(start(&self.config, &self.log));
    }

    pub fn client(&self) -> ClientConfig {
        ClientConfig::new(self.address().to_string())
    }
}

fn start(config: &BrokerConfig, log: &Log) -> Server {
    let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
    Server::start(&TcpNetwork, config.clone(), log.clone(), clock, random).unwrap()
}

pub fn time_of(number: u64) -> i64 {
    (number * STEP_MS) as i64
}

pub fn key_of(number: u64) -> u64 {
    number % 7
}

/// Appends the orders of these numbers to a partition.
pub fn produce(stream: &Stream, partition: u32, numbers: impl IntoIterator<Item = u64>) {
    append(stream, partition, numbers, CHUNK, &[]);
}

/// Appends large orders of these numbers to a partition: few of them fit into one read of a source.
pub fn produce_large(stream: &Stream, partition: u32, numbers: impl IntoIterator<Item = u64>) {
    append(stream, partition, numbers, LARGE_CHUNK, &[0; LARGE_BYTES]);
}

fn append(
    stream: &Stream,
    partition: u32,
    numbers: impl IntoIterator<Item = u64>,
    chunk_orders: usize,
    key: &[u8],
) {
    let lane = stream.partition(partition).unwrap();
    let numbers = Vec::from_iter(numbers);
    for numbers in numbers.chunks(chunk_orders) {
        let mut chunk = ChunkBuilder::new(Compression::None);
        for number in numbers {
            let (time, value) = (Timestamp(time_of(*number)), number.to_le_bytes());
            chunk.push(time, Some(key), Some(&value), &[]).unwrap();
        }
        lane.acknowledge(&lane.append(chunk.finish(None).unwrap()).unwrap())
            .unwrap();
    }
}

/// Returns the counts that windows must have for the orders of partitions.
pub fn plain(partitions: impl IntoIterator<Item = impl IntoIterator<Item = u64>>) -> Counted {
    let mut counted = Counted::new();
    for number in partitions.into_iter().flatten() {
        let start = time_of(number) / WINDOW_MS * WINDOW_MS;
        *counted.entry((start, key_of(number))).or_default() += 1;
    }
    counted
}

/// A sink of windows, which come out once.
#[derive(Clone, Default)]
pub struct Counts(Arc<Mutex<Counted>>);

impl Counts {
    pub fn get(&self) -> Counted {
        self.0.lock().unwrap().clone()
    }
}

impl Sink<WindowResult<u64, u64>> for Counts {
    fn push(&mut self, items: &[WindowResult<u64, u64>], _: &Waker) -> Result<usize, BoxError> {
        let mut counted = self.0.lock().unwrap();
        for window in items {
            let place = (window.start.0, window.key);
            if counted.insert(place, window.value).is_some() {
                return Err(format!("window {place:?} has come out before").into());
            }
        }
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}

/// A flow that counts orders in windows.
pub struct Counting {
    pub running: Running,
    pub counts: Counts,
    late: Windowed<u64, Count>,
    seen: Arc<AtomicU64>,
}

impl Counting {
    pub fn start<S>(sources: Vec<S>, settings: FlowSettings) -> Counting
    where
        S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
    {
        Counting::start_with(sources, settings, 10 * PATIENCE)
    }

    /// Partitions are idle after this time.
    pub fn start_with<S>(sources: Vec<S>, settings: FlowSettings, idle_after: Duration) -> Counting
    where
        S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
    {
        let counts = Counts::default();
        let flow = Flow::with_settings("orders", settings);
        let state = flow.windowed("counts", Windows::tumbling(WINDOW_MS), Count);
        let watermarks = Watermarks::bounded(Duration::ZERO)
            .idle_after(idle_after)
            .ahead_max(None);
        let seen = Arc::new(AtomicU64::new(0));
        let seeing = Arc::clone(&seen);
        flow.sources("orders", sources)
            .each(move |record, emit: &mut Emit<u64>| {
                seeing.fetch_add(1, Ordering::Relaxed);
                let value = record.value.unwrap_or_default();
                emit(&u64::from_le_bytes(value.try_into()?));
                Ok(())
            })
            .watermarks(|number| Timestamp(time_of(*number)), watermarks)
            .key_by(|number| key_of(*number))
            .aggregate("count", &state, |number| Timestamp(time_of(*number)))
            .sink("results", counts.clone());
        Counting {
            running: flow.run().unwrap(),
            counts,
            late: state,
            seen,
        }
    }

    /// Waits until the flow has read this number of orders.
    pub fn wait_until_read(&self, orders: u64) {
        let started_at = Instant::now();
        while self.read() < orders {
            assert!(!self.running.is_finished(), "the flow has ended");
            let read = self.read();
            assert!(started_at.elapsed() < PATIENCE, "{read} of {orders} orders");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until these windows, and no others, have come out.
    pub fn wait_for(&self, expected: &Counted) {
        let started_at = Instant::now();
        while self.counts.get().len() < expected.len() {
            assert!(started_at.elapsed() < PATIENCE, "windows do not come out");
            thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(self.counts.get(), *expected);
    }

    /// Waits until there is a checkpoint. Results after it come again.
    pub fn wait_for_a_checkpoint(&self) {
        self.wait_for_checkpoints(1);
    }

    /// Waits until this number of checkpoints was stored.
    pub fn wait_for_checkpoints(&self, count: u64) {
        let started_at = Instant::now();
        while self.checkpoints() < count {
            assert!(started_at.elapsed() < PATIENCE, "no checkpoint is kept");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the number of stored checkpoints.
    pub fn checkpoints(&self) -> u64 {
        self.running.checkpoints().unwrap().kept
    }

    /// Returns the number of orders that the flow has read.
    pub fn read(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Returns the number of open windows.
    pub fn open_windows(&self) -> u64 {
        self.late.totals().open_windows
    }

    pub fn late_events(&self) -> u64 {
        self.late.late_events()
    }
}

/// Takes checkpoints as often as it can.
pub fn resuming(place: &Arc<CheckpointDir>, resume: bool) -> FlowSettings {
    FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::clone(place) as _,
            interval: Some(Duration::from_millis(1)),
            resume: match resume {
                true => Resume::Always,
                false => Resume::Never,
            },
        }),
        ..FlowSettings::default()
    }
}

/// Returns the counts of the windows of bounded sources, and the number of late orders.
pub fn counted<S>(sources: Vec<S>) -> (Counted, u64)
where
    S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    let counting = Counting::start(sources, FlowSettings::default());
    counting.running.join().unwrap();
    (counting.counts.get(), counting.late_events())
}

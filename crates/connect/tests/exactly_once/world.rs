//! Flows that count numbers, and the stream that their results go to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{ByteSize, Clock, SystemClock, SystemRandom, TcpNetwork, Timestamp};
use millstream_broker::{BrokerConfig, Server};
use millstream_client::{Client, ClientConfig};
use millstream_connect::{CheckpointDir, EncodedRecord, ServerSink, StreamSink, StreamSource};
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{
    BoxError, Checkpointing, Checkpoints, Flow, FlowSettings, Output, Parts, Resume, Running,
    ShardKey, Sink, Source, SourceStatus, Watermarks,
};
use millstream_log::{Log, LogConfig, Stream, StreamConfig};
use tempfile::TempDir;

pub const PARTITIONS: u32 = 3;
const KEYS: u64 = 7;
const WINDOW_MS: i64 = 100;

/// The sink of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Into {
    Log,
    Server,
}

/// The fate of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// They are kept.
    None,
    /// They are kept, and that is not known: the answer is lost.
    Unknown,
    /// They are not kept.
    Lost,
}

/// Shards in a directory, with faults.
struct SharedStore {
    dir: CheckpointDir,
    fault: Mutex<Fault>,
}

impl Checkpoints for SharedStore {
    fn put(&self, key: ShardKey, part: &[u8]) -> Result<(), BoxError> {
        let fault = match key.checkpoint {
            // A flow that cannot keep its beginning does not begin.
            1 => Fault::None,
            _ => *self.fault.lock().unwrap(),
        };
        if fault != Fault::Lost {
            self.dir.put(key, part)?;
        }
        match fault {
            Fault::None => Ok(()),
            Fault::Unknown | Fault::Lost => Err("no answer".into()),
        }
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        self.dir.get(key)
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        self.dir.list()
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        self.dir.remove(key)
    }
}

pub struct World {
    into: Into,
    items: u64,
    place: Option<Arc<SharedStore>>,
    pub stream: Stream,
    node: Arc<Node>,
}

/// A server and its log.
struct Node {
    address: String,
    _server: Server,
    _log: Log,
    dir: TempDir,
}

impl World {
    pub fn new(into: Into, items: u64) -> World {
        World::with_clock(into, items, Arc::new(SystemClock::default()))
    }

    /// The same with a clock of the server.
    pub fn with_clock(into: Into, items: u64, clock: Arc<dyn Clock>) -> World {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = Log::open(LogConfig::with_pool(path, ByteSize(64 << 20))).unwrap();
        let config = StreamConfig {
            streamlets: PARTITIONS,
            ..StreamConfig::default()
        };
        let stream = log.create_stream("results", config).unwrap();
        let random = Arc::new(SystemRandom);
        let config = BrokerConfig::new(([127, 0, 0, 1], 0).into());
        let server = Server::start(&TcpNetwork, config, log.clone(), clock, random).unwrap();
        let node = Arc::new(Node {
            address: server.local_address().to_string(),
            _server: server,
            _log: log,
            dir,
        });
        World {
            into,
            items,
            place: Some(place(node.dir.path().join("checkpoints"))),
            stream,
            node,
        }
    }

    /// The same server and stream, with other checkpoints.
    pub fn beside(other: &World, items: u64) -> World {
        let node = Arc::clone(&other.node);
        World {
            into: other.into,
            items,
            place: Some(place(node.dir.path().join("others"))),
            stream: other.stream.clone(),
            node,
        }
    }

    pub fn without_checkpoints(self) -> World {
        World {
            place: None,
            ..self
        }
    }

    pub fn address(&self) -> &str {
        &self.node.address
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.node.dir.path().join("checkpoints")
    }

    pub fn client(&self) -> Client {
        Client::new(ClientConfig::new(self.address()))
    }

    pub fn fault(&self, fault: Fault) {
        if let Some(place) = &self.place {
            *place.fault.lock().unwrap() = fault;
        }
    }

    pub fn forget_checkpoints(&self) {
        if let Some(place) = &self.place {
            for key in place.list().unwrap() {
                place.remove(key).unwrap();
            }
        }
    }

    pub fn start(&self, ranks: &Ranks) -> Result<Running, String> {
        let place = self.place.clone().map(|it| it as Arc<dyn Checkpoints>);
        start(ranks, place, self.items, self.sink())
    }

    /// Returns a sink of the results, of either kind.
    pub fn sink(&self) -> Box<dyn Sink<WindowResult<u64, u64>>> {
        match self.into {
            Into::Log => Box::new(StreamSink::new(&self.stream, encode).unwrap()),
            Into::Server => Box::new(server_sink(self.address())),
        }
    }

    /// Runs on several ranks until the end, or until one of them dies. Whether they came to the end.
    pub fn run(&self, ranks: u32, death: Option<(u32, Duration)>) -> bool {
        let rank = |ranks: Ranks| {
            let running = match self.start(&ranks) {
                Ok(running) => running,
                // Another rank may have died by now.
                Err(error) => return death.map(|_| false).expect(&error),
            };
            match death {
                Some((rank, after)) if rank == ranks.rank() => {
                    thread::sleep(after);
                    drop(running);
                    false
                }
                Some(_) => running.join().is_ok() && ranks.leave().is_ok(),
                None => {
                    running.join().unwrap();
                    ranks.leave().is_ok()
                }
            }
        };
        let rank = &rank;
        thread::scope(|scope| {
            let threads: Vec<_> = Ranks::threads(ranks)
                .into_iter()
                .map(|ranks| scope.spawn(move || rank(ranks)))
                .collect();
            let ends: Vec<bool> = threads.into_iter().map(|it| it.join().unwrap()).collect();
            ends.into_iter().all(|is_end| is_end)
        })
    }

    /// Returns the results that readers of committed records see.
    pub fn results(&self) -> Vec<(u64, i64, u64)> {
        let mut results = Vec::new();
        let mut source = StreamSource::bounded(&self.stream);
        let mut output = Output::default();
        let waker = std::task::Waker::noop();
        while source.poll(&mut output, 1, waker).unwrap() == SourceStatus::Ready {}
        for chunks in output.items() {
            chunks.for_each_part(|record| {
                let key = record.key.unwrap_or_default();
                let value = record.value.unwrap_or_default();
                let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
                assert!(record.timestamp.0 > 0, "a time is set");
                let start = number(&value[..8]) as i64;
                results.push((number(key), start, number(&value[8..])));
            });
        }
        results
    }

    /// The key and the partition of each result.
    pub fn partitions(&self) -> Vec<(Vec<u8>, u32)> {
        let mut found = Vec::new();
        for partition in 0..PARTITIONS {
            let lane = self.stream.partition(partition).unwrap();
            let mut reader = lane.reader(lane.earliest());
            let mut decompressor = millstream_record::Decompressor::default();
            while let Some(chunks) = reader.read(1 << 20).unwrap() {
                for chunk in chunks.chunks() {
                    let chunk = chunk.unwrap();
                    if chunk.header().attributes.is_control() {
                        continue;
                    }
                    for record in chunk.records(&mut decompressor).unwrap() {
                        let key = record.unwrap().key.unwrap_or_default().to_vec();
                        found.push((key, partition));
                    }
                }
            }
        }
        found
    }

    pub fn open_transactions(&self) -> Vec<String> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let all = runtime.block_on(async { self.client().transactions().await.unwrap() });
        let open = all.into_iter().filter(|it| it.is_open());
        open.map(|it| it.id).collect()
    }

    /// Each result is there once, and nothing else.
    pub fn check(&self, ranks: u32) {
        // A server reports a commit a little before readers see it.
        wait_until("no transaction is open", || {
            (0..PARTITIONS).all(|partition| {
                let lane = self.stream.partition(partition).unwrap();
                lane.last_stable_offset() == lane.next_offset()
            })
        });
        let mut found = BTreeMap::new();
        for (key, start, count) in self.results() {
            let former = found.insert((key, start), count);
            assert_eq!(former, None, "no window comes twice");
        }
        let mut expected = BTreeMap::new();
        for number in 0..self.items {
            let window = number as i64 / WINDOW_MS * WINDOW_MS;
            *expected.entry((number % KEYS, window)).or_default() += 2 * u64::from(ranks);
        }
        assert_eq!(found.len(), expected.len());
        assert_eq!(found, expected);
    }
}

fn place(path: PathBuf) -> Arc<SharedStore> {
    Arc::new(SharedStore {
        dir: CheckpointDir::open(path).unwrap(),
        fault: Mutex::new(Fault::None),
    })
}

fn encode(result: &WindowResult<u64, u64>, record: &mut EncodedRecord) {
    record.key.extend(result.key.to_le_bytes());
    record.value.extend(result.start.0.to_le_bytes());
    record.value.extend(result.value.to_le_bytes());
}

pub fn server_sink(address: &str) -> impl Sink<WindowResult<u64, u64>> + use<> {
    ServerSink::new(&ClientConfig::new(address), "results", encode).unwrap()
}

pub fn checkpoint_dir(path: &Path) -> Arc<dyn Checkpoints> {
    Arc::new(CheckpointDir::open(path.to_owned()).unwrap())
}

/// Counts the numbers of two sources by key and window.
pub fn start(
    ranks: &Ranks,
    place: Option<Arc<dyn Checkpoints>>,
    items: u64,
    sink: impl Sink<WindowResult<u64, u64>>,
) -> Result<Running, String> {
    let checkpoints = place.map(|place| Checkpointing {
        store: place,
        interval: Some(Duration::from_millis(5)),
        resume: Resume::IfAny,
    });
    let settings = FlowSettings {
        ranks: ranks.clone(),
        checkpoints,
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("counted", settings);
    let counts = flow.windowed::<u64, _>("counts", Windows::tumbling(WINDOW_MS), Count);
    // Slow enough to be interrupted.
    let numbers = || {
        Generator::new(|number| {
            if number % 128 == 0 {
                thread::sleep(Duration::from_micros(500));
            }
            number
        })
        .limit(items)
    };
    let time = |number: &u64| Timestamp(*number as i64);
    flow.sources("numbers", [numbers(), numbers()])
        .watermarks(time, Watermarks::bounded(Duration::ZERO))
        .key_by(|number| number % KEYS)
        .aggregate("count", &counts, time)
        .sink("results", sink);
    flow.run().map_err(|error| error.to_string())
}

/// Waits until `condition` holds.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

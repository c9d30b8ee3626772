//! Orders in the partitions of a stream, and how many of each key there are in each window.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use millstream_base::{ByteSize, ProducerId, StreamletIndex, SystemRandom, TcpNetwork, Timestamp};
use millstream_broker::{BrokerConfig, Server};
use millstream_client::ClientConfig;
use millstream_connect::StreamProducer;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{
    BoxError, Emit, Flow, FlowSettings, Parts, Running, Sink, Source, Watermarks, Windowed,
};
use millstream_log::{Log, LogConfig, Stream, StreamConfig};
use millstream_record::Record;
use tempfile::{TempDir, tempdir};

/// How far the times of a partition's orders lie apart.
const STEP_MS: u64 = 10;

const WINDOW_MS: i64 = 1000;

/// Orders of a chunk.
const CHUNK: usize = 50;

/// By start of a window and key, the orders.
pub type Counted = BTreeMap<(i64, u64), u64>;

/// A log, a server of it, and the stream `s`, each of whose streamlets is one partition.
pub struct Setting {
    _log: Log,
    pub stream: Stream,
    server: Server,
    _dir: TempDir,
}

impl Setting {
    pub fn new(partitions: u32) -> Setting {
        let dir = tempdir().unwrap();
        let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
        let config = BrokerConfig {
            local_socket: Some(dir.path().to_owned()),
            ..BrokerConfig::new(([127, 0, 0, 1], 0).into())
        };
        let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
        let server = Server::start(&TcpNetwork, config, log.clone(), clock, random).unwrap();
        let config = StreamConfig {
            streamlets: partitions,
            ..StreamConfig::default()
        };
        let stream = log.create_stream("s", config).unwrap();
        Setting {
            _log: log,
            stream,
            server,
            _dir: dir,
        }
    }

    pub fn client(&self) -> ClientConfig {
        ClientConfig::new(self.server.local_address().to_string())
    }
}

fn time_of(number: u64) -> i64 {
    (number * STEP_MS) as i64
}

fn key_of(number: u64) -> u64 {
    number % 7
}

/// Appends the orders of these numbers to a partition.
pub fn produce(stream: &Stream, partition: u32, numbers: Range<u64>) {
    let streamlet = StreamletIndex(partition);
    let mut producer = StreamProducer::for_streamlet(stream, streamlet, ProducerId::NONE).unwrap();
    for number in numbers.clone() {
        let (time, value) = (Timestamp(time_of(number)), number.to_le_bytes());
        producer.push(time, None, Some(&value), &[]).unwrap();
        if (number - numbers.start + 1).is_multiple_of(CHUNK as u64) {
            producer.flush().unwrap();
        }
    }
    producer.flush().unwrap();
}

/// What windows have to count of the orders of partitions.
pub fn plain(partitions: impl IntoIterator<Item = (u32, Range<u64>)>) -> Counted {
    let mut counted = Counted::new();
    for number in partitions.into_iter().flat_map(|(_, numbers)| numbers) {
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
}

impl Counting {
    pub fn start<S>(sources: Vec<S>, settings: FlowSettings) -> Counting
    where
        S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
    {
        let counts = Counts::default();
        let mut flow = Flow::with_settings("orders", settings);
        let state = flow.windowed("counts", Windows::tumbling(WINDOW_MS), Count);
        let watermarks = Watermarks::bounded(Duration::ZERO).ahead_max(None);
        flow.sources("orders", sources)
            .each(|record, emit: &mut Emit<u64>| {
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
        }
    }

    pub fn late_events(&self) -> u64 {
        self.late.late_events()
    }
}

/// What the windows of bounded sources have counted, and the orders that were late.
pub fn counted<S>(sources: Vec<S>) -> (Counted, u64)
where
    S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    let counting = Counting::start(sources, FlowSettings::default());
    counting.running.join().unwrap();
    (counting.counts.get(), counting.late_events())
}

//! A server under test, and the client's side of a connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use millstream_base::{ByteSize, Clock, Disk, SystemRandom, TcpNetwork, Timestamp};
use millstream_broker::{Broker, BrokerConfig, Server};
use millstream_log::{Log, LogConfig};
use millstream_record::{ChunkBuilder, Chunks, Compression, Decompressor};
use millstream_wire::messages::create_topics_request::CreatableTopic;
use millstream_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use millstream_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use millstream_wire::messages::{
    CreateTopicsRequest, FetchRequest, GroupId, ProduceRequest, TopicName,
};
use millstream_wire::{
    ApiKey, FetchedPartition, Request, RequestHeader, Response, StrBytes, decode_response,
    encode_request, take_frame,
};
use tempfile::TempDir;

/// The longest wait of a test.
pub const TIME_MAX: Duration = Duration::from_secs(60);

/// The largest answer that a test expects.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Sends a request, and expects an answer of its kind.
macro_rules! ask {
    ($connection:expr, $api:ident, $version:expr, $request:expr) => {
        match $connection.ask($version, $request) {
            millstream_wire::Response::$api(response) => response,
            other => panic!("no answer to that: {other:?}"),
        }
    };
}
pub(crate) use ask;

/// Every server of these tests takes it, so that the tests that measure the memory of their process
/// run alone.
static TURN: RwLock<()> = RwLock::new(());

enum Turn {
    Shared(#[expect(dead_code, reason = "held")] RwLockReadGuard<'static, ()>),
    Alone(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>),
}

impl Turn {
    fn shared() -> Turn {
        Turn::Shared(TURN.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn alone() -> Turn {
        Turn::Alone(TURN.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A server and its data.
pub struct Node {
    // Server and log end before the folder is removed.
    server: Server,
    log: Log,
    dir: TempDir,
    _turn: Turn,
}

impl Node {
    pub fn start() -> Node {
        Node::with(|_| {})
    }

    /// Starts a server with other settings than the defaults.
    pub fn with(change: impl FnOnce(&mut BrokerConfig)) -> Node {
        Node::on(tempfile::tempdir().unwrap(), |_| {}, change)
    }

    /// Starts a server while no other test has one.
    pub fn alone(change: impl FnOnce(&mut BrokerConfig)) -> Node {
        Node::in_turn(
            Turn::alone(),
            tempfile::tempdir().unwrap(),
            |_| {},
            |_| {},
            change,
        )
    }

    /// Starts a server whose log has other settings, while no other test has one.
    pub fn alone_with_log(change_log: impl FnOnce(&mut LogConfig)) -> Node {
        let dir = tempfile::tempdir().unwrap();
        Node::in_turn(Turn::alone(), dir, change_log, |_| {}, |_| {})
    }

    /// Starts a server on an existing log.
    pub fn on(
        dir: TempDir,
        prepare: impl FnOnce(&Log),
        change: impl FnOnce(&mut BrokerConfig),
    ) -> Node {
        Node::in_turn(Turn::shared(), dir, |_| {}, prepare, change)
    }

    /// Starts a server whose log has other settings than the defaults.
    pub fn with_log(dir: TempDir, change_log: impl FnOnce(&mut LogConfig)) -> Node {
        Node::in_turn(Turn::shared(), dir, change_log, |_| {}, |_| {})
    }

    fn in_turn(
        turn: Turn,
        dir: TempDir,
        change_log: impl FnOnce(&mut LogConfig),
        prepare: impl FnOnce(&Log),
        change: impl FnOnce(&mut BrokerConfig),
    ) -> Node {
        let mut log_config = LogConfig::with_pool(dir.path(), ByteSize(64 << 20));
        change_log(&mut log_config);
        let log = Log::open(log_config).unwrap();
        Node::of_log(turn, dir, log, prepare, change)
    }

    /// Starts a server on a simulated disk, or with a simulated clock.
    pub fn simulated(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>) -> Node {
        Node::simulated_with(disk, clock, |_| {})
    }

    /// Starts a server on a simulated disk, or with a simulated clock, with other settings than
    /// the defaults.
    pub fn simulated_with(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        change: impl FnOnce(&mut BrokerConfig),
    ) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let log_config = LogConfig {
            journal_file: ByteSize(4 << 20),
            ..LogConfig::with_pool(dir.path(), ByteSize(64 << 20))
        };
        let log = Log::open_on(log_config, disk, clock, Arc::new(SystemRandom)).unwrap();
        Node::of_log(Turn::shared(), dir, log, |_| {}, change)
    }

    fn of_log(
        turn: Turn,
        dir: TempDir,
        log: Log,
        prepare: impl FnOnce(&Log),
        change: impl FnOnce(&mut BrokerConfig),
    ) -> Node {
        prepare(&log);
        let mut config = BrokerConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        change(&mut config);
        let clock = Arc::clone(log.clock());
        let random = Arc::new(SystemRandom);
        let server = Server::start(&TcpNetwork, config, log.clone(), clock, random).unwrap();
        Node {
            dir,
            log,
            server,
            _turn: turn,
        }
    }

    /// Stops the server in good order.
    pub fn stop(self) -> TempDir {
        drop(self.server);
        self.log.close().unwrap();
        self.dir
    }

    /// Stops the server, and starts another on the same data.
    pub fn restart(self) -> Node {
        Node::on(self.stop(), |_| {}, |_| {})
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    pub fn broker(&self) -> &Arc<Broker> {
        self.server.broker()
    }

    pub fn address(&self) -> SocketAddr {
        self.server.local_address()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The addresses of all listeners.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.server.local_addresses()
    }

    pub fn connect(&self) -> Connection {
        Connection::to(self.address())
    }
}

/// The transport of a connection.
pub trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// A connection, as a client has it.
pub struct Connection {
    stream: Box<dyn Stream>,
    tcp: Option<TcpStream>,
    received: BytesMut,
    next_id: i32,
    client_id: &'static str,
}

impl Connection {
    pub fn to(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIME_MAX)).unwrap();
        stream.set_write_timeout(Some(TIME_MAX)).unwrap();
        let tcp = stream.try_clone().unwrap();
        Connection::over(Box::new(stream), tcp)
    }

    /// Returns a connection over a socket on this machine.
    pub fn local(path: &Path) -> Connection {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(TIME_MAX)).unwrap();
        Connection {
            stream: Box::new(stream),
            tcp: None,
            received: BytesMut::new(),
            next_id: 0,
            client_id: "test",
        }
    }

    /// Returns a connection over a stream, which runs over TCP in the end.
    pub fn over(stream: Box<dyn Stream>, tcp: TcpStream) -> Connection {
        Connection {
            stream,
            tcp: Some(tcp),
            received: BytesMut::new(),
            next_id: 0,
            client_id: "test",
        }
    }

    /// Sets the client id of later requests.
    pub fn set_client_id(&mut self, client_id: &'static str) {
        self.client_id = client_id;
    }

    /// Sends a request; returns its number.
    pub fn send(&mut self, version: i16, request: impl Into<Request>) -> i32 {
        let frame = self.frame(version, request);
        self.send_bytes(&frame);
        self.next_id
    }

    /// Returns the bytes of a request.
    pub fn frame(&mut self, version: i16, request: impl Into<Request>) -> Bytes {
        let request = request.into();
        self.next_id += 1;
        let header = RequestHeader {
            api: request.api(),
            version,
            correlation_id: self.next_id,
            client_id: Some(self.client_id.into()),
        };
        encode_request(&header, &request).unwrap().into_bytes()
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends bytes, if the connection is still open.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Receives the next answer: the request's number, and the response.
    pub fn receive(&mut self, api: ApiKey, version: i16) -> (i32, Response) {
        let frame = self.receive_frame().expect("the connection is open");
        decode_response(api, version, frame).unwrap()
    }

    /// Returns the next frame, or `None` when the other side has closed the connection.
    pub fn receive_frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = take_frame(&mut self.received, ANSWER_BYTES_MAX).unwrap() {
                return Some(frame);
            }
            let mut bytes = vec![0; 64 << 10];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(read) => self.received.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing comes: {error}"),
            }
        }
    }

    /// Receives some bytes of the other side; `None` when it has closed the connection.
    pub fn receive_some(&mut self) -> Option<usize> {
        let mut bytes = vec![0; 1 << 20];
        match self.stream.read(&mut bytes) {
            Ok(read) => (read > 0).then_some(read),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("nothing comes: {error}"),
        }
    }

    /// Returns whether reading has failed or ended.
    pub fn is_broken(&mut self) -> bool {
        !matches!(self.stream.read(&mut [0; 1]), Ok(1..))
    }

    /// Returns whether the other side has neither closed the connection nor sent anything.
    pub fn is_open(&mut self) -> bool {
        let tcp = self.tcp.as_ref().expect("over TCP");
        tcp.set_nonblocking(true).unwrap();
        let peeked = tcp.peek(&mut [0; 1]);
        tcp.set_nonblocking(false).unwrap();
        matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&mut self, version: i16, request: impl Into<Request>) -> Response {
        let request = request.into();
        let api = request.api();
        let id = self.send(version, request);
        let (answered, response) = self.receive(api, version);
        assert_eq!(answered, id);
        response
    }

    /// Shuts down this side of the connection.
    pub fn finish(&mut self) {
        let tcp = self.tcp.as_ref().expect("over TCP");
        tcp.shutdown(std::net::Shutdown::Write).unwrap();
    }

    pub fn create_topic(&mut self, name: &str, partitions: i32) {
        let topic = CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(partitions)
            .with_replication_factor(1);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]);
        let created = ask!(self, CreateTopics, 7, request);
        assert_eq!(created.topics[0].error_code, 0, "{created:?}");
    }

    /// Stores values in a partition, as one chunk; returns the first one's offset.
    pub fn produce(&mut self, topic: &str, partition: i32, values: &[&str]) -> i64 {
        let request = produce_request(topic, partition, chunk(values));
        let produced = ask!(self, Produce, 9, request);
        let produced = &produced.responses[0].partition_responses[0];
        assert_eq!(produced.error_code, 0, "{produced:?}");
        produced.base_offset
    }

    /// Fetches the available records of a partition from an offset on, without waiting.
    pub fn fetch(&mut self, topic: &str, partition: i32, offset: i64) -> FetchedPartition {
        let request = fetch_request(&[(topic, partition, offset)]).with_max_wait_ms(0);
        let fetched = ask!(self, Fetch, 11, request);
        fetched.topics[0].partitions[0].clone()
    }
}

pub fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

pub fn group_id(name: &str) -> GroupId {
    GroupId(text(name))
}

pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Returns a chunk of these values; the record with number n has timestamp 1000 + n.
pub fn chunk(values: &[&str]) -> Bytes {
    let mut builder = ChunkBuilder::new(Compression::None);
    for (number, value) in values.iter().enumerate() {
        let time = Timestamp(1000 + number as i64);
        builder
            .push(time, None, Some(value.as_bytes()), &[])
            .unwrap();
    }
    Bytes::copy_from_slice(builder.finish(None).unwrap())
}

/// A chunk of records with keys and values.
pub fn keyed_chunk(records: &[(Option<&str>, &str)], compression: Compression) -> Bytes {
    let mut builder = ChunkBuilder::new(compression);
    for (key, value) in records {
        let (key, value) = (key.map(str::as_bytes), Some(value.as_bytes()));
        builder.push(Timestamp(1000), key, value, &[]).unwrap();
    }
    Bytes::copy_from_slice(builder.finish(None).unwrap())
}

pub fn produce_request(topic: &str, partition: i32, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(records));
    let topic = TopicProduceData::default()
        .with_name(topic_name(topic))
        .with_partition_data(vec![data]);
    ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic])
}

/// Returns a fetch of partitions from offsets on, without a session, for at least one byte.
pub fn fetch_request(places: &[(&str, i32, i64)]) -> FetchRequest {
    let topics = places.iter().map(|(topic, partition, offset)| {
        let partition = FetchPartition::default()
            .with_partition(*partition)
            .with_fetch_offset(*offset)
            .with_partition_max_bytes(1 << 20);
        FetchTopic::default()
            .with_topic(topic_name(topic))
            .with_partitions(vec![partition])
    });
    FetchRequest::default()
        .with_max_wait_ms(30_000)
        .with_min_bytes(1)
        .with_max_bytes(16 << 20)
        .with_topics(topics.collect())
}

/// Returns the values of the fetched records.
pub fn values(fetched: &FetchedPartition) -> Vec<String> {
    let mut decompressor = Decompressor::default();
    let mut values = Vec::new();
    for piece in &fetched.records {
        for chunk in Chunks::new(piece) {
            for record in chunk.unwrap().records(&mut decompressor).unwrap() {
                let value = record.unwrap().value.unwrap();
                values.push(String::from_utf8(value.to_vec()).unwrap());
            }
        }
    }
    values
}

/// Returns the memory of this process, in bytes.
pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line
        .and_then(|line| line.split_whitespace().next())
        .unwrap();
    kilobytes.parse::<usize>().unwrap() << 10
}

/// Waits until `condition` holds.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < TIME_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

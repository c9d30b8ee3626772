//! A server for the tests, and a proxy that cuts connections to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millstream_base::{ByteSize, SystemRandom, TcpNetwork};
use millstream_broker::{BrokerConfig, Server, set_password};
use millstream_client::{Client, ClientConfig, Producer, ProducerConfig, ProducerRecord};
use millstream_log::{Log, LogConfig, StreamConfig};
use millstream_record::Decompressor;
use millstream_wire::StrBytes;
use millstream_wire::messages::AlterClientQuotasRequest;
use millstream_wire::messages::alter_client_quotas_request::{EntityData, EntryData, OpData};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The longest time that a test waits for anything.
pub const TIME_MAX: Duration = Duration::from_secs(60);

/// A server and its data.
pub struct Node {
    // Server and log end before the folder is removed.
    server: Option<Server>,
    log: Log,
    _dir: TempDir,
    has_socket: bool,
}

impl Node {
    pub fn start() -> Node {
        Node::with(|_| {})
    }

    /// A server with a socket for clients on this machine.
    pub fn local() -> Node {
        Node::local_with(|_| {})
    }

    pub fn local_with(change: impl FnOnce(&mut BrokerConfig)) -> Node {
        Node::build(true, |_| {}, change)
    }

    /// A server with other settings than the defaults.
    pub fn with(change: impl FnOnce(&mut BrokerConfig)) -> Node {
        Node::build(false, |_| {}, change)
    }

    /// A server that knows a user, with a socket for clients on this machine.
    pub fn with_user(user: &str, password: &str, change: impl FnOnce(&mut BrokerConfig)) -> Node {
        let prepare = |log: &Log| {
            let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
            set_password(log, clock, random, user, password).unwrap();
        };
        Node::build(true, prepare, change)
    }

    fn build(
        has_socket: bool,
        prepare: impl FnOnce(&Log),
        change: impl FnOnce(&mut BrokerConfig),
    ) -> Node {
        let dir = tempfile::tempdir().unwrap();
        // Longer than the path of a socket may be.
        let data = dir.path().join("d".repeat(120));
        let log = Log::open(LogConfig::with_pool(data, ByteSize(64 << 20))).unwrap();
        prepare(&log);
        let mut config = BrokerConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        change(&mut config);
        let mut node = Node {
            _dir: dir,
            log,
            server: None,
            has_socket,
        };
        node.serve(config);
        node
    }

    fn serve(&mut self, mut config: BrokerConfig) {
        if self.has_socket {
            config.local_socket = Some(self.log.dir().to_owned());
        }
        self.server = Some(serve(&self.log, config));
    }

    /// Serves again on the same address, after a pause without a server.
    pub async fn restart(mut self) -> Node {
        let address = self.address();
        tokio::task::spawn_blocking(move || {
            drop(self.server.take());
            self.serve(BrokerConfig::new(address));
            self
        })
        .await
        .unwrap()
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    pub fn address(&self) -> SocketAddr {
        self.server.as_ref().unwrap().local_address()
    }

    /// The addresses of all listeners.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.server.as_ref().unwrap().local_addresses()
    }

    pub fn client(&self) -> Client {
        Client::new(ClientConfig::new(self.address().to_string()))
    }

    pub fn create(&self, name: &str, streamlets: u32) {
        let config = StreamConfig {
            streamlets,
            ..StreamConfig::default()
        };
        self.log.create_stream(name, config).unwrap();
    }

    /// Returns the values of a partition, in their order.
    pub fn values(&self, stream: &str, partition: u32) -> Vec<String> {
        let lane = self
            .log
            .stream(stream)
            .unwrap()
            .partition(partition)
            .unwrap();
        let mut reader = lane.reader(lane.earliest());
        let mut decompressor = Decompressor::default();
        let mut values = Vec::new();
        while let Some(chunks) = reader.read(1 << 20).unwrap() {
            for chunk in chunks.chunks() {
                for record in chunk.unwrap().records(&mut decompressor).unwrap() {
                    let value = record.unwrap().value.unwrap_or_default();
                    values.push(String::from_utf8(value.to_vec()).unwrap());
                }
            }
        }
        values
    }
}

/// Serves a log.
pub fn serve(log: &Log, config: BrokerConfig) -> Server {
    let (log, clock) = (log.clone(), Arc::clone(log.clock()));
    let random = Arc::new(SystemRandom);
    // Starting blocks, which a thread of a runtime must not.
    let start = move || Server::start(&TcpNetwork, config, log, clock, random);
    let server = std::thread::spawn(start).join().unwrap();
    server.unwrap()
}

/// A server's `Drop` blocks, which a thread of a runtime must not.
impl Drop for Node {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            std::thread::spawn(move || drop(server)).join().unwrap();
        }
    }
}

/// Passes bytes on, and from time to time cuts a connection in the middle.
pub struct Proxy {
    address: SocketAddr,
    is_cutting: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
}

impl Proxy {
    /// In front of `to`; `bytes_between` cuts on average.
    pub async fn before(to: SocketAddr, bytes_between: u64, seed: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let is_cutting = Arc::new(AtomicBool::new(true));
        let cuts = Arc::new(AtomicU64::new(0));
        let (flag, count) = (Arc::clone(&is_cutting), Arc::clone(&cuts));
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(to).await else {
                    continue;
                };
                let left = random.u64(1..2 * bytes_between);
                let (flag, count) = (Arc::clone(&flag), Arc::clone(&count));
                tokio::spawn(async move {
                    if pass(client, server, left, &flag).await {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Proxy {
            address,
            is_cutting,
            cuts,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }

    /// Lets new bytes through without cuts from now on.
    pub fn behave(&self) {
        self.is_cutting.store(false, Ordering::Relaxed);
    }
}

/// Passes bytes on in both directions, `left` of them; returns whether it has cut the connection.
async fn pass(
    client: TcpStream,
    server: TcpStream,
    mut left: u64,
    is_cutting: &AtomicBool,
) -> bool {
    let (mut client, mut server) = (client, server);
    let mut buffers = (vec![0; 16 << 10], vec![0; 16 << 10]);
    loop {
        let (count, is_from_client) = tokio::select! {
            read = client.read(&mut buffers.0) => (read.unwrap_or(0), true),
            read = server.read(&mut buffers.1) => (read.unwrap_or(0), false),
        };
        if count == 0 {
            return false;
        }
        let cuts = is_cutting.load(Ordering::Relaxed) && left < count as u64;
        let count = if cuts { left as usize } else { count };
        left = left.saturating_sub(count as u64);
        let written = match is_from_client {
            true => server.write_all(&buffers.0[..count]).await,
            false => client.write_all(&buffers.1[..count]).await,
        };
        if cuts || written.is_err() {
            return cuts;
        }
    }
}

/// Returns a client that connects through a proxy, whichever address the server announces.
pub fn client_through(proxy: &Proxy) -> Client {
    let mut config = ClientConfig::new(proxy.address().to_string());
    config.backoff = Duration::from_millis(5);
    Client::new(config)
}

/// A server that sends clients to a proxy in front of it.
pub async fn node_behind_proxy(bytes_between: u64, seed: u64) -> (Node, Proxy) {
    // The proxy's port must be known first, and the server's, too.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = free.local_addr().unwrap();
    drop(free);
    let proxy = Proxy::before(listen, bytes_between, seed).await;
    let advertised = proxy.address();
    let node = Node::with(|config| {
        config.listeners[0].address = listen;
        config.listeners[0].advertised = Some((advertised.ip().to_string(), advertised.port()));
    });
    (node, proxy)
}

/// Sends values to a stream, and waits until they are stored.
pub async fn produce(client: &Client, stream: &str, values: impl IntoIterator<Item = String>) {
    let producer = Producer::new(client, ProducerConfig::default());
    for value in values {
        producer
            .send(ProducerRecord {
                topic: stream,
                value: Some(value.as_bytes()),
                ..ProducerRecord::default()
            })
            .await
            .unwrap();
    }
    producer.flush().await.unwrap();
}

/// Sets a quota for reading on a client id, so that it cannot share memory.
pub async fn limit_reading(client: &Client, client_id: &str) {
    let text = |text: &str| StrBytes::from_string(text.to_owned());
    let entity = EntityData::default()
        .with_entity_type(text("client-id"))
        .with_entity_name(Some(text(client_id)));
    let change = OpData::default()
        .with_key(text("consumer_byte_rate"))
        .with_value(1e12);
    let entry = EntryData::default()
        .with_entity(vec![entity])
        .with_ops(vec![change]);
    let request = AlterClientQuotasRequest::default().with_entries(vec![entry]);
    let answer = client.ask(request).await.unwrap();
    assert_eq!(answer.entries[0].error_code, 0);
}

/// Waits until `condition` holds.
pub async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < TIME_MAX, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

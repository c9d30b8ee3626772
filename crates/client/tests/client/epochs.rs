//! Positions behind records that a crash of the server takes back.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use millstream_base::ByteSize;
use millstream_broker::{BrokerConfig, Server};
use millstream_client::{
    Client, ClientConfig, ClientError, Consumer, ConsumerConfig, DeliveryMode, Reset,
    ResponseError, Start,
};
use millstream_log::{Durability, Log, LogConfig, StreamConfig};
use millstream_testing::lose_power;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::consuming::{place, values};
use crate::support::{TIME_MAX, produce, serve};

/// A server whose stream `t` may lose records.
struct World {
    dir: TempDir,
    stream: u64,
    address: SocketAddr,
    running: Option<(Server, Log)>,
}

impl World {
    fn start() -> World {
        let dir = tempfile::tempdir().unwrap();
        let (server, log) = start(dir.path(), ([127, 0, 0, 1], 0).into());
        let config = StreamConfig {
            durability: Durability::Written,
            ..StreamConfig::default()
        };
        World {
            dir,
            stream: log.create_stream("t", config).unwrap().id().0,
            address: server.local_address(),
            running: Some((server, log)),
        }
    }

    fn client(&self) -> Client {
        Client::new(ClientConfig::new(self.address.to_string()))
    }

    async fn stop(&mut self) {
        let running = self.running.take();
        let stopped = tokio::task::spawn_blocking(move || drop(running));
        stopped.await.unwrap();
    }

    /// Loses the last chunk of the stream, and starts again.
    async fn crash(&mut self) {
        self.stop().await;
        lose_power(self.dir.path(), self.stream);
        self.running = Some(start(self.dir.path(), self.address));
    }
}

fn start(dir: &Path, address: SocketAddr) -> (Server, Log) {
    let log = Log::open(LogConfig::with_pool(dir, ByteSize(64 << 20))).unwrap();
    (serve(&log, BrokerConfig::new(address)), log)
}

/// Sends each value in a chunk of its own.
async fn send(client: &Client, values: [&str; 3]) {
    for value in values {
        produce(client, "t", [value.to_owned()]).await;
    }
}

async fn read(consumer: &mut Consumer) -> Result<Vec<String>, ClientError> {
    let mut all = Vec::new();
    while all.len() < 3 {
        let fetched = timeout(TIME_MAX, consumer.next()).await;
        all.extend(values(&fetched.expect("records come")?));
    }
    Ok(all)
}

/// It went on at its position, and skipped the records that had taken the place of lost ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_reads_the_records_in_place_of_those_that_a_crash_took_back() {
    for delivery in [DeliveryMode::Pull, DeliveryMode::Push] {
        let mut world = World::start();
        let client = world.client();
        send(&client, ["a", "b", "lost"]).await;
        let mut consumers = Vec::new();
        for reset in [Some(Reset::Latest), None] {
            let config = ConsumerConfig {
                delivery,
                reset,
                ..ConsumerConfig::default()
            };
            let starts = [(place("t", 0), Start::Earliest)];
            let mut consumer = Consumer::assigned(&client, config, &starts).await.unwrap();
            assert_eq!(read(&mut consumer).await.unwrap(), ["a", "b", "lost"]);
            // All of them count as read.
            let soon = Duration::from_millis(50);
            timeout(soon, consumer.next()).await.unwrap_err();
            consumers.push(consumer);
        }
        world.crash().await;
        send(&client, ["x", "y", "z"]).await;
        assert_eq!(read(&mut consumers[0]).await.unwrap(), ["x", "y", "z"]);
        let error = read(&mut consumers[1]).await.unwrap_err();
        let is_expected = error.response_error() == Some(ResponseError::OffsetOutOfRange);
        assert!(
            is_expected && error.to_string().contains("took back"),
            "{error}"
        );
        world.stop().await;
    }
}

/// The pause dropped the event that ended the subscription, and the next one began at the position that it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_behind_a_crash_skips_no_record() {
    let mut world = World::start();
    let client = world.client();
    send(&client, ["a", "b", "lost"]).await;
    let config = ConsumerConfig {
        delivery: DeliveryMode::Push,
        ..ConsumerConfig::default()
    };
    let starts = [(place("t", 0), Start::Earliest)];
    let mut consumer = Consumer::assigned(&client, config, &starts).await.unwrap();
    assert_eq!(read(&mut consumer).await.unwrap(), ["a", "b", "lost"]);
    let soon = Duration::from_millis(50);
    timeout(soon, consumer.next()).await.unwrap_err();
    world.crash().await;
    send(&client, ["x", "y", "z"]).await;
    consumer.set_paused([place("other", 0)].into());
    assert_eq!(read(&mut consumer).await.unwrap(), ["x", "y", "z"]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_reads_the_records_in_place_of_those_that_a_crash_took_back() {
    let mut world = World::start();
    let client = world.client();
    let member = || Consumer::in_group(&client, ConsumerConfig::default(), "g", &["t"]).unwrap();
    send(&client, ["a", "b", "lost"]).await;
    let mut first = member();
    assert_eq!(read(&mut first).await.unwrap(), ["a", "b", "lost"]);
    first.close().await.unwrap();
    let place = place("t", 0);
    let committed = client.committed("g", std::slice::from_ref(&place)).await;
    assert_eq!(committed.unwrap()[&place].0, 3);
    world.crash().await;
    send(&client, ["x", "y", "z"]).await;
    let mut second = member();
    assert_eq!(read(&mut second).await.unwrap(), ["x", "y", "z"]);
    second.close().await.unwrap();
    world.stop().await;
}

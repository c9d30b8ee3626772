//! The processes of server and flow, and the test's requests to the server.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use millstream_client::native::StreamSettings;
use millstream_client::{
    Client, ClientConfig, Consumer, ConsumerConfig, Decompressor, Isolation, Producer,
    ProducerConfig, ProducerRecord, Start, TopicPartition,
};
use millstream_log::StreamConfig;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::events::Counts;

/// The address of the server; with port 0 the system chooses the port.
pub const ADDRESS: &str = "MILLSTREAM_TEST_SERVER";
/// The folder of the server.
pub const DIR: &str = "MILLSTREAM_TEST_DIR";
/// The file for the counts of the flow.
pub const REPORT: &str = "MILLSTREAM_TEST_REPORT";
/// The file in the server's folder that has the address while it runs.
pub const READY: &str = "address";
/// The stream of the events.
pub const TOPIC: &str = "events";

/// A process makes progress within this time, and ends within it.
const PROCESS_MAX: Duration = Duration::from_secs(120);

/// A server with its data, and the flow that counts.
pub struct World {
    dir: TempDir,
    /// The same for all servers, once the first has begun.
    address: OnceLock<String>,
    runtime: Runtime,
}

pub struct Process(Child);

impl Process {
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Returns whether it succeeded, if it has ended.
    pub fn ended(&mut self) -> Option<bool> {
        self.0.try_wait().unwrap().map(|status| status.success())
    }

    pub fn succeeds(&mut self) -> bool {
        self.0.wait().unwrap().success()
    }
}

impl World {
    pub fn new() -> World {
        World {
            dir: tempfile::tempdir().unwrap(),
            address: OnceLock::new(),
            runtime: Runtime::new().unwrap(),
        }
    }

    pub fn start_server(&self) -> Process {
        let ready = self.dir.path().join(READY);
        let _ = fs::remove_file(&ready);
        let address = self.address.get().map_or("127.0.0.1:0", String::as_str);
        let mut server = self.start("server::server_that_the_test_kills", address);
        wait_until("the server begins", || {
            assert_eq!(server.ended(), None, "the server runs");
            ready.exists()
        });
        let address = fs::read_to_string(ready).unwrap();
        assert_eq!(self.address.get_or_init(|| address.clone()), &address);
        server
    }

    pub fn start_flow(&self) -> Process {
        self.start("flow::flow_that_the_test_kills", self.address())
    }

    fn start(&self, test: &str, address: &str) -> Process {
        let mut command = millstream_testing::command(env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", test, "--nocapture"])
            .env(ADDRESS, address)
            .env(DIR, self.dir.path())
            .env(REPORT, self.dir.path().join("report"))
            .stdout(Stdio::null());
        Process(millstream_testing::start(&mut command, PROCESS_MAX).unwrap())
    }

    fn address(&self) -> &str {
        self.address.get().unwrap()
    }

    fn client(&self) -> Client {
        Client::new(ClientConfig::new(self.address()))
    }

    /// Sends the events to four partitions.
    pub fn produce(&self, events: &[String]) {
        let config = StreamConfig::default();
        let settings = StreamSettings {
            streamlets: 4,
            lanes: 1,
            virtual_logs: 1,
            group_segments: config.group_segments,
            segment_bytes: config.segment,
            ..StreamSettings::default()
        };
        self.runtime.block_on(async {
            let client = self.client();
            client.create_stream(TOPIC, settings).await.unwrap();
            let producer = Producer::new(&client, ProducerConfig::default());
            for event in events {
                let record = ProducerRecord {
                    topic: TOPIC,
                    value: Some(event.as_bytes()),
                    ..ProducerRecord::default()
                };
                producer.send(record).await.unwrap();
            }
            producer.flush().await.unwrap();
        });
    }

    /// Returns the number of committed changes of both elements.
    pub fn changes(&self) -> u64 {
        self.runtime.block_on(async {
            let client = self.client();
            let mut ends = Vec::new();
            for element in ["users", "pages"] {
                let Ok(topic) = client.topic(&format!("clicks.state.{element}")).await else {
                    return 0;
                };
                let places = topic.partitions().map(|place| (place, Start::Latest));
                let places: Vec<_> = places.collect();
                let offsets = client.offsets(&places, Isolation::Committed).await.unwrap();
                ends.extend(offsets.into_values());
            }
            ends.iter().map(|end| end.0).sum()
        })
    }

    /// Returns the counts that the flow reported at its end.
    pub fn report(&self) -> Counts {
        let report = fs::read(self.dir.path().join("report")).unwrap();
        serde_json::from_slice(&report).unwrap()
    }

    /// Returns the newest values of all keys, as any consumer sees them.
    pub fn consume(&self) -> Counts {
        ["users", "pages"].map(|element| {
            let topic = format!("clicks.state.{element}");
            self.runtime.block_on(newest(&self.client(), &topic))
        })
    }
}

async fn newest(client: &Client, topic: &str) -> BTreeMap<String, u64> {
    let topic = client.topic(topic).await.unwrap();
    let places: Vec<TopicPartition> = topic.partitions().collect();
    let asked = |start| -> Vec<_> { places.iter().map(|it| (it.clone(), start)).collect() };
    let (earliest, latest) = (asked(Start::Earliest), asked(Start::Latest));
    let ends = client.offsets(&latest, Isolation::Committed);
    let ends = ends.await.unwrap();
    let config = ConsumerConfig::default();
    let consumer = Consumer::assigned(client, config, &earliest);
    let mut consumer = consumer.await.unwrap();
    let mut newest = BTreeMap::new();
    while consumer
        .positions()
        .iter()
        .any(|(place, next)| *next < ends[place])
    {
        let fetched = consumer.next().await.unwrap();
        let each = fetched.each(&mut Decompressor::default(), |record| {
            let key = String::from_utf8(record.key.unwrap().to_vec()).unwrap();
            let value = serde_json::from_slice(record.value.unwrap()).unwrap();
            newest.insert(key, value);
            std::ops::ControlFlow::Continue(())
        });
        each.unwrap();
    }
    newest
}

/// Waits until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < PROCESS_MAX, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

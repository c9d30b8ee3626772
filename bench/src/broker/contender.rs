//! The brokers: their start, and their processor time and memory.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::durability::Durability;
use super::load::{self, Producer};
use crate::connection::{Connection, check_produced, chunk, produce_frame};
use crate::fetcher::Fetcher;
use crate::folder::Folder;
use crate::measure::Bench;
use crate::proc::{cpu_by_thread, cpu_of_write_back, status_mib, took};
use crate::project::{self, is_built, our_program};
use crate::server;

/// A broker that does not answer by then does not work.
const START_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The server's setting for the durability of a topic.
const DURABILITY: &str = "millstream.durability";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Ours,
    Kafka,
}

/// A broker that runs. It ends with this.
pub struct Node {
    contender: Contender,
    child: Child,
    address: SocketAddr,
    /// The time from the start of the process until it had accepted a record.
    pub started_s: f64,
    _data: Folder,
}

impl Node {
    /// Starts a broker with an empty data folder, and waits until it has accepted a record.
    pub fn start(bench: &Bench, contender: Contender, bytes_max: u64) -> Result<Node> {
        let address = free_address()?;
        let name = match contender {
            Contender::Ours => "broker-ours",
            Contender::Kafka => "broker-kafka",
        };
        let data = bench.folder(name, bytes_max)?;
        let mut command = match contender {
            Contender::Ours => server::command(address, data.path())?,
            Contender::Kafka => kafka_command(address, data.path())?,
        };
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let started_at = Instant::now();
        let child = command.spawn().context("cannot start the broker")?;
        let mut node = Node {
            contender,
            child,
            address,
            started_s: 0.0,
            _data: data,
        };
        let connection = node.first_connection(started_at)?;
        node.accept_a_record(connection)?;
        node.started_s = started_at.elapsed().as_secs_f64();
        Ok(node)
    }

    fn first_connection(&mut self, started_at: Instant) -> Result<Connection> {
        while started_at.elapsed() < START_MAX {
            if let Ok(connection) = Connection::to(self.address) {
                return Ok(connection);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{:?} has ended: {status}", self.contender);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("{:?} does not listen", self.contender)
    }

    /// Kafka listens before it can do anything.
    fn accept_a_record(&self, mut connection: Connection) -> Result<()> {
        let started_at = Instant::now();
        loop {
            let done = connection
                .create_topic("first", 1, &[])
                .and_then(|()| connection.produce_one("first"));
            match done {
                Ok(()) => return Ok(()),
                Err(error) if started_at.elapsed() > START_MAX => {
                    return Err(error.context(format!("{:?} takes no record", self.contender)));
                }
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
            connection = Connection::to(self.address)?;
        }
    }

    pub fn contender(&self) -> Contender {
        self.contender
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Creates a topic that does not exist.
    pub fn create_topic(&self, name: &str, partitions: i32, durability: Durability) -> Result<()> {
        let setting = match (self.contender, durability) {
            (Contender::Ours, Durability::Async) => Some((DURABILITY, "async")),
            (Contender::Ours, Durability::Written) => Some((DURABILITY, "written")),
            (Contender::Ours, Durability::Fdatasync) => Some((DURABILITY, "sync")),
            (Contender::Kafka, Durability::Async | Durability::Written) => None,
            (Contender::Kafka, Durability::Fdatasync) => bail!("Kafka is measured as it comes"),
        };
        let mut connection = Connection::to(self.address)?;
        connection.create_topic(name, partitions, setting.as_slice())?;
        // Kafka's answer comes before the partitions are there.
        let partitions: Vec<i32> = (0..partitions).collect();
        let request = produce_frame(name, &partitions, &chunk(1)?)?;
        let started_at = Instant::now();
        loop {
            connection.send(&request)?;
            match check_produced(connection.receive()?) {
                Err(error) if started_at.elapsed() > START_MAX => return Err(error),
                Err(_) => std::thread::sleep(LOOK_EVERY),
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Warms the broker up with producers and consumers, so that a just-in-time compiler has done its work.
    fn warm_up(&self, lasts: Duration) -> Result<()> {
        const TOPIC: &str = "warm-up";
        self.create_topic(TOPIC, 1, Durability::Async)?;
        const CHUNK_RECORDS: usize = 9;
        let small = Producer {
            frames: vec![produce_frame(TOPIC, &[0], &chunk(CHUNK_RECORDS)?)?],
            in_flight: 5,
        };
        let sent = load::run(self.address, &[small], lasts, check_produced)?;
        let end = sent.frames() as i64 * CHUNK_RECORDS as i64;
        let until = Instant::now() + lasts;
        while Instant::now() < until {
            let mut consumer = Fetcher::new(self.address, TOPIC, 0)?;
            while Instant::now() < until && consumer.fetch()? < end {}
        }
        self.delete_topic(TOPIC)
    }

    pub fn delete_topic(&self, name: &str) -> Result<()> {
        Connection::to(self.address)?.delete_topic(name)
    }

    /// Runs `work`; returns its result, and the processor time that it cost the broker, in seconds. The count includes
    /// the system's own writes to the disk for the broker, until all are written.
    pub fn cpu_of<T>(&self, bench: &Bench, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
        let look = || anyhow::Ok([cpu_by_thread(self.child.id())?, cpu_of_write_back()?]);
        let before = look()?;
        let result = work()?;
        bench.settle_disk();
        let after = look()?;
        let both = before.iter().zip(&after);
        let ns: u64 = both.flat_map(|(before, after)| took(before, after)).sum();
        Ok((result, ns as f64 / 1e9))
    }

    /// In MiB: the memory that it has resident now, and the most that it ever had.
    pub fn resident_mib(&self) -> Result<(f64, f64)> {
        let id = self.child.id();
        Ok((status_mib(id, "VmRSS")?, status_mib(id, "VmHWM")?))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Its data goes with it, so nothing is lost.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kafka_command(address: SocketAddr, data: &Path) -> Result<Command> {
    let script = project::root().join("bench/peers/kafka/run.sh");
    let prepared = millstream_testing::command(&script)
        .arg("prepare")
        .arg(data)
        .arg(address.port().to_string())
        .status()?;
    ensure!(
        prepared.success(),
        "Kafka's data cannot be prepared (see above)"
    );
    let mut command = millstream_testing::command(script);
    command.arg("start").arg(data);
    Ok(command)
}

/// Returns whether Kafka is built, and prints a line if not. A quick run does not wait for it.
pub fn has_kafka(bench: &Bench) -> bool {
    !bench.is_quick() && is_built("kafka/lib", "Apache Kafka")
}

/// A port that is free, as is the one behind it.
fn free_address() -> Result<SocketAddr> {
    for _ in 0..100 {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let next = SocketAddr::new(address.ip(), address.port().saturating_add(1));
        if TcpListener::bind(next).is_ok() {
            return Ok(address);
        }
    }
    bail!("there are no two free ports side by side")
}

/// A broker, and when it answers producers.
pub struct Side<'n> {
    pub node: &'n Node,
    pub durability: Durability,
}

/// Both brokers, where Kafka is built; else ours alone.
pub struct Nodes {
    pub ours: Node,
    pub kafka: Option<Node>,
}

impl Nodes {
    pub fn start(bench: &Bench, bytes_max: u64) -> Result<Nodes> {
        ensure!(
            our_program().is_some(),
            "build the program millstream first"
        );
        let kafka = has_kafka(bench)
            .then(|| Node::start(bench, Contender::Kafka, bytes_max))
            .transpose()?;
        let nodes = Nodes {
            ours: Node::start(bench, Contender::Ours, bytes_max)?,
            kafka,
        };
        for node in nodes.kafka.iter().chain([&nodes.ours]) {
            node.warm_up(Duration::from_millis(bench.size(6000, 10)))?;
        }
        Ok(nodes)
    }

    /// Ours with each of these, in their order, and then Kafka as it comes, if it is there.
    pub fn sides(&self, durabilities: &[Durability]) -> Vec<Side<'_>> {
        let ours = durabilities.iter().map(|durability| Side {
            node: &self.ours,
            durability: *durability,
        });
        let kafka = self.kafka.iter().map(|node| Side {
            node,
            durability: Durability::Written,
        });
        ours.chain(kafka).collect()
    }
}

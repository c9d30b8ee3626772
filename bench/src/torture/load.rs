//! Writers, one for each partition: they send records and note the acknowledged ones, until they or the server are
//! stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use millstream_base::Offset;
use millstream_client::{Compression, Producer, ProducerConfig, ProducerRecord};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::books::{BACKOFF, Books, GROUP, Partition, client};
use crate::stamp::Stamp;

const BURST_RECORDS_MAX: usize = 48;
const REST_MAX: Duration = Duration::from_millis(20);

/// A writer that has sent this much rests before each burst, so that no trial fills its disk by accident.
const BYTES_MAX: usize = 2 << 20;
const REST_OF_FULL: Duration = Duration::from_millis(200);

/// Longer than any outage: a record that is given up is a fault.
const DELIVERY_MAX: Duration = Duration::from_secs(600);

/// By then the server has answered, however busy the machine is.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// Between two questions how much is durable.
const LOOK_EVERY: Duration = Duration::from_millis(40);

pub struct Load {
    tasks: JoinSet<()>,
    state: Arc<State>,
    /// The partitions that are written to.
    partitions: Vec<usize>,
    /// The number of acknowledged records of each partition when it began.
    before: Vec<u64>,
}

struct State {
    books: Arc<Books>,
    address: SocketAddr,
    is_over: AtomicBool,
    faults: Mutex<Vec<String>>,
}

impl Load {
    /// Writes to these partitions.
    pub async fn start(
        books: &Arc<Books>,
        address: SocketAddr,
        partitions: Vec<usize>,
        seed: u64,
    ) -> Load {
        let mut load = Load {
            tasks: JoinSet::new(),
            state: Arc::new(State {
                books: Arc::clone(books),
                address,
                is_over: AtomicBool::new(false),
                faults: Mutex::default(),
            }),
            before: books.acknowledged(),
            partitions,
        };
        for &partition in &load.partitions {
            let state = Arc::clone(&load.state);
            load.tasks.spawn(async move {
                let partition = &state.books.partitions[partition];
                if let Err(error) = write(&state, partition, seed).await {
                    let fault = format!("the writer of {}: {error:#}", partition.name());
                    state.faults.lock().push(fault);
                }
            });
        }
        let state = Arc::clone(&load.state);
        load.tasks.spawn(async move { look(&state).await });
        load
    }

    /// Waits until something more of each partition is acknowledged.
    pub async fn until_all_acknowledged(&mut self) -> Result<()> {
        let started_at = Instant::now();
        loop {
            self.check()?;
            let now = self.state.books.acknowledged();
            let mut partitions = self.partitions.iter();
            let lacking = partitions.find(|partition| now[**partition] == self.before[**partition]);
            let Some(lacking) = lacking else {
                return Ok(());
            };
            ensure!(
                started_at.elapsed() < ANSWER_MAX,
                "no record of {} is acknowledged within {ANSWER_MAX:?}",
                self.state.books.partitions[*lacking].name()
            );
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// From here on more records must be acknowledged.
    pub fn begin_anew(&mut self) {
        self.before = self.state.books.acknowledged();
    }

    /// Lets the writers finish their requests.
    pub async fn finish(mut self) -> Result<()> {
        self.state.is_over.store(true, Ordering::SeqCst);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let ended = timeout(ANSWER_MAX, all).await;
        self.check()?;
        ended.context("records are not acknowledged, and the server runs")
    }

    /// Ends the writers, whose server is gone. Returns their errors.
    pub async fn abort(mut self) -> Vec<String> {
        self.tasks.shutdown().await;
        std::mem::take(&mut *self.state.faults.lock())
    }

    fn check(&self) -> Result<()> {
        match self.state.faults.lock().first() {
            Some(fault) => bail!("{fault}"),
            None => Ok(()),
        }
    }
}

async fn write(state: &State, partition: &Partition, seed: u64) -> Result<()> {
    let mut random = Rng::with_seed(seed ^ partition.writer as u64);
    let client = client(state.address);
    let config = ProducerConfig {
        compression: Compression::ALL[random.usize(0..Compression::ALL.len())],
        delivery_timeout: DELIVERY_MAX,
        ..ProducerConfig::default()
    };
    let producer = Producer::new(&client, config);
    let mut value = Vec::new();
    let mut bytes = 0;
    while !state.is_over.load(Ordering::SeqCst) {
        let mut deliveries = Vec::new();
        for _ in 0..random.usize(1..=BURST_RECORDS_MAX) {
            let sequence = partition.send();
            let stamp = Stamp {
                writer: partition.writer,
                sequence,
            };
            stamp.write(&mut value);
            bytes += value.len();
            let record = ProducerRecord {
                topic: partition.stream,
                partition: Some(partition.partition as i32),
                value: Some(&value),
                ..ProducerRecord::default()
            };
            let delivery = loop {
                match producer.send(record).await {
                    Ok(delivery) => break delivery,
                    Err(error) if error.is_retriable() => sleep(BACKOFF).await,
                    Err(error) => return Err(error).context("a record is not taken"),
                }
            };
            deliveries.push((sequence, delivery));
        }
        for (sequence, delivery) in deliveries {
            let stored = delivery.wait().await.context("a record is given up")?;
            if let Some(offset) = stored.offset {
                ensure!(
                    offset.0 == sequence,
                    "record {sequence} is stored at offset {offset}"
                );
            }
            partition.acknowledge(sequence + 1);
        }
        if bytes > BYTES_MAX {
            sleep(REST_OF_FULL).await;
        } else if random.u8(0..4) == 0 {
            sleep(REST_MAX.mul_f64(random.f64())).await;
        }
    }
    Ok(())
}

/// Asks again and again how much is durable: that must outlast a crash.
async fn look(state: &State) {
    let client = client(state.address);
    while !state.is_over.load(Ordering::SeqCst) {
        for partition in state.books.partitions.iter().filter(is_durable_later) {
            // A server that is gone has no answer.
            let Ok(described) = client.stream(partition.stream).await else {
                continue;
            };
            let mut lanes = described.lanes.iter();
            let lane = lanes.find(|lane| lane.partition == partition.partition);
            if let Some(lane) = lane {
                partition.note_durable(lane.durable.0);
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

fn is_durable_later(partition: &&Partition) -> bool {
    partition.is_durable_later()
}

/// Commits the positions of a group, which must be there from then on.
pub async fn commit(books: &Books, address: SocketAddr) -> Result<()> {
    let partitions = books.partitions.iter();
    let offsets = partitions.filter(|partition| !partition.is_durable_later());
    let offsets = offsets
        .map(|partition| (partition.place(), Offset(partition.acknowledged())))
        .collect();
    let client = client(address);
    client.set_offsets(GROUP, &offsets).await?;
    *books.committed.lock() = offsets;
    Ok(())
}

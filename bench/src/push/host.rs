//! The broker's process: a server and its log, and the consumers in the same process.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use millstream_base::{ByteSize, SystemRandom, TcpNetwork, Timestamp};
use millstream_broker::{BrokerConfig, Server};
use millstream_log::{Durability, Log, LogConfig, StreamConfig};
use millstream_record::{ChunkBuilder, Compression};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};

use super::consumer::{Consumers, WORKING_NS_MIN};
use super::data::Data;
use super::feed;
use super::order::{BrokerAddress, Consumed, Order};
use crate::child::{self, hear, report};
use crate::clock::{cpu_s, monotonic_ns};
use crate::proc::{cpu_by_thread, took};

/// The work of the broker's process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    pub dir: PathBuf,
    pub pool_bytes: u64,
    /// It runs alone on one core.
    pub has_one_core: bool,
    /// It shares no memory, as a server on another machine.
    pub is_remote: bool,
}

impl child::Task for Task {
    const NAME: &'static str = "push/host";

    fn run(self) -> Result<()> {
        run(&self)
    }
}

/// A command to the process, which answers each by one line.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// Create a stream that is on disk before producers are answered, or never: `()`.
    Create {
        stream: String,
        lanes: u32,
        is_synced: bool,
    },
    /// Delete it: `()`.
    Delete { stream: String },
    /// Append this many chunks to each lane: the offset behind them.
    Fill {
        stream: String,
        data: Data,
        chunks: usize,
    },
    /// Append this many records to the first lane, each with its time: `()`.
    Stamp {
        stream: String,
        every_us: u64,
        count: usize,
    },
    /// Begin to consume: `()`.
    Consume(Order),
    /// Wait until that is done: [`Consumed`].
    Await,
    /// Look at the clocks: `()`.
    Begin,
    /// Look again: [`Used`].
    End,
}

/// The processor time and threads of the process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Used {
    pub cpu_s: f64,
    /// The threads that worked, among all threads.
    pub threads: usize,
}

fn run(task: &Task) -> Result<()> {
    if task.has_one_core {
        take_one_core()?;
    }
    let config = LogConfig::with_pool(&task.dir, ByteSize(task.pool_bytes));
    let log = Log::open(config)?;
    let mut config = BrokerConfig::new(([127, 0, 0, 1], 0).into());
    if !task.is_remote {
        config.local_socket = Some(std::path::absolute(log.dir())?);
    }
    let clock = Arc::clone(log.clock());
    let random = Arc::new(SystemRandom);
    let server = Server::start(&TcpNetwork, config, log.clone(), clock, random)?;
    report(&BrokerAddress {
        address: server.local_address(),
    })?;
    serve(&log)?;
    drop(server);
    Ok(log.close()?)
}

/// Keeps this thread, and those that it starts, on one core.
fn take_one_core() -> Result<()> {
    let all = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(first.unwrap_or(0));
    Ok(sched_setaffinity(None, &one)?)
}

/// Serves commands until the input ends.
fn serve(log: &Log) -> Result<()> {
    let mut consumers = None;
    let mut before = (0.0, Default::default());
    while let Some(command) = hear::<Command>()? {
        match command {
            Command::Create {
                stream,
                lanes,
                is_synced,
            } => {
                let config = StreamConfig {
                    streamlets: lanes,
                    durability: match is_synced {
                        true => Durability::Sync,
                        false => Durability::Memory,
                    },
                    ..StreamConfig::default()
                };
                log.create_stream(&stream, config)?;
                report(&())?;
            }
            Command::Delete { stream } => {
                log.delete_stream(&stream)?;
                report(&())?;
            }
            Command::Fill {
                stream,
                data,
                chunks,
            } => report(&fill(log, &stream, data, chunks)?)?,
            Command::Stamp {
                stream,
                every_us,
                count,
            } => {
                stamp(log, &stream, Duration::from_micros(every_us), count)?;
                report(&())?;
            }
            Command::Consume(order) => {
                consumers = Some(Consumers::start(&order, || feed::of_log(log, &order))?);
                report(&())?;
            }
            Command::Await => {
                let consumers = consumers.take().context("no consumers were started")?;
                let consumed: Consumed = consumers.join()?;
                report(&consumed)?;
            }
            Command::Begin => {
                let threads = cpu_by_thread(std::process::id())?;
                before = (cpu_s(ClockId::ProcessCPUTime), threads);
                report(&())?;
            }
            Command::End => {
                let threads = cpu_by_thread(std::process::id())?;
                let working = took(&before.1, &threads).filter(|ns| *ns >= WORKING_NS_MIN);
                report(&Used {
                    threads: working.count(),
                    cpu_s: cpu_s(ClockId::ProcessCPUTime) - before.0,
                })?;
            }
        }
    }
    Ok(())
}

fn fill(log: &Log, stream: &str, data: Data, chunks: usize) -> Result<u64> {
    let stream = log.stream(stream)?;
    let all = data.chunks()?;
    let lanes = (0..stream.partition_count()).map(|lane| stream.partition(lane));
    let lanes = lanes.collect::<Result<Vec<_>, _>>()?;
    let mut end = 0;
    for chunk in all.cycle().take(chunks) {
        for lane in &lanes {
            end = lane.append(chunk)?.next_offset.0;
        }
    }
    Ok(end)
}

/// Appends records, one by one, each in a chunk of its own that has the time just before.
fn stamp(log: &Log, stream: &str, every: Duration, count: usize) -> Result<()> {
    let lane = log.stream(stream)?.partition(0)?;
    let started_at = Instant::now();
    let mut builder = ChunkBuilder::new(Compression::None);
    for number in 0..count as u32 {
        let due = started_at + every * number;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut value = [0; 100];
        value[..8].copy_from_slice(&monotonic_ns().to_le_bytes());
        builder.push(Timestamp(1_700_000_000_000), None, Some(&value), &[])?;
        lane.append(builder.finish(None)?)?;
        builder.clear();
    }
    Ok(())
}

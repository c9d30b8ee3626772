//! Consumers: a thread for each source.

use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};

use super::feed::{self, Feed};
use super::order::{BrokerAddress, Consumed, Delivery, Order};
use super::windowed;
use super::work::{RecordWork, Worker};
use crate::child::{self, hear, report};
use crate::clock::{cpu_s, monotonic_ns};
use crate::proc::cpu_by_thread;

/// A thread that took less did not work.
pub const WORKING_NS_MIN: u64 = 1_000_000;

/// The work of a process of consumers.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    pub broker: BrokerAddress,
    pub delivery: Delivery,
    pub order: Order,
}

impl child::Task for Task {
    const NAME: &'static str = "push/consumer";

    fn run(self) -> Result<()> {
        run(&self)
    }
}

/// Consumes: sends the parent that it is ready, then its results; and stays until the parent has seen enough.
fn run(task: &Task) -> Result<()> {
    let before_s = cpu_s(ClockId::ProcessCPUTime);
    let consumers = Consumers::start(&task.order, || {
        feed::open(&task.broker, task.delivery, &task.order)
    })?;
    report(&())?;
    let mut consumed = consumers.join()?;
    consumed.cpu_s = cpu_s(ClockId::ProcessCPUTime) - before_s;
    report(&consumed)?;
    let _over: Option<()> = hear()?;
    Ok(())
}

/// Consumers at work.
pub struct Consumers {
    started_ns: u64,
    threads: Vec<JoinHandle<Result<Consumed>>>,
}

impl Consumers {
    pub fn start(
        order: &Order,
        open: impl FnOnce() -> Result<Vec<Box<dyn Feed>>>,
    ) -> Result<Consumers> {
        let started_ns = monotonic_ns();
        let start = |(feed, source): (Box<dyn Feed>, &Vec<u32>)| {
            let worker = Worker::new(&order.work)?;
            let (partitions, found) = (source.clone(), order.found);
            let work = order.work.clone();
            Ok(thread::spawn(move || match work {
                RecordWork::WindowedWords { words } => {
                    in_windows(feed, worker, &partitions, found, words)
                }
                _ => drained(feed, found * partitions.len() as u64, worker),
            }))
        };
        let threads = open()?.into_iter().zip(&order.sources).map(start);
        Ok(Consumers {
            started_ns,
            threads: threads.collect::<Result<_>>()?,
        })
    }

    /// Waits until all are done.
    pub fn join(self) -> Result<Consumed> {
        let mut all = Consumed {
            started_ns: self.started_ns,
            ..Consumed::default()
        };
        for thread in self.threads {
            let one = thread
                .join()
                .map_err(|_| anyhow!("a consumer panicked"))??;
            all.records += one.records;
            all.found += one.found;
            all.finished_ns = all.finished_ns.max(one.finished_ns);
            all.cpu_s += one.cpu_s;
            all.threads = all.threads.max(one.threads);
            all.latencies.extend(one.latencies);
        }
        Ok(all)
    }
}

/// Works in a flow of the engine.
fn in_windows(
    feed: Box<dyn Feed>,
    worker: Worker,
    partitions: &[u32],
    records: u64,
    words: u64,
) -> Result<Consumed> {
    let counted = windowed::run(feed, worker, partitions, records, words)?;
    Ok(Consumed {
        records: counted.records,
        found: counted.records,
        cpu_s: cpu_s(ClockId::ThreadCPUTime) + counted.cpu_s,
        ..ended()
    })
}

/// Works on this thread.
fn drained(mut feed: Box<dyn Feed>, found: u64, mut worker: Worker) -> Result<Consumed> {
    feed::drain(&mut *feed, found, &mut worker)?;
    Ok(Consumed {
        records: worker.records,
        found: worker.found(),
        latencies: worker.latencies(),
        ..ended()
    })
}

/// Returns the figures of this thread at its end, for any kind of work.
fn ended() -> Consumed {
    let finished_ns = monotonic_ns();
    let threads = cpu_by_thread(std::process::id()).unwrap_or_default();
    Consumed {
        finished_ns,
        cpu_s: cpu_s(ClockId::ThreadCPUTime),
        threads: threads.values().filter(|ns| **ns >= WORKING_NS_MIN).count(),
        ..Consumed::default()
    }
}

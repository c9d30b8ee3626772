//! Consumers: a thread for each source.

use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::feed::{self, Feed};
use super::order::{Consumed, Delivery, Order, Place};
use super::work::{Worker, monotonic_ns};
use crate::child::{hear, say};
use crate::proc::cpu_by_thread;

/// A thread that took less did not work.
pub const WORKING_NS_MIN: u64 = 1_000_000;

/// What a process of consumers is to do.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    pub place: Place,
    pub delivery: Delivery,
    pub order: Order,
}

/// The child's part: says that it is ready, then what it has done; and stays until its parent has seen enough.
pub fn run(task: &Task) -> Result<()> {
    let before_s = cpu_s(ClockId::ProcessCPUTime);
    let consumers = Consumers::start(&task.order, || {
        feed::open(&task.place, task.delivery, &task.order)
    })?;
    say(&())?;
    let mut consumed = consumers.join()?;
    consumed.cpu_s = cpu_s(ClockId::ProcessCPUTime) - before_s;
    say(&consumed)?;
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
        let start = |(mut feed, source): (Box<dyn Feed>, &Vec<u32>)| {
            let mut worker = Worker::new(&order.work)?;
            let found = order.found * source.len() as u64;
            Ok(thread::spawn(move || {
                feed::drain(&mut *feed, found, &mut worker)?;
                Ok(done(worker))
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

/// What a thread has done that ends now.
fn done(worker: Worker) -> Consumed {
    let finished_ns = monotonic_ns();
    let threads = cpu_by_thread(std::process::id()).unwrap_or_default();
    Consumed {
        started_ns: 0,
        records: worker.records,
        found: worker.found(),
        finished_ns,
        cpu_s: cpu_s(ClockId::ThreadCPUTime),
        threads: threads.values().filter(|ns| **ns >= WORKING_NS_MIN).count(),
        latencies: worker.latencies(),
    }
}

pub fn cpu_s(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

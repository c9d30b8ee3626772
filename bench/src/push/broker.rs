//! The broker as benchmarks see it, and a run of producers and consumers.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;

use super::consumer;
use super::data::Data;
use super::host::{self, Command, Used};
use super::order::{BrokerAddress, Consumed, Delivery, Order};
use super::work::RecordWork;
use crate::child::Working;
use crate::folder::Folder;
use crate::measure::Bench;

/// The stream of the run that is under way.
pub const STREAM: &str = "stream";

/// A broker in a process of its own, which ends with this.
pub struct Broker {
    process: Working,
    address: BrokerAddress,
    _folder: Folder,
}

/// Consumers that are ready, or at work.
pub enum Consuming {
    Here(Working),
    InBroker,
}

/// A broker that shares its memory, and one that does not, as if it were on another machine: consumers do not
/// notice which it is.
pub struct Brokers {
    pub near: Broker,
    pub remote: Broker,
}

impl Brokers {
    pub fn start(bench: &Bench, has_one_core: bool) -> Result<Brokers> {
        Ok(Brokers {
            near: Broker::start(bench, has_one_core, false)?,
            remote: Broker::start(bench, has_one_core, true)?,
        })
    }

    /// The one for consumers of this kind.
    pub fn of(&mut self, delivery: Option<Delivery>) -> &mut Broker {
        match delivery.is_some_and(Delivery::is_remote) {
            true => &mut self.remote,
            false => &mut self.near,
        }
    }
}

impl Broker {
    fn start(bench: &Bench, has_one_core: bool, is_remote: bool) -> Result<Broker> {
        let name = if is_remote { "push-remote" } else { "push" };
        let folder = bench.folder(name, 1 << 30)?;
        let task = host::Task {
            dir: folder.path().join("log"),
            pool_bytes: bench.size(1 << 30, 128 << 20),
            has_one_core,
            is_remote,
        };
        let mut process = Working::start(&task)?;
        let address = process.hear()?;
        Ok(Broker {
            process,
            address,
            _folder: folder,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address.address
    }

    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a command whose answer is `()`.
    pub fn send(&mut self, command: Command) -> Result<()> {
        self.process.send(&command)?;
        self.process.hear()
    }

    /// Creates the stream, which is in memory alone unless producers wait for the disk.
    pub fn create(&mut self, lanes: u32, is_synced: bool) -> Result<()> {
        let stream = STREAM.to_owned();
        self.send(Command::Create {
            stream,
            lanes,
            is_synced,
        })
    }

    pub fn delete(&mut self) -> Result<()> {
        let stream = STREAM.to_owned();
        self.send(Command::Delete { stream })
    }

    /// Fills each lane with `chunks` chunks; returns the end offset of the lanes.
    pub fn fill(&mut self, data: Data, chunks: usize) -> Result<u64> {
        let stream = STREAM.to_owned();
        let fill = Command::Fill {
            stream,
            data,
            chunks,
        };
        self.process.send(&fill)?;
        self.process.hear()
    }

    /// Appends `count` records to the first lane, each with its time.
    pub fn stamp(&mut self, every: Duration, count: usize) -> Result<()> {
        let stream = STREAM.to_owned();
        let every_us = every.as_micros() as u64;
        self.send(Command::Stamp {
            stream,
            every_us,
            count,
        })
    }

    /// Makes an order to read all lanes until `found` is found in each.
    pub fn order(lanes: u32, found: u64, consumers: usize, work: &RecordWork) -> Order {
        Order::of_all(STREAM, lanes, found, consumers, work)
    }

    /// Begins to consume, in another process unless that is the point.
    pub fn consume(&mut self, delivery: Delivery, order: Order) -> Result<Consuming> {
        if delivery == Delivery::InProcess {
            self.send(Command::Consume(order))?;
            return Ok(Consuming::InBroker);
        }
        let task = consumer::Task {
            broker: self.address,
            delivery,
            order,
        };
        let mut process = Working::start(&task)?;
        process.hear::<()>()?;
        Ok(Consuming::Here(process))
    }

    /// Waits until they are done.
    pub fn consumed(&mut self, consuming: &mut Consuming) -> Result<Consumed> {
        match consuming {
            Consuming::Here(process) => process.hear(),
            Consuming::InBroker => {
                self.process.send(&Command::Await)?;
                self.process.hear()
            }
        }
    }

    pub fn begin(&mut self) -> Result<()> {
        self.send(Command::Begin)
    }

    /// Returns the use of its process since [`begin`](Broker::begin), without consumers in it.
    pub fn end(&mut self, consuming: Option<&Consuming>, consumed: &Consumed) -> Result<Used> {
        self.process.send(&Command::End)?;
        let used: Used = self.process.hear()?;
        Ok(match consuming {
            // Their threads have ended, so they are not counted.
            Some(Consuming::InBroker) => Used {
                cpu_s: used.cpu_s - consumed.cpu_s,
                threads: used.threads,
            },
            _ => used,
        })
    }
}

//! Orders to consumers, and their results.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::work::RecordWork;

/// How records come to consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// The client's consumer asks again and again.
    Pull,
    /// The client's consumer is sent them over TCP.
    Tcp,
    /// The client's consumer has them in the broker's memory: a task of tokio's.
    Task,
    /// The client's subscribers have them in the broker's memory: threads that wait by themselves.
    Thread,
    /// Threads of the broker's process have them from the log.
    InProcess,
}

impl Delivery {
    pub const ALL: [Delivery; 5] = [
        Delivery::Pull,
        Delivery::Tcp,
        Delivery::Task,
        Delivery::Thread,
        Delivery::InProcess,
    ];

    /// Those that all figures have.
    pub const USUAL: [Delivery; 4] = [
        Delivery::Pull,
        Delivery::Tcp,
        Delivery::Thread,
        Delivery::InProcess,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Delivery::Pull => "pull",
            Delivery::Tcp => "push over TCP",
            Delivery::Task => "push across processes to a task",
            Delivery::Thread => "push across processes",
            Delivery::InProcess => "push in process",
        }
    }

    /// Returns whether consumers must not share the broker's memory.
    pub fn is_remote(self) -> bool {
        self == Delivery::Tcp
    }
}

/// The address of the broker.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct BrokerAddress {
    pub address: SocketAddr,
}

/// The partitions that consumers read, and their work.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    pub stream: String,
    /// The partitions of each, which is read by a thread of its own, from the beginning.
    pub sources: Vec<Vec<u32>>,
    pub work: RecordWork,
    /// How much is found in each partition: then it is at its end. A filter that travels may leave out its last
    /// records.
    pub found: u64,
    /// A filter that travels with the subscription.
    pub filter: Option<String>,
}

impl Order {
    /// Makes an order to read `lanes` of a stream, each by one of `consumers`, until `found` is found in each.
    pub fn of_all(
        stream: &str,
        lanes: u32,
        found: u64,
        consumers: usize,
        work: &RecordWork,
    ) -> Order {
        let mut sources = vec![Vec::new(); consumers];
        for (partition, n) in (0..lanes).zip((0..consumers).cycle()) {
            sources[n].push(partition);
        }
        Order {
            stream: stream.to_owned(),
            sources,
            work: work.clone(),
            found,
            filter: None,
        }
    }

    /// Returns how much all of them find.
    pub fn found_by_all(&self) -> u64 {
        let partitions = self.sources.iter().map(|source| source.len() as u64);
        self.found * partitions.sum::<u64>()
    }
}

/// The results of consumers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Consumed {
    /// Given to the consumers.
    pub records: u64,
    /// The number of records or words that were found.
    pub found: u64,
    /// When they began to connect, on the monotonic clock.
    pub started_ns: u64,
    /// When the last one was done.
    pub finished_ns: u64,
    /// Processor time of the consumers' threads.
    pub cpu_s: f64,
    /// How many threads worked.
    pub threads: usize,
    /// How old each record was, in nanoseconds; of work that asks for that.
    pub latencies: Vec<u64>,
}

impl Consumed {
    /// Checks that nothing is missing, and nothing doubled.
    pub fn check(&self, found: u64) -> Result<()> {
        ensure!(
            self.found == found,
            "consumers have found {} of {found}",
            self.found
        );
        Ok(())
    }
}

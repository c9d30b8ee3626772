//! What consumers are told to do, and what they tell of it.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::work::Work;

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

    /// Whether consumers are to have no way to the broker's memory.
    pub fn is_remote(self) -> bool {
        self == Delivery::Tcp
    }
}

/// Where the broker is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Place {
    pub address: SocketAddr,
}

/// What consumers read, and what for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    pub stream: String,
    /// Each is read by a thread of its own.
    pub sources: Vec<Vec<LaneEnd>>,
    pub work: Work,
    /// A filter that travels with the subscription.
    pub filter: Option<String>,
}

/// A lane that is read from its beginning to an offset.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct LaneEnd {
    pub partition: u32,
    pub end: u64,
}

impl Order {
    /// To read `lanes` of a stream up to `end`, each by one of so many consumers.
    pub fn of_all(stream: &str, lanes: u32, end: u64, consumers: usize, work: &Work) -> Order {
        let mut sources = vec![Vec::new(); consumers];
        for (partition, n) in (0..lanes).zip((0..consumers).cycle()) {
            sources[n].push(LaneEnd { partition, end });
        }
        Order {
            stream: stream.to_owned(),
            sources,
            work: work.clone(),
            filter: None,
        }
    }
}

/// What consumers have done.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Consumed {
    /// Given to the consumers.
    pub records: u64,
    /// How much the work found.
    pub found: u64,
    /// When they began to connect, on the monotonic clock.
    pub started_ns: u64,
    /// When the last one was done.
    pub finished_ns: u64,
    /// What the consumers' threads took.
    pub cpu_s: f64,
    /// How many threads worked.
    pub threads: usize,
    /// How old each record was, in nanoseconds; of work that asks for that.
    pub latencies: Vec<u64>,
}

impl Consumed {
    /// That nothing is missing, and nothing doubled.
    pub fn check(&self, found: u64) -> Result<()> {
        ensure!(
            self.found == found,
            "consumers have found {} of {found}",
            self.found
        );
        Ok(())
    }
}

/// How far the lanes of one source are.
pub struct Lanes {
    ends: Vec<LaneEnd>,
    open: usize,
    /// By lane of the source.
    is_done: Vec<bool>,
}

impl Lanes {
    pub fn new(ends: &[LaneEnd]) -> Lanes {
        let is_done: Vec<bool> = ends.iter().map(|lane| lane.end == 0).collect();
        Lanes {
            ends: ends.to_vec(),
            open: is_done.iter().filter(|is_done| !**is_done).count(),
            is_done,
        }
    }

    /// Notes how far a lane is.
    pub fn note(&mut self, partition: u32, next: u64) {
        let index = self
            .ends
            .iter()
            .position(|lane| lane.partition == partition);
        if let Some(index) = index
            && !self.is_done[index]
            && next >= self.ends[index].end
        {
            self.is_done[index] = true;
            self.open -= 1;
        }
    }

    pub fn are_done(&self) -> bool {
        self.open == 0
    }
}

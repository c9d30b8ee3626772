//! The state that all clients of a run share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use millstream_client::{Client, ClientConfig, TopicPartition};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::books::Books;
use super::plan::Plan;

/// The streams: one for the records, and one for the greedy clients' requests.
pub const STREAM: &str = "soak";
pub const BALLAST: &str = "soak-ballast";
/// Its partitions.
pub const BALLAST_PARTITIONS: usize = 4;

/// The run drops faults beyond this number: they show nothing new.
const FAULTS_MAX: usize = 10;

/// How long to wait before something is tried again that a killed server did not answer.
pub const BACKOFF: Duration = Duration::from_millis(100);

/// The phases of a run, which decide the work of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Clients write and read.
    Work,
    /// Nothing more is written.
    Drain,
    /// All clients leave.
    Leave,
}

/// Numbers for the report.
#[derive(Default)]
pub struct Counts {
    pub bytes: AtomicU64,
    pub cuts: AtomicU64,
    pub members_left: AtomicU64,
    pub members_killed: AtomicU64,
    pub garbled: AtomicU64,
    pub greedy_closed: AtomicU64,
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub struct Run {
    pub address: SocketAddr,
    pub plan: Plan,
    pub lasts: Duration,
    pub started_at: Instant,
    pub books: Books,
    pub counts: Counts,
    phase: watch::Sender<Phase>,
    /// Grows when the server is killed, and when it listens again.
    outages: AtomicU64,
    faults: Mutex<Vec<String>>,
}

impl Run {
    pub fn new(address: SocketAddr, plan: Plan, lasts: Duration) -> Run {
        Run {
            address,
            books: Books::new(&plan),
            plan,
            lasts,
            started_at: Instant::now(),
            counts: Counts::default(),
            phase: watch::Sender::new(Phase::Work),
            outages: AtomicU64::new(0),
            faults: Mutex::default(),
        }
    }

    /// A client with connections of its own.
    pub fn client(&self) -> Client {
        Client::new(self.client_config())
    }

    pub fn client_config(&self) -> ClientConfig {
        ClientConfig {
            client_id: "soak".to_owned(),
            backoff: BACKOFF,
            ..ClientConfig::new(self.address.to_string())
        }
    }

    pub fn place(&self, partition: usize) -> TopicPartition {
        TopicPartition {
            topic: STREAM.into(),
            partition: partition as i32,
        }
    }

    pub fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Returns whether that phase, or a later one, has begun.
    pub fn is_in(&self, phase: Phase) -> bool {
        *self.phase.borrow() >= phase
    }

    /// Waits for a phase, or a later one.
    pub async fn wait_for(&self, phase: Phase) {
        // The sender lives as long as this.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Waits for `lasts`, or until the phase; returns whether the phase has come.
    pub async fn rest(&self, lasts: Duration, until: Phase) -> bool {
        timeout(lasts, self.wait_for(until)).await.is_ok()
    }

    /// Returns whether a member of a group may be killed: so late that nothing of it is missed in the end.
    pub fn may_kill_members(&self) -> bool {
        let session_max = Duration::from_secs(45);
        let left = self.lasts.saturating_sub(self.started_at.elapsed());
        left >= session_max.min(self.lasts / 2) && self.lasts >= session_max / 2
    }

    pub fn note_outage(&self) {
        count(&self.outages);
    }

    /// Equal at two moments if the server was not killed or started between them.
    pub fn outages(&self) -> u64 {
        self.outages.load(Ordering::SeqCst)
    }

    /// Starts the work of a client; the run fails if it fails.
    pub fn spawn(
        self: &Arc<Run>,
        tasks: &mut JoinSet<()>,
        name: String,
        work: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let run = Arc::clone(self);
        tasks.spawn(async move {
            if let Err(error) = work.await {
                run.fail(format!("{name}: {error:#}"));
            }
        });
    }

    /// Something does not hold.
    pub fn fail(&self, fault: String) {
        let mut faults = self.faults.lock();
        if faults.len() < FAULTS_MAX {
            faults.push(fault);
        }
    }

    pub fn faults(&self) -> Vec<String> {
        self.faults.lock().clone()
    }
}

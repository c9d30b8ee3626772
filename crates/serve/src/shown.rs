//! The node as handlers see it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use millstream_flow::Running;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::Content;
use crate::body::Bodies;
use crate::error::RequestError;
use crate::history::History;
use crate::state::Feeds;
use crate::watches::Watches;

/// How long other ranks may take to answer, and how long a read of state may wait for its turn.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// The number of threads that read state, beside those that read other content.
pub const STATE_READERS_MAX: usize = 6;

/// Reads that wait for a position of a flow, at once.
pub const WAITING_MAX: usize = 256;

/// The state of all handlers, which share it.
pub struct Shown {
    pub content: Arc<dyn Content>,
    pub history: Arc<History>,
    pub bodies: Bodies,
    pub watches: Watches,
    /// The feeds of state elements.
    pub feeds: Arc<Feeds>,
    /// Permits to read state: a rank that does not answer holds up no other pages.
    pub state_readers: Arc<Semaphore>,
    /// Permits of reads that wait for a position of a flow.
    pub waiting_reads: Arc<Semaphore>,
}

impl Shown {
    /// The state of the handlers of a server that shows `content` and has room for this many watches; `stopping` changes when the
    /// server stops.
    pub fn new(content: Arc<dyn Content>, watches: usize, stopping: watch::Receiver<()>) -> Shown {
        Shown {
            content,
            history: Arc::new(History::new()),
            bodies: Bodies::new(),
            watches: Watches::new(watches, stopping),
            feeds: Arc::new(Feeds::new()),
            state_readers: Arc::new(Semaphore::new(STATE_READERS_MAX)),
            waiting_reads: Arc::new(Semaphore::new(WAITING_MAX)),
        }
    }
}

/// Returns the names of the flows, each once.
pub fn flow_names(content: &dyn Content) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for flow in content.flows() {
        if names.iter().all(|name| name != flow.name()) {
            names.push(flow.name().to_owned());
        }
    }
    names
}

/// Returns the ranks of a flow that this process has, the lowest first; `rank` names one of them.
pub fn running(
    content: &dyn Content,
    name: &str,
    rank: Option<u32>,
) -> Result<Vec<Arc<Running>>, RequestError> {
    let mut ranks = content.flows();
    ranks.retain(|flow| flow.name() == name);
    if ranks.is_empty() {
        return Err(RequestError::UnknownFlow(name.to_owned()));
    }
    // A flow that runs on one rank may run again before the last run is forgotten: the first one counts.
    ranks.sort_by_key(|flow| flow.rank());
    ranks.dedup_by_key(|flow| flow.rank());
    if let Some(rank) = rank {
        ranks.retain(|flow| flow.rank() == rank);
        if ranks.is_empty() {
            let flow = name.to_owned();
            return Err(RequestError::UnknownRank { flow, rank });
        }
    }
    Ok(ranks)
}

/// Runs `read` on a thread for blocking work, where a lock does not delay other connections.
pub async fn read<T: Send + 'static>(
    State(shown): State<Arc<Shown>>,
    read: impl FnOnce(&Shown) -> Result<T, RequestError> + Send + 'static,
) -> Result<T, RequestError> {
    tokio::task::spawn_blocking(move || read(&shown))
        .await
        .unwrap_or(Err(RequestError::Panicked))
}

/// Does the same for pages of state, which may wait for other ranks, and for values that are not in memory.
///
/// # Errors
/// Also when other reads hold all threads for too long.
pub async fn read_state<T: Send + 'static>(
    State(shown): State<Arc<Shown>>,
    read_it: impl FnOnce(&Shown) -> Result<T, RequestError> + Send + 'static,
) -> Result<T, RequestError> {
    let permit = Arc::clone(&shown.state_readers).acquire_owned();
    let permit = timeout(ANSWER_TIME_MAX, permit).await;
    let permit = permit.map_err(|_| RequestError::BusyReaders(ANSWER_TIME_MAX))?;
    let permit = permit.map_err(|_| RequestError::Busy)?;
    read(State(shown), move |shown| {
        let _permit = permit;
        read_it(shown)
    })
    .await
}

//! Listens, and gives each connection a task.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Clock, Listener, Network, Random};
use millstream_log::{Log, LogError};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::broker::Broker;
use crate::config::BrokerConfig;
use crate::connection::{Connection, Peer};

/// When no further connection can be had, for lack of files say, the next try comes so much later.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// How long connections have to answer what they were asked when the broker ends.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Threads that work on requests, for each core: one of them may wait for the disk.
const THREADS_PER_CORE: usize = 2;

/// Why a broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be had.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// There are no threads for it.
    #[error("no threads for the broker: {0}")]
    Threads(io::Error),
    /// What the broker keeps in the log cannot be read or kept.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// A broker at work, on threads of its own, until it is stopped or dropped.
pub struct Server {
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    address: SocketAddr,
    broker: Arc<Broker>,
}

impl Server {
    /// Starts a broker of this log.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        network: &impl Network,
        config: BrokerConfig,
        log: Log,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Server, StartError> {
        let address = config.listen;
        let broker = Broker::new(config, log, clock, random)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads(cores * THREADS_PER_CORE)
            .thread_name("millstream-broker")
            .enable_all()
            .build()
            .map_err(StartError::Threads)?;
        let listen = |error| StartError::Listen { address, error };
        let listener = runtime.block_on(network.listen(address)).map_err(listen)?;
        let address = listener.local_address().map_err(listen)?;
        let (stop, stopping) = watch::channel(false);
        runtime.spawn(Arc::clone(broker.groups()).keep_time());
        runtime.spawn(Arc::clone(broker.transactions()).keep_time());
        runtime.spawn(accept_all(listener, address, Arc::clone(&broker), stopping));
        Ok(Server {
            runtime: Some(runtime),
            stop,
            address,
            broker,
        })
    }

    /// Where it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// The broker.
    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }
}

/// Takes no new requests, answers those that came, and ends.
impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(async {
                let _ = tokio::time::timeout(DRAIN_MAX, self.stop.closed()).await;
            });
            runtime.shutdown_timeout(DRAIN_MAX);
        }
    }
}

/// Serves until `stop` says `true`; then requests that came are still answered.
async fn accept_all(
    mut listener: impl Listener<Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static>,
    address: SocketAddr,
    broker: Arc<Broker>,
    mut stop: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(broker.config().connections_max));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("cannot take a connection, trying again: {error}");
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            tracing::warn!("connection from {from} refused: there are too many");
            continue;
        };
        let peer = Peer {
            address: from,
            local: address,
        };
        let connection = Connection::new(stream, peer, Arc::clone(&broker), stop.clone());
        connections.spawn(async move {
            connection.run().await;
            drop(place);
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

//! Listens, and gives each connection a task.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Listener, Network};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::broker::Broker;
use crate::connection::{Connection, Peer};

/// When no further connection can be had, for lack of files say, the next try comes so much later.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// How long connections have to answer what they were asked when the broker ends.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// A broker that listens.
pub struct Server<N: Network> {
    listener: N::Listener,
    broker: Arc<Broker>,
}

impl<N: Network> Server<N> {
    /// Listens. Connections wait until it [runs](Server::run).
    ///
    /// # Errors
    /// When the address cannot be had.
    pub async fn bind(network: &N, broker: Arc<Broker>) -> std::io::Result<Server<N>> {
        let listener = network.listen(broker.config().listen).await?;
        Ok(Server { listener, broker })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the operating system does not tell.
    pub fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_address()
    }

    /// Serves until `stop` says `true`, or is dropped; then requests that came are still answered.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let room = Arc::new(Semaphore::new(self.broker.config().connections_max));
        let mut connections = JoinSet::new();
        let local = self.listener.local_address().ok();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection");
                    tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
                tracing::warn!(%address, "connection refused: there are too many");
                continue;
            };
            let peer = Peer { address, local };
            let connection = Connection::new(stream, peer, Arc::clone(&self.broker), stop.clone());
            connections.spawn(async move {
                connection.run().await;
                drop(permit);
            });
        }
        drop(self.listener);
        let drain = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(DRAIN_MAX, drain).await;
    }
}

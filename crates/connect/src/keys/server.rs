//! Looks up keys of a keyed stream of a server.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_client::{Client, ClientConfig, ClientError, KeyRecord};
use millstream_flow::BoxError;
use tokio::time::timeout;

use crate::network::Network;
use crate::outage::Outage;

/// The longest time until a read notices that it has to stop.
const STOP_PAUSE: Duration = Duration::from_millis(100);

/// Keys that are looked up, and after a lost connection looked up again, together.
const KEYS_AT_ONCE: usize = 1024;

/// The keys of a stream of a server.
pub struct ServerKeys {
    client: Client,
    network: Arc<Network>,
    stream: Arc<str>,
}

impl ServerKeys {
    /// Looks up keys of a stream over a connection of its own, since answers may take long.
    ///
    /// # Errors
    /// When the system has no thread.
    pub fn connect(server: &ClientConfig, stream: &str) -> Result<ServerKeys, BoxError> {
        let network = Arc::new(Network::start("millstream-keys")?);
        Ok(ServerKeys::new(
            Client::new(server.clone()),
            &network,
            &stream.into(),
        ))
    }

    /// Looks up keys by a client whose answers nothing else waits for.
    pub fn new(client: Client, network: &Arc<Network>, stream: &Arc<str>) -> ServerKeys {
        ServerKeys {
            client,
            network: Arc::clone(network),
            stream: Arc::clone(stream),
        }
    }

    /// Returns the newest committed version of each key; `None` for a key that has none. Tries again while no server answers.
    pub async fn get(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<KeyRecord>>, ClientError> {
        let keyed = self.client.keyed(&self.stream);
        let mut all = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let mut outage = Outage::new(self.client.config());
            all.extend(loop {
                match keyed.get_many_records(keys).await {
                    Err(error) => outage.wait(error).await?,
                    Ok(found) => break found,
                }
            });
        }
        Ok(all)
    }

    /// Returns the stream's name.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// Waits for an answer of the server.
    ///
    /// # Errors
    /// That of `work`, or when `is_stopped` is set before its end.
    pub fn wait<T, E: Into<BoxError>>(
        &self,
        is_stopped: &AtomicBool,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, BoxError> {
        let done = self.network.wait(unless_stopped(is_stopped, work));
        let done = done.map_err(E::into)?;
        done.ok_or_else(|| "the read was stopped".into())
    }
}

/// Waits for `work`; gives it up and returns `None` if `is_stopped` is set before.
pub async fn unless_stopped<T, E>(
    is_stopped: &AtomicBool,
    work: impl Future<Output = Result<T, E>>,
) -> Result<Option<T>, E> {
    let mut work = pin!(work);
    while !is_stopped.load(Ordering::Relaxed) {
        if let Ok(done) = timeout(STOP_PAUSE, &mut work).await {
            return done.map(Some);
        }
    }
    Ok(None)
}

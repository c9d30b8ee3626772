//! Looks up keys of a keyed stream of a server.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_client::{Client, ClientConfig, ClientError, KeyRecord};
use millstream_flow::BoxError;
use tokio::time::timeout;

use super::any::KeyPage;
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

    /// Returns the number of partitions of the stream.
    ///
    /// # Errors
    /// When the server does not answer, or knows no such stream.
    pub async fn partition_count(&self) -> Result<u32, ClientError> {
        let topic = self.client.topic(&self.stream).await?;
        Ok(topic.partitions().count() as u32)
    }

    /// Returns the keys of a partition that have a secondary key: see [`KeyedStream::find_page`]. Tries again while no server
    /// answers.
    ///
    /// [`KeyedStream::find_page`]: millstream_client::KeyedStream::find_page
    pub async fn find(
        &self,
        partition: u32,
        of: (&str, &[u8]),
        from: &[u8],
        limit: u32,
        bytes_max: u32,
    ) -> Result<KeyPage, ClientError> {
        let keyed = self.client.keyed(&self.stream);
        let mut outage = Outage::new(self.client.config());
        let (keys, next) = loop {
            match keyed.find_page(partition, of, from, limit, bytes_max).await {
                Err(error) => outage.wait(error).await?,
                Ok(page) => break page,
            }
        };
        Ok(KeyPage {
            keys: keys.into_iter().map(|it| (it.key.into(), None)).collect(),
            next: next.map(Vec::from),
        })
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

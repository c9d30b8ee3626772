//! The producer: sends records into partitions, so that each is stored once and in order.
//!
//! A record takes these steps:
//!
//! 1. [`Producer::send`] chooses its partition and puts it into that partition's open chunk.
//! 2. The sender seals a chunk that is full or has waited for [`ProducerConfig::linger`], numbers it and sends it, with
//!    those of other partitions of the same server in one request. Up to five requests to a server are in flight.
//! 3. The answer decides the outcome of the chunk's records, and [`Delivery::wait`] returns it.
//!
//! The producer retries a failed chunk until it is stored or [`ProducerConfig::delivery_timeout`] is over.
//! `partition.rs` explains why nothing is lost, stored twice or out of order on the way.

#[cfg(test)]
mod older_servers;
mod outcome;
mod partition;
mod sender;
mod state;
#[cfg(test)]
mod tests;
mod transaction_requests;
mod transactional;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Clock, SystemClock, Timestamp};
use millstream_record::{Compression, Header};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

pub use self::outcome::{Delivery, Stored};
use self::sender::Sender;
use self::state::{NotTaken, State, Transaction};
pub use self::transaction_requests::TransactionConfig;
pub(crate) use self::transaction_requests::{init, transactional_id};
pub use self::transactional::TransactionalProducer;
use crate::client::{Client, Topic};
use crate::error::ClientError;

/// The settings of a producer.
#[derive(Debug, Clone)]
pub struct ProducerConfig {
    /// The longest time that a chunk waits for more records.
    pub linger: Duration,
    /// The size from which a chunk takes no more records, in bytes before compression. One record may be larger.
    pub batch_bytes: usize,
    /// The compression of chunks.
    pub compression: Compression,
    /// The most memory for records that are not stored yet, in bytes; when it is full, senders wait.
    pub buffer_bytes: usize,
    /// The time after which the producer gives up a record that is not stored.
    pub delivery_timeout: Duration,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        ProducerConfig {
            linger: Duration::from_millis(1),
            batch_bytes: 16 << 10,
            compression: Compression::None,
            buffer_bytes: 32 << 20,
            delivery_timeout: Duration::from_secs(120),
        }
    }
}

/// A record to be sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProducerRecord<'a> {
    /// The stream's name.
    pub topic: &'a str,
    /// Its partition; without one the key decides, and without a key the partitions take turns.
    pub partition: Option<i32>,
    /// The record's time; the present time if it is not set.
    pub timestamp: Option<Timestamp>,
    /// The primary key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// Headers; those named `k.<name>` are secondary keys.
    pub headers: &'a [Header<'a>],
}

/// Sends records. Dropping it loses the records that are not stored yet: call [`flush`](Self::flush) before.
pub struct Producer {
    shared: Arc<Shared>,
    sender: AbortHandle,
}

/// The state that callers and the sender share.
struct Shared {
    client: Client,
    config: ProducerConfig,
    clock: SystemClock,
    state: Mutex<State>,
    /// Wakes the sender.
    wake: Notify,
    /// Wakes callers that wait for memory.
    room: Notify,
    /// The id of a transactional producer.
    transactional_id: Option<Arc<str>>,
    /// Wakes the end of a transaction, which waits for answers.
    answered: Notify,
}

impl Shared {
    /// Takes over the metadata of a topic.
    fn learn(&self, topic: &Topic) {
        let has_freed = self.state.lock().learn(topic);
        if has_freed {
            self.room.notify_waiters();
        }
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}

impl Producer {
    /// Returns a producer for these servers, with connections of its own. Call it within a runtime.
    pub fn new(client: &Client, config: ProducerConfig) -> Producer {
        Producer::start(client.separate(), config, None)
    }

    /// Starts a producer with this client; a transactional one, if there is a transactional id.
    fn start(
        client: Client,
        config: ProducerConfig,
        transactional: Option<(Arc<str>, Transaction)>,
    ) -> Producer {
        let (transactional_id, transaction) = transactional.unzip();
        let unknown_timeout = client.config().unknown_timeout;
        let shared = Arc::new(Shared {
            client,
            state: Mutex::new(State::new(config.clone(), unknown_timeout, transaction)),
            config,
            clock: SystemClock::default(),
            wake: Notify::new(),
            room: Notify::new(),
            transactional_id,
            answered: Notify::new(),
        });
        let sender = Sender::new(Arc::clone(&shared));
        let sender = tokio::spawn(sender.run()).abort_handle();
        Producer { shared, sender }
    }

    /// Queues a record for sending; waits only while there is no memory for it, or its stream is not known yet. Stores
    /// the records of one partition in the order of these calls.
    ///
    /// # Errors
    /// When the stream or partition does not exist, or the record is too large.
    pub async fn send(&self, record: ProducerRecord<'_>) -> Result<Delivery, ClientError> {
        let shared = &*self.shared;
        loop {
            match self.try_send(&record) {
                Ok(delivery) => return Ok(delivery),
                Err(NotTaken::Failed(error)) => return Err(error),
                Err(NotTaken::UnknownPartition(partition)) => {
                    let topic = self.refreshed(record.topic, partition).await?;
                    shared.learn(&topic);
                }
                Err(NotTaken::UnknownTopic) => {
                    let topic = shared.client.topic(record.topic).await?;
                    shared.learn(&topic);
                }
                Err(NotTaken::NoRoom) => {
                    let mut room = std::pin::pin!(shared.room.notified());
                    room.as_mut().enable();
                    shared.wake.notify_one();
                    match self.try_send(&record) {
                        Err(NotTaken::NoRoom) => room.await,
                        Ok(delivery) => return Ok(delivery),
                        Err(_) => {}
                    }
                }
            }
        }
    }

    /// Queues a record for sending if there is memory for it, and its stream and partition are known: for callers that
    /// cannot wait. Returns whether it did; if not, retry after [`room`](Self::room).
    ///
    /// # Errors
    /// When the record is too large, or the producer is closed.
    pub fn offer(&self, record: &ProducerRecord<'_>) -> Result<bool, ClientError> {
        match self.try_send(record) {
            Ok(_) => Ok(true),
            Err(NotTaken::Failed(error)) => Err(error),
            Err(NotTaken::UnknownPartition(partition)) => {
                self.shared.state.lock().want(record.topic, partition);
                Ok(false)
            }
            Err(NotTaken::UnknownTopic | NotTaken::NoRoom) => Ok(false),
        }
    }

    /// Waits until there may be memory for a record of this stream, and the stream is known, with the partitions that
    /// records were [offered](Self::offer) to.
    ///
    /// # Errors
    /// When the stream or partition does not exist.
    pub async fn room(&self, topic: &str) -> Result<(), ClientError> {
        let shared = &*self.shared;
        let wanted = shared.state.lock().take_wanted(topic);
        let topic = match wanted {
            Some(partition) => self.refreshed(topic, partition).await?,
            None => shared.client.topic(topic).await?,
        };
        shared.learn(&topic);
        let mut room = std::pin::pin!(shared.room.notified());
        room.as_mut().enable();
        let is_short = shared.state.lock().is_short();
        if is_short {
            shared.wake.notify_one();
            room.await;
        }
        Ok(())
    }

    /// Looks up a topic again, which may have grown to this partition.
    async fn refreshed(&self, topic: &str, partition: usize) -> Result<Arc<Topic>, ClientError> {
        let client = &self.shared.client;
        client.refresh(&[topic]).await?;
        let topic = client.topic(topic).await?;
        let count = topic.leaders.len();
        match partition < count {
            true => Ok(topic),
            false => Err(ClientError::NoLeader {
                what: format!(
                    "partition {partition} of {}, which has {count},",
                    topic.name
                ),
            }),
        }
    }

    fn try_send(&self, record: &ProducerRecord<'_>) -> Result<Delivery, NotTaken> {
        let shared = &*self.shared;
        let time = record.timestamp.unwrap_or_else(|| shared.clock.now());
        let pushed = shared.state.lock().push(record, time, Instant::now());
        let (delivery, wakes) = pushed?;
        if wakes {
            shared.wake.notify_one();
        }
        Ok(delivery)
    }

    /// Returns the first error of records since the last flush, as far as their outcome is known.
    pub fn error(&self) -> Option<ClientError> {
        let state = self.shared.state.lock();
        state.error.clone().or_else(|| state.closed.clone())
    }

    /// Sends all queued records, and waits for their outcome.
    ///
    /// # Errors
    /// The first error of records since the last flush.
    pub async fn flush(&self) -> Result<(), ClientError> {
        let outcomes = self.shared.state.lock().flush();
        self.shared.wake.notify_one();
        for outcome in outcomes {
            // The state keeps the first error, too.
            let _ = outcome.wait().await;
        }
        let mut state = self.shared.state.lock();
        let error = state.error.take().or_else(|| state.closed.clone());
        error.map_or(Ok(()), Err)
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.sender.abort();
        self.shared.state.lock().close(ClientError::Closed);
    }
}

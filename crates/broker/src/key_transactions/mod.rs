//! Changes of keys that are made together, or not at all.
//!
//! Changes of one partition are one chunk. Changes of several partitions are a transaction, whose producer is the
//! broker. These hold after any lost connection and any kill of the broker:
//!
//! 1. **A transaction is committed only when all of its records are durable**, even if the stream's setting requires
//!    less: after a crash it has all of its records, or is aborted.
//! 2. **Transactions that share keys do not deadlock**: each changes its partitions in their order, so it waits only for one that
//!    has come further.
//! 3. **A write is answered when look-ups see it.** A transaction holds back the last stable offset (LSO) of its partitions, so
//!    writes behind it wait for its end, also those of other transactions: see [`KeyTransactions::seen`]. They do not wait for
//!    transactions of clients.
//! 4. **A start ends the transactions of the run before**, before it serves anything.
//!
//! A transaction that was begun is ended also if the connection of its request ends before.

mod open;
mod producers;
mod transact;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Offset, partition_of_key};
use millstream_log::{
    ChangeError, ChangeTransaction, Changed, KeyChange, KeyChanges, KeyCondition, LogError,
    NewValue, Stream, StreamPartition,
};
use millstream_record::Header;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use self::open::Open;
use self::producers::{Producers, TRANSACTIONS_MAX};
use crate::groups::{Partition, TopicName};
use crate::key_reads::{KeyReads, Threads};
use crate::transactions::TopicPartition;
use crate::transactions::service::TransactionService;

pub(crate) use self::producers::is_own_id;

/// The threads that change keys together.
const THREADS_MAX: usize = 16;

/// How long changes wait until fewer others are under way.
const TURN_WAIT_MAX: Duration = Duration::from_secs(5);

/// A change of a key, with its bytes.
#[derive(Debug, Clone)]
pub struct OwnedChange {
    /// The key.
    pub key: Bytes,
    /// The condition for the change.
    pub condition: KeyCondition,
    /// The new value, unless a number is added; `None` deletes the key.
    pub value: Option<Bytes>,
    /// The number to add.
    pub add: Option<i64>,
    /// How long the new value lives; `None` for as long as the stream's setting says.
    pub ttl: Option<Duration>,
    /// The secondary keys of the new version, each with the name of its header.
    pub secondary: Vec<(String, Bytes)>,
}

impl OwnedChange {
    fn headers(&self) -> Vec<Header<'_>> {
        let keys = self.secondary.iter();
        let headers = keys.map(|(name, key)| Header {
            name: name.as_bytes(),
            value: Some(key),
        });
        headers.collect()
    }

    fn borrowed<'a>(&'a self, secondary: &'a [Header<'a>]) -> KeyChange<'a> {
        KeyChange {
            key: &self.key,
            condition: self.condition,
            value: match (&self.value, self.add) {
                (_, Some(number)) => NewValue::Add(number),
                (Some(value), None) => NewValue::Put(value),
                (None, None) => NewValue::Delete,
            },
            ttl: self.ttl,
            secondary,
        }
    }
}

/// The outcome of one of several changes: all are stored, or none.
pub type ChangeOutcome = Result<Changed, ChangeError>;

/// The reason why changes were not made together.
#[derive(Clone, thiserror::Error)]
pub enum TogetherError {
    /// Nothing was changed.
    #[error(transparent)]
    Refused(#[from] LogError),
    /// Nothing was changed: the broker cannot begin a transaction now.
    #[error("the server cannot begin a transaction now ({0}); nothing was changed: try again")]
    NoTransaction(String),
    /// Perhaps all was changed.
    #[error("{0}; either all of the changes take effect or none: read the keys first")]
    Unknown(String),
}

millstream_base::debug_as_display!(TogetherError);

/// Changes keys together, with transactions of the broker.
pub struct KeyTransactions {
    service: Arc<TransactionService>,
    reads: Arc<KeyReads>,
    threads: Threads,
    /// A permit for each transaction that may be under way; changes of one partition take one, too.
    turns: Arc<Semaphore>,
    producers: Producers,
    open: Open,
}

impl KeyTransactions {
    pub(crate) fn new(service: Arc<TransactionService>, reads: Arc<KeyReads>) -> KeyTransactions {
        KeyTransactions {
            service,
            reads,
            threads: Threads::new(THREADS_MAX),
            turns: Arc::new(Semaphore::new(TRANSACTIONS_MAX)),
            producers: Producers::default(),
            open: Open::default(),
        }
    }

    /// Makes all changes of a stream's keys, or none. Returns their outcomes, in their order, when they are durable and look-ups
    /// see them.
    ///
    /// # Errors
    /// When two changes are of the same key, the changes of a partition are too large for a chunk, they cannot be stored, or too
    /// many others are under way.
    pub async fn change(
        self: &Arc<Self>,
        stream: &Stream,
        changes: Vec<OwnedChange>,
    ) -> Result<Vec<ChangeOutcome>, TogetherError> {
        let shares = shares(stream, changes)?;
        let partitions = shares.iter().map(|share| share.partition.clone());
        let partitions: Vec<StreamPartition> = partitions.collect();
        self.reads.catch_up(&partitions).await;
        // Changes go on when their client has gone, so the bound of those under way also bounds their memory.
        let turn = turn(&self.turns).await?;
        let this = Arc::clone(self);
        let made = tokio::spawn(async move {
            let _turn = turn;
            match shares.len() {
                0 | 1 => this.change_one(shares).await,
                _ => this.transact(shares).await,
            }
        });
        let made = made.await;
        made.unwrap_or_else(|_| Err(TogetherError::Unknown(ENDED.to_owned())))
    }

    /// Changes keys of one partition.
    async fn change_one(
        &self,
        mut shares: Vec<Share>,
    ) -> Result<Vec<ChangeOutcome>, TogetherError> {
        let Some(share) = shares.pop() else {
            return Ok(Vec::new());
        };
        let share = Arc::new(share);
        let changed = self.threads.run({
            let share = Arc::clone(&share);
            move || share.change(None)
        });
        let changed = changed.await;
        let changed = changed.ok_or_else(|| TogetherError::Unknown(ENDED.to_owned()))??;
        let unknown = |error: LogError| TogetherError::Unknown(error.to_string());
        let partition = &share.partition;
        let durable = partition.durable(changed.answer_at).await;
        durable.map_err(unknown)?;
        self.seen(partition, changed.answer_at).await;
        Ok(share.in_order(changed.outcomes))
    }

    /// Whether transactions of the broker are open, which may hold back records that were appended before.
    pub(crate) fn are_open(&self) -> bool {
        self.open.has_some()
    }

    /// Waits until look-ups see the records before an offset, as far as transactions of the broker hold them back.
    pub async fn seen(&self, partition: &StreamPartition, until: Offset) {
        self.open.wait(partition, until).await;
    }
}

/// Waits until changes may begin.
async fn turn(turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, TogetherError> {
    let why = match timeout(TURN_WAIT_MAX, Arc::clone(turns).acquire_owned()).await {
        Ok(Ok(turn)) => return Ok(turn),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("{TRANSACTIONS_MAX} others are under way"),
    };
    Err(TogetherError::NoTransaction(why))
}

/// The error of a task that has panicked, or that the end of the program has ended.
const ENDED: &str = "the request failed: see the log of the server";

/// The changes of one partition.
struct Share {
    name: TopicPartition,
    partition: StreamPartition,
    changes: Vec<OwnedChange>,
    /// Their places in the request.
    places: Vec<usize>,
}

impl Share {
    fn of(stream: &Stream, partition: u32) -> Result<Share, LogError> {
        Ok(Share {
            name: TopicPartition {
                topic: TopicName::from(stream.name()),
                partition: Partition(partition as i32),
            },
            partition: stream.partition(partition)?,
            changes: Vec::new(),
            places: Vec::new(),
        })
    }

    fn change(&self, transaction: Option<ChangeTransaction>) -> Result<KeyChanges, LogError> {
        let headers: Vec<Vec<Header<'_>>> = self.changes.iter().map(OwnedChange::headers).collect();
        let changes = self.changes.iter().zip(&headers);
        let changes = changes.map(|(change, headers)| change.borrowed(headers));
        let changes: Vec<KeyChange<'_>> = changes.collect();
        let changed = self.partition.change_together(&changes, transaction);
        changed.map_err(|error| self.in_request(error))
    }

    /// Lets an error name changes by their places in the request.
    fn in_request(&self, error: LogError) -> LogError {
        let place = |number: u32| self.places[number as usize] as u32;
        match error {
            LogError::SameKey {
                stream,
                first,
                second,
            } => LogError::SameKey {
                stream,
                first: place(first),
                second: place(second),
            },
            error => error,
        }
    }

    /// Returns the outcomes in the order of the request, of which this is the only share.
    fn in_order(&self, outcomes: Vec<ChangeOutcome>) -> Vec<ChangeOutcome> {
        let mut outcomes: Vec<_> = self.places.iter().zip(outcomes).collect();
        outcomes.sort_unstable_by_key(|(place, _)| **place);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

/// Returns the changes by their partitions, in the order of these.
fn shares(stream: &Stream, changes: Vec<OwnedChange>) -> Result<Vec<Share>, LogError> {
    let partitions = stream.partition_count() as usize;
    let mut shares: BTreeMap<u32, Share> = BTreeMap::new();
    for (place, change) in changes.into_iter().enumerate() {
        let index = partition_of_key(&change.key, partitions) as u32;
        let share = match shares.entry(index) {
            Entry::Occupied(share) => share.into_mut(),
            Entry::Vacant(free) => free.insert(Share::of(stream, index)?),
        };
        share.changes.push(change);
        share.places.push(place);
    }
    Ok(shares.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_are_refused_while_too_many_others_are_under_way() {
        let turns = Arc::new(Semaphore::new(1));
        let held = turn(&turns).await.unwrap();
        let refused = turn(&turns).await.unwrap_err().to_string();
        let reason = "(64 others are under way); nothing was changed: try again";
        assert!(refused.ends_with(reason), "{refused}");
        drop(held);
        assert!(turn(&turns).await.is_ok());
    }
}

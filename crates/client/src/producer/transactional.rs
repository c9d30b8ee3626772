//! The transactional producer: all records of a transaction count, or none.
//!
//! Each transaction has an epoch of its own: from [`PER_TRANSACTION_EPOCHS`] on, the server assigns it at the end of
//! the previous transaction; the producer requests it from older servers. So producer id and epoch identify one
//! transaction permanently.
//!
//! An *ended* transaction is visible or gone. A *prepared* transaction waits for a decision from outside: all its
//! records are stored, and the producer writes no more to it. The server needs no notice of this state, since a
//! transaction of [two phases](TransactionConfig::two_phase) has no timeout (KIP-939).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Offset;
use millstream_wire::messages::{GroupId, TxnOffsetCommitRequest};
use tokio::time::timeout;

use super::outcome::Delivery;
use super::partition::Identity;
use super::state::Transaction;
use super::transaction_requests::{
    PER_TRANSACTION_EPOCHS, TransactionConfig, add_group, commit_offsets, init, offset_topics,
    transactional_id,
};
use super::{Producer, ProducerConfig, ProducerRecord};
use crate::client::{Client, text};
use crate::error::ClientError;
use crate::offsets::TopicPartition;
use crate::transaction::TransactionIdentity;

/// Sends records in transactions, one after the other. Dropping it leaves an open transaction as it is.
#[derive(Debug)]
pub struct TransactionalProducer {
    producer: Producer,
    client: Client,
    config: TransactionConfig,
    /// The longest time for which it retries a request.
    retry_for: Duration,
}

impl TransactionalProducer {
    /// Begins as the producer of a transactional id: fences its predecessor, and aborts the open transaction if there
    /// is one. Call it within a runtime.
    ///
    /// # Errors
    /// When the server refuses, does not know two-phase commit although the settings want it, or does not answer within
    /// [`ProducerConfig::delivery_timeout`].
    pub async fn new(
        client: &Client,
        producer: ProducerConfig,
        config: TransactionConfig,
    ) -> Result<TransactionalProducer, ClientError> {
        let client = client.separate();
        let retry_for = producer.delivery_timeout;
        let identity = init(&client, &config, None, retry_for).await?;
        let adds_partitions = {
            let coordinator = client.transaction_coordinator(&config.id).await?;
            coordinator.versions().transactions() < PER_TRANSACTION_EPOCHS
        };
        let transaction = Transaction {
            identity: Identity {
                id: identity.producer,
                epoch: identity.epoch,
                generation: 0,
            },
            is_open: false,
            has_records: false,
            failed: None,
            ending: None,
            adds_partitions,
        };
        let id = Arc::from(config.id.as_str());
        let producer = Producer::start(client.clone(), producer, Some((id, transaction)));
        Ok(TransactionalProducer {
            producer,
            client,
            config,
            retry_for,
        })
    }

    /// Returns the transactional id.
    pub fn id(&self) -> &str {
        &self.config.id
    }

    /// Returns the producer that takes the records of its transactions.
    pub fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Returns whether transactions wait for a decision without a limit.
    pub fn has_two_phases(&self) -> bool {
        self.config.two_phase
    }

    /// Begins a transaction. Its first records announce it to the server.
    ///
    /// # Errors
    /// When one is open, or its end has failed: repeat the [`commit`](Self::commit) or [`abort`](Self::abort).
    pub fn begin(&self) -> Result<(), ClientError> {
        let mut state = self.producer.shared.state.lock();
        match &mut state.transaction {
            Some(transaction)
                if !transaction.is_open
                    && transaction.failed.is_none()
                    && transaction.ending.is_none() =>
            {
                transaction.is_open = true;
                Ok(())
            }
            _ => Err(ClientError::TransactionOpen),
        }
    }

    /// Queues a record in the transaction; see [`Producer::send`].
    ///
    /// # Errors
    /// As there, and when no transaction has begun, or it can only be aborted.
    pub async fn send(&self, record: ProducerRecord<'_>) -> Result<Delivery, ClientError> {
        self.producer.send(record).await
    }

    /// Queues a record in the transaction if this needs no waiting; see [`Producer::offer`].
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn offer(&self, record: &ProducerRecord<'_>) -> Result<bool, ClientError> {
        self.producer.offer(record)
    }

    /// Waits until a record may be accepted; see [`Producer::room`].
    ///
    /// # Errors
    /// When the stream does not exist.
    pub async fn room(&self, topic: &str) -> Result<(), ClientError> {
        self.producer.room(topic).await
    }

    /// Sends all queued records, and waits until they are stored.
    ///
    /// # Errors
    /// The first error of the transaction's records, which can only be aborted then.
    pub async fn flush(&self) -> Result<(), ClientError> {
        self.producer.flush().await
    }

    /// Returns the identity of the open transaction, once it is [flushed](Self::flush): with it, another client can
    /// [decide](Client::end_transaction) the transaction, also after a crash of this producer. `None` if it has no
    /// records, so that there is nothing to decide.
    ///
    /// # Errors
    /// When none is open, or it can only be aborted.
    pub fn prepared(&self) -> Result<Option<TransactionIdentity>, ClientError> {
        let state = self.producer.shared.state.lock();
        let transaction = state.transaction.as_ref();
        let transaction = transaction.ok_or(ClientError::NoTransaction)?;
        transaction.check()?;
        let named = || identity_of(transaction.identity);
        Ok(transaction.has_records.then(named))
    }

    /// Commits offsets of a group with the transaction: they count once it is [committed](Self::commit). The group must
    /// have no members. `metadata` is any text, which comes back with the offsets.
    ///
    /// # Errors
    /// When no transaction has begun, or the server refuses, or does not answer within
    /// [`ProducerConfig::delivery_timeout`]: [`abort`](Self::abort) the transaction.
    pub async fn commit_offsets(
        &self,
        group: &str,
        offsets: &BTreeMap<TopicPartition, Offset>,
        metadata: &str,
    ) -> Result<(), ClientError> {
        let (identity, adds_group) = {
            let mut state = self.producer.shared.state.lock();
            let transaction = state.transaction.as_mut();
            let transaction = transaction.ok_or(ClientError::NoTransaction)?;
            transaction.check()?;
            transaction.has_records = true;
            (transaction.identity, transaction.adds_partitions)
        };
        if adds_group {
            add_group(
                &self.client,
                &self.config.id,
                identity,
                group,
                self.retry_for,
            )
            .await?;
        }
        let request = TxnOffsetCommitRequest::default()
            .with_transactional_id(transactional_id(&self.config.id))
            .with_group_id(GroupId(text(group)))
            .with_producer_id(identity.id.0.into())
            .with_producer_epoch(identity.epoch.0)
            .with_topics(offset_topics(offsets, metadata));
        commit_offsets(&self.client, &request, adds_group, self.retry_for).await
    }

    /// Stores the remaining records of the transaction, and commits it: from then on all its records count.
    ///
    /// # Errors
    /// When some records were not stored: [`abort`](Self::abort) it. When the server does not answer in time, the
    /// outcome is unknown until a repeated call succeeds; the next producer that begins with the transactional id waits
    /// for it.
    pub async fn commit(&self) -> Result<(), ClientError> {
        self.flush().await?;
        self.end(true).await
    }

    /// Aborts the transaction: none of its records counts.
    ///
    /// # Errors
    /// When the producer is fenced, or the server does not answer in time: repeat the call.
    pub async fn abort(&self) -> Result<(), ClientError> {
        self.producer.shared.state.lock().cancel_transaction();
        self.answered().await;
        self.end(false).await
    }

    async fn end(&self, is_committed: bool) -> Result<(), ClientError> {
        let shared = &*self.producer.shared;
        let (identity, has_records) = {
            let mut state = shared.state.lock();
            let transaction = state
                .transaction
                .as_mut()
                .ok_or(ClientError::NoTransaction)?;
            // A commit that is repeated has all records.
            if is_committed && transaction.ending != Some(true) {
                transaction.check()?;
            }
            transaction.ending.get_or_insert(is_committed);
            transaction.is_open = false;
            (transaction.identity, transaction.has_records)
        };
        let next = match has_records {
            true => {
                let named = identity_of(identity);
                self.client
                    .end(&self.config.id, named, is_committed, self.retry_for)
                    .await?
            }
            false => Some(identity_of(identity)),
        };
        let next = match next {
            Some(next) => next,
            // An older server: the producer must request an epoch for the next transaction.
            None => {
                let expected = Some(identity_of(identity));
                init(&self.client, &self.config, expected, self.retry_for).await?
            }
        };
        let next = Identity {
            id: next.producer,
            epoch: next.epoch,
            generation: identity.generation + 1,
        };
        shared.state.lock().next_transaction(next);
        shared.room.notify_waiters();
        Ok(())
    }

    /// Waits until no request is in flight that could write to the transaction.
    async fn answered(&self) {
        let shared = &*self.producer.shared;
        let all = async {
            loop {
                let mut answered = std::pin::pin!(shared.answered.notified());
                answered.as_mut().enable();
                if !shared.state.lock().is_in_flight() {
                    return;
                }
                answered.await;
            }
        };
        // The server refuses later requests by their epoch.
        let _ = timeout(self.client.config().request_timeout, all).await;
    }
}

fn identity_of(identity: Identity) -> TransactionIdentity {
    TransactionIdentity {
        producer: identity.id,
        epoch: identity.epoch,
    }
}

//! The outcome of a chunk's records.

use std::sync::{Arc, OnceLock};

use millstream_base::Offset;
use tokio::sync::Notify;

use crate::error::ClientError;

/// The outcome that the records of a chunk share, decided once.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    decided: OnceLock<Result<Option<Offset>, ClientError>>,
    /// Wakes the waiters.
    done: Notify,
}

impl Outcome {
    /// Notes that the chunk is stored from this offset on; `None` if the server only reports that
    /// it has the chunk already.
    pub fn stored(&self, first: Option<Offset>) {
        self.decide(Ok(first));
    }

    pub fn failed(&self, error: ClientError) {
        self.decide(Err(error));
    }

    fn decide(&self, decision: Result<Option<Offset>, ClientError>) {
        // Only the first decision counts.
        let _ = self.decided.set(decision);
        self.done.notify_waiters();
    }

    pub async fn wait(&self) -> Result<Option<Offset>, ClientError> {
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            if let Some(decision) = self.decided.get() {
                return decision.clone();
            }
            done.await;
        }
    }
}

/// The pending outcome of a record. Drop it to ignore the outcome.
#[derive(Debug)]
pub struct Delivery {
    pub(super) outcome: Arc<Outcome>,
    pub(super) partition: i32,
    /// The record's index in the chunk.
    pub(super) index: u32,
}

/// The place of a stored record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// The partition.
    pub partition: i32,
    /// The offset; `None` if the server only reports that it had the record already.
    pub offset: Option<Offset>,
}

impl Delivery {
    /// Waits until the record is stored, as durably as the stream's setting requires.
    ///
    /// # Errors
    /// When the record is not stored, or its outcome is unknown: [`ClientError::Timeout`].
    pub async fn wait(self) -> Result<Stored, ClientError> {
        let first = self.outcome.wait().await?;
        Ok(Stored {
            partition: self.partition,
            offset: first.map(|first| first.plus(self.index.into())),
        })
    }
}

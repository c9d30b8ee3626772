//! What becomes of the records of a chunk.

use std::sync::{Arc, OnceLock};

use millstream_base::Offset;
use tokio::sync::Notify;

use crate::error::ClientError;

/// Shared by the records of a chunk, and decided once.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    decided: OnceLock<Result<Option<Offset>, ClientError>>,
    /// Wakes those who wait for it.
    done: Notify,
}

impl Outcome {
    /// The chunk is stored from this offset on; `None` if the server only says that it has it already.
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

/// A record on its way. Whoever does not want to know what becomes of it drops this.
#[derive(Debug)]
pub struct Delivery {
    pub(super) outcome: Arc<Outcome>,
    pub(super) partition: i32,
    /// Which record of the chunk.
    pub(super) index: u32,
}

/// Where a record is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// The partition.
    pub partition: i32,
    /// The offset; `None` where the server only says that it had the record already.
    pub offset: Option<Offset>,
}

impl Delivery {
    /// Waits until the record is stored, as durably as the stream's setting says.
    ///
    /// # Errors
    /// When it is not, or nobody knows: [`ClientError::Timeout`].
    pub async fn wait(self) -> Result<Stored, ClientError> {
        let first = self.outcome.wait().await?;
        Ok(Stored {
            partition: self.partition,
            offset: first.map(|first| first.plus(self.index.into())),
        })
    }
}

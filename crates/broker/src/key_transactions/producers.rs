//! The producers of the broker's own transactions.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::TogetherError;
use crate::transactions::service::TransactionService;
use crate::transactions::{
    Answer, InitProducerId, ListTransactions, Producer, Request, State, TransactionError,
    TransactionalId,
};

/// The transactional ids of the broker begin with this.
const ID_PREFIX: &str = "__millstream.keys.";

/// The most transactions at once.
pub const TRANSACTIONS_MAX: usize = 64;

/// The timeout of a transaction. The broker ends each transaction, so this bounds only one whose end cannot be stored.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait until the transaction of a run before is aborted.
const ABORT_WAIT_MAX: Duration = Duration::from_secs(10);

/// The interval between two checks for the end of that transaction.
const ABORT_POLL: Duration = Duration::from_millis(10);

/// Whether a transactional id is one of the broker's own, which clients cannot use.
pub fn is_own_id(id: &str) -> bool {
    id.starts_with(ID_PREFIX)
}

/// The producers that are not in use.
pub struct Producers {
    free: Mutex<Vec<Slot>>,
}

/// A transactional id of the broker.
struct Slot {
    id: TransactionalId,
    /// The producer of its next transaction; `None` if that is not known.
    producer: Option<Producer>,
}

/// A producer in use. It goes back when this is dropped.
pub struct InUse<'a> {
    producers: &'a Producers,
    slot: Option<Slot>,
}

impl Default for Producers {
    fn default() -> Producers {
        let slot = |number| Slot {
            id: TransactionalId::from(&*format!("{ID_PREFIX}{number}")),
            producer: None,
        };
        Producers {
            // The last one is used first, so few are used.
            free: Mutex::new((0..TRANSACTIONS_MAX).rev().map(slot).collect()),
        }
    }
}

impl Producers {
    /// Returns a producer that has no transaction. At most [`TRANSACTIONS_MAX`] are in use.
    ///
    /// # Errors
    /// When the broker cannot store it.
    pub async fn take(
        &self,
        service: &Arc<TransactionService>,
    ) -> Result<(InUse<'_>, Producer), TogetherError> {
        let mut used = InUse {
            producers: self,
            slot: self.free.lock().pop(),
        };
        // Until the end of the transaction says which one is next.
        let producer = match used.slot.as_mut().and_then(|slot| slot.producer.take()) {
            Some(producer) => producer,
            None => begin(service, used.id()).await?,
        };
        Ok((used, producer))
    }
}

impl InUse<'_> {
    /// Returns the transactional id.
    pub fn id(&self) -> TransactionalId {
        let slot = self.slot.as_ref();
        slot.map_or_else(|| TransactionalId::from(""), |slot| slot.id.clone())
    }

    /// Takes note of the producer of the next transaction.
    pub fn goes_on_as(&mut self, next: Producer) {
        if let Some(slot) = &mut self.slot {
            slot.producer = Some(next);
        }
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.producers.free.lock().extend(self.slot.take());
    }
}

/// Begins as the producer of a transactional id; aborts the transaction that it has from before.
async fn begin(
    service: &Arc<TransactionService>,
    id: TransactionalId,
) -> Result<Producer, TogetherError> {
    let request = Request::InitProducerId(InitProducerId {
        transactional_id: Some(id),
        timeout: TIMEOUT,
        two_phase: false,
        expected: None,
        knows_fencing: true,
    });
    let until = Instant::now() + ABORT_WAIT_MAX;
    let refused = |why: &dyn std::fmt::Display| TogetherError::NoTransaction(why.to_string());
    loop {
        match service.ask(request.clone()).await {
            Ok(Answer::InitProducerId(Ok(producer))) => return Ok(producer),
            Ok(Answer::InitProducerId(Err(TransactionError::ConcurrentTransactions)))
                if Instant::now() < until =>
            {
                sleep(ABORT_POLL).await;
            }
            Ok(Answer::InitProducerId(Err(error))) => return Err(refused(&error)),
            Ok(_) => return Err(refused(&"it gives another answer")),
            Err(error) => return Err(refused(&error)),
        }
    }
}

/// Aborts the transactions that the run before has left open. Returns how many there were.
pub async fn abort_left(service: &Arc<TransactionService>) -> usize {
    let list = Request::ListTransactions(ListTransactions {
        states: Some([State::Ongoing, State::PrepareAbort, State::PrepareCommit].into()),
        ..ListTransactions::default()
    });
    let Ok(Answer::ListTransactions(Ok(listed))) = service.ask(list).await else {
        return 0;
    };
    let own = listed.into_iter();
    let own = own.filter(|listed| is_own_id(&listed.transactional_id));
    let mut left = 0;
    for listed in own {
        left += 1;
        if let Err(error) = begin(service, listed.transactional_id).await {
            tracing::warn!("a transaction of the run before has not ended yet: {error}");
        }
    }
    left
}

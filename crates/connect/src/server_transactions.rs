//! The transactions of a sink into a server's stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use millstream_base::{ProducerEpoch, ProducerId};
use millstream_client::{
    Client, ClientError, ProducerConfig, TransactionConfig, TransactionIdentity,
    TransactionalProducer,
};
use millstream_flow::SinkStart;
use serde::{Deserialize, Serialize};

use crate::flow_transactions::FlowTransactionId;
use crate::network::{Network, Work, poll};

/// Transactions of one sink that are not decided, and the one that is open. Beyond that the flow waits for
/// checkpoints to be complete.
const TRANSACTIONS_MAX: usize = 8;

/// The timeout of transactions where the server does not know two-phase commit: the longest that Apache Kafka allows, if
/// its settings are the usual ones.
const TIMEOUT_MAX: Duration = Duration::from_secs(15 * 60);

/// The transactions of one sink, each with a producer of its own.
pub struct Transactions {
    /// All but the last part of the transactional ids.
    id: FlowTransactionId,
    /// Takes records, if one was needed since the last checkpoint.
    pub open: Option<Arc<TransactionalProducer>>,
    /// By checkpoint.
    prepared: VecDeque<Prepared>,
    /// Has to be aborted before its producer takes records again.
    failed: Option<Failed>,
    /// Without a transaction.
    free: Vec<Arc<TransactionalProducer>>,
    /// Makes one more.
    making: Option<Work<TransactionalProducer>>,
    /// The number of slots.
    count: usize,
    /// The worker that waits for a free slot.
    waker: Option<Waker>,
}

struct Prepared {
    checkpoint: u64,
    producer: Arc<TransactionalProducer>,
    named: NamedTransaction,
    commit: Option<Work<()>>,
}

struct Failed {
    producer: Arc<TransactionalProducer>,
    abort: Option<Work<()>>,
}

/// The identity of a transaction in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedTransaction {
    id: String,
    producer: i64,
    epoch: i16,
}

impl NamedTransaction {
    fn identity(&self) -> TransactionIdentity {
        TransactionIdentity {
            producer: ProducerId(self.producer),
            epoch: ProducerEpoch(self.epoch),
        }
    }
}

impl Transactions {
    /// Decides the transactions of an earlier run: commits those that the checkpoint names, and aborts all others.
    pub fn recover(
        network: &Network,
        client: &Client,
        config: &ProducerConfig,
        start: &SinkStart<'_>,
        prepared: &[NamedTransaction],
    ) -> Result<Transactions, ClientError> {
        let id = FlowTransactionId::of(start);
        let free = network.wait(recover(client, config, &id, start.ranks, prepared))?;
        Ok(Transactions {
            id,
            open: None,
            prepared: VecDeque::new(),
            failed: None,
            count: free.len(),
            free,
            making: None,
            waker: None,
        })
    }

    /// Returns the transactions that are prepared and not committed.
    pub fn named(&self) -> Vec<&NamedTransaction> {
        self.prepared.iter().map(|it| &it.named).collect()
    }

    /// Opens a transaction, unless one is open or has to be waited for.
    pub fn open(
        &mut self,
        network: &Network,
        client: &Client,
        config: &ProducerConfig,
        waker: &Waker,
    ) -> Result<(), ClientError> {
        if self.open.is_some() {
            return Ok(());
        }
        if !self.abort_failed(network, waker)? {
            return Ok(());
        }
        if let Some(made) = poll(&mut self.making) {
            // A slot that could not be made is made again.
            let made = made.inspect_err(|_| self.count -= 1)?;
            self.free.push(Arc::new(made));
        }
        if let Some(producer) = self.free.pop() {
            producer.begin()?;
            self.open = Some(producer);
            return Ok(());
        }
        if self.making.is_none() && self.count < TRANSACTIONS_MAX {
            let made = make(client.clone(), config.clone(), self.id.slot(self.count));
            self.making = Some(Work::start(network, waker, made));
            self.count += 1;
        }
        self.waker = Some(waker.clone());
        Ok(())
    }

    /// Gives up the open transaction after an error: it is aborted before the next one opens.
    pub fn fail(&mut self) {
        let open = self.open.take();
        self.failed = self.failed.take().or_else(|| {
            Some(Failed {
                producer: open?,
                abort: None,
            })
        });
    }

    /// Aborts the failed transaction, if there is one. Returns whether that is done; after an error the next call tries
    /// again.
    fn abort_failed(&mut self, network: &Network, waker: &Waker) -> Result<bool, ClientError> {
        let Some(failed) = &mut self.failed else {
            return Ok(true);
        };
        if failed.abort.is_none() {
            let producer = Arc::clone(&failed.producer);
            let abort = async move { producer.abort().await };
            failed.abort = Some(Work::start(network, waker, abort));
        }
        let Some(aborted) = poll(&mut failed.abort) else {
            return Ok(false);
        };
        aborted?;
        self.free
            .extend(self.failed.take().map(|failed| failed.producer));
        Ok(true)
    }

    /// Ends the open transaction for a checkpoint.
    pub fn prepare(&mut self, checkpoint: u64) -> Result<(), ClientError> {
        let Some(producer) = &self.open else {
            return Ok(());
        };
        // A transaction without records stays open.
        let Some(identity) = producer.prepared()? else {
            return Ok(());
        };
        let named = NamedTransaction {
            id: producer.id().to_owned(),
            producer: identity.producer.0,
            epoch: identity.epoch.0,
        };
        if let Some(producer) = self.open.take() {
            self.prepared.push_back(Prepared {
                checkpoint,
                producer,
                named,
                commit: None,
            });
        }
        Ok(())
    }

    /// Commits the transactions of checkpoints up to this one. Returns whether all are committed.
    pub fn commit(
        &mut self,
        network: &Network,
        checkpoint: u64,
        waker: &Waker,
    ) -> Result<bool, ClientError> {
        let mut left = VecDeque::new();
        let mut is_done = true;
        for mut prepared in self.prepared.drain(..) {
            if prepared.checkpoint > checkpoint {
                left.push_back(prepared);
                continue;
            }
            match poll(&mut prepared.commit) {
                Some(result) => {
                    result?;
                    self.free.push(prepared.producer);
                    self.waker.take().inspect(Waker::wake_by_ref);
                    continue;
                }
                None if prepared.commit.is_none() => {
                    let producer = Arc::clone(&prepared.producer);
                    let commit = async move { producer.commit().await };
                    prepared.commit = Some(Work::start(network, waker, commit));
                }
                None => {}
            }
            is_done = false;
            left.push_back(prepared);
        }
        self.prepared = left;
        Ok(is_done)
    }
}

/// Returns the first of these transactions that was aborted by force, as far as the server still knows.
pub async fn aborted(
    client: &Client,
    prepared: &[NamedTransaction],
) -> Result<Option<String>, ClientError> {
    for named in prepared {
        let found = client.transaction(&named.id).await?;
        if found.is_some_and(|found| found.was_aborted(named.identity())) {
            return Ok(Some(format!("transaction {}", named.id)));
        }
    }
    Ok(None)
}

/// Begins as the producer of a transactional id.
async fn make(
    client: Client,
    config: ProducerConfig,
    id: String,
) -> Result<TransactionalProducer, ClientError> {
    let mut transaction = TransactionConfig {
        id,
        timeout: TIMEOUT_MAX,
        two_phase: true,
    };
    let made = TransactionalProducer::new(&client, config.clone(), transaction.clone()).await;
    if !matches!(made, Err(ClientError::NoTwoPhaseCommit { .. })) {
        return made;
    }
    transaction.two_phase = false;
    TransactionalProducer::new(&client, config, transaction).await
}

/// Decides the transactions that an earlier run of a rank left open: commits those that the checkpoint names, and
/// aborts all others, fencing their producers. Returns new ones in their place.
async fn recover(
    client: &Client,
    config: &ProducerConfig,
    id: &FlowTransactionId,
    ranks: u32,
    prepared: &[NamedTransaction],
) -> Result<Vec<Arc<TransactionalProducer>>, ClientError> {
    for named in prepared {
        let found = client.transaction(&named.id).await?;
        // A transaction that is no longer open is committed, unless an administrator has aborted it.
        match found {
            Some(found) if found.is_open() && found.identity == named.identity() => {
                client
                    .end_transaction(&named.id, named.identity(), true)
                    .await?;
            }
            Some(found) if found.was_aborted(named.identity()) => tracing::warn!(
                "transaction {} was aborted by force: the results in it are lost",
                named.id
            ),
            _ => {}
        }
    }
    let mut free = Vec::new();
    let known = client.transactions().await?;
    let own: Vec<_> = known
        .iter()
        .filter(|it| id.is_heir_of(&it.id, ranks))
        .collect();
    // Begin the first one in any case, so that the server's refusal shows at the start.
    for slot in 0..TRANSACTIONS_MAX {
        let name = id.slot(slot);
        if slot > 0 && !own.iter().any(|known| known.id == name) {
            break;
        }
        let producer = make(client.clone(), config.clone(), name).await?;
        if slot == 0 && !producer.has_two_phases() {
            tracing::warn!(
                "the server does not know two-phase commit (KIP-939): it aborts results of {id} that a checkpoint names and that are not committed within {TIMEOUT_MAX:?}, so a flow that stands still for longer loses them"
            );
        }
        free.push(Arc::new(producer));
    }
    // Of ranks that there are no more.
    for other in own {
        if !free.iter().any(|producer| producer.id() == other.id) {
            client.fence_producers(&other.id).await?;
        }
    }
    Ok(free)
}

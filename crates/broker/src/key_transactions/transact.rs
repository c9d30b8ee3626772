//! A transaction of the broker that changes keys of several partitions.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::Offset;
use millstream_log::{ChangeError, ChangeTransaction, KeyChanges, StreamPartition};
use tokio::time::{Instant, sleep, timeout};

use super::producers::{InUse, abort_left};
use super::{ChangeOutcome, ENDED, KeyTransactions, Share, TogetherError};
use crate::transactions::{
    AddPartitions, Answer, EndTransaction, Outcome, Producer, Request, TransactionalId,
    VerifyPartitions,
};

/// How long a transaction waits for others that have written its keys.
const UNDECIDED_WAIT_MAX: Duration = Duration::from_secs(2);

/// The first wait for them; each further one is twice as long.
const UNDECIDED_WAIT: Duration = Duration::from_millis(2);

/// How long a request waits until a decided transaction has ended in all partitions.
const END_WAIT_MAX: Duration = Duration::from_secs(30);

/// A transaction that is under way.
#[derive(Clone)]
struct Transaction {
    id: TransactionalId,
    producer: Producer,
}

/// The outcomes of a transaction's changes.
struct Changes {
    /// With their places in the request.
    outcomes: Vec<(usize, ChangeOutcome)>,
    /// The partitions that were looked at, and how far they have to be durable.
    reached: Vec<(StreamPartition, Offset)>,
}

impl KeyTransactions {
    /// Aborts the transactions that the run before has left open, so that they hold back no look-ups.
    pub(crate) async fn recover(&self) {
        let left = abort_left(&self.service).await;
        if left > 0 {
            tracing::info!(
                "ended {left} transactions of changes of keys that the run before had left open"
            );
        }
    }

    /// Makes changes in several partitions, or none.
    pub(super) async fn transact(
        &self,
        shares: Vec<Share>,
    ) -> Result<Vec<ChangeOutcome>, TogetherError> {
        let shares: Vec<Arc<Share>> = shares.into_iter().map(Arc::new).collect();
        let (mut used, producer) = self.producers.take(&self.service).await?;
        let transaction = Transaction {
            id: used.id(),
            producer,
        };
        let lanes = shares.iter().map(|share| share.partition.id());
        let open = self.open.begin(lanes.collect());
        self.add_partitions(&transaction, &shares).await?;
        let changed = self.change_all(&transaction, &shares).await;
        let is_stored = matches!(&changed, Ok(changed) if changed.are_stored());
        let ended = self.end(&mut used, &transaction, is_stored).await;
        // Neither its id nor its end is needed any more, and others must not wait for them.
        drop((used, open));
        let mut changed = changed?;
        if is_stored {
            ended?;
        }
        for (partition, until) in &changed.reached {
            if !is_stored {
                // A refusal names versions that a crash must not take back.
                partition.answered(*until).await?;
            }
            // A transaction that has begun before may still be open.
            self.seen(partition, *until).await;
        }
        changed.outcomes.sort_unstable_by_key(|(place, _)| *place);
        let outcomes = changed.outcomes.into_iter();
        Ok(outcomes.map(|(_, outcome)| outcome).collect())
    }

    async fn add_partitions(
        &self,
        transaction: &Transaction,
        shares: &[Arc<Share>],
    ) -> Result<(), TogetherError> {
        let request = Request::AddPartitions(AddPartitions {
            transactional_id: transaction.id.clone(),
            producer: transaction.producer,
            partitions: shares.iter().map(|share| share.name.clone()).collect(),
            knows_fencing: true,
        });
        let refused = |why: &dyn std::fmt::Display| TogetherError::NoTransaction(why.to_string());
        match self.service.ask_behind_last(request).await {
            Ok(Answer::AddPartitions(Ok(()))) => Ok(()),
            Ok(Answer::AddPartitions(Err(error))) => Err(refused(&error)),
            Ok(_) => Err(refused(&"it gives another answer")),
            Err(error) => Err(refused(&error)),
        }
    }

    /// Changes the partitions in their order, up to the first one that refuses, and waits until all records are durable.
    async fn change_all(
        &self,
        transaction: &Transaction,
        shares: &[Arc<Share>],
    ) -> Result<Changes, TogetherError> {
        let mut changes = Changes {
            outcomes: Vec::new(),
            reached: Vec::new(),
        };
        let until = Instant::now() + UNDECIDED_WAIT_MAX;
        for share in shares {
            let changed = self.change_decided(transaction, share, until).await?;
            changes.add(share, changed);
            if !changes.are_stored() {
                changes.refuse_all(shares);
                return Ok(changes);
            }
        }
        for (partition, until) in &changes.reached {
            partition.durable(*until).await?;
        }
        Ok(changes)
    }

    /// Changes a partition; while another transaction has written one of the keys, tries again.
    async fn change_decided(
        &self,
        transaction: &Transaction,
        share: &Arc<Share>,
        until: Instant,
    ) -> Result<KeyChanges, TogetherError> {
        let mut wait = UNDECIDED_WAIT;
        loop {
            let changed = self.change_once(transaction, share).await?;
            let is_undecided =
                |outcome: &ChangeOutcome| matches!(outcome, Err(ChangeError::Undecided));
            if !changed.outcomes.iter().any(is_undecided) || Instant::now() + wait > until {
                return Ok(changed);
            }
            sleep(wait).await;
            wait *= 2;
        }
    }

    async fn change_once(
        &self,
        transaction: &Transaction,
        share: &Arc<Share>,
    ) -> Result<KeyChanges, TogetherError> {
        let verify = VerifyPartitions {
            transactional_id: transaction.id.clone(),
            producer: transaction.producer,
            partitions: vec![share.name.clone()],
        };
        let changed = self.threads.run({
            let (service, share) = (Arc::clone(&self.service), Arc::clone(share));
            let Producer { id, epoch } = transaction.producer;
            let own = ChangeTransaction {
                producer: id,
                epoch,
            };
            move || service.append_blocking(verify, || share.change(Some(own)))
        });
        let changed = changed.await;
        let changed = changed.ok_or_else(|| TogetherError::NoTransaction(ENDED.to_owned()))?;
        let ended = || TogetherError::NoTransaction("an administrator has ended it".to_owned());
        Ok(changed.ok_or_else(ended)??)
    }

    /// Commits or aborts, and waits until look-ups see it.
    async fn end(
        &self,
        used: &mut InUse<'_>,
        transaction: &Transaction,
        commits: bool,
    ) -> Result<(), TogetherError> {
        let request = Request::EndTransaction(EndTransaction {
            transactional_id: transaction.id.clone(),
            producer: transaction.producer,
            outcome: match commits {
                true => Outcome::Committed,
                false => Outcome::Aborted,
            },
            bumps_epoch: true,
            knows_fencing: true,
        });
        let unknown = |why: &dyn std::fmt::Display| TogetherError::Unknown(why.to_string());
        match self.service.ask(request).await {
            Ok(Answer::EndTransaction(Ok(next))) => used.goes_on_as(next),
            Ok(Answer::EndTransaction(Err(error))) => return Err(unknown(&error)),
            Ok(_) => return Err(unknown(&"the coordinator gives another answer")),
            Err(error) => return Err(unknown(&error)),
        }
        let ended = timeout(END_WAIT_MAX, self.service.ended(&transaction.id));
        match ended.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(unknown(&error)),
            Err(_) => Err(unknown(
                &"the changes are stored, but look-ups do not see all of them yet",
            )),
        }
    }
}

impl Changes {
    fn add(&mut self, share: &Share, changed: KeyChanges) {
        let outcomes = share.places.iter().copied().zip(changed.outcomes);
        self.outcomes.extend(outcomes);
        self.reached
            .push((share.partition.clone(), changed.answer_at));
    }

    fn are_stored(&self) -> bool {
        self.outcomes.iter().all(|(_, outcome)| outcome.is_ok())
    }

    /// Refuses the changes that nothing is wrong with, also those that were not tried.
    fn refuse_all(&mut self, shares: &[Arc<Share>]) {
        let stored = self
            .outcomes
            .iter_mut()
            .filter(|(_, outcome)| outcome.is_ok());
        for (_, outcome) in stored {
            *outcome = Err(ChangeError::NotAlone);
        }
        for share in &shares[self.reached.len()..] {
            let refused = |place: &usize| (*place, Err(ChangeError::NotAlone));
            self.outcomes.extend(share.places.iter().map(refused));
        }
    }
}

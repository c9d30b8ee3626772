//! The coordinator of transactions at work: its records in a ledger, its answers to connections, markers in
//! lanes, offsets in groups, deadlines on the clock.

mod abort;
mod describe;
mod offsets;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Clock, Offset};
use millstream_log::{Log, LogError, StreamPartition};
use millstream_record::{EndMarker, TransactionEnd};
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock};
use tokio::time::{Instant, timeout_at};

pub use self::abort::abort;
pub use self::describe::{describe, list};
pub use self::offsets::commit;
pub use self::requests::{add, add_offsets, end, init};
use crate::groups::service::GroupService;
use crate::groups::{self, GroupName, Moment, RequestId};
use crate::ledger::Ledger;
use crate::shares::service::ShareService;
use crate::transactions::{
    Action, Answer, Config, Coordinator, Ending, Outcome, Report, Request, State, TopicPartition,
    TransactionalId, VerifyPartitions,
};

/// The stream that holds the transactions.
const LEDGER: &str = "__transactions";

/// The wait when no deadline is set.
const IDLE: Duration = Duration::from_secs(60);

/// The longest wait for the end of the previous transaction.
const END_WAIT_MAX: Duration = Duration::from_secs(1);

/// The longest wait for a moment at which no transaction is partly committed.
const COMMITS_WAIT_MAX: Duration = Duration::from_secs(5);

/// There is one coordinator, ever.
const COORDINATOR_EPOCH: i32 = 0;

/// The transaction coordinator, and the log, groups and clock that it works with.
pub struct TransactionService {
    at_work: Mutex<AtWork>,
    ledger: Arc<Ledger>,
    groups: Arc<GroupService>,
    shares: Arc<ShareService>,
    log: Log,
    clock: Arc<dyn Clock>,
    /// Held shared during an append to a transaction; the end of a transaction takes it exclusively before it writes
    /// markers.
    appending: RwLock<()>,
    /// The next deadline may have come nearer.
    changed: Notify,
    /// Notified when some participants have received the outcome of a transaction.
    answered: Notify,
}

struct AtWork {
    /// `None` while the ledger is damaged, and after a failed append until all tasks under way have finished.
    coordinator: Option<Coordinator>,
    /// The tasks that are writing markers and ending offsets.
    ending: usize,
    /// Everything before this offset has to be durable before an answer or a marker may follow.
    appended: Offset,
}

/// The ledger cannot store transactions at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("transactions cannot be stored at the moment: see the log of the server")]
pub struct Unavailable;

impl TransactionService {
    /// Restores the coordinator from the ledger. If that is damaged, no request is answered.
    ///
    /// # Errors
    /// When the ledger cannot be read, or holds records of another kind.
    pub fn open(
        log: &Log,
        groups: Arc<GroupService>,
        shares: Arc<ShareService>,
        clock: Arc<dyn Clock>,
    ) -> Result<TransactionService, LogError> {
        let ledger = Ledger::open(log, LEDGER)?;
        let coordinator = match restore(&ledger, moment(&*clock)) {
            Err(error @ LogError::Corrupted { .. }) => {
                tracing::error!("transactions are refused: {error}");
                None
            }
            restored => Some(restored?),
        };
        if let Some(coordinator) = &coordinator {
            let known: HashSet<_> = coordinator.groups().collect();
            shares.abort_unknown(|producer, group| known.contains(&(producer, group)));
        }
        Ok(TransactionService {
            at_work: Mutex::new(AtWork {
                coordinator,
                ending: 0,
                appended: Offset(0),
            }),
            ledger: Arc::new(ledger),
            groups,
            shares,
            log: log.clone(),
            clock,
            appending: RwLock::default(),
            changed: Notify::new(),
            answered: Notify::new(),
        })
    }

    /// Handles deadlines as they pass, for as long as it is polled.
    pub async fn keep_time(self: Arc<Self>) {
        loop {
            let deadline = {
                let at_work = self.at_work.lock();
                let coordinator = at_work.coordinator.as_ref();
                coordinator.map(Coordinator::next_deadline)
            };
            let now = self.clock.monotonic();
            let wait = deadline.map_or(IDLE, |deadline| deadline.saturating_sub(now));
            tokio::select! {
                () = tokio::time::sleep(wait) => {
                    let now = moment(&*self.clock);
                    // No request waits for the result. A failed step drops the coordinator, and the next one handles
                    // the deadline.
                    let _ = self.step(&mut self.at_work.lock(), now, |coordinator| {
                        coordinator.tick(now)
                    });
                }
                () = self.changed.notified() => {}
            }
        }
    }

    /// Appends records that the coordinator permitted before. `verify` asks it once more, since the transaction may
    /// have been ended meanwhile: behind its end, the records would belong to no known transaction.
    pub async fn append<T>(
        self: &Arc<Self>,
        verify: Request,
        append: impl FnOnce(Result<Answer, Unavailable>) -> T,
    ) -> T {
        let now = moment(&*self.clock);
        let _appending = self.appending.read().await;
        let verified = self.step(&mut self.at_work.lock(), now, |coordinator| {
            coordinator.handle(now, RequestId(0), verify)
        });
        append(verified.and_then(|answer| answer.ok_or(Unavailable)))
    }

    /// As [`append`](Self::append), for the broker's own transactions, on a thread that may block. `None` if the coordinator
    /// does not permit it.
    pub fn append_blocking<T>(
        self: &Arc<Self>,
        verify: VerifyPartitions,
        append: impl FnOnce() -> T,
    ) -> Option<T> {
        let now = moment(&*self.clock);
        let _appending = self.appending.blocking_read();
        let verify = Request::VerifyPartitions(verify);
        let verified = self.step(&mut self.at_work.lock(), now, |coordinator| {
            coordinator.handle(now, RequestId(0), verify)
        });
        let Ok(Some(Answer::VerifyPartitions(verified))) = verified else {
            return None;
        };
        let is_permitted = verified.iter().all(|(_, result)| result.is_ok());
        is_permitted.then(append)
    }

    /// Waits until the last transaction of an id has ended in all of its partitions and groups.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn ended(self: &Arc<Self>, id: &TransactionalId) -> Result<(), Unavailable> {
        loop {
            let mut answered = std::pin::pin!(self.answered.notified());
            answered.as_mut().enable();
            let describe = Request::DescribeTransactions(vec![id.clone()]);
            let Answer::DescribeTransactions(described) = self.ask(describe).await? else {
                return Err(Unavailable);
            };
            let is_ending = |state| matches!(state, State::PrepareCommit | State::PrepareAbort);
            let mut states = described.into_iter().filter_map(|(_, found)| found.ok());
            if !states.any(|found| is_ending(found.state)) {
                return Ok(());
            }
            answered.await;
        }
    }

    /// Calls `cut` at a moment at which no transaction is committed in some partitions of a stream and not yet in
    /// others. Waits up to `COMMITS_WAIT_MAX` for the moment; `None` if there was none.
    pub async fn between_commits<T>(&self, stream: &str, cut: impl FnOnce() -> T) -> Option<T> {
        let until = Instant::now() + COMMITS_WAIT_MAX;
        loop {
            let mut answered = std::pin::pin!(self.answered.notified());
            answered.as_mut().enable();
            {
                let at_work = self.at_work.lock();
                let coordinator = at_work.coordinator.as_ref()?;
                if !coordinator.is_committing(stream) {
                    // None begins to be committed while the coordinator is locked.
                    return Some(cut());
                }
            }
            timeout_at(until, answered).await.ok()?;
        }
    }

    /// Sends a request to the coordinator; returns the answer once its records are durable.
    ///
    /// # Errors
    /// When the ledger could not store the records.
    pub async fn ask(self: &Arc<Self>, request: Request) -> Result<Answer, Unavailable> {
        let now = moment(&*self.clock);
        let id = RequestId(0);
        let (answer, appended) = {
            let mut at_work = self.at_work.lock();
            let answer = self.step(&mut at_work, now, |coordinator| {
                coordinator.handle(now, id, request)
            })?;
            (answer.ok_or(Unavailable)?, at_work.appended)
        };
        self.changed.notify_one();
        let durable = self.ledger.lane().durable(appended).await;
        durable.map(|()| answer).map_err(|_| Unavailable)
    }

    /// Sends a request that may be the first of a transaction. While the transaction before is still being ended,
    /// waits up to `END_WAIT_MAX` for its end, so that few clients have to retry.
    ///
    /// # Errors
    /// When the ledger could not store the records.
    pub async fn ask_behind_last(
        self: &Arc<Self>,
        request: Request,
    ) -> Result<Answer, Unavailable> {
        let until = Instant::now() + END_WAIT_MAX;
        loop {
            let mut answered = std::pin::pin!(self.answered.notified());
            answered.as_mut().enable();
            let answer = self.ask(request.clone()).await?;
            if !answer.is_too_early() || timeout_at(until, answered).await.is_err() {
                return Ok(answer);
            }
        }
    }

    /// Whether the partition exists.
    fn knows(&self, partition: &TopicPartition) -> bool {
        let index = u32::try_from(partition.partition.0).unwrap_or(u32::MAX);
        let stream = self.log.stream(&partition.topic);
        stream.is_ok_and(|stream| !stream.is_internal() && stream.partition(index).is_ok())
    }

    /// Runs one event of the coordinator, appends its records, and spawns its other actions. Returns the answer, if
    /// there is one.
    fn step(
        self: &Arc<Self>,
        at_work: &mut AtWork,
        now: Moment,
        event: impl FnOnce(&mut Coordinator) -> Vec<Action>,
    ) -> Result<Option<Answer>, Unavailable> {
        let actions = event(at_work.coordinator.as_mut().ok_or(Unavailable)?);
        let mut records = Vec::new();
        let mut answer = None;
        let mut endings = Vec::new();
        for action in actions {
            match action {
                Action::Persist(record) => records.push(record),
                Action::Answer(_, given) => answer = Some(given),
                ending => endings.push(ending),
            }
        }
        if !records.is_empty() {
            match self.ledger.append(records, now.timestamp) {
                Ok(appended) => {
                    at_work.appended = appended;
                    self.ledger.compact_if_due();
                }
                Err(error) => {
                    tracing::warn!(
                        "cannot store transactions, so the coordinator goes back to the stored state: {error}"
                    );
                    at_work.coordinator = None;
                    self.restore_if_idle(at_work, now);
                    return Err(Unavailable);
                }
            }
        }
        for ending in endings {
            at_work.ending += 1;
            tokio::spawn(Arc::clone(self).end(ending, at_work.appended));
        }
        Ok(answer)
    }

    /// Restores the coordinator from the ledger if there is none and no task is under way: a late marker would end a
    /// later transaction.
    fn restore_if_idle(&self, at_work: &mut AtWork, now: Moment) {
        if at_work.coordinator.is_none() && at_work.ending == 0 {
            match restore(&self.ledger, now) {
                Ok(coordinator) => at_work.coordinator = Some(coordinator),
                Err(error) => tracing::error!("transactions cannot be read: {error}"),
            }
        }
    }

    /// Brings the outcome of a transaction to its participants, and reports the results.
    async fn end(self: Arc<Self>, action: Action, appended: Offset) {
        let is_certain = self.ledger.lane().durable(appended).await.is_ok();
        // Later appends find that the transaction is ended; this waits for those under way.
        drop(self.appending.write().await);
        let reports = match action {
            Action::WriteMarkers(ending, partitions) => {
                self.write_markers(is_certain, ending, partitions).await
            }
            Action::EndGroupOffsets(ending, groups) => {
                vec![self.end_group_offsets(is_certain, ending, groups).await]
            }
            Action::Persist(_) | Action::Answer(..) => Vec::new(),
        };
        let now = moment(&*self.clock);
        let mut at_work = self.at_work.lock();
        at_work.ending -= 1;
        for report in reports {
            // If there is no coordinator, the next one repeats the action.
            let _ = self.step(&mut at_work, now, |coordinator| {
                coordinator.report(now, report)
            });
        }
        self.restore_if_idle(&mut at_work, now);
        drop(at_work);
        self.changed.notify_one();
        self.answered.notify_waiters();
    }

    async fn write_markers(
        &self,
        is_certain: bool,
        ending: Ending,
        partitions: Vec<TopicPartition>,
    ) -> Vec<Report> {
        let marker = EndMarker {
            producer_id: ending.producer.id,
            producer_epoch: ending.producer.epoch,
            end: match ending.outcome {
                Outcome::Committed => TransactionEnd::Commit,
                Outcome::Aborted => TransactionEnd::Abort,
            },
            coordinator_epoch: COORDINATOR_EPOCH,
        };
        let (mut written, mut failed) = (Vec::new(), Vec::new());
        for partition in partitions {
            let is_written = is_certain && self.write_marker(&marker, &partition).await;
            match is_written {
                true => written.push(partition),
                false => failed.push(partition),
            }
        }
        let mut reports = Vec::new();
        if !written.is_empty() {
            reports.push(Report::MarkersWritten(ending.clone(), written));
        }
        if !failed.is_empty() {
            reports.push(Report::MarkersFailed(ending, failed));
        }
        reports
    }

    /// Returns `true` when the marker is durable, or its partition no longer exists.
    async fn write_marker(&self, marker: &EndMarker, partition: &TopicPartition) -> bool {
        let index = u32::try_from(partition.partition.0).unwrap_or(u32::MAX);
        let stream = self.log.stream(&partition.topic);
        let lane = match stream.and_then(|stream| stream.partition(index)) {
            Ok(lane) => lane,
            Err(error) => return is_gone(&error),
        };
        let end = match lane.append_marker(marker) {
            Ok(appended) => appended.next_offset,
            // A later marker has ended the transaction already.
            Err(LogError::ProducerFenced { .. }) if !has_transaction(&lane, marker) => {
                lane.next_offset()
            }
            Err(error) => {
                tracing::warn!("cannot write the marker of a transaction, trying again: {error}");
                return is_gone(&error);
            }
        };
        match lane.durable(end).await {
            Ok(()) => true,
            Err(error) => is_gone(&error),
        }
    }

    async fn end_group_offsets(
        &self,
        is_certain: bool,
        ending: Ending,
        groups: Vec<GroupName>,
    ) -> Report {
        let producer = ending.producer.id;
        let committed = ending.outcome == Outcome::Committed;
        let request = groups::Request::EndTransaction(groups::EndTransaction {
            producer,
            committed,
        });
        let is_ended = is_certain
            && self.groups.ask(request).await.is_ok()
            && self
                .shares
                .end_transaction(producer, committed, &groups)
                .await
                .is_ok();
        match is_ended {
            true => Report::GroupOffsetsEnded(ending, groups),
            false => Report::GroupOffsetsFailed(ending, groups),
        }
    }
}

/// Whether the marker's producer has an open transaction in the partition.
fn has_transaction(lane: &StreamPartition, marker: &EndMarker) -> bool {
    let mut producers = lane.producers().into_iter();
    let known = producers.find(|known| known.producer == marker.producer_id);
    known.is_some_and(|known| known.transaction.is_some())
}

/// Whether a partition has ceased to exist.
fn is_gone(error: &LogError) -> bool {
    matches!(
        error,
        LogError::UnknownStream { .. } | LogError::UnknownPartition { .. }
    )
}

fn restore(ledger: &Ledger, now: Moment) -> Result<Coordinator, LogError> {
    let records = ledger.read()?;
    Coordinator::restore(Config::default(), now, records).map_err(|error| LogError::BadSetting {
        setting: LEDGER,
        why: format!("the stream holds something else than transactions: {error}"),
    })
}

fn moment(clock: &dyn Clock) -> Moment {
    Moment {
        elapsed: clock.monotonic(),
        timestamp: clock.now(),
    }
}

//! The coordinator of transactions at work: its records in a ledger, its answers to connections, markers in
//! lanes, offsets in groups, deadlines on the clock.

mod abort;
mod describe;
mod offsets;
mod requests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Clock, Offset};
use millstream_log::{Lane, Log, LogError};
use millstream_record::{EndMarker, TransactionEnd};
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock};
use tokio::time::{Instant, timeout_at};

pub use self::requests::handle;
use crate::groups::service::GroupService;
use crate::groups::{self, GroupName, Moment, RequestId};
use crate::ledger::Ledger;
use crate::transactions::{
    Action, Answer, Config, Coordinator, Ending, Outcome, Report, Request, TopicPartition,
};

/// The stream that transactions are kept in.
const LEDGER: &str = "__transactions";

/// When nothing is due.
const IDLE: Duration = Duration::from_secs(60);

/// How long the end of the transaction before is waited for.
const END_WAIT_MAX: Duration = Duration::from_secs(1);

/// There is one coordinator, ever.
const COORDINATOR_EPOCH: i32 = 0;

/// The coordinator, and what it works with.
pub struct TransactionService {
    at_work: Mutex<AtWork>,
    ledger: Arc<Ledger>,
    groups: Arc<GroupService>,
    log: Log,
    clock: Arc<dyn Clock>,
    /// Held while something is appended to a transaction: its end is told to nobody meanwhile.
    appending: RwLock<()>,
    /// The next deadline may have come nearer.
    changed: Notify,
    /// The end of a transaction has been told to some of those that take part.
    told: Notify,
}

struct AtWork {
    /// `None` after an append has failed, until all that is under way is done, and where the ledger is
    /// damaged.
    coordinator: Option<Coordinator>,
    /// Markers and offsets that are being written: so many tasks.
    ending: usize,
    /// Everything before is to be durable before anything else happens.
    appended: Offset,
}

/// Transactions cannot be kept just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unavailable;

impl TransactionService {
    /// Goes on where the ledger ends. Where that is damaged, no request is answered.
    ///
    /// # Errors
    /// When the ledger cannot be read, or holds something else.
    pub fn open(
        log: &Log,
        groups: Arc<GroupService>,
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
        Ok(TransactionService {
            at_work: Mutex::new(AtWork {
                coordinator,
                ending: 0,
                appended: Offset(0),
            }),
            ledger: Arc::new(ledger),
            groups,
            log: log.clone(),
            clock,
            appending: RwLock::default(),
            changed: Notify::new(),
            told: Notify::new(),
        })
    }

    /// Does what is due, for as long as it is polled.
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
                    // Nobody asked, so nobody has to be told when it fails.
                    let _ = self.step(&mut self.at_work.lock(), now, |coordinator| {
                        coordinator.tick(now)
                    });
                }
                () = self.changed.notified() => {}
            }
        }
    }

    /// Appends what was permitted before, unless the transaction was ended meanwhile, which `verify` finds
    /// out: behind its end it would be part of a transaction that nobody knows.
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

    /// Asks the coordinator; the answer is given when what it decided is durable.
    ///
    /// # Errors
    /// When that could not be kept.
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

    /// Asks what may be the first of a transaction: as long as the one before is still being ended, it is
    /// waited for a little, so that few clients have to try again.
    ///
    /// # Errors
    /// When what was decided could not be kept.
    pub async fn ask_behind_last(
        self: &Arc<Self>,
        request: Request,
    ) -> Result<Answer, Unavailable> {
        let until = Instant::now() + END_WAIT_MAX;
        loop {
            let mut told = std::pin::pin!(self.told.notified());
            told.as_mut().enable();
            let answer = self.ask(request.clone()).await?;
            if !answer.is_too_early() || timeout_at(until, told).await.is_err() {
                return Ok(answer);
            }
        }
    }

    /// Whether there is such a partition.
    fn knows(&self, partition: &TopicPartition) -> bool {
        let index = u32::try_from(partition.partition.0).unwrap_or(u32::MAX);
        let stream = self.log.stream(&partition.topic);
        stream.is_ok_and(|stream| !stream.is_internal() && stream.partition(index).is_ok())
    }

    /// Lets the coordinator do something, keeps what it decides, and begins what follows from it. Returns
    /// the answer, if there is one.
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
                    tracing::warn!("transactions cannot be kept, and go back to what is: {error}");
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

    /// Begins again from the ledger, if it has to and nothing of before is under way: a late marker would
    /// end a later transaction.
    fn restore_if_idle(&self, at_work: &mut AtWork, now: Moment) {
        if at_work.coordinator.is_none() && at_work.ending == 0 {
            match restore(&self.ledger, now) {
                Ok(coordinator) => at_work.coordinator = Some(coordinator),
                Err(error) => tracing::error!("transactions cannot be read: {error}"),
            }
        }
    }

    /// Carries the end of a transaction to those that take part, and reports.
    async fn end(self: Arc<Self>, action: Action, appended: Offset) {
        let is_certain = self.ledger.lane().durable(appended).await.is_ok();
        // What comes later finds that the transaction is ended.
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
            // Without a coordinator nobody needs to know: the next one asks again.
            let _ = self.step(&mut at_work, now, |coordinator| {
                coordinator.report(now, report)
            });
        }
        self.restore_if_idle(&mut at_work, now);
        drop(at_work);
        self.changed.notify_one();
        self.told.notify_waiters();
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

    /// `true` when the marker is durable, or there is no place for it any more.
    async fn write_marker(&self, marker: &EndMarker, partition: &TopicPartition) -> bool {
        let index = u32::try_from(partition.partition.0).unwrap_or(u32::MAX);
        let stream = self.log.stream(&partition.topic);
        let lane = match stream.and_then(|stream| stream.partition(index)) {
            Ok(lane) => lane,
            Err(error) => return is_gone(&error),
        };
        let end = match lane.append_marker(marker) {
            Ok(appended) => appended.next_offset,
            // A later one has ended the transaction already.
            Err(LogError::ProducerFenced { .. }) if !has_transaction(&lane, marker) => {
                lane.next_offset()
            }
            Err(error) => {
                tracing::warn!("marker of a transaction not written, trying again: {error}");
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
        let request = groups::Request::EndTransaction(groups::EndTransaction {
            producer: ending.producer.id,
            committed: ending.outcome == Outcome::Committed,
        });
        match is_certain && self.groups.ask(request).await.is_ok() {
            true => Report::GroupOffsetsEnded(ending, groups),
            false => Report::GroupOffsetsFailed(ending, groups),
        }
    }
}

/// Whether the marker's producer is in a transaction there.
fn has_transaction(lane: &Lane, marker: &EndMarker) -> bool {
    let mut producers = lane.producers().into_iter();
    let known = producers.find(|known| known.producer == marker.producer_id);
    known.is_some_and(|known| known.transaction.is_some())
}

/// Whether a partition has ceased to exist.
fn is_gone(error: &LogError) -> bool {
    matches!(
        error,
        LogError::UnknownStream { .. } | LogError::UnknownLane { .. }
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

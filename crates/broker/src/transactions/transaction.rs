//! A transactional id: its producer, and the phase of its transaction. This module only holds the state that the log
//! stores; it does not act.

use std::time::Duration;

use millstream_base::{ProducerId, Timestamp};

use super::participants::Participants;
use super::{Outcome, Producer, State, TransactionError};

/// The stored state of a transactional id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Transaction {
    /// The current producer; while a transaction is being ended, as its markers have it.
    pub producer: Producer,
    /// The producer before the current one, if the client may not have learned of the change yet.
    pub last: Option<Producer>,
    /// How long a transaction may take; `None` for as long as it takes to decide it from outside (two-phase commit).
    pub timeout: Option<Duration>,
    /// When something was last changed.
    pub updated: Timestamp,
    /// The phase of its transaction.
    pub phase: Phase,
}

/// The phase of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no transaction.
    Empty,
    /// The transaction is open.
    Ongoing {
        started: Timestamp,
        participants: Participants,
    },
    /// The transaction is being ended: the outcome is decided, and not every participant has it yet.
    Ending {
        started: Timestamp,
        participants: Participants,
        end: End,
        /// The producer's next id, if this end exhausts the epochs of the current one.
        next: Option<ProducerId>,
    },
    /// The transaction is ended.
    Ended { started: Timestamp, end: End },
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub outcome: Outcome,
    /// Whether the producer got its new epoch by it.
    pub bumps_epoch: bool,
}

/// The coordinator's next step for a request to end a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndStep {
    /// Do nothing: the transaction is ended already, and the client sent the request again.
    Repeated,
    /// End it.
    End,
}

impl Transaction {
    pub fn new(producer: Producer, timeout: Option<Duration>, now: Timestamp) -> Self {
        Transaction {
            producer,
            last: None,
            timeout,
            updated: now,
            phase: Phase::Empty,
        }
    }

    /// The producer that may send requests; while a transaction is being ended, the producer of the next one.
    pub fn current(&self) -> Producer {
        match self.phase {
            Phase::Ending { next: Some(id), .. } => Producer::first(id),
            _ => self.producer,
        }
    }

    pub fn state(&self) -> State {
        match &self.phase {
            Phase::Empty => State::Empty,
            Phase::Ongoing { .. } => State::Ongoing,
            Phase::Ending { end, .. } => match end.outcome {
                Outcome::Committed => State::PrepareCommit,
                Outcome::Aborted => State::PrepareAbort,
            },
            Phase::Ended { end, .. } => match end.outcome {
                Outcome::Committed => State::CompleteCommit,
                Outcome::Aborted => State::CompleteAbort,
            },
        }
    }

    pub fn started(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Empty => None,
            Phase::Ongoing { started, .. }
            | Phase::Ending { started, .. }
            | Phase::Ended { started, .. } => Some(started),
        }
    }

    /// The participants of the transaction that is open or being ended.
    pub fn participants(&self) -> Option<&Participants> {
        match &self.phase {
            Phase::Ongoing { participants, .. } | Phase::Ending { participants, .. } => {
                Some(participants)
            }
            Phase::Empty | Phase::Ended { .. } => None,
        }
    }

    /// Checks that a request comes from the current producer.
    pub fn check(&self, producer: Producer) -> Result<(), TransactionError> {
        let current = self.current();
        if producer.id != current.id {
            return Err(TransactionError::InvalidProducerIdMapping);
        }
        // No client has ever been given the last epoch.
        if producer.epoch != current.epoch || current.is_last() {
            return Err(TransactionError::ProducerFenced);
        }
        Ok(())
    }

    /// Checks that a request comes from the current producer, and that the transaction is open or can be opened.
    pub fn check_open(&self, producer: Producer) -> Result<(), TransactionError> {
        self.check(producer)?;
        match self.phase {
            Phase::Ending { .. } => Err(TransactionError::ConcurrentTransactions),
            _ => Ok(()),
        }
    }

    /// Adds participants. The caller has [checked](Self::check_open) the request.
    pub fn add(&mut self, now: Timestamp, added: Participants) {
        self.updated = now;
        if let Phase::Ongoing { participants, .. } = &mut self.phase {
            return participants.extend(added);
        }
        self.phase = Phase::Ongoing {
            started: now,
            participants: added,
        };
    }

    /// Decides the next step for a request to end the transaction.
    pub fn end_step(&self, producer: Producer, end: End) -> Result<EndStep, TransactionError> {
        let is_repeated = self.is_end_repeated(producer, end);
        if !is_repeated {
            self.check(producer)?;
        }
        // The epoch of a producer that bumps it identifies the transaction.
        let is_about_last = is_repeated || !end.bumps_epoch;
        match &self.phase {
            Phase::Ongoing { .. } => Ok(EndStep::End),
            Phase::Ending { end: last, .. } if is_about_last => match last.outcome == end.outcome {
                true => Err(TransactionError::ConcurrentTransactions),
                false => Err(TransactionError::InvalidTxnState),
            },
            Phase::Ending { .. } => Err(TransactionError::ConcurrentTransactions),
            Phase::Ended { end: last, .. } if is_about_last => match last.outcome == end.outcome {
                true => Ok(EndStep::Repeated),
                false => Err(TransactionError::InvalidTxnState),
            },
            // The producer may not know whether any record of its transaction has arrived.
            Phase::Empty | Phase::Ended { .. }
                if end.bumps_epoch && end.outcome == Outcome::Aborted =>
            {
                Ok(EndStep::End)
            }
            Phase::Empty | Phase::Ended { .. } => Err(TransactionError::InvalidTxnState),
        }
    }

    fn is_end_repeated(&self, producer: Producer, end: End) -> bool {
        let is_bumped = match &self.phase {
            Phase::Ending { end, .. } | Phase::Ended { end, .. } => end.bumps_epoch,
            Phase::Empty | Phase::Ongoing { .. } => false,
        };
        end.bumps_epoch && is_bumped && self.last == Some(producer)
    }

    /// Whether the end of the transaction takes a new producer id.
    pub fn needs_id_to_end(&self, end: End) -> bool {
        end.bumps_epoch && self.producer.is_exhausted()
    }

    /// Records the outcome that the producer asked for; the caller has [checked](Self::end_step) the request.
    pub fn end(&mut self, now: Timestamp, end: End, next: Option<ProducerId>) {
        if end.bumps_epoch {
            self.last = Some(self.producer);
            self.producer = self.producer.bumped();
        }
        self.prepare(now, end, next);
    }

    /// Records the abort of the open transaction, and fences the producer unless the producer itself asked for the
    /// abort.
    pub fn fence(&mut self, now: Timestamp, asked_by_itself: bool) {
        self.last = asked_by_itself.then_some(self.producer);
        self.producer = self.producer.bumped();
        let end = End {
            outcome: Outcome::Aborted,
            bumps_epoch: false,
        };
        self.prepare(now, end, None);
    }

    fn prepare(&mut self, now: Timestamp, end: End, next: Option<ProducerId>) {
        self.updated = now;
        let (started, participants) = match std::mem::replace(&mut self.phase, Phase::Empty) {
            Phase::Ongoing {
                started,
                participants,
            } => (started, participants),
            _ => (now, Participants::default()),
        };
        self.phase = Phase::Ending {
            started,
            participants,
            end,
            next,
        };
    }

    /// Completes the transaction: every participant has the outcome.
    pub fn complete(&mut self, now: Timestamp) {
        if let Phase::Ending { started, end, .. } = self.phase {
            self.producer = self.current();
            self.updated = now;
            self.phase = Phase::Ended { started, end };
        }
    }
}

/// The coordinator's next step for a producer that begins, or goes on after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InitStep {
    /// Abort the open transaction first; `asked_by_itself` if its own producer asks for that.
    Fence { asked_by_itself: bool },
    /// Send it the same id and epoch again.
    Repeated,
    /// Make it the next incarnation; one that goes on keeps its former id and epoch as `last`.
    Next { last: Option<Producer> },
}

impl Transaction {
    /// Decides the next step for a producer that begins, or is `expected` to go on.
    pub fn init_step(&self, expected: Option<Producer>) -> Result<InitStep, TransactionError> {
        let is_current = expected == Some(self.current());
        let is_last = expected.is_some() && expected == self.last;
        if expected.is_some() && !is_current && !is_last {
            return Err(TransactionError::ProducerFenced);
        }
        match self.phase {
            Phase::Ending { .. } => Err(TransactionError::ConcurrentTransactions),
            // Its open transaction proves that the producer knows its epoch.
            Phase::Ongoing { .. } if is_last => Err(TransactionError::ProducerFenced),
            Phase::Ongoing { .. } => Ok(InitStep::Fence {
                asked_by_itself: is_current,
            }),
            // Never given out: a producer in the last epoch could not be fenced.
            Phase::Empty | Phase::Ended { .. } if is_last && !self.producer.is_last() => {
                Ok(InitStep::Repeated)
            }
            Phase::Empty | Phase::Ended { .. } => Ok(InitStep::Next { last: expected }),
        }
    }

    /// Begins anew, without a transaction.
    pub fn init(
        &mut self,
        now: Timestamp,
        timeout: Option<Duration>,
        producer: Producer,
        last: Option<Producer>,
    ) {
        self.producer = producer;
        self.last = last;
        self.timeout = timeout;
        self.updated = now;
        self.phase = Phase::Empty;
    }
}

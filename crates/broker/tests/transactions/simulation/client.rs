//! Clients, also those that should have stopped long ago.

use fastrand::Rng;
use millstream_broker::groups::RequestId;
use millstream_broker::transactions::*;

use super::participant::{Token, Tokens};
use super::{GROUPS, PARTICIPANTS, PARTITIONS, ParticipantIndex, Seen, partition};
use crate::support;

/// A producer, from its start to the time when it is forgotten.
#[derive(Debug)]
pub struct Client {
    pub transactional_id: &'static str,
    /// Whether it gets a new epoch with every transaction.
    is_newer: bool,
    /// The request by which it became a producer.
    pub begun: Option<RequestId>,
    producer: Option<Producer>,
    /// The transaction that it is in, from the first append on.
    token: Option<Token>,
    /// The requested outcome, until it is answered.
    ending: Option<Outcome>,
    /// Whether the client knows that another has taken its place.
    pub is_told_to_stop: bool,
    /// The request that it waits for.
    pub waiting: Option<RequestId>,
}

/// A request under way.
#[derive(Debug)]
pub struct Sent {
    pub client: usize,
    pub request: Request,
    /// Whether another client had begun before it was sent.
    pub is_fenced: bool,
    /// Whether it becomes a producer by it.
    pub is_beginning: bool,
    /// The guards of all participants when it was sent.
    pub guards: Vec<u64>,
}

/// An append that the coordinator has allowed.
#[derive(Debug)]
pub struct Append {
    pub producer: Producer,
    pub participant: ParticipantIndex,
    pub token: Token,
    /// The partition's guard at the time of the request.
    pub guard: u64,
}

impl Client {
    pub fn new(transactional_id: &'static str, is_newer: bool) -> Self {
        Client {
            transactional_id,
            is_newer,
            begun: None,
            producer: None,
            token: None,
            ending: None,
            is_told_to_stop: false,
            waiting: None,
        }
    }

    /// Returns the next request, unless the client waits.
    pub fn next_request(&mut self, rng: &mut Rng) -> Option<Request> {
        if self.waiting.is_some() {
            return None;
        }
        let Some(producer) = self.producer else {
            return Some(self.init(None));
        };
        if let Some(outcome) = self.ending {
            return Some(self.end(producer, outcome));
        }
        match rng.u32(..30) {
            0 => Some(self.init(Some(producer))),
            1..7 => {
                let is_commit = rng.u32(..3) > 0;
                let outcome = if is_commit {
                    Outcome::Committed
                } else {
                    Outcome::Aborted
                };
                self.ending = Some(outcome);
                Some(self.end(producer, outcome))
            }
            number => Some(self.add_or_verify(producer, rng.usize(..PARTICIPANTS), number < 18)),
        }
    }

    fn init(&self, expected: Option<Producer>) -> Request {
        Request::InitProducerId(InitProducerId {
            transactional_id: Some(self.transactional_id.into()),
            ..support::init(expected)
        })
    }

    fn end(&self, producer: Producer, outcome: Outcome) -> Request {
        Request::EndTransaction(EndTransaction {
            transactional_id: self.transactional_id.into(),
            bumps_epoch: self.is_newer,
            ..support::end(producer, outcome)
        })
    }

    /// Newer clients only add partitions, and write to added ones; older ones write to verified
    /// ones.
    fn add_or_verify(
        &self,
        producer: Producer,
        participant: ParticipantIndex,
        is_add: bool,
    ) -> Request {
        let transactional_id = TransactionalId::from(self.transactional_id);
        let group = participant
            .checked_sub(PARTITIONS)
            .map(|index| GROUPS[index].into());
        match (group, is_add || self.is_newer) {
            (None, true) => Request::AddPartitions(AddPartitions {
                transactional_id,
                producer,
                partitions: vec![partition(participant)],
                knows_fencing: true,
            }),
            (None, false) => Request::VerifyPartitions(VerifyPartitions {
                transactional_id,
                producer,
                partitions: vec![partition(participant)],
            }),
            (Some(group), true) => Request::AddOffsets(AddOffsets {
                transactional_id,
                producer,
                group,
                knows_fencing: true,
            }),
            (Some(group), false) => Request::VerifyOffsets(VerifyOffsets {
                transactional_id,
                producer,
                group,
            }),
        }
    }

    /// Takes an answer; returns whether the request was granted.
    pub fn on_answer(
        &mut self,
        sent: &Sent,
        answer: &Answer,
        tokens: &mut Tokens,
        seen: &mut Seen,
    ) -> bool {
        self.is_told_to_stop |= is_fenced(answer);
        match (answer, &sent.request) {
            (Answer::InitProducerId(Ok(producer)), _) => {
                self.producer = Some(*producer);
                self.token = None;
                true
            }
            (Answer::EndTransaction(Ok(producer)), Request::EndTransaction(end)) => {
                if let Some(token) = self.token.take() {
                    tokens.answered(token, end.outcome);
                }
                match end.outcome {
                    Outcome::Committed => seen.commits += 1,
                    Outcome::Aborted => seen.aborts += 1,
                }
                let is_repeated = self.producer == Some(*producer);
                seen.repeated_ends += u32::from(is_repeated);
                self.producer = Some(*producer);
                self.ending = None;
                true
            }
            (Answer::EndTransaction(Err(error)), _) => {
                // It ignores the error, as no correct client does, unless the error asks for a
                // retry.
                if *error != TransactionError::ConcurrentTransactions {
                    self.ending = None;
                    self.token = None;
                }
                false
            }
            (Answer::AddPartitions(result) | Answer::AddOffsets(result), _) => result.is_ok(),
            (Answer::VerifyOffsets(result), _) => result.is_ok(),
            (Answer::VerifyPartitions(results), _) => results[0].1.is_ok(),
            _ => false,
        }
    }

    /// Returns the append that follows a granted request.
    pub fn appends(&mut self, sent: &Sent, tokens: &mut Tokens) -> Option<Append> {
        let (producer, participant) = match &sent.request {
            Request::AddPartitions(add) if self.is_newer => {
                (add.producer, add.partitions[0].partition.0 as usize)
            }
            Request::VerifyPartitions(verify) => {
                (verify.producer, verify.partitions[0].partition.0 as usize)
            }
            Request::AddOffsets(add) if self.is_newer => (add.producer, participant_of(&add.group)),
            Request::VerifyOffsets(verify) => (verify.producer, participant_of(&verify.group)),
            _ => return None,
        };
        let token = *self.token.get_or_insert_with(|| tokens.begin());
        Some(Append {
            producer,
            participant,
            token,
            guard: sent.guards[participant],
        })
    }
}

fn is_fenced(answer: &Answer) -> bool {
    let error = match answer {
        Answer::InitProducerId(Err(error)) | Answer::EndTransaction(Err(error)) => *error,
        Answer::AddPartitions(Err(error)) | Answer::AddOffsets(Err(error)) => *error,
        _ => return false,
    };
    let fenced = TransactionError::ProducerFenced;
    error == fenced || error == TransactionError::InvalidProducerIdMapping
}

fn participant_of(group: &str) -> ParticipantIndex {
    let index = GROUPS.iter().position(|name| *name == group);
    PARTITIONS + index.unwrap()
}

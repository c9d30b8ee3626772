//! The chunks of one partition: in their order, each stored once. No I/O.
//!
//! Chunks are numbered when they are first sent, and keep their numbers when they are sent again, so that the server
//! stores each once and none out of order. These rules ensure it:
//!
//! - While a chunk waits to be sent again, none is sent until all that are in flight are answered; then
//!   they are sent from the first one on.
//! - Until the first chunk under a producer id is stored, no second one is sent: a server without any state of the
//!   producer accepts every number.
//! - No chunk is sent five or more behind an undecided one: the server may then have dropped its note that it stored
//!   that one.
//! - When the producer gives up a chunk, its numbers are a gap for the server. The chunks behind it get a new producer
//!   id, if it is certain that they were not stored; otherwise the producer gives them up, too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence};
use millstream_record::{ChunkBuilder, Producer, set_producer};
use millstream_wire::ResponseError;
use tokio::time::Instant;

use super::outcome::Outcome;
use crate::error::ClientError;

/// The most requests in flight, and so the most chunks of one partition: servers remember as many of a producer's last
/// chunks.
pub(super) const IN_FLIGHT_MAX: usize = 5;

/// A producer id from the server. Later ones have higher generations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub id: ProducerId,
    pub epoch: ProducerEpoch,
    pub generation: u64,
}

/// A chunk that takes records.
pub(super) struct Open {
    pub builder: ChunkBuilder,
    pub outcome: Arc<Outcome>,
    pub opened_at: Instant,
    /// Whether to send it without waiting for more records.
    pub is_due: bool,
}

/// A chunk that takes no more records.
pub(super) struct Sealed {
    number: u64,
    chunk: Bytes,
    records: u32,
    /// Its share of the producer's memory, in bytes.
    buffered_bytes: usize,
    outcome: Arc<Outcome>,
    created_at: Instant,
    /// The number of attempts that may have stored it.
    unknown: u32,
    /// Whether its header has the partition's producer id and a sequence.
    is_numbered: bool,
    is_in_flight: bool,
}

/// The effect of an answer.
#[derive(Debug, Default)]
pub(super) struct Effect {
    /// The memory that is free again.
    pub freed_bytes: usize,
    /// The first error of records that were given up.
    pub error: Option<ClientError>,
}

/// A partition, with its unsent and undecided chunks.
pub(super) struct Partition {
    pub topic: Arc<str>,
    pub index: i32,
    pub open: Option<Open>,
    queue: VecDeque<Sealed>,
    next_number: u64,
    /// The number of requests without an answer, including those of chunks that were given up since.
    in_flight: usize,
    identity: Option<Identity>,
    /// The least generation of the next identity.
    generation_min: u64,
    next_sequence: Sequence,
    /// Whether a chunk was stored under the identity.
    is_established: bool,
    /// The error of the last attempt, if it failed.
    trouble: Option<Arc<ClientError>>,
    retry_at: Option<Instant>,
    /// The first retry since servers report the stream as unknown.
    unknown_since: Option<Instant>,
    /// Whether its chunks are parts of transactions: a chunk that is given up ends the transaction.
    is_transactional: bool,
    /// The generation of the identity under which the server has added the partition to the transaction.
    joined: Option<u64>,
}

/// The time-outs of retries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    /// Until a record is stored.
    pub delivery: Duration,
    /// While servers report the stream as unknown.
    pub unknown: Duration,
}

/// The next action for a partition.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing, until it gets a record or an answer.
    Nothing,
    /// Nothing before that time.
    At(Instant),
    /// It lacks an identity of this generation or a later one.
    Identify(u64),
    /// There is a chunk to send.
    Send,
}

impl Partition {
    pub fn new(topic: Arc<str>, index: i32, is_transactional: bool) -> Partition {
        Partition {
            topic,
            index,
            open: None,
            queue: VecDeque::new(),
            next_number: 0,
            in_flight: 0,
            identity: None,
            generation_min: 0,
            next_sequence: Sequence(0),
            is_established: false,
            trouble: None,
            retry_at: None,
            unknown_since: None,
            is_transactional,
            joined: None,
        }
    }

    /// Ends the transaction: later chunks need an identity of this generation.
    pub fn end_transaction(&mut self, generation: u64) {
        self.identity = None;
        self.generation_min = generation;
        self.retry_at = None;
        self.trouble = None;
    }

    /// Returns whether some of its requests have no answer yet.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Returns whether the producer must first add the partition to the transaction.
    pub fn has_to_join(&self) -> bool {
        let generation = self.identity.map(|identity| identity.generation);
        self.joined != generation
    }

    /// Notes that the server has added the partition to the transaction of this generation.
    pub fn join(&mut self, generation: u64) {
        self.joined = Some(generation);
    }

    /// Returns the outcomes of the undecided chunks.
    pub fn outcomes(&self) -> impl Iterator<Item = &Arc<Outcome>> {
        let sealed = self.queue.iter().map(|sealed| &sealed.outcome);
        sealed.chain(self.open.as_ref().map(|open| &open.outcome))
    }

    /// Seals the open chunk. Returns its builder, for the next one, and the effect if the chunk cannot be built.
    pub fn seal(&mut self) -> Option<(ChunkBuilder, Effect)> {
        let mut open = self.open.take()?;
        let buffered_bytes = open.builder.len();
        let records = open.builder.record_count();
        let mut effect = Effect::default();
        match open.builder.finish(None) {
            Ok(chunk) => {
                let chunk = Bytes::copy_from_slice(chunk);
                self.queue.push_back(Sealed {
                    number: self.next_number,
                    chunk,
                    records,
                    buffered_bytes,
                    outcome: open.outcome,
                    created_at: open.opened_at,
                    unknown: 0,
                    is_numbered: false,
                    is_in_flight: false,
                });
                self.next_number += 1;
            }
            Err(error) => {
                let error = ClientError::from(error);
                open.outcome.failed(error.clone());
                effect.freed_bytes = buffered_bytes;
                effect.error = Some(error);
            }
        }
        open.builder.clear();
        Some((open.builder, effect))
    }

    /// Returns the next action, once the caller has sealed an open chunk that [`wants_seal`](Self::wants_seal).
    pub fn next(&self, now: Instant, linger: Duration, timeout: Duration) -> Next {
        let Some(first) = self.queue.iter().position(|sealed| !sealed.is_in_flight) else {
            return match &self.open {
                Some(open) if self.has_room() => Next::At(open.opened_at + linger),
                _ => Next::Nothing,
            };
        };
        let is_behind = self
            .queue
            .iter()
            .skip(first)
            .any(|sealed| sealed.is_in_flight);
        // A chunk further behind would make the server forget the first one, which it may have stored.
        let is_far = self.queue[first].number >= self.queue[0].number + IN_FLIGHT_MAX as u64;
        if is_behind || is_far || !self.has_room() {
            return Next::Nothing;
        }
        if let Some(retry_at) = self.retry_at {
            if self.in_flight > 0 {
                return Next::Nothing;
            }
            if now < retry_at {
                return Next::At(retry_at.min(self.queue[first].created_at + timeout));
            }
        }
        match self.identity {
            Some(_) => Next::Send,
            None if self.in_flight > 0 => Next::Nothing,
            None => Next::Identify(self.generation_min),
        }
    }

    /// Returns whether the open chunk should be sent now, and can be.
    pub fn wants_seal(&self, now: Instant, linger: Duration) -> bool {
        let is_due = |open: &Open| open.is_due || now >= open.opened_at + linger;
        let has_sealed = self.queue.iter().any(|sealed| !sealed.is_in_flight);
        !has_sealed && self.has_room() && self.open.as_ref().is_some_and(is_due)
    }

    fn has_room(&self) -> bool {
        match self.is_established {
            true => self.in_flight < IN_FLIGHT_MAX,
            false => self.in_flight == 0,
        }
    }

    pub fn identify(&mut self, identity: Identity) {
        self.identity = Some(identity);
        self.next_sequence = Sequence(0);
        self.is_established = false;
    }

    /// Returns the size of the next chunk, in bytes.
    pub fn next_bytes(&self) -> usize {
        let next = self.queue.iter().find(|sealed| !sealed.is_in_flight);
        next.map_or(0, |sealed| sealed.chunk.len())
    }

    /// Returns the next chunk with its number, and counts it as in flight.
    pub fn send(&mut self) -> Option<(u64, Bytes)> {
        let identity = self.identity?;
        let next = self.queue.iter_mut().find(|sealed| !sealed.is_in_flight)?;
        if !next.is_numbered {
            let mut chunk = Vec::from(std::mem::take(&mut next.chunk));
            set_producer(
                &mut chunk,
                Producer {
                    id: identity.id,
                    epoch: identity.epoch,
                    sequence: self.next_sequence,
                },
            );
            next.chunk = chunk.into();
            next.is_numbered = true;
            self.next_sequence = self.next_sequence.plus(next.records);
        }
        next.unknown += 1;
        next.is_in_flight = true;
        self.in_flight += 1;
        self.retry_at = None;
        Some((next.number, next.chunk.clone()))
    }

    /// Notes that a chunk is stored; without an offset if it was stored before.
    pub fn stored(&mut self, number: u64, offset: Option<Offset>) -> Effect {
        self.in_flight -= 1;
        let Some(sealed) = self.take(number) else {
            return Effect::default();
        };
        // A chunk of a dropped identity establishes nothing for the next one.
        self.is_established |= self.identity.is_some();
        self.trouble = None;
        self.unknown_since = None;
        sealed.outcome.stored(offset);
        Effect {
            freed_bytes: sealed.buffered_bytes,
            error: None,
        }
    }

    /// Notes that a chunk was not stored, or that its outcome is unknown.
    pub fn failed(&mut self, number: u64, error: ClientError, retry_at: Instant) -> Effect {
        self.in_flight -= 1;
        let Some(at) = self.position(number) else {
            return Effect::default();
        };
        let sealed = &mut self.queue[at];
        sealed.is_in_flight = false;
        let answer = error.response_error();
        match error.is_unknown_stream() {
            true => self.unknown_since = self.unknown_since.or(Some(retry_at)),
            false => self.unknown_since = None,
        }
        if answer.is_some_and(proves_unstored) {
            sealed.unknown = sealed.unknown.saturating_sub(1);
        }
        let is_certain = sealed.unknown == 0;
        // Behind an undecided chunk, it is sent again and decided later.
        if error.is_retriable() || at > 0 {
            if self.trouble.is_none() {
                tracing::warn!("{error}; trying again");
            }
            self.trouble = Some(Arc::new(error));
            self.retry_at = Some(retry_at);
            return Effect::default();
        }
        if is_certain && answer.is_some_and(is_of_numbers) && !self.is_transactional {
            self.renew(true);
            self.retry_at = Some(retry_at);
            return Effect::default();
        }
        self.give_up(at, error)
    }

    /// Notes that servers report the stream as unknown.
    pub fn unknown(&mut self, error: &ClientError, retry_at: Instant) {
        self.trouble = Some(Arc::new(error.clone()));
        self.unknown_since = self.unknown_since.or(Some(retry_at));
    }

    /// Gives up the first chunk if it has waited for too long.
    pub fn expire(&mut self, now: Instant, timeouts: Timeouts) -> Effect {
        if self.expires_at(timeouts).is_none_or(|at| now < at) {
            return Effect::default();
        }
        let error = match &self.trouble {
            Some(trouble) if self.unknown_since.is_some() => ClientError::clone(trouble),
            trouble => ClientError::Timeout {
                what: format!("sending to partition {} of {}", self.index, self.topic),
                after: timeouts.delivery,
                trouble: trouble.clone(),
            },
        };
        self.give_up(0, error)
    }

    /// Sends nothing before that time.
    pub fn delay(&mut self, until: Instant) {
        self.retry_at = Some(until);
    }

    /// Returns the time at which [`expire`](Self::expire) has something to do.
    pub fn expires_at(&self, timeouts: Timeouts) -> Option<Instant> {
        let first = self.queue.front().filter(|_| self.in_flight == 0)?;
        // The stream may have been made again while there was nothing to send.
        let unknown_since = self.unknown_since.map(|at| at.max(first.created_at));
        let given_up_at = unknown_since.map(|since| since + timeouts.unknown);
        given_up_at
            .into_iter()
            .chain([first.created_at + timeouts.delivery])
            .min()
    }

    /// Gives up all chunks.
    pub fn fail_all(&mut self, error: &ClientError) -> Effect {
        let mut freed_bytes = 0;
        for sealed in self.queue.drain(..) {
            sealed.outcome.failed(error.clone());
            freed_bytes += sealed.buffered_bytes;
        }
        if let Some(open) = self.open.take() {
            open.outcome.failed(error.clone());
            freed_bytes += open.builder.len();
        }
        Effect {
            freed_bytes,
            error: Some(error.clone()),
        }
    }

    /// Gives up a chunk, and those behind it that may be stored.
    fn give_up(&mut self, at: usize, error: ClientError) -> Effect {
        let Some(sealed) = self.queue.remove(at) else {
            return Effect::default();
        };
        let mut freed_bytes = sealed.buffered_bytes;
        let is_certain = sealed.unknown == 0;
        if !is_certain {
            let behind = ClientError::Behind(Arc::new(error.clone()));
            self.queue.retain(|sealed| {
                if sealed.unknown > 0 {
                    sealed.outcome.failed(behind.clone());
                    freed_bytes += sealed.buffered_bytes;
                }
                sealed.unknown == 0
            });
        }
        if sealed.is_numbered {
            self.renew(is_certain);
        }
        sealed.outcome.failed(error.clone());
        Effect {
            freed_bytes,
            error: Some(error),
        }
    }

    /// Drops the identity: all chunks get new numbers when they are sent again.
    fn renew(&mut self, is_unstored: bool) {
        if let Some(identity) = self.identity.take() {
            self.generation_min = identity.generation + 1;
        }
        for sealed in &mut self.queue {
            sealed.is_numbered = false;
            // The server answers the chunks in flight with an error of their numbers, if at all.
            if is_unstored {
                sealed.unknown = 0;
            }
        }
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.queue.iter().position(|sealed| sealed.number == number)
    }

    fn take(&mut self, number: u64) -> Option<Sealed> {
        let at = self.position(number)?;
        self.queue.remove(at)
    }
}

/// Returns whether the error proves that this attempt did not store the chunk. A broker answers some errors also for a
/// chunk that it has appended: a storage error if the sync fails or the disk is full, and that it does not lead the
/// partition if it closes.
fn proves_unstored(error: ResponseError) -> bool {
    !matches!(
        error,
        ResponseError::RequestTimedOut
            | ResponseError::NotEnoughReplicasAfterAppend
            | ResponseError::UnknownServerError
            | ResponseError::KafkaStorageError
            | ResponseError::NotLeaderOrFollower
    )
}

/// Returns whether the server rejects the chunk's number as not following its state of the producer.
fn is_of_numbers(error: ResponseError) -> bool {
    matches!(
        error,
        ResponseError::OutOfOrderSequenceNumber | ResponseError::UnknownProducerId
    )
}

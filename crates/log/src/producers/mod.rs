//! Producers and transactions of one lane: duplicate detection, and the last stable offset.
//!
//! The rules equal Kafka's for its idempotent producer: a chunk continues its producer's sequence, repeats one of its last five
//! chunks, or is refused. The table belongs to the lane's head. Its changes are written into the index with the positions that
//! they hold for, so a restart knows exactly the producers of the stored chunks.
//!
//! A transaction counts as open before its first chunk can be durable ([`unstable`]). This folder knows neither lanes nor
//! files.

pub mod transactions;
pub mod unstable;

use std::collections::{BTreeSet, VecDeque};

use hashbrown::HashMap;
use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_record::{Chunk, ChunkHeader, EndMarker};

use crate::error::{LogError, Result};
use crate::producers::transactions::{EndedTransaction, OpenTransaction};

/// The number of remembered chunks of a producer: Kafka allows this many in flight.
pub const CHUNKS_REMEMBERED: usize = 5;

/// The most producers that a lane remembers; beyond it those idle for longest are forgotten. All of
/// them fit into one entry of the index.
const PRODUCERS_MAX: usize = 10_000;

/// The most transactions that a lane has open at a time; so there are always producers to forget.
pub const TRANSACTIONS_MAX: usize = PRODUCERS_MAX / 2;

/// The number of producers that are forgotten at once, since finding the idlest ones visits all.
const FORGOTTEN_AT_ONCE: usize = PRODUCERS_MAX / 10;

/// A remembered chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastChunk {
    pub first: Sequence,
    pub last: Sequence,
    pub base_offset: Offset,
}

/// The state of one producer in a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerState {
    pub epoch: ProducerEpoch,
    /// Oldest first; at most [`CHUNKS_REMEMBERED`]. None when a marker has raised the epoch since.
    pub chunks: VecDeque<PastChunk>,
    /// Whether its next sequence is known. It is not, if only a marker of it is left.
    pub knows_sequence: bool,
    /// The last offset of its last chunk or marker.
    pub last_offset: Offset,
    /// The largest timestamp of its last chunk, or the timestamp of its last marker.
    pub last_timestamp: Timestamp,
    /// The coordinator's epoch in its last marker; [`NO_COORDINATOR`] when there was none.
    pub coordinator_epoch: i32,
    /// The transaction that it is in.
    pub transaction: Option<OpenTransaction>,
}

/// The value of [`ProducerState::coordinator_epoch`] before the first marker.
pub const NO_COORDINATOR: i32 = -1;

/// The decision about a chunk.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is new: append it.
    Append,
    /// It is stored already, from this offset on.
    Duplicate(Offset),
}

/// The effect of a chunk on its producer's transaction.
#[derive(Debug, PartialEq, Eq)]
pub enum TransactionStep {
    /// It had begun before, or there is none.
    Same,
    /// It begins with the chunk.
    Begun,
}

/// The producers of one lane.
#[derive(Debug, Default)]
pub struct Producers {
    states: HashMap<ProducerId, ProducerState>,
    /// The first offsets of the transactions in `states`.
    transactions: BTreeSet<Offset>,
}

impl Producers {
    /// Decides about a chunk of data, without changing anything.
    pub fn check(&self, header: &ChunkHeader) -> Result<Verdict> {
        let is_transactional = header.attributes.is_transactional();
        if header.producer_id == ProducerId::NONE {
            return match is_transactional {
                true => Err(refused(header, "a transaction needs a producer")),
                false => Ok(Verdict::Append),
            };
        }
        if header.producer_epoch.0 < 0 || header.base_sequence.0 < 0 {
            return Err(refused(header, "its epoch or sequence is negative"));
        }
        let Some(state) = self.states.get(&header.producer_id) else {
            // Unknown or forgotten: whatever it sends first is its beginning here.
            self.check_room(header)?;
            return Ok(Verdict::Append);
        };
        if header.producer_epoch < state.epoch {
            return Err(LogError::ProducerFenced {
                producer: header.producer_id,
                epoch: header.producer_epoch,
                current: state.epoch,
            });
        }
        let first = header.base_sequence;
        let expected = if header.producer_epoch == state.epoch {
            let last = last_sequence(header);
            if let Some(past) = state
                .chunks
                .iter()
                .find(|past| past.first == first && past.last == last)
            {
                return Ok(Verdict::Duplicate(past.base_offset));
            }
            match state.chunks.back() {
                Some(past) => past.last.plus(1),
                None if state.knows_sequence => Sequence(0),
                None => first,
            }
        } else {
            Sequence(0)
        };
        if first != expected {
            return Err(LogError::OutOfOrderSequence {
                producer: header.producer_id,
                found: first,
                expected,
            });
        }
        match state.transaction {
            Some(_) if !is_transactional => {
                return Err(refused(header, "its transaction has not ended"));
            }
            Some(_) => {}
            None => self.check_room(header)?,
        }
        Ok(Verdict::Append)
    }

    /// Whether one more transaction may begin with the chunk.
    fn check_room(&self, header: &ChunkHeader) -> Result<()> {
        if header.attributes.is_transactional() && self.transactions.len() >= TRANSACTIONS_MAX {
            return Err(LogError::TooManyTransactions {
                most: TRANSACTIONS_MAX,
            });
        }
        Ok(())
    }

    /// Decides about a marker, without changing anything.
    pub fn check_marker(&self, marker: &EndMarker) -> Result<()> {
        let Some(state) = self.states.get(&marker.producer_id) else {
            return Ok(());
        };
        if marker.producer_epoch < state.epoch {
            return Err(LogError::ProducerFenced {
                producer: marker.producer_id,
                epoch: marker.producer_epoch,
                current: state.epoch,
            });
        }
        if marker.coordinator_epoch < state.coordinator_epoch {
            return Err(LogError::CoordinatorFenced {
                producer: marker.producer_id,
                epoch: marker.coordinator_epoch,
                current: state.coordinator_epoch,
            });
        }
        Ok(())
    }

    /// Remembers a chunk of data that was appended at `base_offset`.
    pub fn appended(&mut self, header: &ChunkHeader, base_offset: Offset) -> TransactionStep {
        if header.producer_id == ProducerId::NONE {
            return TransactionStep::Same;
        }
        let state = self.state_of(header.producer_id, header.producer_epoch);
        state.knows_sequence = true;
        if state.chunks.len() == CHUNKS_REMEMBERED {
            state.chunks.pop_front();
        }
        state.chunks.push_back(PastChunk {
            first: header.base_sequence,
            last: last_sequence(header),
            base_offset,
        });
        state.last_offset = base_offset;
        state.last_timestamp = header.max_timestamp;
        if !header.attributes.is_transactional() || state.transaction.is_some() {
            return TransactionStep::Same;
        }
        state.transaction = Some(OpenTransaction {
            first_offset: base_offset,
            started: header.max_timestamp,
        });
        self.transactions.insert(base_offset);
        TransactionStep::Begun
    }

    /// Remembers a marker that was appended at `offset`. Returns the transaction that it has ended.
    pub fn ended(
        &mut self,
        marker: &EndMarker,
        offset: Offset,
        timestamp: Timestamp,
    ) -> Option<EndedTransaction> {
        let state = self.state_of(marker.producer_id, marker.producer_epoch);
        state.coordinator_epoch = marker.coordinator_epoch;
        state.last_offset = offset;
        state.last_timestamp = timestamp;
        let transaction = state.transaction.take()?;
        self.transactions.remove(&transaction.first_offset);
        Some(EndedTransaction {
            producer: marker.producer_id,
            first_offset: transaction.first_offset,
            last_offset: offset,
            end: marker.end,
        })
    }

    /// Remembers a stored chunk of any kind. Returns the transaction that it has ended.
    pub fn stored(&mut self, chunk: &Chunk<'_>) -> Option<EndedTransaction> {
        let header = chunk.header();
        if !header.attributes.is_control() {
            self.appended(header, header.base_offset);
            return None;
        }
        let marker = EndMarker::of(chunk)?;
        self.ended(&marker, header.base_offset, header.max_timestamp)
    }

    /// Takes over a stored state.
    pub fn restore(&mut self, id: ProducerId, state: ProducerState) {
        self.make_room_for(id);
        let begun = state.transaction.map(|begun| begun.first_offset);
        let before = self.states.insert(id, state);
        if let Some(ended) = before.and_then(|before| before.transaction) {
            self.transactions.remove(&ended.first_offset);
        }
        self.transactions.extend(begun);
    }

    pub fn get(&self, id: ProducerId) -> Option<&ProducerState> {
        self.states.get(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ProducerId, &ProducerState)> {
        self.states.iter().map(|(id, state)| (*id, state))
    }

    /// Returns the first offset of the oldest transaction, or `end` if none begins before.
    pub fn stable(&self, end: Offset) -> Offset {
        self.transactions
            .first()
            .map_or(end, |first| end.min(*first))
    }

    /// Returns when the oldest open transaction began.
    pub fn oldest_transaction(&self) -> Option<Timestamp> {
        let first = *self.transactions.first()?;
        let open = self.states.values().filter_map(|state| state.transaction);
        let mut oldest = open.filter(|transaction| transaction.first_offset == first);
        Some(oldest.next()?.started)
    }

    /// Returns the first offsets of the open transactions.
    pub fn transactions(&self) -> impl Iterator<Item = Offset> {
        self.transactions.iter().copied()
    }

    /// The state of a producer, with this epoch.
    fn state_of(&mut self, id: ProducerId, epoch: ProducerEpoch) -> &mut ProducerState {
        self.make_room_for(id);
        let state = self.states.entry(id).or_insert_with(|| ProducerState {
            epoch,
            chunks: VecDeque::new(),
            knows_sequence: false,
            last_offset: Offset(0),
            last_timestamp: Timestamp(-1),
            coordinator_epoch: NO_COORDINATOR,
            transaction: None,
        });
        if state.epoch != epoch {
            state.epoch = epoch;
            state.chunks.clear();
            state.knows_sequence = true;
        }
        state
    }

    fn make_room_for(&mut self, id: ProducerId) {
        if self.states.len() < PRODUCERS_MAX || self.states.contains_key(&id) {
            return;
        }
        // A producer in a transaction is never forgotten: consumers wait for its end.
        let idle = self
            .states
            .iter()
            .filter(|(_, state)| state.transaction.is_none());
        let mut idle: Vec<(Offset, ProducerId)> =
            idle.map(|(id, state)| (state.last_offset, *id)).collect();
        if idle.len() > FORGOTTEN_AT_ONCE {
            idle.select_nth_unstable(FORGOTTEN_AT_ONCE);
            idle.truncate(FORGOTTEN_AT_ONCE);
        }
        for (_, id) in idle {
            self.states.remove(&id);
        }
    }
}

fn refused(header: &ChunkHeader, why: &'static str) -> LogError {
    LogError::BadProducer {
        producer: header.producer_id,
        why,
    }
}

fn last_sequence(header: &ChunkHeader) -> Sequence {
    header.base_sequence.plus(header.last_offset_delta)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restored(count: usize) -> Producers {
        let mut producers = Producers::default();
        for n in 0..count {
            let chunk = PastChunk {
                first: Sequence(0),
                last: Sequence(0),
                base_offset: Offset(n as u64),
            };
            let state = ProducerState {
                epoch: ProducerEpoch(0),
                chunks: VecDeque::from([chunk]),
                knows_sequence: true,
                last_offset: Offset(n as u64),
                last_timestamp: Timestamp(0),
                coordinator_epoch: NO_COORDINATOR,
                transaction: None,
            };
            producers.restore(ProducerId(n as i64), state);
        }
        producers
    }

    #[test]
    fn a_lane_with_too_many_producers_restores_the_most_recent_ones() {
        let count = 5 * PRODUCERS_MAX;
        let producers = restored(count);
        assert!(producers.iter().count() <= PRODUCERS_MAX);
        let sure = PRODUCERS_MAX - FORGOTTEN_AT_ONCE;
        for n in count - sure..count {
            assert!(producers.get(ProducerId(n as i64)).is_some(), "{n}");
        }
    }

    #[test]
    fn one_search_for_idle_producers_makes_room_for_many_new_ones() {
        let mut producers = restored(PRODUCERS_MAX);
        assert_eq!(producers.iter().count(), PRODUCERS_MAX);
        producers.make_room_for(ProducerId(7));
        assert_eq!(producers.iter().count(), PRODUCERS_MAX);
        producers.make_room_for(ProducerId(-1));
        let left = PRODUCERS_MAX / 10 * 9;
        assert_eq!(producers.iter().count(), left);
        let first = PRODUCERS_MAX as i64 / 10;
        assert!(producers.get(ProducerId(first - 1)).is_none());
        assert!(producers.get(ProducerId(first)).is_some());
    }
}

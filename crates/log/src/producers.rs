//! Duplicate detection: what a lane remembers of its producers.
//!
//! The rules are those of Kafka's idempotent producer: a chunk continues its producer's sequence,
//! repeats one of its last five chunks, or is refused. The table belongs to the lane's head; its
//! changes are written into the index with the positions they hold for, so that a restart knows
//! neither less nor more than the stored chunks.

use std::collections::VecDeque;

use hashbrown::HashMap;
use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence};
use millstream_record::ChunkHeader;

use crate::error::{LogError, Result};

/// How many chunks of a producer are remembered: what Kafka allows to be in flight.
pub const CHUNKS_REMEMBERED: usize = 5;

/// The most producers that a lane remembers; beyond it those idle for longest are forgotten. All of
/// them fit into one mark of the index.
const PRODUCERS_MAX: usize = 10_000;

/// How many are forgotten at once: looking for them takes a look at all.
const FORGOTTEN_AT_ONCE: usize = PRODUCERS_MAX / 10;

/// One remembered chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastChunk {
    pub first: Sequence,
    pub last: Sequence,
    pub base_offset: Offset,
}

/// What a lane knows of one producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerState {
    pub epoch: ProducerEpoch,
    /// Oldest first; at least one, at most [`CHUNKS_REMEMBERED`].
    pub chunks: VecDeque<PastChunk>,
}

/// What to do with a chunk.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is new: append it.
    Append,
    /// It is stored already, from this offset on.
    Duplicate(Offset),
}

/// The producers of one lane.
#[derive(Debug, Default)]
pub struct Producers {
    states: HashMap<ProducerId, ProducerState>,
}

impl Producers {
    /// Decides about a chunk, without changing anything.
    pub fn check(&self, header: &ChunkHeader) -> Result<Verdict> {
        if header.producer_id == ProducerId::NONE {
            return Ok(Verdict::Append);
        }
        let Some(state) = self.states.get(&header.producer_id) else {
            // Unknown or forgotten: whatever it sends first is its beginning here.
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
            state
                .chunks
                .back()
                .map_or(Sequence(0), |past| past.last.plus(1))
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
        Ok(Verdict::Append)
    }

    /// Remembers a chunk that was appended at `base_offset`.
    pub fn appended(&mut self, header: &ChunkHeader, base_offset: Offset) {
        if header.producer_id == ProducerId::NONE {
            return;
        }
        self.make_room_for(header.producer_id);
        let state = self
            .states
            .entry(header.producer_id)
            .or_insert_with(|| ProducerState {
                epoch: header.producer_epoch,
                chunks: VecDeque::new(),
            });
        if state.epoch != header.producer_epoch {
            state.epoch = header.producer_epoch;
            state.chunks.clear();
        }
        if state.chunks.len() == CHUNKS_REMEMBERED {
            state.chunks.pop_front();
        }
        state.chunks.push_back(PastChunk {
            first: header.base_sequence,
            last: last_sequence(header),
            base_offset,
        });
    }

    /// Takes over a stored state.
    pub fn restore(&mut self, id: ProducerId, state: ProducerState) {
        self.make_room_for(id);
        self.states.insert(id, state);
    }

    pub fn get(&self, id: ProducerId) -> Option<&ProducerState> {
        self.states.get(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ProducerId, &ProducerState)> {
        self.states.iter().map(|(id, state)| (*id, state))
    }

    fn make_room_for(&mut self, id: ProducerId) {
        if self.states.len() < PRODUCERS_MAX || self.states.contains_key(&id) {
            return;
        }
        let states = self.states.iter();
        let mut producers: Vec<(Option<Offset>, ProducerId)> = states
            .map(|(id, state)| (state.chunks.back().map(|past| past.base_offset), *id))
            .collect();
        let (idlest, ..) = producers.select_nth_unstable(FORGOTTEN_AT_ONCE);
        for (_, id) in idlest {
            self.states.remove(id);
        }
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
            };
            producers.restore(ProducerId(n as i64), state);
        }
        producers
    }

    #[test]
    fn a_lane_with_more_producers_than_it_remembers_restores_those_that_appended_last() {
        let count = 5 * PRODUCERS_MAX;
        let producers = restored(count);
        assert!(producers.iter().count() <= PRODUCERS_MAX);
        let sure = PRODUCERS_MAX - FORGOTTEN_AT_ONCE;
        for n in count - sure..count {
            assert!(producers.get(ProducerId(n as i64)).is_some(), "{n}");
        }
    }

    #[test]
    fn the_idlest_producers_are_looked_for_once_in_many_new_ones() {
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

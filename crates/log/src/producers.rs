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

/// The most producers that a lane remembers; beyond it the one idle for longest is forgotten.
const PRODUCERS_MAX: usize = 10_000;

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
        if self.states.len() >= PRODUCERS_MAX && !self.states.contains_key(&header.producer_id) {
            self.forget_idlest();
        }
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
        self.states.insert(id, state);
    }

    pub fn get(&self, id: ProducerId) -> Option<&ProducerState> {
        self.states.get(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ProducerId, &ProducerState)> {
        self.states.iter().map(|(id, state)| (*id, state))
    }

    fn forget_idlest(&mut self) {
        let idlest = self
            .states
            .iter()
            .min_by_key(|(_, state)| state.chunks.back().map(|past| past.base_offset))
            .map(|(id, _)| *id);
        if let Some(id) = idlest {
            self.states.remove(&id);
        }
    }
}

fn last_sequence(header: &ChunkHeader) -> Sequence {
    header.base_sequence.plus(header.last_offset_delta)
}

//! Cycles of a graph, and the detection of their end.
//!
//! Elsewhere a channel is closed when the stages that write to it have ended. In a cycle each stage would wait for
//! the other that way. A cycle has ended when nothing more comes in from outside and all its rings are empty, with no
//! slice of any in hand: all work of its stages is in a ring or in a slice.

use std::sync::Arc;

use crate::stage::channel::ChannelState;
use crate::stage::contract::Stage;

/// Stages that lead back to each other.
pub struct Cycle {
    members: Vec<Arc<dyn Stage>>,
    /// The channels that they write and read.
    channels: Vec<CycleChannel>,
}

struct CycleChannel {
    state: Arc<ChannelState>,
    /// How many times a member of the cycle writes to it.
    writers_inside: usize,
}

/// Finds the cycles of a graph; notes in their channels that they are part of one.
pub fn find(stages: &[Arc<dyn Stage>]) -> Vec<Cycle> {
    let reaches: Vec<Vec<bool>> = (0..stages.len())
        .map(|from| reachable(stages, from))
        .collect();
    let mut cycles = Vec::new();
    for (first, reached) in reaches.iter().enumerate() {
        let inside = |stage: usize| reached[stage] && reaches[stage][first];
        // Each cycle is found from its first stage.
        if !inside(first) || (0..first).any(inside) {
            continue;
        }
        let members: Vec<Arc<dyn Stage>> = (first..stages.len())
            .filter(|stage| inside(*stage))
            .map(|stage| Arc::clone(&stages[stage]))
            .collect();
        let number = cycles.len() + 1;
        let inputs = members.iter().filter_map(|stage| stage.input());
        let channels = inputs.map(|state| {
            state.set_cycle(number);
            let outputs = members.iter().flat_map(|stage| stage.outputs());
            CycleChannel {
                state: Arc::clone(state),
                writers_inside: outputs.filter(|output| Arc::ptr_eq(output, state)).count(),
            }
        });
        cycles.push(Cycle {
            channels: channels.collect(),
            members,
        });
    }
    cycles
}

/// Returns for each stage whether it can be reached from `from` over at least one channel.
fn reachable(stages: &[Arc<dyn Stage>], from: usize) -> Vec<bool> {
    let mut reached = vec![false; stages.len()];
    let mut to_visit = vec![from];
    while let Some(stage) = to_visit.pop() {
        for (next, reader) in stages.iter().enumerate() {
            let Some(input) = reader.input() else {
                continue;
            };
            let leads_there = stages[stage]
                .outputs()
                .iter()
                .any(|output| Arc::ptr_eq(output, input));
            if leads_there && !reached[next] {
                reached[next] = true;
                to_visit.push(next);
            }
        }
    }
    reached
}

impl Cycle {
    /// Closes the cycle if it is at its end; returns whether it did.
    pub fn close_if_at_rest(&self) -> bool {
        let is_over = self.is_over();
        if is_over {
            let channels = self.channels.iter();
            channels.for_each(|channel| channel.state.close());
        }
        is_over
    }

    /// Whether the cycle is at its end, and is yet to be closed.
    ///
    /// Looks twice: if every ring was empty both times and no position has moved between, then there
    /// was a moment at which all were empty, since positions never return to where they were.
    pub fn is_over(&self) -> bool {
        let channels = &self.channels;
        if channels.iter().all(|channel| channel.state.is_closed()) {
            return false;
        }
        let nothing_comes_in = channels
            .iter()
            .all(|channel| channel.state.writers() <= channel.writers_inside);
        let positions = || {
            let rings = channels.iter().flat_map(|channel| &channel.state.rings);
            rings.map(|ring| ring.positions()).collect::<Vec<_>>()
        };
        let are_empty = || channels.iter().all(|channel| channel.state.is_empty());
        if !nothing_comes_in {
            return false;
        }
        let before = positions();
        are_empty() && are_empty() && positions() == before
    }

    /// Makes room if the cycle holds itself up: each of its stages with something to do waits for room that only
    /// another could make. Items from outside never fill more than half of a ring, so rings grow only by items of the
    /// cycle itself. Returns whether a ring grows.
    pub fn grow_full_rings(&self) -> bool {
        let is_outside = |output: &Arc<ChannelState>| {
            let channels = &mut self.channels.iter();
            !channels.any(|channel| Arc::ptr_eq(&channel.state, output))
        };
        let outputs = self.members.iter().flat_map(|stage| stage.outputs());
        let is_held_from_outside = outputs
            .filter(|output| is_outside(output))
            .any(|output| output.is_full());
        if is_held_from_outside || self.members.iter().any(|stage| stage.is_busy()) {
            return false;
        }
        let channels = self.channels.iter();
        let full = channels
            .flat_map(|channel| &channel.state.rings)
            .filter(|ring| ring.is_full());
        full.fold(false, |any, ring| any | ring.grow_past_max())
    }

    /// A stage that leads to other ranks: no rank would know when the cycle is at rest on all.
    pub fn exit(&self) -> Option<&str> {
        let exit = self
            .members
            .iter()
            .find(|stage| !stage.outlets().is_empty())?;
        Some(exit.name())
    }

    /// Returns a stage that would give results after the cycle is at rest: they would begin it anew.
    pub fn windows(&self) -> Option<&str> {
        let closes_by_time = self.members.iter().find(|stage| stage.closes_by_time())?;
        Some(closes_by_time.name())
    }
}

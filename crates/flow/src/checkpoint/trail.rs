//! The trail of a flow's checkpoints: how far it was at each of the last ones.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use millstream_base::{Clock, Timestamp};
use parking_lot::Mutex;

use crate::checkpoint::participants::Committer;
use crate::error::Failure;
use crate::sources::positions::Position;

/// Checkpoints that are remembered. Readers ask for the last complete one, or the one before if another has been completed
/// meanwhile.
const CUTS_MAX: usize = 32;

/// The progress of a flow on one rank when a checkpoint was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointView {
    /// The checkpoint's number.
    pub number: u64,
    /// The positions of the rank's sources, as far as they know.
    pub positions: Vec<Position>,
    /// The least watermark of the rank's stages; `None` without event time, and before the first one.
    pub watermark: Option<Timestamp>,
    /// How long ago the checkpoint was taken, in seconds.
    pub age_seconds: f64,
}

/// The last checkpoints of a rank.
pub struct Trail {
    clock: Arc<dyn Clock>,
    state: Mutex<TrailState>,
}

#[derive(Default)]
struct TrailState {
    /// The oldest first.
    cuts: VecDeque<Cut>,
    /// The last checkpoint that is complete on all ranks.
    complete: u64,
}

struct Cut {
    number: u64,
    at: Duration,
    positions: Vec<Position>,
    watermark: Option<Timestamp>,
}

impl Trail {
    pub fn new(clock: &Arc<dyn Clock>) -> Self {
        Trail {
            clock: Arc::clone(clock),
            state: Mutex::default(),
        }
    }

    /// Notes a checkpoint that is taken now.
    pub fn cut(&self, number: u64, positions: Vec<Position>, watermark: Option<Timestamp>) {
        let mut state = self.state.lock();
        if state.cuts.len() == CUTS_MAX {
            // The last complete one stays.
            let is_first_complete = state
                .cuts
                .front()
                .is_some_and(|cut| cut.number == state.complete);
            state.cuts.remove(usize::from(is_first_complete));
        }
        state.cuts.push_back(Cut {
            number,
            at: self.clock.monotonic(),
            positions,
            watermark,
        });
    }

    /// Returns the number of the last snapshot that was taken, complete or not; 0 before the first one.
    pub fn last(&self) -> u64 {
        self.state.lock().cuts.back().map_or(0, |cut| cut.number)
    }

    /// Returns the last complete checkpoint of this run.
    pub fn complete(&self) -> Option<CheckpointView> {
        let complete = self.state.lock().complete;
        self.find(complete)
    }

    /// Returns the number of the last complete checkpoint of this run; 0 before the first one.
    pub fn last_complete(&self) -> u64 {
        self.state.lock().complete
    }

    /// Returns a checkpoint, if it is remembered.
    pub fn find(&self, number: u64) -> Option<CheckpointView> {
        let now = self.clock.monotonic();
        let state = self.state.lock();
        let cut = state.cuts.iter().find(|cut| cut.number == number)?;
        Some(CheckpointView {
            number,
            positions: cut.positions.clone(),
            watermark: cut.watermark,
            age_seconds: now.saturating_sub(cut.at).as_secs_f64(),
        })
    }
}

impl Committer for Trail {
    fn commit(&self, checkpoint: u64, _: &Waker) -> Result<bool, Failure> {
        let mut state = self.state.lock();
        state.complete = state.complete.max(checkpoint);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::still::Still;

    #[test]
    fn the_last_complete_checkpoint_is_remembered_after_failed_ones() {
        let trail = Trail::new(&(Arc::new(Still) as Arc<dyn Clock>));
        assert_eq!(trail.complete(), None);
        assert_eq!(trail.last(), 0);
        for number in 1..10 * CUTS_MAX as u64 {
            trail.cut(number, Vec::new(), Some(Timestamp(number as i64)));
            assert_eq!(trail.last(), number);
            if number == 5 {
                assert!(
                    trail
                        .commit(5, Waker::noop())
                        .is_ok_and(|is_committed| is_committed)
                );
            }
            let complete = trail.complete().map(|cut| cut.watermark);
            assert_eq!(complete, (number >= 5).then_some(Some(Timestamp(5))));
        }
        assert_eq!(trail.state.lock().cuts.len(), CUTS_MAX);
    }
}

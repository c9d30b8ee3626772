//! The workers of a flow, as the doorbell sees them when one of them sleeps.

use std::sync::atomic::Ordering;

use crate::doorbell::Crew;
use crate::run::workers::Workers;

/// A worker that goes to sleep.
pub(super) struct Sleeper<'w> {
    pub workers: &'w Workers,
    pub number: usize,
}

impl Crew for Sleeper<'_> {
    fn count(&self) -> usize {
        self.workers.count.load(Ordering::Acquire)
    }

    fn could_work(&self) -> bool {
        self.workers.stages.iter().any(|stage| stage.could_work())
    }

    fn retire(&self) -> bool {
        self.workers.retire(self.number)
    }
}

/// The last worker, when all stages have ended: nothing is left that it could look for.
pub(super) struct Ended;

impl Crew for Ended {
    fn count(&self) -> usize {
        usize::MAX
    }

    fn could_work(&self) -> bool {
        false
    }

    fn retire(&self) -> bool {
        false
    }
}

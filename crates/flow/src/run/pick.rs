//! The next activation of a worker: the scheduler's choice, or the turn of a stage that waits too long.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::FlowError;
use crate::run::scheduler::{Pick, Stages};
use crate::run::workers::Workers;
use crate::stage::activation::{Activation, Context, Killed};
use crate::stage::metrics::SLICE_NS;

/// A stage that no worker has tried for this long has its turn, even if the scheduler picks others.
const STARVING_NS: u64 = 2_000_000;

/// A stage with little to do has its turn after this long: schedulers go by the number of items, so that the results
/// of a window would wait for the sources at each stage on their way. Two slices: then these turns take at most a few
/// percent of a worker's time.
const WAITING_NS: u64 = 2 * SLICE_NS;

impl Workers {
    /// Picks the next stage, of those that this worker has not tried since something changed.
    pub(super) fn pick(
        &self,
        tried: &[bool],
        rings: u64,
        turn: usize,
        now: Duration,
    ) -> Option<Pick> {
        let stages = Stages {
            stages: &self.stages,
            tried,
            rings,
            turn,
        };
        let untried = || (0..tried.len()).filter(|stage| !tried[*stage]);
        let whole = |stage| Pick { stage, items: None };
        let tried_at_ns = |stage: &usize| {
            let counters = self.stages[*stage].counters();
            counters.tried_at_ns.load(Ordering::Relaxed)
        };
        let now_ns = now.as_nanos() as u64;
        let starving = untried().filter(|stage| {
            let untried_ns = now_ns.saturating_sub(tried_at_ns(stage));
            let stage = &self.stages[*stage];
            let has_little = || {
                let readable = stage.input().map_or(0, |_| stage.readable(rings));
                // The speed of a stage that has not worked yet is unknown: one slice measures it.
                readable > 0 && readable as f64 * stage.counters().item_ns() <= WAITING_NS as f64
            };
            untried_ns > WAITING_NS
                && !stage.has_ended()
                && (untried_ns > STARVING_NS || has_little())
        });
        // The one that waits longest, so that each has its turn.
        if let Some(starving) = starving.min_by_key(tried_at_ns) {
            return Some(whole(starving));
        }
        let picked = self.scheduler.pick(&stages);
        // A scheduler is the user's, too.
        let picked = picked.filter(|pick| tried.get(pick.stage) == Some(&false));
        // A stage that the scheduler never finds worth it has its turn before the worker sleeps.
        picked.or_else(|| untried().next().map(whole))
    }

    pub(super) fn activate(
        &self,
        pick: Pick,
        rings: u64,
        now: Duration,
    ) -> Result<Activation, FlowError> {
        let stage = &*self.stages[pick.stage];
        let tried_at_ns = &stage.counters().tried_at_ns;
        tried_at_ns.store(now.as_nanos() as u64, Ordering::Relaxed);
        let context = Context {
            clock: &*self.clock,
            items: pick.items,
            slice_ns: self.member.pool().activation_ns(),
            rings,
            condemned: &self.condemned,
            dead_letters: self.dead_letters.as_deref(),
        };
        let activation = match panic::catch_unwind(AssertUnwindSafe(|| stage.activate(&context))) {
            Ok(activation) => activation,
            Err(panic) if panic.is::<Killed>() => panic::resume_unwind(panic),
            // A half-done effect of a source or a sink is not touched again: the flow fails.
            Err(panic) => return Err(self.panicked(stage.name(), &*panic)),
        };
        activation.map_err(|failure| self.error(failure))
    }
}

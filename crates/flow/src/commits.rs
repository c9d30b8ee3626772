//! Moments at which everything that came into a flow has arrived, so that its sources can keep how
//! far they are.
//!
//! From time to time the sources pause. What is under way then goes through, which takes a few
//! slices' time, and the sinks are flushed. Then nothing of the flow is in a ring or in somebody's
//! hands, the sources [commit](crate::Source::commit), and go on. A flow that is started again reads
//! on from there: nothing is lost, and what came after the last such moment comes again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::Failure;
use crate::stage::{Rest, Stage};

pub struct Commits {
    /// Whether any source wants them.
    are_wanted: bool,
    interval: Duration,
    /// No source gives anything. Written by workers, read by sources.
    pausing: Arc<AtomicBool>,
    /// Something was processed since the last commit. Written by workers after each activation.
    is_due: AtomicBool,
    /// Not before this time of the flow's clock, in nanoseconds.
    at_ns: AtomicU64,
    /// Held by the worker that looks whether everything has arrived.
    looking: Mutex<()>,
}

impl Commits {
    pub fn new(
        stages: &[Arc<dyn Stage>],
        pausing: Arc<AtomicBool>,
        interval: Duration,
        now: Duration,
    ) -> Self {
        Commits {
            are_wanted: stages.iter().any(|stage| stage.wants_commits()),
            interval,
            pausing,
            is_due: AtomicBool::new(false),
            at_ns: AtomicU64::new((now + interval).as_nanos() as u64),
            looking: Mutex::new(()),
        }
    }

    /// Something was processed.
    pub fn worked(&self) {
        if self.are_wanted {
            self.is_due.store(true, Ordering::Relaxed);
        }
    }

    /// Pauses the sources if it is time to.
    pub fn pause_if_due(&self, now: Duration) {
        let is_time = now.as_nanos() as u64 >= self.at_ns.load(Ordering::Relaxed);
        if is_time && self.is_due.load(Ordering::Relaxed) {
            self.pausing.store(true, Ordering::SeqCst);
        }
    }

    /// When a worker has to be awake for the next one.
    pub fn alarm(&self) -> Option<Duration> {
        let is_waiting =
            self.is_due.load(Ordering::Relaxed) && !self.pausing.load(Ordering::Relaxed);
        is_waiting.then(|| Duration::from_nanos(self.at_ns.load(Ordering::Relaxed)))
    }

    /// For a worker that finds nothing to do: commits if the sources pause and everything has arrived.
    /// Returns whether there may be something to do now.
    pub fn commit_if_at_rest(
        &self,
        stages: &[Arc<dyn Stage>],
        now: Duration,
    ) -> Result<bool, Failure> {
        if !self.pausing.load(Ordering::SeqCst) {
            return Ok(false);
        }
        // Who waits here looks itself afterwards: what the other found may be over.
        let _looking = self.looking.lock();
        if !self.pausing.load(Ordering::SeqCst) {
            return Ok(true);
        }
        match rest(stages) {
            Rest::Busy => return Ok(false),
            Rest::Missed => return Ok(true),
            Rest::Quiet => {}
        }
        commit(stages)?;
        self.is_due.store(false, Ordering::Relaxed);
        let next = (now + self.interval).as_nanos() as u64;
        self.at_ns.store(next, Ordering::Relaxed);
        self.pausing.store(false, Ordering::SeqCst);
        Ok(true)
    }

    /// For the last worker, when all stages have ended.
    pub fn commit_at_end(&self, stages: &[Arc<dyn Stage>]) -> Result<(), Failure> {
        match self.are_wanted {
            true => commit(stages),
            false => Ok(()),
        }
    }
}

fn commit(stages: &[Arc<dyn Stage>]) -> Result<(), Failure> {
    stages.iter().try_for_each(|stage| stage.commit())
}

/// Whether nothing is under way in a flow whose sources pause. Sources come first: one that nobody is
/// in gives nothing any more. From then on items only move on. Rings are looked at as in
/// [`Ring::positions`](millstream_ring::Ring::positions), since they may move in a circle.
fn rest(stages: &[Arc<dyn Stage>]) -> Rest {
    let rings = || {
        let inputs = stages.iter().filter_map(|stage| stage.input());
        inputs.flat_map(|input| &input.rings)
    };
    let positions = || rings().map(|ring| ring.positions()).collect::<Vec<_>>();
    let before = positions();
    if !before.iter().all(|positions| positions.is_empty()) {
        return Rest::Busy;
    }
    let mut rests = stages.iter().map(|stage| stage.rest());
    match rests.find(|rest| *rest != Rest::Quiet) {
        Some(rest) => rest,
        None if positions() == before => Rest::Quiet,
        None => Rest::Busy,
    }
}

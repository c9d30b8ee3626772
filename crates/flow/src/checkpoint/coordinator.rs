//! Coordinates consistent snapshots: moments at which everything that the sources gave, on all ranks, has arrived.
//!
//! From time to time the sources pause. Items under way then pass through, which takes a few slices' time, and the
//! sinks are flushed. Then no item of the flow is in a ring or in hand, and no stage has anything left to emit:
//! sources [commit](crate::Source::commit), or a [checkpoint](crate::Checkpoints) is taken, and the sources go on.
//!
//! On several ranks *barriers* travel with the items. A rank that pauses emits one on each channel to others as soon
//! as everything before that channel is at rest; a rank that reads one pauses, too, and reads no more from the
//! sender. When a rank is at rest and has read the barriers of all others, its share of the snapshot stands:
//! everything that was sent before the barriers has arrived, and nothing that came after. So no rank is special, and
//! any may begin (after Chandy and Lamport, "Distributed snapshots").

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::checkpoint::decisions::Decisions;
use crate::checkpoint::pause::Pause;
use crate::checkpoint::shards::{self, Shards};
use crate::checkpoint::snapshot::{Elements, commit, rest};
use crate::error::Failure;
use crate::ranks::outlets::Outlets;
use crate::stage::contract::{Rest, Stage};
use crate::stage::upstream::all_before;

pub struct Coordinator {
    /// The purpose of the snapshots.
    purpose: Purpose,
    interval: Duration,
    pause: Arc<Pause>,
    /// Something was processed since the last snapshot. Written by workers after each activation.
    is_due: AtomicBool,
    /// Not before this time of the flow's clock, in nanoseconds.
    at_ns: AtomicU64,
    /// The channels to other ranks. Locked by the worker that looks whether everything has arrived.
    gates: Mutex<Vec<Gate>>,
    /// A worker takes a snapshot, or failed when it did: user code may have done half of something, so no other
    /// worker tries again. Written with `gates` locked.
    is_taken: AtomicBool,
}

pub enum Purpose {
    /// No source or sink wants any.
    None,
    /// Sources commit.
    Commits,
    Checkpoints(Box<Shards>, Option<Decisions>),
}

/// Where a stage hands items to other ranks.
struct Gate {
    /// In each of them the barrier lies behind the same items of the stage.
    outlets: Vec<Arc<Outlets>>,
    /// The stage, and all that lead to it.
    before: Vec<Arc<dyn Stage>>,
    /// The number of the last snapshot whose barrier was emitted.
    said: u64,
}

impl Gate {
    fn is_at_rest(&self) -> bool {
        self.outlets.iter().all(|outlets| outlets.is_at_rest())
    }
}

impl Coordinator {
    pub fn new(
        stages: &[Arc<dyn Stage>],
        purpose: Purpose,
        pause: Arc<Pause>,
        interval: Duration,
        now: Duration,
    ) -> Self {
        let gates = stages.iter().filter_map(|stage| {
            let outlets = stage.outlets();
            let before = all_before(stages, stage).into_iter();
            (!outlets.is_empty()).then(|| Gate {
                outlets,
                before: before.chain([stage]).cloned().collect(),
                said: 0,
            })
        });
        Coordinator {
            gates: Mutex::new(gates.collect()),
            is_taken: AtomicBool::new(false),
            purpose,
            interval,
            pause,
            is_due: AtomicBool::new(false),
            at_ns: AtomicU64::new((now + interval).as_nanos() as u64),
        }
    }

    pub fn purpose(&self) -> &Purpose {
        &self.purpose
    }

    fn are_wanted(&self) -> bool {
        !matches!(self.purpose, Purpose::None)
    }

    /// Something was processed.
    pub fn worked(&self) {
        if self.are_wanted() {
            self.is_due.store(true, Ordering::Relaxed);
        }
    }

    /// Pauses the sources if it is time to.
    pub fn pause_if_due(&self, now: Duration) {
        let is_time = now.as_nanos() as u64 >= self.at_ns.load(Ordering::Relaxed);
        if !is_time || !self.is_due.load(Ordering::Relaxed) {
            return;
        }
        match self.is_writing() {
            true => self.put_off(now),
            false => self.pause.is_on.store(true, Ordering::SeqCst),
        }
    }

    fn put_off(&self, now: Duration) {
        let next = (now + self.interval).as_nanos() as u64;
        self.at_ns.store(next, Ordering::Relaxed);
    }

    /// Whether the checkpoint before is still being written: the sources would wait for it.
    fn is_writing(&self) -> bool {
        match &self.purpose {
            Purpose::Checkpoints(shards, _) => shards.is_writing(),
            Purpose::None | Purpose::Commits => false,
        }
    }

    /// Whether the next snapshot waits for the writer of the one before. The writer may wait for a changelog, and that for
    /// decisions: so the worker does not wait for the writer, which rings the bell at its end.
    fn waits_for_writer(&self) -> bool {
        match &self.purpose {
            Purpose::Checkpoints(shards, Some(_)) => shards.is_writing(),
            _ => false,
        }
    }

    /// The flow ends where it stands: the checkpoint that is being written waits for no changelog any more.
    pub fn cancel(&self) {
        if let Purpose::Checkpoints(shards, _) = &self.purpose {
            shards.cancel();
        }
    }

    /// The flow is to end: a checkpoint that cannot be stored is not waited for.
    pub fn set_ending(&self) {
        if let Purpose::Checkpoints(shards, _) = &self.purpose {
            shards.set_ending(true);
        }
    }

    /// When a worker has to be awake for the next one.
    pub fn alarm(&self) -> Option<Duration> {
        let is_waiting =
            self.is_due.load(Ordering::Relaxed) && !self.pause.is_on.load(Ordering::Relaxed);
        is_waiting.then(|| Duration::from_nanos(self.at_ns.load(Ordering::Relaxed)))
    }

    /// For a worker that finds nothing to do: takes a snapshot if the sources pause and everything has arrived.
    /// Returns whether there may be something to do now.
    pub fn take_if_at_rest(&self, elements: &Elements<'_>, now: Duration) -> Result<bool, Failure> {
        if !self.pause.is_on.load(Ordering::SeqCst) {
            return Ok(false);
        }
        // A worker that waited here looks again: the findings of the other worker may be outdated.
        let mut gates = self.gates.lock();
        if !self.pause.is_on.load(Ordering::SeqCst) {
            return Ok(true);
        }
        if self.is_taken.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let number = self.pause.done.load(Ordering::SeqCst) + 1;
        for gate in gates.iter_mut().filter(|gate| gate.said < number) {
            match rest(&gate.before, elements.cycles, number) {
                Rest::Busy => continue,
                Rest::Missed => return Ok(true),
                Rest::Quiet => {}
            }
            for outlets in &gate.outlets {
                outlets.emit_barrier(number)?;
            }
            gate.said = number;
        }
        for outlets in gates.iter().flat_map(|gate| &gate.outlets) {
            outlets.send_all()?;
        }
        match rest(elements.stages, elements.cycles, number) {
            Rest::Busy => return Ok(false),
            Rest::Missed => return Ok(true),
            Rest::Quiet => {}
        }
        if gates
            .iter()
            .any(|gate| gate.said < number || !gate.is_at_rest())
        {
            return Ok(false);
        }
        if self.waits_for_writer() {
            return Ok(false);
        }
        self.is_taken.store(true, Ordering::Relaxed);
        match &self.purpose {
            Purpose::None => {}
            Purpose::Commits => commit(elements.stages)?,
            Purpose::Checkpoints(shards, _) => {
                shards.store(number, elements.save(shards.checkpoint(number))?);
            }
        }
        self.is_taken.store(false, Ordering::Relaxed);
        self.is_due.store(false, Ordering::Relaxed);
        self.put_off(now);
        self.pause.is_on.store(false, Ordering::SeqCst);
        // Last: the barrier of the next snapshot is read only from now on, and pauses again.
        self.pause.done.store(number, Ordering::SeqCst);
        Ok(true)
    }

    /// Returns the decisions that wait for complete checkpoints, if they have something to do.
    pub fn decisions_due(&self) -> Option<&Decisions> {
        match &self.purpose {
            Purpose::Checkpoints(_, decisions) => {
                decisions.as_ref().filter(|decisions| decisions.are_due())
            }
            Purpose::None | Purpose::Commits => None,
        }
    }

    /// For the last worker, when all stages have ended: takes the last snapshot. A run that resumes from it has
    /// sources that have ended, or reads on if the flow was stopped. `wait` waits until something happens, and
    /// returns `false` when the flow is dropped.
    pub fn end(
        &self,
        elements: &Elements<'_>,
        wait: impl FnMut(&Decisions) -> bool,
    ) -> Result<(), Failure> {
        match &self.purpose {
            Purpose::Commits => commit(elements.stages),
            Purpose::Checkpoints(shards, Some(decisions)) => {
                self.commit_the_last(elements, shards, decisions, wait)
            }
            Purpose::Checkpoints(shards, None) => {
                let number = shards.checkpoint(shards::LAST);
                shards.store(shards::LAST, elements.save(number)?);
                Ok(())
            }
            Purpose::None => Ok(()),
        }
    }

    /// Takes one more checkpoint, and waits until all that was prepared is committed.
    fn commit_the_last(
        &self,
        elements: &Elements<'_>,
        shards: &Shards,
        decisions: &Decisions,
        mut wait: impl FnMut(&Decisions) -> bool,
    ) -> Result<(), Failure> {
        let first = shards.checkpoint(0);
        let ended = self.pause.done.load(Ordering::SeqCst);
        let mut last = ended;
        // Returns whether it is stored; `None` when the flow is dropped.
        let store = |number: u64, wait: &mut dyn FnMut(&Decisions) -> bool| {
            let failed = shards.counts().failed;
            let shard = elements.save(shards.checkpoint(number))?;
            shards.store(number, shard);
            let is_written = finish(shards, decisions, ended, wait)?;
            Ok(is_written.then(|| shards.counts().failed == failed))
        };
        // First: each rank gives up a shard that cannot be stored when it knows that all have ended.
        decisions.end(shards.checkpoint(ended))?;
        if !finish(shards, decisions, ended, &mut wait)? {
            return Ok(());
        }
        let mut is_stored = false;
        // 1. Until all ranks have ended, this one takes part in the checkpoints of the others.
        let end = loop {
            decisions.decide()?;
            if let Some(end) = decisions.final_number(shards.checkpoint(ended)) {
                break end;
            }
            match decisions.wanted(shards.checkpoint(last)) {
                Some(wanted) => {
                    last = wanted - first;
                    match store(last, &mut wait)? {
                        Some(stored) => is_stored = stored,
                        None => return Ok(()),
                    }
                }
                None if !wait(decisions) => return Ok(()),
                None => {}
            }
        };
        // 2. The last checkpoint of all.
        // Another rank may have come so far, and this one may have followed it.
        if last < end - first || !is_stored {
            match store(end - first, &mut wait)? {
                Some(stored) => is_stored = stored,
                None => return Ok(()),
            }
        }
        if !is_stored {
            return Err(Failure::Error {
                operator: "checkpoints".into(),
                error: format!(
                    "the last checkpoint is not stored, so the results since the one before are not committed; resume the flow: {}",
                    shards.counts().error.unwrap_or_default()
                )
                .into(),
            });
        }
        // 3. Its results.
        loop {
            decisions.decide()?;
            if decisions.is_committed(end) || !wait(decisions) {
                return Ok(());
            }
        }
    }
}

/// Waits for the shard that is being written, and decides meanwhile: its changes may wait for decisions. As long as other
/// ranks go on, a shard that cannot be stored is tried again. `ended` is the number of the rank's last checkpoint. Returns
/// `false` when the flow is dropped.
fn finish(
    shards: &Shards,
    decisions: &Decisions,
    ended: u64,
    wait: &mut dyn FnMut(&Decisions) -> bool,
) -> Result<bool, Failure> {
    while shards.is_writing() {
        decisions.decide()?;
        let have_all_ended = decisions.final_number(shards.checkpoint(ended)).is_some();
        shards.set_ending(have_all_ended);
        if shards.is_writing() && !wait(decisions) {
            return Ok(false);
        }
    }
    shards.finish();
    Ok(true)
}

#[cfg(test)]
mod tests;

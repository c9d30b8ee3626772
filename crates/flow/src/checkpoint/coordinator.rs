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
//!
//! A rank may have no channel that could take its barrier, since its sources have ended. So a rank that pauses for a
//! checkpoint also announces beside the channels that it wants one, and the others pause, too.
//!
//! In a flow whose ranks send each other nothing, each takes its checkpoints alone. It takes those that others have stored,
//! too, since a checkpoint is complete when all ranks have stored it. A rank that is behind takes the newest of these and
//! leaves out those before: the others keep their shards of it. It leaves out none that is the newest of any rank: sinks may
//! have no room for results until this one is complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Wake;
use std::time::Duration;

use parking_lot::Mutex;

use crate::checkpoint::decisions::Decisions;
use crate::checkpoint::ending::{Ending, Parts};
use crate::checkpoint::shards::Shards;
use crate::checkpoint::snapshot::{Elements, commit, rest};
use crate::error::Failure;
use crate::pause::Pause;
use crate::ranks::outlets::Outlets;
use crate::stage::contract::{Rest, Stage};
use crate::topology::upstream::all_before;

pub struct Coordinator {
    /// The purpose of the snapshots.
    purpose: Purpose,
    /// The interval of commits. Checkpoints have one that the decisions know.
    commit_interval: Duration,
    pause: Arc<Pause>,
    /// Whether ranks send each other items, and barriers with them.
    has_channels: bool,
    /// Something was processed since the last snapshot. Written by workers after each activation.
    is_due: AtomicBool,
    /// The time of the last snapshot by the flow's clock, in nanoseconds.
    last_at_ns: AtomicU64,
    /// Locked by the worker that checks whether everything has arrived.
    gates: Mutex<Gates>,
    /// A worker takes a snapshot, or failed when it did: user code may have done half of something, so no other
    /// worker tries again. Written with `gates` locked.
    is_taken: AtomicBool,
    /// The flow is being stopped. Written by its owner.
    stopping: Arc<AtomicBool>,
    /// The end of the checkpoints, once all stages have ended. Used by the last worker.
    ending: Mutex<Option<Ending>>,
}

pub enum Purpose {
    /// No source or sink wants any.
    None,
    /// Sources commit.
    Commits,
    Checkpoints(Box<Shards>, Box<Decisions>),
}

/// The channels to other ranks, and the pause.
struct Gates {
    all: Vec<Gate>,
    /// When this rank noticed the present pause, for the cost of the checkpoint.
    paused_at: Option<Duration>,
}

/// The point at which a stage sends items to other ranks.
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
        has_channels: bool,
        purpose: Purpose,
        pause: Arc<Pause>,
        stopping: Arc<AtomicBool>,
        commit_interval: Duration,
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
            gates: Mutex::new(Gates {
                all: gates.collect(),
                paused_at: None,
            }),
            is_taken: AtomicBool::new(false),
            stopping,
            ending: Mutex::new(None),
            purpose,
            commit_interval,
            pause,
            has_channels,
            is_due: AtomicBool::new(false),
            last_at_ns: AtomicU64::new(now.as_nanos() as u64),
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

    /// Pauses the sources if it is time to; with many changes of state since the last snapshot, at once. Then they wait also
    /// for the checkpoint that is being written, so that memory for changes has a bound.
    pub fn pause_if_due(&self, now: Duration, are_many_changes: bool) {
        let is_due = || self.due_at().is_some_and(|at| now >= at) && !self.is_writing();
        if are_many_changes && self.are_wanted() {
            self.pause.is_on.store(true, Ordering::SeqCst);
            if let Some(mut gates) = self.gates.try_lock() {
                gates.paused_at.get_or_insert(now);
            }
            self.want_of_others();
        } else if is_due() {
            // A worker that takes a snapshot meanwhile has them locked. A pause behind it would last as long as its checkpoint
            // is being written: on a full disk, without an end.
            if let Some(mut gates) = self.gates.try_lock()
                && is_due()
            {
                gates.paused_at.get_or_insert(now);
                self.pause.is_on.store(true, Ordering::SeqCst);
                self.want_of_others();
            }
        }
    }

    /// Has the other ranks pause, too, if they may wait for barriers.
    fn want_of_others(&self) {
        if let Purpose::Checkpoints(shards, decisions) = &self.purpose
            && self.has_channels
        {
            decisions.signal().want(shards.checkpoint(self.next()));
        }
    }

    /// Returns the number of the next snapshot of this run.
    fn next(&self) -> u64 {
        let done = self.pause.done.load(Ordering::SeqCst);
        match &self.purpose {
            Purpose::Checkpoints(shards, decisions) if !self.has_channels && self.is_wanted() => {
                let wanted = decisions.wanted(shards.checkpoint(done));
                wanted.map_or(done + 1, |wanted| wanted - shards.checkpoint(0))
            }
            _ => done + 1,
        }
    }

    /// Whether another rank wants or has stored a checkpoint that this one has not taken.
    fn is_wanted(&self) -> bool {
        match &self.purpose {
            Purpose::Checkpoints(shards, decisions) => {
                let done = self.pause.done.load(Ordering::SeqCst);
                decisions.signal().wanted() > shards.checkpoint(done)
            }
            Purpose::None | Purpose::Commits => false,
        }
    }

    /// Returns the time at which the next snapshot is due, if there is a reason for one.
    fn due_at(&self) -> Option<Duration> {
        if self.is_wanted() {
            return Some(self.last_at());
        }
        let is_due = self.is_due.load(Ordering::Relaxed);
        is_due.then(|| self.next_at())
    }

    fn last_at(&self) -> Duration {
        Duration::from_nanos(self.last_at_ns.load(Ordering::Relaxed))
    }

    /// The earliest time of the next snapshot.
    fn next_at(&self) -> Duration {
        let interval = match &self.purpose {
            Purpose::Checkpoints(_, decisions) => decisions.signal().interval(),
            Purpose::None | Purpose::Commits => self.commit_interval,
        };
        self.last_at().saturating_add(interval)
    }

    /// Whether the checkpoint before is still being written: the sources would wait for it. The writer may wait for a
    /// changelog, and that for decisions; so no worker waits for the writer, which rings the bell at its end.
    fn is_writing(&self) -> bool {
        match &self.purpose {
            Purpose::Checkpoints(shards, _) => shards.is_writing(),
            Purpose::None | Purpose::Commits => false,
        }
    }

    /// The flow ends where it stands: the checkpoint that is being written waits for no changelog any more.
    pub fn cancel(&self) {
        if let Purpose::Checkpoints(shards, _) = &self.purpose {
            shards.cancel();
        }
    }

    /// The flow is being stopped: a rank that has ended looks at that.
    pub fn stopped(&self) {
        if let Purpose::Checkpoints(_, decisions) = &self.purpose {
            decisions.signal().wake_by_ref();
        }
    }

    /// Returns when a worker has to be awake for the next snapshot; `None` also while the end of a writer wakes it.
    pub fn alarm(&self) -> Option<Duration> {
        let is_waiting = !self.pause.is_on.load(Ordering::Relaxed) && !self.is_writing();
        self.due_at().filter(|_| is_waiting)
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
        let Gates { all, paused_at } = &mut *gates;
        paused_at.get_or_insert(now);
        let number = self.next();
        for gate in all.iter_mut().filter(|gate| gate.said < number) {
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
        for outlets in all.iter().flat_map(|gate| &gate.outlets) {
            outlets.send_all()?;
        }
        match rest(elements.stages, elements.cycles, number) {
            Rest::Busy => return Ok(false),
            Rest::Missed => return Ok(true),
            Rest::Quiet => {}
        }
        let mut gates = all.iter();
        if gates.any(|gate| gate.said < number || !gate.is_at_rest()) {
            return Ok(false);
        }
        if let Purpose::Checkpoints(shards, _) = &self.purpose
            && shards.is_writing()
        {
            // Otherwise a stopping flow would never end.
            shards.set_ending(self.stopping.load(Ordering::Relaxed));
            return Ok(false);
        }
        self.is_taken.store(true, Ordering::Relaxed);
        let paused_at = paused_at.take();
        let ended_at = match &self.purpose {
            Purpose::None => now,
            Purpose::Commits => {
                commit(elements.stages)?;
                now
            }
            Purpose::Checkpoints(shards, _) => {
                let saved = elements.save(shards.checkpoint(number))?;
                shards.store(number, saved, paused_at)
            }
        };
        self.is_taken.store(false, Ordering::Relaxed);
        self.is_due.store(false, Ordering::Relaxed);
        let ended_at_ns = ended_at.as_nanos() as u64;
        self.last_at_ns.store(ended_at_ns, Ordering::Relaxed);
        self.pause.is_on.store(false, Ordering::SeqCst);
        // Last: the barrier of the next snapshot is read only from now on, and pauses again.
        self.pause.done.store(number, Ordering::SeqCst);
        Ok(true)
    }

    /// Returns the decisions about complete checkpoints, if they have something to do.
    pub fn decisions_due(&self) -> Option<&Decisions> {
        self.decisions().filter(|decisions| decisions.are_due())
    }

    pub fn decisions(&self) -> Option<&Decisions> {
        match &self.purpose {
            Purpose::Checkpoints(_, decisions) => Some(decisions),
            Purpose::None | Purpose::Commits => None,
        }
    }

    /// For the last worker, when all stages have ended: takes the last snapshot. A run that resumes from it has
    /// sources that have ended, or reads on if the flow was stopped. Never waits; returns whether that is done. If not, it
    /// is called again when decisions are due.
    pub fn end(&self, elements: &Elements<'_>) -> Result<bool, Failure> {
        match &self.purpose {
            Purpose::Commits => commit(elements.stages).map(|()| true),
            Purpose::Checkpoints(shards, decisions) => {
                let mut ending = self.ending.lock();
                let ending = match &mut *ending {
                    Some(ending) => ending,
                    None => {
                        let ended = self.pause.done.load(Ordering::SeqCst);
                        ending.insert(Ending::begin(ended, shards, decisions)?)
                    }
                };
                ending.go_on(&Parts {
                    elements,
                    shards,
                    decisions,
                    is_stopping: self.stopping.load(Ordering::Relaxed),
                })
            }
            Purpose::None => Ok(true),
        }
    }
}

#[cfg(test)]
mod tests;

//! The life of a worker: a thread that activates stages until the flow has ended or has too little to do.

use std::cmp::Reverse;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use millstream_pool::Seat;

use crate::checkpoint::coordinator::Purpose;
use crate::checkpoint::decisions::Decisions;
use crate::doorbell::{Look, Woken};
use crate::error::{Failure, FlowError};
use crate::run::crew::{Ended, Sleeper};
use crate::run::workers::Workers;
use crate::stage::activation::{Activation, Killed};

/// The next step of a worker.
enum Next {
    /// It has done something: stages that had nothing to do before may have now.
    Worked,
    /// Another worker or a source may have done something.
    LookAgain,
    /// Nothing has changed.
    Same,
}

/// The way in which a worker ends, if nothing goes wrong.
enum Leaving {
    /// The flow has ended, or must end.
    Ended,
    /// There is too little to do; it is not counted any more.
    Retired,
}

impl Workers {
    /// Starts a worker that is counted already.
    pub(super) fn spawn_new(self: &Arc<Self>) -> std::io::Result<()> {
        let number = self.numbers.lock().pop();
        let Reverse(number) = number.expect("there is a number for each worker that is counted");
        self.spawn(number)
            .inspect_err(|_| self.numbers.lock().push(Reverse(number)))
    }

    fn spawn(self: &Arc<Self>, number: usize) -> std::io::Result<()> {
        let workers = Arc::clone(self);
        thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || workers.live(number))?;
        Ok(())
    }

    /// The life of a worker's thread.
    fn live(self: Arc<Self>, number: usize) {
        millstream_ring::set_thread_number(number);
        match panic::catch_unwind(AssertUnwindSafe(|| self.work(number))) {
            Ok(Leaving::Retired) => return,
            Ok(Leaving::Ended) => {}
            Err(panic) if panic.is::<Killed>() && self.leaving.load(Ordering::Relaxed) => {}
            Err(panic) if panic.is::<Killed>() => {
                self.died.fetch_add(1, Ordering::Relaxed);
                if self.stays_dead(number) {
                    return;
                }
                self.replaced.fetch_add(1, Ordering::Relaxed);
                // Another worker takes the place of the dead one at once, and the next worker in the stage finds the
                // items that were in hand.
                match self.spawn(number) {
                    Ok(()) => return,
                    Err(error) => self.fail(FlowError::Worker {
                        flow: self.name.clone(),
                        error: Arc::new(error),
                    }),
                }
            }
            Err(panic) => self.fail(self.panicked("the scheduler", &*panic)),
        }
        self.leave(number);
    }

    /// Takes a worker that has died off the count, and its place with it, if dead workers are not replaced and another
    /// worker is left.
    fn stays_dead(&self, number: usize) -> bool {
        if self.replaces_workers {
            return false;
        }
        // The place goes first, so that no worker that calls for help fills it again.
        let others = |count: usize| (count > 1).then(|| count - 1);
        let has_others = self
            .count_max
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, others)
            .is_ok();
        let stays_dead = has_others && self.retire(number);
        if stays_dead {
            // The others may all be asleep, and the dead worker's item waits in its stage.
            self.doorbell.ring_all();
        }
        stays_dead
    }

    fn leave(&self, number: usize) {
        // First: a worker that sees the count and takes the place finds the number.
        self.numbers.lock().push(Reverse(number));
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Sources are user code, too: even if they panic, callers that wait for the end are woken.
            let closed = panic::catch_unwind(AssertUnwindSafe(|| self.close_sources()));
            if let Err(panic) = closed {
                self.fail(self.panicked("the end of the flow", &*panic));
            }
            *self.ended_at.lock() = Some(self.clock.monotonic());
            self.ended.notify_all();
        }
    }

    /// For the last worker, when no other is at work any more.
    fn close_sources(&self) {
        let is_whole =
            self.error.lock().is_none() && self.stages.iter().all(|stage| stage.has_ended());
        if is_whole && let Err(failure) = self.end() {
            self.fail(self.error(failure));
        }
        if let Purpose::Checkpoints(shards, _) = self.coordinator.purpose() {
            shards.end();
        }
        self.stages.iter().for_each(|stage| stage.close());
    }

    /// Takes the last snapshot, and waits until all that was prepared is committed, or the flow is dropped.
    fn end(&self) -> Result<(), Failure> {
        while !self.coordinator.end(&self.elements())? {
            let decisions = self.coordinator.decisions();
            if decisions.is_none_or(|decisions| !self.wait_for(decisions)) {
                break;
            }
        }
        Ok(())
    }

    /// Activates the stages that the scheduler picks until the flow has ended.
    fn work(self: &Arc<Self>, number: usize) -> Leaving {
        let mut seat = self.member.seat();
        seat.take();
        let mut tried = vec![false; self.stages.len()];
        let mut turn = 0;
        // Noted before the stages are looked at: see `Doorbell`.
        let mut look = self.doorbell.look();
        let mut is_blocked = false;
        let mut now = self.clock.monotonic();
        while !self.leaving.load(Ordering::Relaxed) {
            seat.offer();
            if let Some(decisions) = self.coordinator.decisions_due()
                && let Err(failure) = decisions.decide()
            {
                self.fail(self.error(failure));
                return Leaving::Ended;
            }
            let next = match self.pick(&tried, look.rings, turn, now) {
                Some(pick) => {
                    turn = turn.wrapping_add(1);
                    match self.activate(pick, look.rings, now) {
                        Ok(Activation::Done(_)) => Next::Worked,
                        Ok(activation) => {
                            is_blocked |= activation == Activation::Blocked;
                            tried[pick.stage] = true;
                            Next::Same
                        }
                        Err(error) => {
                            self.fail(error);
                            return Leaving::Ended;
                        }
                    }
                }
                None if self.stages.iter().all(|stage| stage.has_ended()) => {
                    // Sleeping workers have not seen the end.
                    self.leaving.store(true, Ordering::Relaxed);
                    self.doorbell.ring_all();
                    return Leaving::Ended;
                }
                None if self.move_cycles(is_blocked) => Next::LookAgain,
                None if self.snapshot_if_at_rest(now) => Next::LookAgain,
                None => match self.sleep(look, number, &mut seat) {
                    Woken::Retired => return Leaving::Retired,
                    Woken::Rung => Next::LookAgain,
                },
            };
            if let Next::Same = next {
                continue;
            }
            tried.fill(false);
            is_blocked = false;
            look = self.doorbell.look();
            now = self.clock.monotonic();
            if let Some(error) = self.failure_outside() {
                self.fail(error);
                return Leaving::Ended;
            }
            if let Next::Worked = next {
                self.unsettle();
                self.coordinator.worked();
                self.call_for_help(look.rings, now);
            }
            self.adjust_if_due(now);
            let mut logged = self.logged.iter();
            let are_many_changes = logged.any(|element| element.has_many_changes());
            self.coordinator.pause_if_due(now, are_many_changes);
        }
        Leaving::Ended
    }

    /// Ends cycles that are at rest, and makes room in those that hold themselves up.
    fn move_cycles(&self, is_blocked: bool) -> bool {
        let mut has_moved = false;
        for cycle in &self.cycles {
            has_moved |= cycle.close_if_at_rest();
            has_moved |= is_blocked && cycle.grow_full_rings();
        }
        has_moved
    }

    /// Takes a snapshot, if it is time to and everything has arrived.
    fn snapshot_if_at_rest(&self, now: Duration) -> bool {
        match self.coordinator.take_if_at_rest(&self.elements(), now) {
            Ok(true) => {
                // The sources go on, even those that this worker found idle.
                self.doorbell.ring_all();
                true
            }
            Ok(false) => false,
            Err(failure) => {
                self.fail(self.error(failure));
                true
            }
        }
    }

    /// Waits until there may be something to decide; `false` when the flow was dropped.
    fn wait_for(&self, decisions: &Decisions) -> bool {
        loop {
            let look = self.doorbell.look();
            if self.is_dropped.load(Ordering::SeqCst) {
                return false;
            }
            if decisions.are_due() {
                return true;
            }
            self.doorbell.wait(look, &Ended);
        }
    }

    /// Sleeps without a slot.
    fn sleep(&self, look: Look, number: usize, seat: &mut Seat) -> Woken {
        if let Some(at) = self.coordinator.alarm() {
            self.doorbell.ring_at(at);
        }
        if !self.settled.load(Ordering::Relaxed) {
            let at_ns = self.adjust_at_ns.load(Ordering::Relaxed);
            self.doorbell.ring_at(Duration::from_nanos(at_ns));
        }
        seat.give_back();
        let workers = self;
        let woken = self.doorbell.wait(look, &Sleeper { workers, number });
        if woken == Woken::Rung {
            seat.take();
        }
        woken
    }

    /// Takes this worker off the count, unless it is the last.
    pub(super) fn retire(&self, number: usize) -> bool {
        // Locked first: a worker that sees the count and takes the place finds the number.
        let mut numbers = self.numbers.lock();
        let others = |count: usize| (count > 1).then(|| count - 1);
        let has_retired = self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, others)
            .is_ok();
        if has_retired {
            numbers.push(Reverse(number));
        }
        has_retired
    }
}

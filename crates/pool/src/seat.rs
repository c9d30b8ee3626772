//! A seat: one thread's slot, while it has one.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, MutexGuard};

use crate::pool::{Member, State};
use crate::schedule::{Offered, SLICE, SeatId};

/// A thread that has not offered its slot for this long, while another one waits, loses it.
pub const STALL: Duration = Duration::from_millis(10);

/// The slot of one thread, while it has one. Dropped, it gives the slot back.
pub struct Seat {
    member: Arc<Member>,
    cell: Arc<Cell>,
    id: SeatId,
    has_slot: bool,
    /// When it last asked the schedule whether another seat is due.
    asked_at: Option<Instant>,
}

/// The part of a seat that other threads see.
#[derive(Default)]
pub struct Cell {
    /// How often the thread has offered its slot. Written by the thread, read by the watcher.
    pub offers: AtomicU64,
    /// The watcher has given the slot to another seat. Written under the lock of the pool's state, read without it as a hint.
    pub is_revoked: AtomicBool,
    /// Rung when the seat gets a slot, or becomes the watcher. Waits with the lock of the pool's state.
    pub bell: Condvar,
}

impl Seat {
    pub(crate) fn new(member: &Arc<Member>) -> Seat {
        let cell = Arc::new(Cell::default());
        let id = member.pool.state.lock().add_seat(&cell);
        Seat {
            member: Arc::clone(member),
            cell,
            id,
            has_slot: false,
            asked_at: None,
        }
    }

    /// Waits for a slot, if it has none.
    pub fn take(&mut self) {
        if self.has_slot {
            return;
        }
        let pool = &self.member.pool;
        let mut state = pool.state.lock();
        self.ask(&mut state);
        pool.publish(&state);
        drop(state);
        self.has_slot = true;
    }

    /// Gives the slot back, if it has one: the thread is about to sleep or to wait.
    pub fn give_back(&mut self) {
        if !mem::take(&mut self.has_slot) {
            return;
        }
        let pool = &self.member.pool;
        let mut state = pool.state.lock();
        if !self.take_revocation() {
            state.take_back(self.id, pool.now());
            pool.publish(&state);
        }
    }

    /// Lets others have the slot if they are due; then it waits for the next one. A thread with a slot calls it between two
    /// short pieces of work, without any lock. It costs about a nanosecond while no other thread waits.
    #[inline]
    pub fn offer(&mut self) {
        let offers = self.cell.offers.load(Ordering::Relaxed);
        self.cell.offers.store(offers + 1, Ordering::Relaxed);
        let (now_and_then, at_once) = self.member.pool.wanted_beside(self.member.class);
        if now_and_then || self.cell.is_revoked.load(Ordering::Relaxed) {
            self.offer_to_waiting(at_once);
        }
    }

    #[cold]
    fn offer_to_waiting(&mut self, at_once: bool) {
        if !self.has_slot {
            return;
        }
        if !at_once && !self.cell.is_revoked.load(Ordering::Relaxed) {
            let now = Instant::now();
            if self.asked_at.is_some_and(|at| now - at < SLICE) {
                return;
            }
            self.asked_at = Some(now);
        }
        let pool = &self.member.pool;
        let mut state = pool.state.lock();
        if self.take_revocation() {
            self.ask(&mut state);
        } else {
            let now = pool.now();
            if let Offered::Waits(next) = state.schedule.offer(self.id, now) {
                next.into_iter().for_each(|next| state.begin(next, now));
                self.wait(&mut state);
            }
        }
        pool.publish(&state);
    }

    /// Whether the slot has been given to another seat. The caller holds the lock.
    fn take_revocation(&self) -> bool {
        self.cell.is_revoked.swap(false, Ordering::Relaxed)
    }

    fn ask(&self, state: &mut MutexGuard<'_, State>) {
        let now = self.member.pool.now();
        match state.schedule.ask(self.id, self.member.id, now) {
            true => state.begin(self.id, now),
            false => self.wait(state),
        }
    }

    /// Waits until the schedule gives it a slot.
    fn wait(&self, state: &mut MutexGuard<'_, State>) {
        let pool = &self.member.pool;
        pool.publish(state);
        while !state.schedule.holds(self.id) {
            if self.take_revocation() {
                // It has had a slot and lost it before this thread came to run.
                let now = pool.now();
                if state.schedule.ask(self.id, self.member.id, now) {
                    state.begin(self.id, now);
                }
                pool.publish(state);
                continue;
            }
            if *state.watcher.get_or_insert(self.id) != self.id {
                self.cell.bell.wait(state);
                continue;
            }
            let until_filled = state.schedule.until_filled(pool.now());
            let pause = until_filled.map_or(STALL, |until| until.min(STALL));
            if self.cell.bell.wait_for(state, pause).timed_out() {
                state.look_after(pool.now());
                pool.publish(state);
            }
        }
        if state.watcher == Some(self.id) {
            state.next_watcher();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.give_back();
        self.member.pool.state.lock().remove_seat(self.id);
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat")
            .field("id", &self.id)
            .field("has_slot", &self.has_slot)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::thread;

    use super::*;
    use crate::class::Class;
    use crate::pool::Pool;

    /// The thread waited for ever: the schedule did not know any more that it did.
    #[test]
    fn a_slot_that_is_lost_before_its_thread_runs_is_asked_for_again() {
        let pool = Pool::new(NonZeroUsize::MIN);
        let member = pool.join("work", Class::BestEffort, NonZeroUsize::MIN);
        let mut first = member.seat();
        let mut second = member.seat();
        first.take();
        thread::scope(|scope| {
            scope.spawn(|| second.take());
            let mut state = pool.state.lock();
            while state.schedule.waiting().count() == 0 {
                MutexGuard::unlocked(&mut state, thread::yield_now);
            }
            // All under one lock: the second thread cannot run between.
            let now = pool.now();
            let (first, second) = (first.id, second_of(&state));
            state.take_back(first, now);
            assert!(state.schedule.holds(second));
            state.look_after(now + STALL);
            assert!(!state.schedule.holds(second));
        });
        assert!(second.has_slot);
    }

    /// Returns the only seat that waits.
    fn second_of(state: &State) -> SeatId {
        state.schedule.waiting().next().expect("it waits")
    }
}

//! The sleep and the wake-up of workers.
//!
//! # Why no wake-up is lost
//!
//! A worker sleeps only after a *round*: it has tried every stage since it last noted [`Doorbell::look`], and none of
//! them did anything. The round proves that there is no work, unless something changed behind the worker's back:
//!
//! 1. *Something changed outside of the flow*: a source has items, a sink has room, another rank sent a message, or a time
//!    has come. Then the bell is rung. A worker notes the count of rings before its round, and [`Doorbell::wait`]
//!    returns at once when the count has changed.
//! 2. *The worker itself changed something.* Then the activation is [`Done`](crate::stage::activation::Activation), also
//!    when it took no item but only passed on results of former slices or let a ring grow
//!    ([`End::take_progress`](crate::stage::terminal::End::take_progress)), or passed room that a writer left empty
//!    ([`Took::Passed`](crate::stage::input::Took::Passed)), and a new round begins.
//! 3. *Another worker changed something.* If that worker's activation is `Done`, the worker begins a new round itself.
//!    But an activation that does nothing also changes something for a moment: it holds its instance, room in rings, or
//!    the memory of a ring. A worker that comes meanwhile finds the stage locked, blocked or empty. So the last worker
//!    that is awake sleeps only after a round that began when all others were asleep. In that round no other worker
//!    held anything, and the worker gave back everything that it held itself.
//!
//! Hence when all workers sleep, no stage has anything to do before the bell rings. While a worker is awake, others
//! may sleep although there is work: the worker calls for them when the work is enough for two.
//!
//! Timers are no part of this. They end sleeps at times that sources, watermarks and checkpoints ask for, adjust the
//! scheduler, and let workers leave that have nothing to do. A sleep of all workers that a timer ends while a stage has
//! input and room is counted as a lost wake-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

use millstream_base::Clock;
use parking_lot::{Condvar, Mutex};

/// Rung when there may be work. A worker that finds none sleeps until the next ring.
///
/// It is rung from outside of the flow: by sources, sinks, and timers. A worker's own work rings nothing: the worker
/// looks at all stages again before it sleeps.
pub struct Doorbell {
    clock: Arc<dyn Clock>,
    rings: AtomicU64,
    /// The number of times that a worker has gone to sleep. Written under the lock of `alarm`, read by workers before they look for
    /// work.
    sleeps: AtomicU64,
    /// Workers in `wait`. Written under the lock of `alarm`; read by `wake` after it has counted
    /// its ring. All four accesses are SeqCst: either the ringer sees the sleeper, or the sleeper
    /// sees the ring.
    sleepers: AtomicUsize,
    /// Sleeps of all workers that a timer ended while a stage had input and room. Written under the lock of `alarm`.
    lost_wakeups: AtomicU64,
    /// The earliest time at which the bell rings by itself.
    alarm: Mutex<Option<Duration>>,
    /// The same in nanoseconds, `u64::MAX` for none. Written under the lock, read by workers that are
    /// awake.
    alarm_ns: AtomicU64,
    rung: Condvar,
}

/// A worker that has slept for this long is one too many.
const SLEEP_MAX: Duration = Duration::from_secs(5);

/// The state of the bell before a worker looks for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// The number of rings so far.
    pub rings: u64,
    /// The number of times that a worker had gone to sleep.
    sleeps: u64,
}

/// The reason why a worker sleeps no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// There may be work.
    Rung,
    /// No ring came for a long time, and the worker was taken off the count.
    Retired,
}

/// The workers that share a bell. The bell calls these while no worker goes to sleep or wakes up.
pub trait Crew {
    /// Returns how many workers there are, asleep or not.
    fn count(&self) -> usize;

    /// Whether a stage has input and room. All workers are asleep.
    fn could_work(&self) -> bool;

    /// Takes the calling worker, which is asleep, off the count, unless it is the last.
    fn retire(&self) -> bool;
}

impl Doorbell {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Doorbell {
            clock,
            rings: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            lost_wakeups: AtomicU64::new(0),
            alarm: Mutex::new(None),
            alarm_ns: AtomicU64::new(u64::MAX),
            rung: Condvar::new(),
        }
    }

    /// Returns the number of rings so far.
    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::SeqCst)
    }

    /// Notes the state of the bell. A worker calls it before it looks for work.
    pub fn look(&self) -> Look {
        Look {
            rings: self.rings(),
            sleeps: self.sleeps.load(Ordering::SeqCst),
        }
    }

    /// Whether workers sleep.
    pub fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0
    }

    /// Returns how often a timer had to wake the flow although a stage had input and room.
    pub fn lost_wakeups(&self) -> u64 {
        self.lost_wakeups.load(Ordering::Relaxed)
    }

    /// Wakes all workers: the flow's course has changed, not just its load.
    pub fn ring_all(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        let _alarm = self.alarm.lock();
        self.rung.notify_all();
    }

    /// Makes sure that a worker is awake at `time` of the clock.
    pub fn ring_at(&self, time: Duration) {
        let mut alarm = self.alarm.lock();
        if alarm.is_none_or(|earlier| time < earlier) {
            self.set_alarm(&mut alarm, Some(time));
            // Sleeping workers wait until a later time.
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                self.rung.notify_one();
            }
        }
    }

    /// Rings if it is time to: for workers that do not sleep.
    pub fn ring_if_due(&self, now: Duration) {
        if now.as_nanos() as u64 >= self.alarm_ns.load(Ordering::Relaxed) {
            self.go_off(&mut self.alarm.lock(), now);
        }
    }

    /// Rings if the alarm is due. An alarm is a ring, too: workers try the stages again that slept until then.
    fn go_off(&self, alarm: &mut Option<Duration>, now: Duration) -> bool {
        let is_due = alarm.is_some_and(|time| now >= time);
        if is_due {
            self.set_alarm(alarm, None);
            self.rings.fetch_add(1, Ordering::SeqCst);
        }
        is_due
    }

    fn set_alarm(&self, alarm: &mut Option<Duration>, time: Option<Duration>) {
        *alarm = time;
        let ns = time.map_or(u64::MAX, |time| time.as_nanos() as u64);
        self.alarm_ns.store(ns, Ordering::Relaxed);
    }

    /// Sleeps until the bell has been rung since `look`, or the alarm goes off. Returns at once where the caller is the
    /// last worker that is awake, and another one has gone to sleep since `look`.
    pub fn wait(&self, look: Look, crew: &impl Crew) -> Woken {
        let mut alarm = self.alarm.lock();
        let is_last = self.sleepers.load(Ordering::SeqCst) + 1 >= crew.count();
        if is_last && self.sleeps.load(Ordering::SeqCst) != look.sleeps {
            return Woken::Rung;
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.sleeps.fetch_add(1, Ordering::SeqCst);
        let end = self.clock.monotonic() + SLEEP_MAX;
        let mut woken = Woken::Rung;
        while self.rings.load(Ordering::SeqCst) == look.rings {
            let now = self.clock.monotonic();
            if self.go_off(&mut alarm, now) {
                self.count_lost(crew);
                break;
            }
            if now >= end {
                self.count_lost(crew);
                if crew.retire() {
                    woken = Woken::Retired;
                    // Perhaps only this worker knew of the alarm.
                    self.rung.notify_one();
                }
                break;
            }
            let until = alarm.map_or(end, |time| time.min(end));
            self.rung.wait_for(&mut alarm, until - now);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        woken
    }

    /// A timer ends the sleep of a worker: counts that if all workers sleep although there is work.
    fn count_lost(&self, crew: &impl Crew) {
        if self.sleepers.load(Ordering::SeqCst) >= crew.count() && crew.could_work() {
            self.lost_wakeups.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// Wakes one sleeping worker, which wakes others if there is more work.
    fn wake_by_ref(self: &Arc<Self>) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _alarm = self.alarm.lock();
            self.rung.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;

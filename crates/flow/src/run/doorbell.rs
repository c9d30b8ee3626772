//! How workers sleep and are woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

use millstream_base::Clock;
use parking_lot::{Condvar, Mutex};

/// Rung when there may be work. A worker that finds none sleeps until the next ring.
///
/// No ring is missed: a worker notes [`rings`](Doorbell::rings) *before* it looks for work, and
/// [`wait`](Doorbell::wait) returns at once when that has changed.
///
/// It is rung from outside of the flow: by sources, sinks, and timers. A worker's own work rings nothing: the worker
/// looks at all stages again before it sleeps.
pub struct Doorbell {
    clock: Arc<dyn Clock>,
    rings: AtomicU64,
    /// Workers in `wait`. Written under the lock of `alarm`; read by `wake` after it has counted
    /// its ring. All four accesses are SeqCst: either the ringer sees the sleeper, or the sleeper
    /// sees the ring.
    sleepers: AtomicUsize,
    /// The earliest time at which the bell rings by itself.
    alarm: Mutex<Option<Duration>>,
    /// The same in nanoseconds, `u64::MAX` for none. Written under the lock, read by workers that are
    /// awake.
    alarm_ns: AtomicU64,
    rung: Condvar,
}

/// A worker that has slept for this long is one too many.
const SLEEP_MAX: Duration = Duration::from_secs(5);

/// Why a worker does not sleep any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    Rung,
    /// No ring came for a long time.
    Forgotten,
}

impl Doorbell {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Doorbell {
            clock,
            rings: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            alarm: Mutex::new(None),
            alarm_ns: AtomicU64::new(u64::MAX),
            rung: Condvar::new(),
        }
    }

    /// How often the bell has been rung.
    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::SeqCst)
    }

    /// Whether workers sleep.
    pub fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0
    }

    /// Wakes all workers: the flow's course has changed, not just its load.
    pub fn ring_all(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        let _alarm = self.alarm.lock();
        self.rung.notify_all();
    }

    /// Sees to it that a worker is awake at `time` of the clock.
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

    /// Rings if the alarm is due. An alarm is a ring, too: stages that slept till then are looked at again.
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

    /// Sleeps until the bell has been rung more than `rings` times, or the alarm goes off.
    pub fn wait(&self, rings: u64) -> Woken {
        let mut alarm = self.alarm.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let began_at = self.clock.monotonic();
        let mut woken = Woken::Rung;
        while self.rings.load(Ordering::SeqCst) == rings {
            let now = self.clock.monotonic();
            let end = began_at + SLEEP_MAX;
            if self.go_off(&mut alarm, now) {
                break;
            }
            if now >= end {
                woken = Woken::Forgotten;
                break;
            }
            let until = alarm.map_or(end, |time| time.min(end));
            self.rung.wait_for(&mut alarm, until - now);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        woken
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// Wakes one sleeping worker, which calls for more where there is more to do.
    fn wake_by_ref(self: &Arc<Self>) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _alarm = self.alarm.lock();
            self.rung.notify_one();
        }
    }
}

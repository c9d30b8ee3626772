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
pub struct Doorbell {
    clock: Arc<dyn Clock>,
    rings: AtomicU64,
    /// Workers in `wait`. Written under the lock of `alarm`; read by `wake` after it has counted
    /// its ring. All four accesses are SeqCst: either the ringer sees the sleeper, or the sleeper
    /// sees the ring.
    sleepers: AtomicUsize,
    /// The earliest time at which the bell rings by itself.
    alarm: Mutex<Option<Duration>>,
    rung: Condvar,
}

impl Doorbell {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Doorbell {
            clock,
            rings: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            alarm: Mutex::new(None),
            rung: Condvar::new(),
        }
    }

    /// How often the bell has been rung.
    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::SeqCst)
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
        *alarm = Some(alarm.map_or(time, |earlier| earlier.min(time)));
    }

    /// Sleeps until the bell has been rung more than `rings` times, or the alarm goes off.
    pub fn wait(&self, rings: u64) {
        let mut alarm = self.alarm.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.rings.load(Ordering::SeqCst) == rings {
            let Some(time) = *alarm else {
                self.rung.wait(&mut alarm);
                continue;
            };
            let now = self.clock.monotonic();
            if now >= time {
                *alarm = None;
                break;
            }
            self.rung.wait_for(&mut alarm, time - now);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// Wakes one sleeping worker: every cause of a ring needs one, and what that one does rings
    /// for more.
    fn wake_by_ref(self: &Arc<Self>) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _alarm = self.alarm.lock();
            self.rung.notify_one();
        }
    }
}

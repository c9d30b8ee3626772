//! Lets a test's thread sleep until a waker is woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Longer than any step takes; a thread that waits longer has lost a wake-up.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Wakes the thread that made it.
pub struct Alarm {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Alarm {
    pub fn new() -> Arc<Alarm> {
        Arc::new(Alarm {
            thread: thread::current(),
            is_woken: AtomicBool::new(false),
        })
    }

    pub fn waker(self: &Arc<Self>) -> Waker {
        self.clone().into()
    }

    /// Sleeps until it was woken since the last time.
    #[track_caller]
    pub fn wait(&self) {
        let end = Instant::now() + WAIT_MAX;
        while !self.is_woken.swap(false, Ordering::Acquire) {
            assert!(Instant::now() < end, "this thread was not woken");
            thread::park_timeout(WAIT_MAX);
        }
    }
}

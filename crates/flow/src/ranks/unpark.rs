//! The waker of a thread that parks.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

/// Returns a waker that unparks the thread that calls this.
pub fn unparks_this_thread() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

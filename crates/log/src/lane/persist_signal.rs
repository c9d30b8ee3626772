//! The signal that wakes a thread that works in the background.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How often the persistence manager looks for idle lanes, retention, and room on a full disk.
pub const TICK: Duration = Duration::from_millis(200);

/// Wakes a thread that works in the background: appends and commits notify the persistence manager, the thread waits.
#[derive(Debug, Default)]
pub struct PersistSignal {
    state: Mutex<PersistState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PersistState {
    notified: bool,
    closed: bool,
}

impl PersistSignal {
    /// Wakes the thread.
    pub fn notify(&self) {
        self.state.lock().notified = true;
        self.changed.notify_one();
    }

    /// Waits for a notification, for `tick` at most; `false` when the log is closed.
    pub fn wait(&self, tick: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.notified && !state.closed {
            self.changed.wait_for(&mut state, tick);
        }
        state.notified = false;
        !state.closed
    }

    /// Whether the log is closed.
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Ends all waits.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }
}

//! The bell on which the thread that writes a checkpoint waits for a changelog, or for the next try.

use std::sync::Arc;
use std::task::Wake;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::BoxError;

/// Rung by changelogs that have room again or have stored something, and by a flow that ends early.
#[derive(Default)]
pub struct WriterBell {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// It was rung since the writer last waited.
    is_rung: bool,
    /// The flow ends where it stands: nothing is waited for any more.
    is_cancelled: bool,
    /// The flow ends in order: a shard that cannot be stored is given up.
    is_ending: bool,
}

impl WriterBell {
    /// Waits until the bell is rung, or was since the last call.
    ///
    /// # Errors
    /// When the flow ends early.
    pub fn wait(&self) -> Result<(), BoxError> {
        let mut state = self.state.lock();
        while !state.is_rung && !state.is_cancelled {
            self.changed.wait(&mut state);
        }
        state.is_rung = false;
        match state.is_cancelled {
            true => Err("the flow has ended before the changelog took all changes".into()),
            false => Ok(()),
        }
    }

    /// Waits for `pause`, less if the flow begins to end. Returns whether the writer should try to store the shard again: not if
    /// the flow is ending already.
    pub fn pause(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let mut state = self.state.lock();
        if state.is_ending {
            return false;
        }
        while !state.is_ending && !state.is_cancelled {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        !state.is_cancelled
    }

    /// Whether the flow is ending: then a shard is tried no more than once again.
    pub fn set_ending(&self, is_ending: bool) {
        self.state.lock().is_ending = is_ending;
        self.changed.notify_all();
    }

    /// Ends all waiting, now and later.
    pub fn cancel(&self) {
        self.state.lock().is_cancelled = true;
        self.changed.notify_all();
    }
}

impl Wake for WriterBell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.state.lock().is_rung = true;
        self.changed.notify_all();
    }
}

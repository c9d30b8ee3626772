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
    /// The flow ends in order since then: a shard that cannot be stored is given up.
    ending_since: Option<Instant>,
    /// All attempts since then have failed, also those of earlier shards.
    failing_since: Option<Instant>,
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

    /// Waits for `pause` after an attempt that began at `tried_at` and failed; less if the flow begins to end. Returns whether
    /// the writer should try to store the shard again. If the flow is ending already, it should only until `retry_for` has
    /// passed since the first failed attempt, or since the flow began to end if that was later.
    pub fn pause(&self, pause: Duration, tried_at: Instant, retry_for: Duration) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        let failing_since = *state.failing_since.get_or_insert(tried_at);
        let was_ending = state.ending_since.is_some();
        if let Some(ending_since) = state.ending_since
            && now.saturating_duration_since(ending_since.max(failing_since)) >= retry_for
        {
            return false;
        }
        while state.ending_since.is_some() == was_ending && !state.is_cancelled {
            if self.changed.wait_until(&mut state, now + pause).timed_out() {
                break;
            }
        }
        !state.is_cancelled
    }

    /// A shard was stored.
    pub fn stored(&self) {
        self.state.lock().failing_since = None;
    }

    /// Whether the flow is ending: then a shard is tried no more than once again, unless its error may pass.
    pub fn set_ending(&self, is_ending: bool) {
        let mut state = self.state.lock();
        let since = state.ending_since.unwrap_or_else(Instant::now);
        state.ending_since = is_ending.then_some(since);
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

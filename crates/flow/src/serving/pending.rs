//! A call that waits for its response, as both sides see it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use millstream_base::Clock;
use millstream_pool::Measured;
use parking_lot::{Condvar, Mutex};

use crate::serving::error::CallError;
use crate::serving::response::Response;

/// A response, or the reason for which there is none.
pub type Outcome = Result<Response, CallError>;

/// The place where the outcome of a call appears. The first one counts.
#[derive(Default)]
pub struct Slot {
    state: Mutex<SlotState>,
    /// Notified when the call is settled.
    settled: Condvar,
}

#[derive(Default)]
struct SlotState {
    /// Whether there was an outcome, or the caller has gone.
    is_settled: bool,
    /// The outcome until the caller takes it.
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    /// Measures the call until it is settled, if its flow has an objective.
    measured: Option<Measured>,
}

impl Slot {
    /// Returns a slot that waits for an outcome.
    pub fn new(measured: Option<Measured>) -> Arc<Slot> {
        let state = SlotState {
            measured,
            ..SlotState::default()
        };
        Arc::new(Slot {
            state: Mutex::new(state),
            settled: Condvar::new(),
        })
    }

    /// Returns a slot with this outcome.
    pub fn settled(outcome: Outcome) -> Arc<Slot> {
        let slot = Slot::default();
        slot.settle(outcome);
        Arc::new(slot)
    }

    /// Settles the call, unless it is settled.
    pub fn settle(&self, outcome: Outcome) {
        let mut state = self.state.lock();
        if state.is_settled {
            return;
        }
        state.is_settled = true;
        state.outcome = Some(outcome);
        let (waker, measured) = (state.waker.take(), state.measured.take());
        drop(state);
        drop(measured);
        self.settled.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns whether a reply would come too late.
    pub fn is_settled(&self) -> bool {
        self.state.lock().is_settled
    }

    /// The caller has gone: a reply is ignored, and dropped.
    fn abandon(&self) {
        let mut state = self.state.lock();
        state.is_settled = true;
        let (outcome, waker) = (state.outcome.take(), state.waker.take());
        let measured = state.measured.take();
        drop(state);
        // They are other code.
        drop((outcome, waker, measured));
    }
}

/// A call that waits for its response. It is a future of the response; [`wait`](Self::wait) waits without one. Dropped, it
/// gives the call up: the flow does not get it if it still waits, and a reply is ignored.
#[must_use = "a call that is dropped is given up"]
pub struct Pending {
    slot: Arc<Slot>,
    clock: Arc<dyn Clock>,
    /// The time at which the call is too late, and the error of that.
    deadline: Duration,
    late: CallError,
}

impl Pending {
    pub(super) fn new(
        slot: Arc<Slot>,
        clock: Arc<dyn Clock>,
        deadline: Duration,
        late: CallError,
    ) -> Pending {
        Pending {
            slot,
            clock,
            deadline,
            late,
        }
    }

    /// Waits for the response, for no longer than the flow's time for requests.
    ///
    /// # Errors
    /// The reason for which there is no response.
    pub fn wait(self) -> Outcome {
        let mut state = self.slot.state.lock();
        loop {
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
            let left = self.time_left();
            if left.is_zero() {
                return Err(self.late.clone());
            }
            self.slot.settled.wait_for(&mut state, left);
        }
    }

    /// Returns the time until the call is too late.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_sub(self.clock.monotonic())
    }

    /// Returns the error of a call that is too late.
    pub fn late(&self) -> CallError {
        self.late.clone()
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.slot.state.lock();
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.slot.abandon();
    }
}

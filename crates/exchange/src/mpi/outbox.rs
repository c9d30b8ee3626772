//! The queue from a rank's threads to the messenger.

use std::mem;
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::parcel::{Parcel, Transport};

/// Parcels on their way to the messenger. Their number is bounded by the credits of the channels.
pub struct Outbox {
    state: Mutex<State>,
    /// Something was posted.
    posted: Condvar,
    /// The messenger has ended.
    ended: Condvar,
    messenger: ThreadId,
}

#[derive(Default)]
struct State {
    parcels: Vec<(u32, Parcel)>,
    has_ended: bool,
}

impl Outbox {
    /// It is made by the messenger's thread.
    pub fn new() -> Outbox {
        Outbox {
            state: Mutex::default(),
            posted: Condvar::new(),
            ended: Condvar::new(),
            messenger: thread::current().id(),
        }
    }

    /// Swaps all posted parcels, in their order, for the empty `parcels`.
    pub fn take(&self, parcels: &mut Vec<(u32, Parcel)>) {
        mem::swap(&mut self.state.lock().parcels, parcels);
    }

    /// Sleeps until something is posted, and no longer than `time`.
    pub fn sleep(&self, time: Duration) {
        let mut state = self.state.lock();
        if state.parcels.is_empty() {
            self.posted.wait_for(&mut state, time);
        }
    }

    /// Announces that the messenger takes no more parcels.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        state.parcels.clear();
        self.ended.notify_all();
    }
}

impl Transport for Outbox {
    fn post(&self, to: u32, parcel: Parcel) {
        let mut state = self.state.lock();
        if !state.has_ended {
            state.parcels.push((to, parcel));
            drop(state);
            self.posted.notify_one();
        }
    }

    fn finish(&self) {
        // A waker may drop the last handle of a rank; the messenger, which wakes it, cannot wait for itself.
        if self.messenger == thread::current().id() {
            return;
        }
        let mut state = self.state.lock();
        while !state.has_ended {
            self.ended.wait(&mut state);
        }
    }
}

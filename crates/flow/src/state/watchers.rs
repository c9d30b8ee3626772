//! Flows whose stages wait for the values of an element of another flow.

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use parking_lot::Mutex;

use crate::doorbell::Doorbell;

/// The bells of these flows.
#[derive(Default)]
pub struct Watchers(Mutex<Vec<Weak<Doorbell>>>);

impl Watchers {
    /// Adds a flow, until it has ended.
    pub fn add(&self, doorbell: &Arc<Doorbell>) {
        let mut doorbells = self.0.lock();
        doorbells.retain(|doorbell| doorbell.strong_count() > 0);
        doorbells.push(Arc::downgrade(doorbell));
    }

    /// Returns a waker that wakes these flows, and `waker`.
    pub fn beside(self: &Arc<Self>, waker: Waker) -> Waker {
        Waker::from(Arc::new(Both {
            waker,
            watchers: Arc::clone(self),
        }))
    }
}

struct Both {
    waker: Waker,
    watchers: Arc<Watchers>,
}

impl Wake for Both {
    fn wake(self: Arc<Self>) {
        self.waker.wake_by_ref();
        let doorbells = self.watchers.0.lock().clone();
        doorbells
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(Wake::wake);
    }
}

//! The state of a subscription: live or ended.

use crate::memory::Memory;
use crate::sync::{Ordering, fence};

/// The state of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The bytes of held descriptors stay in place.
    Live,
    /// The subscription ended with this code: the broker may overwrite the bytes of held descriptors.
    Ended(i32),
}

const ENDED: u64 = 1;

impl Memory {
    /// Ends the subscription, unless it has ended, and wakes its consumers.
    ///
    /// This fence and the one in [`state`](Memory::state) work like the fences of a sequence lock: if a
    /// consumer reads a byte of the pool that was written after the end, its next load of the state
    /// returns the end.
    pub fn end(&self, code: i32) {
        let ended = u64::from(code.cast_unsigned()) << 32 | ENDED;
        let word = &self.header().state.word;
        // Releases to the load in `state`.
        let changed = word.compare_exchange(0, ended, Ordering::AcqRel, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if changed.is_ok() {
            for index in 0..self.shape().sources() {
                // A consumer that waits for a byte sees the end of its connection, or receives a message there.
                self.source(index).broker.bell.ring();
            }
        }
    }

    /// Returns the state after all earlier reads of the pool.
    pub fn state(&self) -> State {
        // Orders earlier reads of the pool before the load, and pairs with the fence in `end`.
        fence(Ordering::Acquire);
        // Acquires the exchange in `end`.
        match self.header().state.word.load(Ordering::Acquire) {
            0 => State::Live,
            word => State::Ended(((word >> 32) as u32).cast_signed()),
        }
    }
}

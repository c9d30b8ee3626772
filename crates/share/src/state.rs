//! Whether a subscription lasts.

use crate::memory::Memory;
use crate::sync::{Ordering, fence};

/// Whether a subscription lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The bytes of held descriptors stay in place.
    Live,
    /// It was ended with this code: the bytes of held descriptors may be overwritten at any moment.
    Ended(i32),
}

const ENDED: u64 = 1;

impl Memory {
    /// Ends the subscription, unless it has ended, and wakes its consumers.
    ///
    /// The fence, and the one in [`state`](Memory::state), are those of a sequence lock: a consumer whose
    /// read of the pool saw a byte that was written after the end also sees the end when it looks at the
    /// state afterwards.
    pub fn end(&self, code: i32) {
        let ended = u64::from(code.cast_unsigned()) << 32 | ENDED;
        let word = &self.header().state.word;
        let changed = word.compare_exchange(0, ended, Ordering::AcqRel, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if changed.is_ok() {
            for index in 0..self.shape().sources() {
                // A consumer that waits for a byte sees the end of its connection, or receives a message there.
                self.source(index).broker.bell.ring();
            }
        }
    }

    /// The state, after all that was read before this.
    pub fn state(&self) -> State {
        fence(Ordering::Acquire);
        match self.header().state.word.load(Ordering::Acquire) {
            0 => State::Live,
            word => State::Ended(((word >> 32) as u32).cast_signed()),
        }
    }
}

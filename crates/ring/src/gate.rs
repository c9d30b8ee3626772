//! Who is inside of a lane, and how it is had alone for a moment.

use crate::sync::{AtomicU64, Ordering};

/// Nobody may enter.
const CLOSED: u64 = 1 << 63;
/// Nobody is inside, and one has the gate alone.
const CLAIMED: u64 = 1 << 62;
/// The ring is gone: the gate never opens again.
const ABANDONED: u64 = 1 << 61;

/// Counts who is inside. When it is closed, the last one to leave claims it *in the same atomic
/// step*: so exactly one does, and who leaves without a claim never touches the gate again, which
/// may be freed then.
///
/// Every change is an atomic read-modify-write, and each change that gives something up releases:
/// so who claims or enters has acquired all that was done inside before.
#[derive(Default)]
pub struct Gate(AtomicU64);

impl Gate {
    /// Steps inside. On `false` the gate is closed: the caller, who is counted all the same, has
    /// to leave at once.
    #[inline]
    pub fn enter(&self) -> bool {
        // Acquires `open`: what was built while the gate was claimed.
        self.0.fetch_add(1, Ordering::Acquire) & CLOSED == 0
    }

    /// Steps out. On `true` the caller has claimed the gate.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> bool {
        self.change(|now| now - 1)
    }

    /// Closes the gate. On `true` the caller has claimed it.
    #[must_use]
    pub fn close(&self) -> bool {
        self.change(|now| now | CLOSED)
    }

    /// Closes the gate for good. On `true` the caller has claimed it.
    #[must_use]
    pub fn abandon(&self) -> bool {
        self.change(|now| now | CLOSED | ABANDONED)
    }

    /// Closes the gate; `false` when it was closed before. The caller is inside, and so claims
    /// nothing yet.
    pub fn close_from_inside(&self) -> bool {
        self.0.fetch_or(CLOSED, Ordering::Relaxed) & CLOSED == 0
    }

    /// Opens the gate that the caller has claimed, unless it was abandoned: then the claim stays.
    #[must_use]
    pub fn open(&self) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & ABANDONED == 0 {
            let next = now & !(CLOSED | CLAIMED);
            // Releases to `enter`.
            match self.step(now, next) {
                Ok(_) => return true,
                Err(changed) => now = changed,
            }
        }
        false
    }

    /// Whether the ring is gone; asked by who has claimed the gate.
    pub fn is_abandoned(&self) -> bool {
        // Acquires `abandon`: who drops the ring does not touch the lane afterwards.
        self.0.load(Ordering::Acquire) & ABANDONED != 0
    }

    #[inline]
    fn change(&self, change: impl Fn(u64) -> u64) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let next = change(now);
            // Closed, not claimed, and nobody inside.
            let claims = next & !ABANDONED == CLOSED;
            let next = if claims { next | CLAIMED } else { next };
            match self.step(now, next) {
                Ok(_) => return claims,
                Err(changed) => now = changed,
            }
        }
    }

    #[inline]
    fn step(&self, now: u64, next: u64) -> Result<u64, u64> {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        self.0.compare_exchange_weak(now, next, success, failure)
    }
}

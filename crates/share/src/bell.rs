//! A bell, by which one side wakes the other.

use std::time::{Duration, Instant};

use crate::sync::{Futex, Ordering};

/// The flag of a waiter that sleeps on the futex.
pub const SLEEPS: u32 = 1;

/// The flag of a waiter without futexes, which waits for a byte on its connection.
pub const SOCKET: u32 = 2;

const FLAGS: u32 = SLEEPS | SOCKET;

/// The amount that a ring adds to the word.
pub const RING: u32 = 4;

/// A word in the shared file: the number of rings, times [`RING`], plus the waiter's flag. Any
/// thread may ring; one at a time waits.
///
/// # Why no wake-up is lost
///
/// The waiter notes the rings ([`Bell::rings`]), looks for work, and if there is none waits for
/// more rings than it noted. A ringer first stores the work, and then rings. All accesses of the word
/// but the load of [`Bell::rings`] are read-modify-writes with acquire and release.
///
/// - A ring before the note: the note acquires the work that the ring released, so the look finds it.
/// - A ring after the note: the ringer and the waiter that sets [`SLEEPS`] both change the same
///   word atomically (they read and write it in one step), so one of them comes first. If the ring
///   does, the waiter reads another count than it noted, and does not wait. Otherwise the ringer
///   reads the flag, and wakes. If the waiter is not yet asleep by then, the system compares the
///   word before it lets it sleep, under the lock under which it wakes, and the ring has changed
///   the word.
///
/// Each change of the word reads and writes it, so it continues the chain of releases: a thread that
/// loads a count sees all stores before any of its rings.
///
/// Only the waiter changes the flag. So a ringer that is killed half way does not prevent later
/// wake-ups. A killed waiter leaves the flag set, which costs one needless call per ring. A count is
/// mistaken for another only after 2^30 rings between the note and the wait.
#[repr(transparent)]
#[cfg_attr(loom, derive(Default))]
pub struct Bell {
    pub(crate) futex: Futex,
}

/// The number of rings of a bell, from which a waiter waits for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rings(u32);

impl Bell {
    /// Returns the number of rings.
    #[inline]
    pub fn rings(&self) -> Rings {
        // Acquires `ring`, and with it the work stored before.
        Rings(self.futex.word.load(Ordering::Acquire) & !FLAGS)
    }

    /// Wakes the waiter that sleeps; returns whether a waiter expects a byte instead.
    #[inline]
    pub fn ring(&self) -> bool {
        // Releases the work to the load of `rings` and the changes of `wait`; acquires the flag of `wait`.
        let before = self.futex.word.fetch_add(RING, Ordering::AcqRel);
        if before & SLEEPS != 0 {
            self.futex.wake_all();
        }
        before & SOCKET != 0
    }

    /// Waits until the bell has been rung since `seen`, but no longer than `timeout`; returns
    /// whether it was.
    pub fn wait(&self, seen: Rings, timeout: Duration) -> bool {
        // A timeout beyond the clock's range counts as none.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            // This and the change below acquire `ring`, and release the flag to it.
            let word = self.futex.word.fetch_or(SLEEPS, Ordering::AcqRel);
            let is_quiet = word & !FLAGS == seen.0;
            if is_quiet && left != Some(Duration::ZERO) {
                self.futex.wait(word | SLEEPS, left);
            }
            let word = self.futex.word.fetch_and(!SLEEPS, Ordering::AcqRel);
            if word & !FLAGS != seen.0 {
                return true;
            }
            if left == Some(Duration::ZERO) {
                return false;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::AtomicU32;

    fn bell() -> Bell {
        Bell {
            futex: Futex {
                word: AtomicU32::new(0),
            },
        }
    }

    #[test]
    fn a_ring_of_the_bell_before_the_wait_ends_it_at_once() {
        let bell = bell();
        let seen = bell.rings();
        assert!(!bell.ring());
        assert!(bell.wait(seen, Duration::MAX));
        assert_ne!(bell.rings(), seen);
    }

    #[test]
    fn a_wait_without_a_ring_of_the_bell_ends_at_its_timeout() {
        let bell = bell();
        let began = Instant::now();
        assert!(!bell.wait(bell.rings(), Duration::from_millis(20)));
        assert!(began.elapsed() >= Duration::from_millis(20));
        assert_eq!(bell.futex.word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn ringing_reports_a_consumer_that_waits_for_a_byte_on_the_socket() {
        let bell = bell();
        bell.futex.word.store(SOCKET, Ordering::Relaxed);
        assert!(bell.ring());
        assert_eq!(bell.futex.word.load(Ordering::Relaxed), RING | SOCKET);
    }

    #[test]
    fn the_count_of_rings_wraps_around_without_changing_the_flags() {
        let bell = bell();
        bell.futex.word.store(!FLAGS | SOCKET, Ordering::Relaxed);
        let seen = bell.rings();
        bell.ring();
        assert_eq!(bell.futex.word.load(Ordering::Relaxed), SOCKET);
        assert!(bell.wait(seen, Duration::MAX));
    }
}

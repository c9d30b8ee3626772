//! A bell: how one side wakes the other.

use std::time::{Duration, Instant};

use crate::sync::{Futex, Ordering};

/// Somebody sleeps on the futex.
pub const SLEEPS: u32 = 1;

/// Somebody who has no futexes waits for a byte on its connection.
pub const SOCKET: u32 = 2;

const FLAGS: u32 = SLEEPS | SOCKET;

/// What a ring adds to the word.
pub const RING: u32 = 4;

/// A word in the shared file: how often the bell was rung, times [`RING`], and who waits for it. Anybody
/// may ring; one at a time waits.
///
/// # Why no wake-up is lost
///
/// Who waits notes the rings ([`Bell::rings`]), looks whether there is something to do, and if not waits
/// for more rings than it noted. Who has something to do for it stores that first, and then rings.
///
/// - A ring before the note: the note acquires what the ring released, so the look finds it.
/// - A ring after the note: it and the one who sets [`SLEEPS`] both change the same word at once (they
///   read and write it in one step), so one of them comes first. If the ring does, the sleeper-to-be
///   reads another count than it noted, and does not wait. Otherwise the ringer reads the flag, and
///   wakes. If the sleeper is not yet asleep by then, the system compares the word before it lets it
///   sleep, under the lock under which it wakes, and the word has been changed by the ring.
///
/// Each change of the word reads and writes it, so a chain of releases is never broken: who sees
/// a count sees all that was stored before any of its rings.
///
/// The ringer leaves the flag to the sleeper. So a ringer that is killed half way leaves nothing behind
/// that would keep others from waking; a sleeper that is killed leaves the flag, which costs a call in
/// vain per ring. A count is taken for another only after 2^30 rings between the note and the wait.
#[repr(transparent)]
#[cfg_attr(loom, derive(Default))]
pub struct Bell {
    pub(crate) futex: Futex,
}

/// How often a bell has been rung, as a mark to wait from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rings(u32);

impl Bell {
    /// How often it has been rung.
    #[inline]
    pub fn rings(&self) -> Rings {
        Rings(self.futex.word.load(Ordering::Acquire) & !FLAGS)
    }

    /// Wakes who sleeps; says whether somebody waits for a byte instead.
    #[inline]
    pub fn ring(&self) -> bool {
        let before = self.futex.word.fetch_add(RING, Ordering::AcqRel);
        if before & SLEEPS != 0 {
            self.futex.wake_all();
        }
        before & SOCKET != 0
    }

    /// Waits until it has been rung since `seen`, but no longer than `timeout`; says whether it was.
    pub fn wait(&self, seen: Rings, timeout: Duration) -> bool {
        // Too long for the clock is as good as for ever.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
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
    fn a_ring_before_the_wait_is_seen_at_once() {
        let bell = bell();
        let seen = bell.rings();
        assert!(!bell.ring());
        assert!(bell.wait(seen, Duration::MAX));
        assert_ne!(bell.rings(), seen);
    }

    #[test]
    fn without_a_ring_the_wait_ends_with_the_timeout() {
        let bell = bell();
        let began = Instant::now();
        assert!(!bell.wait(bell.rings(), Duration::from_millis(20)));
        assert!(began.elapsed() >= Duration::from_millis(20));
        assert_eq!(bell.futex.word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_rings_is_told_of_one_who_waits_for_a_byte() {
        let bell = bell();
        bell.futex.word.store(SOCKET, Ordering::Relaxed);
        assert!(bell.ring());
        assert_eq!(bell.futex.word.load(Ordering::Relaxed), RING | SOCKET);
    }

    #[test]
    fn the_count_goes_round_without_touching_the_flags() {
        let bell = bell();
        bell.futex.word.store(!FLAGS | SOCKET, Ordering::Relaxed);
        let seen = bell.rings();
        bell.ring();
        assert_eq!(bell.futex.word.load(Ordering::Relaxed), SOCKET);
        assert!(bell.wait(seen, Duration::MAX));
    }
}

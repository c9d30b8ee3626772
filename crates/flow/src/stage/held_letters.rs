//! Dead letters of late items that wait to be stored together: many items may be late, and storing each alone would hold
//! up the flow.

use std::mem;

use crate::sinks::dead_letter::DeadLetter;
use crate::stage::rejected::Rejected;

/// The most letters that are stored together, unless a single source item has more.
const LETTERS_MAX: usize = 1 << 10;

/// The most bytes of letters that are stored together, unless a single source item has more.
const BYTES_MAX: usize = 1 << 20;

/// Letters wait no longer than this while further items come, in nanoseconds.
const HELD_NS_MAX: u64 = 100_000_000;

/// The letters of late items that an instance holds. They are stored when they are many, after a short time, when the
/// input pauses, and before a checkpoint.
#[derive(Default)]
pub struct HeldLetters {
    letters: Vec<DeadLetter>,
    bytes: usize,
    /// Since when there are any, by the flow's clock.
    since_ns: u64,
}

impl HeldLetters {
    pub fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    pub fn add(&mut self, rejected: &[Rejected], now_ns: u64) {
        if self.letters.is_empty() {
            self.since_ns = now_ns;
        }
        for letter in rejected.iter().map(Rejected::letter) {
            self.bytes += letter.bytes();
            self.letters.push(letter);
        }
    }

    pub fn is_full(&self) -> bool {
        self.letters.len() >= LETTERS_MAX || self.bytes >= BYTES_MAX
    }

    /// Returns whether they have waited long enough at `now_ns`.
    pub fn is_due(&self, now_ns: u64) -> bool {
        !self.is_empty() && now_ns.saturating_sub(self.since_ns) >= HELD_NS_MAX
    }

    pub fn take(&mut self) -> Vec<DeadLetter> {
        self.bytes = 0;
        mem::take(&mut self.letters)
    }
}

//! How fast a client takes what it reads: who is slow gets smaller answers, which hold less memory.

use std::time::Duration;

/// What a client gets at first, in bytes.
const FIRST_BYTES: usize = 1 << 20;

/// What the slowest gets.
const BYTES_MIN: usize = 64 << 10;

/// An answer that is taken within this time may be twice as large.
const FAST: Duration = Duration::from_millis(100);

/// One that takes longer than this was too large.
const SLOW: Duration = Duration::from_secs(1);

/// The pace of one client.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    bytes: usize,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { bytes: FIRST_BYTES }
    }
}

impl Pace {
    /// The most bytes of records that it gets at once. A chunk that is larger comes alone.
    pub fn bytes_max(&self) -> usize {
        self.bytes
    }

    /// It took an answer of so many bytes in this time.
    pub fn took(&mut self, bytes: usize, time: Duration) {
        if time > SLOW {
            self.bytes = (self.bytes / 2).max(BYTES_MIN);
        } else if time < FAST && bytes > self.bytes / 2 {
            self.bytes = self.bytes.saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_fast_gets_more_and_who_is_slow_less() {
        let mut pace = Pace::default();
        for _ in 0..10 {
            pace.took(pace.bytes_max(), Duration::from_millis(1));
        }
        assert_eq!(pace.bytes_max(), FIRST_BYTES << 10);
        // Small answers say nothing.
        pace.took(1000, Duration::from_millis(1));
        assert_eq!(pace.bytes_max(), FIRST_BYTES << 10);
        for _ in 0..100 {
            pace.took(pace.bytes_max(), Duration::from_secs(2));
        }
        assert_eq!(pace.bytes_max(), BYTES_MIN);
    }
}

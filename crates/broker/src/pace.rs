//! Measures how fast a client reads: a slow client gets smaller answers, which hold less memory.

use std::time::Duration;

/// The first answer's size, in bytes.
const FIRST_BYTES: usize = 1 << 20;

/// The answer size of the slowest clients.
const BYTES_MIN: usize = 64 << 10;

/// After an answer that is taken within this time, the next may be twice as large.
const FAST: Duration = Duration::from_millis(100);

/// An answer that takes longer than this was too large.
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
    /// Returns the most bytes of records in one answer to the client. A larger chunk is sent alone.
    pub fn bytes_max(&self) -> usize {
        self.bytes
    }

    /// Notes that the client took an answer of `bytes` bytes in `time`.
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
    fn fast_clients_get_larger_answers_and_slow_clients_smaller_ones() {
        let mut pace = Pace::default();
        for _ in 0..10 {
            pace.took(pace.bytes_max(), Duration::from_millis(1));
        }
        assert_eq!(pace.bytes_max(), FIRST_BYTES << 10);
        // Small answers prove nothing.
        pace.took(1000, Duration::from_millis(1));
        assert_eq!(pace.bytes_max(), FIRST_BYTES << 10);
        for _ in 0..100 {
            pace.took(pace.bytes_max(), Duration::from_secs(2));
        }
        assert_eq!(pace.bytes_max(), BYTES_MIN);
    }
}

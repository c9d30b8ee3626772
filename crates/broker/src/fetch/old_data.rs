//! Fetches of old data give way to producers, and so to consumers at the head.
//!
//! A thread that sends a large answer is busy with it for as long as others take for their whole requests. So answers with old
//! data have a bound while there are producers. A small answer costs more processor time for each byte, and a consumer with
//! one request in flight gets one answer in each round trip. So the bound lets a consumer that fell behind overtake the
//! producers again.

use std::time::{Duration, Instant};

use millstream_log::WINDOW_BYTES;
use parking_lot::Mutex;

use crate::counters::Counters;

/// The bytes of old data in an answer while there are producers, unless the first chunk is larger: as many as one read of the
/// file brings into memory.
const BYTES_BESIDE_PRODUCERS: usize = WINDOW_BYTES;

/// There are producers if one was answered within this time.
const PRODUCED_WITHIN: Duration = Duration::from_millis(100);

/// Bounds the old data in answers.
#[derive(Debug, Default)]
pub struct OldData(Mutex<Option<Seen>>);

/// The count of produce requests at the last look, and when a look found that it had changed.
#[derive(Debug)]
struct Seen {
    produced: u64,
    changed_at: Option<Instant>,
}

impl OldData {
    /// Returns the most bytes of old data in an answer now.
    pub fn bytes_max(&self, counters: &Counters) -> usize {
        match self.is_produced(counters.produced(), Instant::now()) {
            true => BYTES_BESIDE_PRODUCERS,
            false => usize::MAX,
        }
    }

    fn is_produced(&self, produced: u64, now: Instant) -> bool {
        let mut seen = self.0.lock();
        let before = seen.get_or_insert(Seen {
            produced,
            changed_at: None,
        });
        if before.produced != produced {
            *before = Seen {
                produced,
                changed_at: Some(now),
            };
        }
        let changed_at = before.changed_at;
        changed_at.is_some_and(|at| now.saturating_duration_since(at) < PRODUCED_WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producers_count_as_active_for_a_short_time_after_a_request() {
        let old = OldData::default();
        let begin = Instant::now();
        let look = |produced, ms| old.is_produced(produced, begin + Duration::from_millis(ms));
        assert!(!look(7, 0), "the requests before the first look");
        assert!(!look(7, 1_000));
        assert!(look(8, 1_001) && look(8, 1_100));
        assert!(!look(8, 1_101));
        assert!(look(9, 5_000));
    }
}

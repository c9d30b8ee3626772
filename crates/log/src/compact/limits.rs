//! The bounds of compaction: its memory, and the bytes that it reads and writes in a second.

use std::time::Duration;

use millstream_base::{Bucket, ByteSize, Clock};
use parking_lot::Mutex;

use crate::compact::live::FILES_MAX;
use crate::error::{LogError, Result};
use crate::lane::persist_signal::PersistSignal;
use crate::settings::config::Background;
use crate::settings::memory::Memory;

/// The most memory of a pass, beside that for decompression, which has a budget of its own
/// ([`LogConfig::decompression`](crate::LogConfig::decompression)): one pass runs at a time.
///
/// Two parts of 32 MiB are in use together: the next live offsets, and the keys of the new group while they are sorted. With
/// fewer offsets a pass would merge the key files of a large partition more often, and with fewer keys the key file of a
/// run of 256 MiB would be merged from more parts.
pub const MEMORY_BYTES_MAX: usize = 72 << 20;

/// The most buffers of a pass for each of the key files that it merges.
const MERGED_FILE_BYTES: usize = 64 << 10;

/// The most buffers of a pass to read and write chunks.
const CHUNK_BYTES: usize = 4 << 20;

const _: () = assert!(
    Memory::MAX.live_offsets * size_of::<u64>()
        + Memory::MAX.sorted_keys
        + FILES_MAX * MERGED_FILE_BYTES
        + CHUNK_BYTES
        <= MEMORY_BYTES_MAX
);

/// The longest saved-up time of the rate limit: after a rest, a pass may read and write this much at once.
const BURST: Duration = Duration::from_millis(250);

/// A pass that waits looks this often whether it should stop.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The pace of compaction: a pass waits where it would read and write more than the setting allows.
#[derive(Debug)]
pub struct Pace {
    bucket: Mutex<Bucket>,
    /// With [`Background::Manual`] nothing waits, since a test moves the clock.
    waits: bool,
}

impl Pace {
    /// The pace for this many bytes in a second.
    pub fn new(per_second: ByteSize, background: Background, now: Duration) -> Pace {
        Pace {
            bucket: Mutex::new(Bucket::new(per_second.0 as f64, BURST, now)),
            waits: background == Background::Threads,
        }
    }

    /// Takes note of bytes that were read or written, and waits until the next ones may be. `check` is called before and
    /// while it waits.
    ///
    /// # Errors
    /// When `check` fails, or with [`LogError::Closed`] when `signal` is closed.
    pub fn spend(
        &self,
        bytes: u64,
        clock: &dyn Clock,
        signal: &PersistSignal,
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        self.bucket.lock().take(bytes as f64);
        loop {
            if signal.is_closed() {
                return Err(LogError::Closed);
            }
            check()?;
            let wait = {
                let mut bucket = self.bucket.lock();
                bucket.refill(clock.monotonic());
                bucket.time_until(0.0)
            };
            if wait.is_zero() || !self.waits {
                return Ok(());
            }
            signal.wait(wait.min(LOOK_EVERY));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    use millstream_base::Timestamp;

    use super::*;

    /// A clock that goes on by a second each time it is asked.
    #[derive(Default)]
    struct FastClock(AtomicU64);

    impl Clock for FastClock {
        fn now(&self) -> Timestamp {
            Timestamp(0)
        }

        fn monotonic(&self) -> Duration {
            Duration::from_secs(self.0.fetch_add(1, Ordering::Relaxed))
        }
    }

    const RATE: ByteSize = ByteSize(1_000);

    fn pace(background: Background) -> Pace {
        Pace::new(RATE, background, Duration::ZERO)
    }

    /// Returns how often a pass that has spent this many bytes checks whether it should stop: about once a second.
    fn looks(pace: &Pace, bytes: u64, clock: &FastClock) -> u64 {
        let (looks, signal) = (Cell::new(0), PersistSignal::default());
        // The wait ends at once.
        let check = || {
            looks.set(looks.get() + 1);
            signal.notify();
            Ok(())
        };
        pace.spend(bytes, clock, &signal, check).unwrap();
        looks.get()
    }

    #[test]
    fn a_pass_waits_until_the_rate_limit_covers_the_bytes_it_wrote() {
        let (pace, clock) = (pace(Background::Threads), FastClock::default());
        assert_eq!(looks(&pace, 100, &clock), 1, "the burst");
        assert_eq!(looks(&pace, 150 + 5_000, &clock), 5);
        // A rest brings no more than the burst.
        clock.0.fetch_add(1_000, Ordering::Relaxed);
        assert_eq!(looks(&pace, 250, &clock), 1);
        assert_eq!(looks(&pace, 3_000, &clock), 3);
    }

    #[test]
    fn manual_steps_do_not_wait() {
        let (pace, clock) = (pace(Background::Manual), FastClock::default());
        assert_eq!(looks(&pace, 1 << 40, &clock), 1);
    }

    #[test]
    fn a_closed_log_or_a_failed_check_ends_the_wait() {
        let (pace, clock) = (pace(Background::Threads), FastClock::default());
        let signal = PersistSignal::default();
        let failed = || {
            Err(LogError::BadName {
                name: String::new(),
                why: "test",
            })
        };
        let spent = pace.spend(1 << 40, &clock, &signal, failed);
        assert!(matches!(spent, Err(LogError::BadName { .. })));
        let (looks, signal) = (Cell::new(0), &signal);
        let close = || {
            looks.set(looks.get() + 1);
            signal.close();
            Ok(())
        };
        let spent = pace.spend(1 << 40, &clock, signal, close);
        assert!(matches!(spent, Err(LogError::Closed)) && looks.get() == 1);
    }
}

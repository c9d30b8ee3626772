//! Makes clients wait that send or receive more than their quota.
//!
//! The clients of one limit share a bucket of bytes. It fills at the rate of the limit, up to one
//! second's worth. All bytes on the wire are taken out of it, even more than it holds: then the
//! client that took them waits until the bucket is out of debt, however long that takes.

use std::time::Duration;

use parking_lot::Mutex;

use crate::buckets::Buckets;
use crate::security::{ByteRate, Share};

/// The burst of a bucket: the bytes of this time may go over the wire at once after a rest.
const BURST: Duration = Duration::from_secs(1);

/// The buckets of all limits.
#[derive(Debug)]
pub struct Throttle {
    /// In bytes.
    buckets: Mutex<Buckets<Share>>,
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle {
            buckets: Mutex::new(Buckets::new(BURST)),
        }
    }
}

/// Returns the most bytes of records in one answer to a client with this rate: the burst of a full
/// bucket, so that the client is never in debt for long.
pub fn answer_bytes_max(rate: ByteRate) -> usize {
    let bytes = rate.bytes_per_second().saturating_mul(BURST.as_secs());
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Throttle {
    /// Takes bytes on the wire from the bucket; returns how long their client has to wait after
    /// that.
    pub fn take(&self, share: Share, rate: ByteRate, bytes: usize, now: Duration) -> Duration {
        let mut buckets = self.buckets.lock();
        let bucket = buckets.get(share, rate.bytes_per_second() as f64, now);
        bucket.take(bytes as f64);
        bucket.time_until(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buckets::BUCKETS_MAX;
    use crate::security::Traffic;

    fn share(client_id: &str) -> Share {
        Share {
            traffic: Traffic::Produced,
            user: None,
            client_id: Some(client_id.into()),
        }
    }

    #[test]
    fn a_client_over_its_rate_waits_until_its_debt_is_paid() {
        let (throttle, second) = (Throttle::default(), Duration::from_secs(1));
        let rate = ByteRate::new(1000).unwrap();
        let take = |bytes, now| throttle.take(share("a"), rate, bytes, now);
        assert_eq!(take(1000, second), Duration::ZERO);
        assert_eq!(take(500, second), Duration::from_millis(500));
        // Other clients are unaffected.
        let other = throttle.take(share("b"), rate, 1000, second);
        assert_eq!(other, Duration::ZERO);
        assert_eq!(take(0, second * 3 / 2), Duration::ZERO);
        assert_eq!(take(1, second * 3 / 2), Duration::from_millis(1));
        // No more than one second's worth is saved up.
        assert_eq!(take(1500, second * 100), Duration::from_millis(500));
        // A long debt is not forgiven; it is paid sooner if more is allowed.
        assert_eq!(take(101_000, second * 200), second * 100);
        assert_eq!(take(0, second * 290), second * 10);
        let more = ByteRate::new(2000).unwrap();
        let debt = throttle.take(share("a"), more, 0, second * 290);
        assert_eq!(debt, second * 5);
    }

    #[test]
    fn a_huge_debt_does_not_overflow() {
        let (throttle, second) = (Throttle::default(), Duration::from_secs(1));
        let rate = ByteRate::new(1).unwrap();
        let take = || throttle.take(share("a"), rate, usize::MAX, second);
        let debt = (0..100).map(|_| take()).max();
        assert_eq!(debt, Some(Duration::MAX));
    }

    #[test]
    fn the_table_of_client_names_is_bounded() {
        let throttle = Throttle::default();
        let rate = ByteRate::new(1000).unwrap();
        for n in 0..3 * BUCKETS_MAX {
            let now = Duration::from_millis(n as u64);
            throttle.take(share(&n.to_string()), rate, 1500, now);
            assert!(throttle.buckets.lock().len() <= BUCKETS_MAX);
        }
    }
}

//! Limits the rate of new connections of an IP address to its quota `connection_creation_rate`.
//!
//! As with Kafka, a connection over the rate is not served: the broker holds it for a moment, which slows down a client that
//! connects again and again, and closes it. It does not count against the rate.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

use super::ip_quotas::ConnectionRate;
use crate::buckets::Buckets;

/// An address may save up the connections of this time: Kafka measures a rate over ten seconds.
const BURST: Duration = Duration::from_secs(10);

/// The longest hold of a connection over the rate.
const HOLD_MAX: Duration = Duration::from_secs(1);

/// The connections that addresses may still open.
#[derive(Debug)]
pub struct ConnectionPace {
    /// Keyed by addresses as [`IpAddr::to_canonical`] returns them.
    buckets: Mutex<Buckets<IpAddr>>,
}

impl Default for ConnectionPace {
    fn default() -> ConnectionPace {
        ConnectionPace {
            buckets: Mutex::new(Buckets::new(BURST)),
        }
    }
}

impl ConnectionPace {
    /// Counts a connection of an address with this rate.
    ///
    /// # Errors
    /// When the connection is over the rate: returns for how long to hold it before closing it.
    pub fn admit(&self, from: IpAddr, rate: ConnectionRate, now: Duration) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock();
        let bucket = buckets.get(from.to_canonical(), f64::from(rate.per_second()), now);
        let wait = bucket.time_until(1.0);
        if !wait.is_zero() {
            return Err(wait.min(HOLD_MAX));
        }
        bucket.take(1.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rate(per_second: u32) -> ConnectionRate {
        ConnectionRate::new(per_second).unwrap()
    }

    /// Returns how many connections of an address are admitted at once.
    fn admitted(pace: &ConnectionPace, from: &str, per_second: u32, now: Duration) -> u32 {
        let from = from.parse().unwrap();
        let mut count = 0;
        while pace.admit(from, rate(per_second), now).is_ok() {
            count += 1;
        }
        count
    }

    #[test]
    fn connections_over_the_rate_are_refused_and_do_not_count_towards_it() {
        let pace = ConnectionPace::default();
        let from = "10.0.0.1".parse().unwrap();
        // Ten seconds' worth at once, and then more as time passes.
        assert_eq!(admitted(&pace, "10.0.0.1", 2, SECOND), 20);
        assert_eq!(pace.admit(from, rate(2), SECOND), Err(SECOND / 2));
        assert_eq!(admitted(&pace, "10.0.0.1", 2, SECOND * 2), 2);
        assert_eq!(admitted(&pace, "10.0.0.1", 2, SECOND * 2), 0);
        assert_eq!(admitted(&pace, "10.0.0.1", 2, SECOND * 4), 4);
        assert_eq!(admitted(&pace, "10.0.0.1", 2, SECOND * 1000), 20);
        // Each address counts by itself, in whichever form it is written.
        assert_eq!(admitted(&pace, "10.0.0.2", 1, SECOND * 1000), 10);
        assert_eq!(admitted(&pace, "::ffff:10.0.0.2", 1, SECOND * 1000), 0);
    }

    #[test]
    fn a_changed_rate_applies_from_the_next_connection() {
        let pace = ConnectionPace::default();
        assert_eq!(admitted(&pace, "::1", 1, SECOND), 10);
        assert_eq!(admitted(&pace, "::1", 100, SECOND), 0);
        assert_eq!(admitted(&pace, "::1", 100, SECOND * 2), 100);
        assert_eq!(admitted(&pace, "::1", 100, SECOND * 100), 1000);
    }

    #[test]
    fn a_connection_is_never_held_for_long() {
        let pace = ConnectionPace::default();
        let from = "10.0.0.1".parse().unwrap();
        admitted(&pace, "10.0.0.1", 1, SECOND);
        assert_eq!(pace.admit(from, rate(1), SECOND), Err(HOLD_MAX));
    }

    #[test]
    fn memory_is_bounded() {
        let pace = ConnectionPace::default();
        for number in 0..3 * crate::buckets::BUCKETS_MAX as u32 {
            let from = IpAddr::from(number.to_be_bytes());
            pace.admit(from, rate(1), SECOND).unwrap();
            assert!(pace.buckets.lock().len() <= crate::buckets::BUCKETS_MAX);
        }
    }
}

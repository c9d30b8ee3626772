//! The broker's counters of connections and requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_wire::{ApiKey, SUPPORTED};

/// Upper bounds of the buckets that requests are counted in by their time, in microseconds.
const BOUNDS_US: [u64; 19] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// Written by all connections, read by metrics and the page.
#[derive(Debug)]
pub struct Counters {
    /// Accepted connections.
    pub accepted: Counter,
    /// Connections that have ended.
    pub ended: Counter,
    /// Connections that were closed unserved, because there were too many in all, or more than the
    /// quota of their address.
    pub refused: Counter,
    /// Connections that were closed because the client broke the protocol or a limit.
    pub failed: Counter,
    /// By kind, in the order of [`SUPPORTED`].
    requests: Box<[Requests]>,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Requests of one kind that were answered.
#[derive(Debug, Default)]
struct Requests {
    /// Counts by time; requests above the highest bound are in none.
    buckets: [Counter; BOUNDS_US.len()],
    count: Counter,
    /// The sum of their times, in microseconds.
    sum_us: AtomicU64,
    /// Answers with an error in them.
    errors: Counter,
}

/// The number and times of the answered requests of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestStatus {
    /// The kind.
    pub api: ApiKey,
    /// The upper bound of each bucket in seconds, and the number of requests in it, without those
    /// of lower buckets. The time of a request runs from its arrival to its answer and includes all
    /// waits: for records, disks, other members of a group.
    pub buckets: Vec<(f64, u64)>,
    /// The number of requests.
    pub count: u64,
    /// The sum of their times, in seconds.
    pub seconds: f64,
    /// Answers with an error in them: for the whole request, or for one of its topics, partitions or groups.
    pub errors: u64,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            accepted: Counter::default(),
            ended: Counter::default(),
            refused: Counter::default(),
            failed: Counter::default(),
            requests: SUPPORTED.iter().map(|_| Requests::default()).collect(),
        }
    }
}

impl Counters {
    /// Counts a request that was answered after `time`.
    pub fn answered(&self, api: ApiKey, time: Duration, has_error: bool) {
        let index = SUPPORTED
            .iter()
            .position(|supported| supported.api == api)
            .expect("all requests are listed");
        let requests = &self.requests[index];
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = BOUNDS_US.iter().position(|bound| us <= *bound) {
            requests.buckets[bucket].add_one();
        }
        requests.count.add_one();
        requests.sum_us.fetch_add(us, Ordering::Relaxed);
        if has_error {
            requests.errors.add_one();
        }
    }

    /// Returns the number of produce requests that were answered.
    pub fn produced(&self) -> u64 {
        let mut kinds = SUPPORTED.iter().zip(&self.requests);
        let produce = kinds.find(|(supported, _)| supported.api == ApiKey::Produce);
        produce.map_or(0, |(_, requests)| requests.count.get())
    }

    /// Returns the kinds of requests that have been answered so far.
    pub fn requests(&self) -> Vec<RequestStatus> {
        let all = SUPPORTED.iter().zip(&self.requests);
        let used = all.filter(|(_, requests)| requests.count.get() > 0);
        used.map(|(supported, requests)| {
            let buckets = BOUNDS_US.iter().zip(&requests.buckets);
            RequestStatus {
                api: supported.api,
                buckets: buckets
                    .map(|(bound, bucket)| (*bound as f64 / 1e6, bucket.get()))
                    .collect(),
                count: requests.count.get(),
                seconds: requests.sum_us.load(Ordering::Relaxed) as f64 / 1e6,
                errors: requests.errors.get(),
            }
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind_time_and_error() {
        let counters = Counters::default();
        assert_eq!(counters.requests(), []);
        counters.answered(ApiKey::Heartbeat, Duration::from_micros(10), false);
        counters.answered(ApiKey::Heartbeat, Duration::from_micros(11), false);
        counters.answered(ApiKey::Heartbeat, Duration::from_secs(60), false);
        counters.answered(ApiKey::SaslAuthenticate, Duration::from_secs(1), true);
        let found = counters.requests();
        let [heartbeat, login] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!((heartbeat.count, heartbeat.errors), (3, 0));
        assert_eq!(heartbeat.buckets[..2], [(10e-6, 1), (25e-6, 1)]);
        assert_eq!(heartbeat.buckets.iter().map(|(_, n)| n).sum::<u64>(), 2);
        assert!((heartbeat.seconds - 60.000_021).abs() < 1e-9);
        assert_eq!((login.api, login.errors), (ApiKey::SaslAuthenticate, 1));
    }
}

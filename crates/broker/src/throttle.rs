//! Clients that send, or are sent, more than they may are made to wait.
//!
//! Those who share a limit have a bucket of bytes. It fills at the rate of the limit, up to one second's worth.
//! What goes over the wire is taken out of it, even if that is more than there is: then whoever took it
//! waits until the bucket is not in debt any more.

use std::collections::HashMap;
use std::time::Duration;

use millstream_wire::{ApiKey, Response};
use parking_lot::Mutex;

use crate::security::{ByteRate, Share, Traffic};

/// Nobody waits longer at a time: what a request takes beyond that is not paid for.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Names are the clients' choice: when there are so many buckets, those that are full are forgotten, or else
/// all.
const BUCKETS_MAX: usize = 10_000;

/// How many bytes may go over the wire at once after a rest: what so much time brings.
const BURST: Duration = Duration::from_secs(1);

/// What those who share limits have left.
#[derive(Debug, Default)]
pub struct Throttle {
    buckets: Mutex<HashMap<Share, Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// For how long at the rate of the limit bytes may go over the wire; negative in debt.
    seconds: f64,
    /// When that was so.
    at: Duration,
}

impl Bucket {
    fn full(now: Duration) -> Bucket {
        Bucket {
            seconds: BURST.as_secs_f64(),
            at: now,
        }
    }

    fn refill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.seconds = (self.seconds + passed).min(BURST.as_secs_f64());
        self.at = now;
    }
}

impl Throttle {
    /// Takes bytes that go over the wire; for how long their client is to wait after that.
    pub fn take(&self, share: Share, rate: ByteRate, bytes: usize, now: Duration) -> Duration {
        let mut buckets = self.buckets.lock();
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(&share) {
            make_room(&mut buckets, now);
        }
        let bucket = buckets.entry(share).or_insert_with(|| Bucket::full(now));
        bucket.refill(now);
        let taken = bytes as f64 / rate.bytes_per_second() as f64;
        bucket.seconds = (bucket.seconds - taken).max(-WAIT_MAX.as_secs_f64());
        Duration::from_secs_f64((-bucket.seconds).max(0.0))
    }
}

fn make_room(buckets: &mut HashMap<Share, Bucket>, now: Duration) {
    buckets.retain(|_, bucket| {
        bucket.refill(now);
        bucket.seconds < BURST.as_secs_f64()
    });
    if buckets.len() >= BUCKETS_MAX {
        buckets.clear();
    }
}

/// Which way records go with a request, if they do.
pub fn traffic_of(api: ApiKey) -> Option<Traffic> {
    match api {
        ApiKey::Produce | ApiKey::WriteChunks => Some(Traffic::Produced),
        ApiKey::Fetch | ApiKey::ReadChunks => Some(Traffic::Consumed),
        _ => None,
    }
}

/// Tells a client for how long it is not listened to; `false` where the answer has no place for it.
pub fn tell(response: &mut Response, wait: Duration) -> bool {
    let millis = wait.min(WAIT_MAX).as_millis() as u32;
    match response {
        Response::Produce(response) => response.throttle_time_ms = millis as i32,
        Response::Fetch(response) => response.throttle_time_ms = millis as i32,
        Response::WriteChunks(response) => response.throttle_time_ms = millis,
        Response::ReadChunks(response) => response.throttle_time_ms = millis,
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(client_id: &str) -> Share {
        Share {
            traffic: Traffic::Produced,
            user: None,
            client_id: Some(client_id.into()),
        }
    }

    #[test]
    fn who_takes_more_than_there_is_waits_until_the_debt_is_paid() {
        let (throttle, second) = (Throttle::default(), Duration::from_secs(1));
        let rate = ByteRate::new(1000).unwrap();
        let take = |bytes, now| throttle.take(share("a"), rate, bytes, now);
        assert_eq!(take(1000, second), Duration::ZERO);
        assert_eq!(take(500, second), Duration::from_millis(500));
        // Somebody else is not concerned.
        let other = throttle.take(share("b"), rate, 1000, second);
        assert_eq!(other, Duration::ZERO);
        assert_eq!(take(0, second * 3 / 2), Duration::ZERO);
        assert_eq!(take(1, second * 3 / 2), Duration::from_millis(1));
        // No more than one second's worth is saved up.
        assert_eq!(take(1500, second * 100), Duration::from_millis(500));
        assert_eq!(take(usize::MAX, second * 200), WAIT_MAX);
        assert_eq!(take(0, second * 215), WAIT_MAX / 2);
    }

    #[test]
    fn however_many_names_clients_have_no_more_than_so_many_are_known() {
        let throttle = Throttle::default();
        let rate = ByteRate::new(1000).unwrap();
        for n in 0..3 * BUCKETS_MAX {
            let now = Duration::from_millis(n as u64);
            throttle.take(share(&n.to_string()), rate, 1500, now);
            assert!(throttle.buckets.lock().len() <= BUCKETS_MAX);
        }
    }
}

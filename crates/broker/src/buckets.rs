//! Token buckets: each fills at a rate, up to the amount that a fixed time of rest brings.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// The most buckets that are remembered. Clients choose the keys: at this number the full buckets
/// are forgotten, or all of them if that frees none.
pub const BUCKETS_MAX: usize = 10_000;

/// A bucket for each key.
#[derive(Debug)]
pub struct Buckets<K> {
    buckets: HashMap<K, Bucket>,
    /// A bucket holds the amount that comes in this time.
    burst: Duration,
}

impl<K: Hash + Eq> Buckets<K> {
    /// Returns a set without buckets. Each new bucket will hold the amount that comes in `burst`.
    pub fn new(burst: Duration) -> Buckets<K> {
        Buckets {
            buckets: HashMap::new(),
            burst,
        }
    }

    /// Returns the bucket of a key as it is now; a new one is full. A changed rate applies from now
    /// on.
    pub fn get(&mut self, key: K, per_second: f64, now: Duration) -> &mut Bucket {
        if self.buckets.len() >= BUCKETS_MAX && !self.buckets.contains_key(&key) {
            self.make_room(now);
        }
        let bucket = self.buckets.entry(key).or_insert_with(|| Bucket {
            level: per_second * self.burst.as_secs_f64(),
            at: now,
            per_second,
            burst: self.burst,
        });
        bucket.refill(now);
        bucket.per_second = per_second;
        bucket
    }

    fn make_room(&mut self, now: Duration) {
        self.buckets.retain(|_, bucket| {
            bucket.refill(now);
            bucket.level < bucket.level_max()
        });
        if self.buckets.len() >= BUCKETS_MAX {
            self.buckets.clear();
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.buckets.len()
    }
}

/// The bucket of one key.
#[derive(Debug)]
pub struct Bucket {
    /// The amount left; negative in debt.
    level: f64,
    /// The time that `level` is for.
    at: Duration,
    per_second: f64,
    burst: Duration,
}

impl Bucket {
    /// Takes an amount, even if less is left.
    pub fn take(&mut self, amount: f64) {
        self.level -= amount;
    }

    /// Returns how long it takes until at least `amount` is left.
    pub fn time_until(&self, amount: f64) -> Duration {
        let seconds = ((amount - self.level) / self.per_second).max(0.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    fn level_max(&self) -> f64 {
        self.per_second * self.burst.as_secs_f64()
    }

    fn refill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.level = (self.level + passed * self.per_second).min(self.level_max());
        self.at = now;
    }
}

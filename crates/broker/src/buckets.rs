//! Token buckets by key.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use millstream_base::Bucket;

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
        let full = || Bucket::new(per_second, self.burst, now);
        let bucket = self.buckets.entry(key).or_insert_with(full);
        bucket.refill(now);
        bucket.set_rate(per_second);
        bucket
    }

    fn make_room(&mut self, now: Duration) {
        self.buckets.retain(|_, bucket| {
            bucket.refill(now);
            !bucket.is_full()
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

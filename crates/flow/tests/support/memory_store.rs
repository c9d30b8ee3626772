//! Checkpoints in memory.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use millstream_flow::{BoxError, Checkpoints, ShardKey};

/// Holds shards in memory, unless it is full.
#[derive(Default)]
pub struct MemoryStore {
    pub parts: Mutex<BTreeMap<ShardKey, Vec<u8>>>,
    pub is_full: AtomicBool,
    /// The time to store a shard, of the first ranks.
    pub takes: [Duration; 2],
    /// The time to read a shard, of the first ranks.
    pub reading_takes: [Duration; 2],
}

impl Checkpoints for MemoryStore {
    fn put(&self, key: ShardKey, part: &[u8]) -> Result<(), BoxError> {
        if let Some(time) = self.takes.get(key.rank as usize) {
            thread::sleep(*time);
        }
        if self.is_full.load(Ordering::Relaxed) {
            return Err("the disk is full".into());
        }
        self.parts.lock().unwrap().insert(key, part.to_vec());
        Ok(())
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        if let Some(time) = self.reading_takes.get(key.rank as usize) {
            thread::sleep(*time);
        }
        let parts = self.parts.lock().unwrap();
        Ok(parts.get(&key).ok_or("it is not there")?.clone())
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        Ok(self.parts.lock().unwrap().keys().copied().collect())
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        self.parts.lock().unwrap().remove(&key);
        Ok(())
    }
}

impl MemoryStore {
    /// Stores no shards from now on.
    pub fn refuse(&self) {
        self.is_full.store(true, Ordering::Relaxed);
    }

    /// Stores shards again.
    pub fn accept(&self) {
        self.is_full.store(false, Ordering::Relaxed);
    }
}

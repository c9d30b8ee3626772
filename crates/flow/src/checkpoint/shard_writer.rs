//! Writes a shard while the flow goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::time::Duration;

use millstream_base::Clock;
use parking_lot::Mutex;

use crate::checkpoint::completeness::{remove_old, remove_others};
use crate::checkpoint::counts::{CheckpointCounts, LastCheckpoint};
use crate::checkpoint::decisions::DecisionSignal;
use crate::checkpoint::shard::{Head, PendingShard, encode};
use crate::checkpoint::store::{Checkpoints, ShardKey};
use crate::checkpoint::writer_bell::WriterBell;
use crate::error::BoxError;

/// The pause before a shard is tried again for the first time. It doubles each time, …
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// … up to this one.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Writes one shard.
pub struct ShardWriter {
    pub checkpoints: Arc<dyn Checkpoints>,
    pub counts: Arc<Mutex<CheckpointCounts>>,
    pub clock: Arc<dyn Clock>,
    pub bell: Arc<WriterBell>,
    pub key: ShardKey,
    pub head: Head,
    pub writing: Writing,
}

/// A shard is being written, until this is dropped.
pub struct Writing {
    pub is_on: Arc<AtomicBool>,
    /// Is notified of written shards, if a participant waits for that.
    pub signal: Option<Arc<DecisionSignal>>,
}

impl ShardWriter {
    /// Writes the shard. What sinks and changelogs have prepared for it takes up room with them until a checkpoint that
    /// names it is complete. They do not have much, so that the same shard is tried again until it is stored; without
    /// anything prepared, the next checkpoint is as good.
    pub fn write(self, mut shard: PendingShard) {
        let started_at = self.clock.monotonic();
        let mut pause = PAUSE_MIN;
        loop {
            match self.attempt(&mut shard) {
                Ok(bytes) => {
                    self.stored(bytes, started_at);
                    break;
                }
                Err(error) => {
                    let mut counts = self.counts.lock();
                    counts.failed += 1;
                    counts.error = Some(error.to_string());
                }
            }
            let is_awaited = self.writing.signal.is_some() && shard.is_prepared();
            if !is_awaited || !self.bell.pause(pause) {
                break;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        let signal = self.writing.signal.clone();
        drop(self.writing);
        let (checkpoints, ranks) = (&*self.checkpoints, self.head.ranks);
        // A shard that cannot be removed does no harm.
        let _ = match signal.filter(|_| ranks > 1) {
            Some(signal) => remove_others(checkpoints, self.key, &signal.kept()),
            None => remove_old(checkpoints, self.key, ranks),
        };
    }

    /// Returns the size of the shard.
    fn attempt(&self, shard: &mut PendingShard) -> Result<u64, BoxError> {
        shard.complete(&self.bell)?;
        let bytes = encode(&self.head, &shard.saved)?;
        self.checkpoints.put(self.key, &bytes)?;
        Ok(bytes.len() as u64)
    }

    fn stored(&self, bytes: u64, started_at: Duration) {
        let mut counts = self.counts.lock();
        if let Some(signal) = &self.writing.signal {
            signal.stored(self.key.checkpoint);
        }
        counts.kept += 1;
        let took = self.clock.monotonic().saturating_sub(started_at);
        counts.last = Some(LastCheckpoint {
            number: self.key.checkpoint,
            kept_at_ms: Some(self.clock.now().0),
            age_seconds: None,
            seconds: Some(took.as_secs_f64()),
            bytes: Some(bytes),
        });
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // First: a worker that the signal wakes sees it.
        self.is_on.store(false, Ordering::SeqCst);
        if let Some(signal) = &self.signal {
            signal.wake_by_ref();
        }
    }
}

//! Writes a shard while the flow goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::time::{Duration, Instant};

use millstream_base::Clock;
use parking_lot::Mutex;

use crate::checkpoint::completeness::remove_others;
use crate::checkpoint::counts::{CheckpointCounts, LastCheckpoint};
use crate::checkpoint::decision_signal::{DecisionSignal, StoredShard};
use crate::checkpoint::record::ShardDigest;
use crate::checkpoint::shard::{Head, PendingShard, encode};
use crate::checkpoint::store::{Checkpoints, ShardKey};
use crate::checkpoint::write_error::{FinalError, PassingError, Unencodable};
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
    /// The run that stored the checkpoint from which this one has resumed, as in keys.
    pub resumed_run: u64,
    /// The time for which the sources paused.
    pub pause: Duration,
    pub writing: Writing,
}

/// A shard is being written, until this is dropped.
pub struct Writing {
    pub is_on: Arc<AtomicBool>,
    /// Is notified when the shard is stored or given up.
    pub signal: Arc<DecisionSignal>,
    pub is_stored: bool,
}

impl ShardWriter {
    /// Writes the shard. Transactions that sinks and changelogs have prepared for it stay open until a checkpoint that
    /// names them is complete. They can have only few, so the writer retries the same shard until it is stored; without
    /// any prepared transaction, the next checkpoint serves as well, unless the rank has ended.
    pub fn write(mut self, mut shard: PendingShard) {
        let started_at = self.clock.monotonic();
        let mut pause = PAUSE_MIN;
        loop {
            let tried_at = Instant::now();
            match self.attempt(&mut shard) {
                Ok(digest) => {
                    self.bell.stored();
                    self.stored(digest, shard, started_at);
                    break;
                }
                Err(error) => {
                    self.failed(&error);
                    let retry_for = self.retry_for(&error);
                    if !self.may_heal(&shard, error, retry_for)
                        || !self.bell.pause(pause, tried_at, retry_for)
                    {
                        break;
                    }
                }
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        let kept = self.writing.signal.kept();
        drop(self.writing);
        // A shard that cannot be removed does no harm.
        let _ = remove_others(&*self.checkpoints, self.key, self.resumed_run, &kept);
    }

    fn attempt(&self, shard: &mut PendingShard) -> Result<ShardDigest, BoxError> {
        shard.complete(&self.bell)?;
        let bytes = encode(&self.head, &shard.saved)?;
        self.checkpoints.put(self.key, &bytes)?;
        Ok(ShardDigest::of(&bytes))
    }

    /// Returns the time for which the writer retries the shard of a rank that has ended. A run that cannot begin, and
    /// a run that is being stopped and takes one more checkpoint, does not retry.
    fn retry_for(&self, error: &BoxError) -> Duration {
        let passing = error.downcast_ref::<PassingError>();
        let passing = passing.filter(|_| self.writing.signal.has_ended());
        passing.map_or(Duration::ZERO, |error| error.retry_for)
    }

    /// Whether the shard is tried again after this error.
    fn may_heal(&self, shard: &PendingShard, error: BoxError, retry_for: Duration) -> bool {
        let signal = &self.writing.signal;
        if error.is::<FinalError>() {
            signal.fail(error);
            return false;
        }
        let is_last_chance = signal.is_last_chance();
        if error.is::<Unencodable>() {
            // The next checkpoint may have another value, but results of several wait for one already.
            if is_last_chance {
                signal.fail(unencodable(&error));
            }
            return false;
        }
        signal.waiting().is_any && (shard.is_prepared() || is_last_chance || !retry_for.is_zero())
    }

    fn failed(&self, error: &BoxError) {
        let error = error.to_string();
        let mut counts = self.counts.lock();
        counts.failed += 1;
        if counts.error.as_ref() != Some(&error) {
            let (flow, number) = (&self.head.flow, self.key.checkpoint);
            tracing::warn!(
                "flow {flow}: checkpoint {number} cannot be stored, and is tried again: {error}"
            );
        }
        counts.error = Some(error);
    }

    fn stored(&mut self, digest: ShardDigest, shard: PendingShard, started_at: Duration) {
        let PendingShard {
            written, passed, ..
        } = shard;
        let mut counts = self.counts.lock();
        let took = self.clock.monotonic().saturating_sub(started_at);
        let cost = self.pause + took;
        self.writing.is_stored = true;
        let stored = StoredShard {
            digest,
            cost,
            passed,
        };
        self.writing.signal.stored(self.key.checkpoint, stored);
        counts.kept += 1;
        counts.last = Some(LastCheckpoint {
            number: self.key.checkpoint,
            kept_at_ms: Some(self.clock.now().0),
            age_seconds: None,
            seconds: Some(took.as_secs_f64()),
            pause_seconds: Some(self.pause.as_secs_f64()),
            bytes: Some(digest.bytes),
            changes: Some(written.changes),
            change_bytes: Some(written.bytes),
        });
    }
}

fn unencodable(error: &BoxError) -> BoxError {
    format!(
        "{error}; results since the last complete checkpoint wait for this one: correct the program, and resume the flow"
    )
    .into()
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_stored {
            self.signal.given_up();
        }
        // First: a worker that the signal wakes sees it.
        self.is_on.store(false, Ordering::SeqCst);
        self.signal.wake_by_ref();
    }
}

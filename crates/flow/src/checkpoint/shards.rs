//! This rank's shards in the store: a run resumes from one, and writes new ones.

mod resume;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use millstream_base::Clock;
use parking_lot::Mutex;

use crate::checkpoint::counts::{CheckpointCounts, LastCheckpoint};
use crate::checkpoint::decision_signal::DecisionSignal;
use crate::checkpoint::decisions::Completion;
use crate::checkpoint::record::{Record, ShardDigest};
use crate::checkpoint::record_writer::{self, RecordWriter};
use crate::checkpoint::shard::{Head, PendingShard};
use crate::checkpoint::shard_writer::{ShardWriter, Writing};
use crate::checkpoint::store::{Checkpoints, ShardKey, StoreLock};
use crate::checkpoint::writer_bell::WriterBell;
use crate::error::BoxError;

pub use resume::ResumePoint;

/// This rank's shards in the store.
pub struct Shards {
    checkpoints: Arc<dyn Checkpoints>,
    flow: String,
    rank: u32,
    ranks: u32,
    run: AtomicU64,
    /// The number of the last checkpoint before this run; the run's own numbers continue from it.
    first: AtomicU64,
    counts: Arc<Mutex<CheckpointCounts>>,
    clock: Arc<dyn Clock>,
    /// Is notified of written shards.
    signal: Arc<DecisionSignal>,
    /// Writes a shard while the flow goes on.
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Set by the worker that starts the writer, cleared by the writer before it notifies the signal.
    is_writing: Arc<AtomicBool>,
    bell: Arc<WriterBell>,
    /// Writes the records, on rank 0 of a store that has some.
    record_writer: Option<Arc<RecordWriter>>,
    /// The run of the shards from which this one resumes, as in their keys.
    resumed_run: AtomicU64,
    /// The shards that were there before this run had locked a store with records. On rank 0.
    former: Mutex<Vec<ShardKey>>,
    /// Held by rank 0 from [`lock`](Self::lock) to [`end`](Self::end).
    lock: Mutex<Option<StoreLock>>,
}

impl Shards {
    pub fn new(
        checkpoints: Arc<dyn Checkpoints>,
        flow: &str,
        rank: u32,
        ranks: u32,
        clock: &Arc<dyn Clock>,
        signal: Arc<DecisionSignal>,
    ) -> Shards {
        let counts = Arc::default();
        let writes_records = rank == 0 && checkpoints.records().is_some();
        let record_writer = writes_records.then(|| {
            let (store, signal) = (Arc::clone(&checkpoints), Arc::clone(&signal));
            Arc::new(RecordWriter::new(store, signal, Arc::clone(&counts)))
        });
        Shards {
            record_writer,
            resumed_run: AtomicU64::new(0),
            former: Mutex::default(),
            clock: Arc::clone(clock),
            checkpoints,
            flow: flow.to_owned(),
            rank,
            ranks,
            run: AtomicU64::new(0),
            first: AtomicU64::new(0),
            counts,
            signal,
            writer: Mutex::new(None),
            is_writing: Arc::default(),
            bell: Arc::default(),
            lock: Mutex::new(None),
        }
    }

    /// The number of a checkpoint that is the `number`th of this run.
    pub fn checkpoint(&self, number: u64) -> u64 {
        self.first.load(Ordering::Relaxed).saturating_add(number)
    }

    pub fn counts(&self) -> CheckpointCounts {
        let mut counts = self.counts.lock().clone();
        counts.interval_seconds = self.signal.interval().as_secs_f64();
        if let Some(last) = &mut counts.last {
            let age_ms = |kept_at_ms| self.clock.now().0.saturating_sub(kept_at_ms);
            last.age_seconds = last.kept_at_ms.map(|ms| age_ms(ms) as f64 / 1e3);
        }
        counts
    }

    /// Begins a run behind the checkpoint `number`, which all ranks have agreed on, and removes shards of this rank that
    /// could be mixed with new ones; in a store with records, it removes shards of any rank that will never count.
    pub fn begin(&self, number: u64, run: u64) -> Result<(), BoxError> {
        self.first.store(number, Ordering::Relaxed);
        self.counts.lock().last = (number > 0).then_some(LastCheckpoint {
            number,
            ..LastCheckpoint::default()
        });
        // Keys of stores without records have the run 0.
        self.run.store(run.max(1), Ordering::Relaxed);
        if self.checkpoints.records().is_none() {
            return self.remove_later(number);
        }
        self.remove_former(number);
        Ok(())
    }

    /// Returns the part that this rank has in finding out which checkpoints are complete.
    pub fn completion(&self) -> Completion {
        match (self.checkpoints.records(), &self.record_writer) {
            (None, _) => Completion::Shards,
            (Some(_), Some(writer)) => Completion::Writer(Arc::clone(writer), self.head()),
            (Some(_), None) => Completion::Announced,
        }
    }

    fn head(&self) -> Head {
        Head {
            flow: self.flow.clone(),
            ranks: self.ranks,
            run: self.run.load(Ordering::Relaxed),
        }
    }

    /// Returns the key of a shard of this run.
    fn key(&self, checkpoint: u64, rank: u32) -> ShardKey {
        let has_records = self.checkpoints.records().is_some();
        let run = if has_records {
            self.run.load(Ordering::Relaxed)
        } else {
            0
        };
        ShardKey {
            checkpoint,
            rank,
            run,
        }
    }

    /// Locks the store until [`end`](Self::end), on rank 0.
    pub fn lock(&self) -> Result<(), BoxError> {
        if self.rank != 0 {
            return Ok(());
        }
        if self.checkpoints.records().is_some() {
            // First: the runs that have stored them append no record from the lock on.
            *self.former.lock() = self.checkpoints.list()?;
        }
        *self.lock.lock() = self.checkpoints.lock()?;
        Ok(())
    }

    /// Removes this rank's shards of later checkpoints, which were not complete: else they could be taken for shards
    /// of those to come.
    fn remove_later(&self, number: u64) -> Result<(), BoxError> {
        let shards = self.checkpoints.list()?;
        let own = shards.iter().filter(|key| key.rank == self.rank);
        own.filter(|key| key.checkpoint > number)
            .try_for_each(|key| self.checkpoints.remove(*key))
    }

    /// Removes the shards of earlier runs that no record names. One that stays does no harm.
    fn remove_former(&self, number: u64) {
        let resumed_run = self.resumed_run.load(Ordering::Relaxed);
        let former = std::mem::take(&mut *self.former.lock());
        for key in former {
            if (key.checkpoint, key.run) != (number, resumed_run) {
                let _ = self.checkpoints.remove(key);
            }
        }
    }

    /// Stores the record of the first checkpoint on rank 0, in a store with records. All ranks have stored their shards.
    pub fn record_first(&self) -> Result<(), BoxError> {
        if self.record_writer.is_none() {
            return Ok(());
        }
        let checkpoint = self.checkpoint(0);
        let shards = (0..self.ranks).map(|rank| {
            let shard = self.checkpoints.get(self.key(checkpoint, rank))?;
            Ok(ShardDigest::of(&shard))
        });
        let record = Record {
            head: self.head(),
            checkpoint,
            shards: shards.collect::<Result<_, BoxError>>()?,
        };
        record_writer::write(&*self.checkpoints, &record)
            .map_err(|error| format!("the first checkpoint cannot be stored: {error}").into())
    }

    /// Stores this rank's shard of the first checkpoint. The run's own numbers continue from it.
    pub fn store_first(&self, shard: PendingShard) -> Result<(), BoxError> {
        // A run that cannot begin says so at once.
        self.set_ending(true);
        self.store(1, shard, None);
        self.finish();
        self.set_ending(false);
        if !self.is_stored(1) {
            let shard = self.checkpoints.describe(self.key(1, self.rank));
            let counts = self.counts.lock();
            let error = counts.error.as_deref().unwrap_or("it panicked");
            return Err(format!("the first checkpoint cannot be stored: {shard}: {error}").into());
        }
        self.first.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Stores a shard in the background. One is written at a time: the flow waits for the one before. The sources pause since
    /// `paused_at`, if they do. Returns the present time, the end of the pause.
    pub fn store(&self, number: u64, shard: PendingShard, paused_at: Option<Duration>) -> Duration {
        self.finish();
        let now = self.clock.monotonic();
        let head = self.head();
        let key = self.key(self.checkpoint(number), self.rank);
        let writing = Writing {
            is_on: Arc::clone(&self.is_writing),
            signal: Arc::clone(&self.signal),
            is_stored: false,
        };
        writing.is_on.store(true, Ordering::SeqCst);
        let writer = ShardWriter {
            checkpoints: Arc::clone(&self.checkpoints),
            counts: Arc::clone(&self.counts),
            clock: Arc::clone(&self.clock),
            bell: Arc::clone(&self.bell),
            key,
            head,
            resumed_run: self.resumed_run.load(Ordering::Relaxed),
            pause: paused_at.map_or(Duration::ZERO, |at| now.saturating_sub(at)),
            writing,
        };
        match thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || writer.write(shard))
        {
            Ok(writer) => *self.writer.lock() = Some(writer),
            Err(error) => {
                let mut counts = self.counts.lock();
                counts.failed += 1;
                counts.error = Some(format!("there is no thread to write it: {error}"));
            }
        }
        now
    }

    /// Whether the shard of this checkpoint is stored, the last one.
    pub fn is_stored(&self, checkpoint: u64) -> bool {
        let last = self.counts.lock().last;
        last.map_or(0, |last| last.number) == checkpoint
    }

    /// Whether a shard is being written.
    pub fn is_writing(&self) -> bool {
        self.is_writing.load(Ordering::SeqCst)
    }

    /// Whether the flow is ending: then a shard that cannot be stored is tried no more than once again.
    pub fn set_ending(&self, is_ending: bool) {
        self.bell.set_ending(is_ending);
    }

    /// Ends the waiting for changelogs: the flow ends at its present state.
    pub fn cancel(&self) {
        self.bell.cancel();
    }

    /// Waits for the shard and the record that are being written, and unlocks the store for other runs.
    pub fn end(&self) {
        self.finish();
        if let Some(writer) = &self.record_writer {
            writer.end();
        }
        *self.lock.lock() = None;
    }

    /// Waits for the shard that is being written.
    pub fn finish(&self) {
        if let Some(writer) = self.writer.lock().take() {
            // The panic is of user code: the shard counts as not stored.
            if writer.join().is_err() {
                self.counts.lock().failed += 1;
            }
        }
    }
}

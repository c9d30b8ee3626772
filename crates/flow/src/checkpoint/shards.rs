//! This rank's shards in the store: a run resumes from one, and writes new ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use millstream_base::Clock;
use parking_lot::Mutex;

use crate::checkpoint::completeness::newest_complete;
use crate::checkpoint::counts::{CheckpointCounts, LastCheckpoint};
use crate::checkpoint::decisions::DecisionSignal;
use crate::checkpoint::shard::{Head, OtherVersion, PendingShard, Saved, decode};
use crate::checkpoint::shard_writer::{ShardWriter, Writing};
use crate::checkpoint::snapshot::first_logged;
use crate::checkpoint::store::{Checkpoints, Resume, ShardKey, StoreLock};
use crate::checkpoint::writer_bell::WriterBell;
use crate::error::BoxError;

/// The checkpoint that a run resumes from, as this rank sees it.
pub struct ResumePoint {
    /// The number of the last complete checkpoint, 0 for none.
    pub number: u64,
    /// The run that stored it.
    pub run: u64,
    pub saved: Saved,
}

/// This rank's shards in the store.
pub struct Shards {
    checkpoints: Arc<dyn Checkpoints>,
    flow: String,
    rank: u32,
    ranks: u32,
    run: AtomicU64,
    /// Of the last checkpoint before this run: those of the run count on from it.
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
    /// Held by rank 0 from [`resume_point`](Self::resume_point) to [`end`](Self::end), by the others from
    /// [`begin`](Self::begin).
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
        Shards {
            clock: Arc::clone(clock),
            checkpoints,
            flow: flow.to_owned(),
            rank,
            ranks,
            run: AtomicU64::new(0),
            first: AtomicU64::new(0),
            counts: Arc::default(),
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
        if let Some(last) = &mut counts.last {
            let age_ms = |kept_at_ms| self.clock.now().0.saturating_sub(kept_at_ms);
            last.age_seconds = last.kept_at_ms.map(|ms| age_ms(ms) as f64 / 1e3);
        }
        counts
    }

    /// Begins a run behind the checkpoint `number`, which all ranks have agreed on, and removes all shards of this
    /// rank that could be mixed with those to come.
    pub fn begin(&self, number: u64, run: u64) -> Result<(), BoxError> {
        self.first.store(number, Ordering::Relaxed);
        self.counts.lock().last = (number > 0).then_some(LastCheckpoint {
            number,
            kept_at_ms: None,
            age_seconds: None,
            seconds: None,
            bytes: None,
        });
        self.run.store(run, Ordering::Relaxed);
        if self.rank != 0 {
            *self.lock.lock() = self.checkpoints.join()?;
        }
        self.remove_later(number)
    }

    /// Returns the checkpoint to resume from, if there is one, as this rank sees it. The store is locked from then
    /// on.
    pub fn resume_point(&self, resume: Resume) -> Result<Option<ResumePoint>, BoxError> {
        if self.rank == 0 {
            *self.lock.lock() = self.checkpoints.lock()?;
        }
        let shards = self.checkpoints.list()?;
        let newest = match resume {
            Resume::Never => return self.check_empty(&shards).map(|()| None),
            Resume::IfAny | Resume::Always => newest_complete(&shards, self.ranks),
        };
        match newest {
            Some(number) => self.read(number, &shards).map(Some),
            None if resume == Resume::IfAny => self.check_unfinished(&shards).map(|()| None),
            None => Err(self.none_complete(&shards)),
        }
    }

    /// Checks that the store holds no shard that could be mixed with those of a new run.
    fn check_empty(&self, shards: &[ShardKey]) -> Result<(), BoxError> {
        match shards.iter().max() {
            None => Ok(()),
            Some(key) => Err(format!(
                "there is a checkpoint, number {}, of an earlier run: {}; resume from it, or remove it first",
                key.checkpoint,
                self.checkpoints.describe(*key)
            )
            .into()),
        }
    }

    /// Reads this rank's shard of a checkpoint. `shards` are all shards in the store.
    fn read(&self, number: u64, shards: &[ShardKey]) -> Result<ResumePoint, BoxError> {
        let key = ShardKey {
            checkpoint: number,
            rank: self.rank,
        };
        let shard = self.checkpoints.get(key).and_then(|shard| decode(&shard));
        let (head, saved) = shard.map_err(|error| self.damaged(key, shards, &error))?;
        if (head.flow.as_str(), head.ranks) != (&self.flow, self.ranks) {
            return Err(format!(
                "the checkpoint {number} is of flow \"{}\" on {} ranks, and this is \"{}\" on {}",
                head.flow, head.ranks, self.flow, self.ranks
            )
            .into());
        }
        Ok(ResumePoint {
            number,
            run: head.run,
            saved,
        })
    }

    /// Returns the error of a damaged shard, and the advice what to do. The flow takes no older checkpoint by itself:
    /// results that came after it would come again.
    fn damaged(&self, key: ShardKey, shards: &[ShardKey], error: &BoxError) -> BoxError {
        let ShardKey { checkpoint, .. } = key;
        let shard = self.checkpoints.describe(key);
        let advice = self.advice(key, shards, error);
        format!("the checkpoint {checkpoint} cannot be read: {shard}: {error}; {advice}").into()
    }

    fn advice(&self, key: ShardKey, shards: &[ShardKey], error: &BoxError) -> String {
        const ANEW: &str = "remove all checkpoints of the flow and start it anew, without resuming";
        if error.is::<OtherVersion>() {
            return format!(
                "let the version of the program that wrote it finish the flow, or {ANEW}"
            );
        }
        let older = shards
            .iter()
            .filter(|shard| shard.checkpoint < key.checkpoint);
        let older: Vec<ShardKey> = older.copied().collect();
        let Some(number) = newest_complete(&older, self.ranks) else {
            return format!(
                "no older checkpoint is complete: bring back a copy of that shard, or {ANEW}"
            );
        };
        let older = ShardKey {
            checkpoint: number,
            rank: self.rank,
        };
        let older = self.checkpoints.get(older).and_then(|shard| decode(&shard));
        // Changelogs have the changes since then already, and would get them twice.
        if let Ok((_, saved)) = &older
            && let Some(state) = first_logged(saved)
        {
            return format!(
                "the older checkpoint {number} does not fit the changelog of state \"{state}\", which has later changes: \
                 bring back a copy of that shard, or {ANEW}"
            );
        }
        format!(
            "remove that shard to go on from checkpoint {number}, the newest one that is complete without it; \
             results that came after checkpoint {number} come again"
        )
    }

    fn none_complete(&self, shards: &[ShardKey]) -> BoxError {
        let Some(newest) = shards.iter().max() else {
            let first = self.first_shard();
            return format!("there is no checkpoint to resume from: {first} is not there").into();
        };
        let of_newest = shards
            .iter()
            .filter(|key| key.checkpoint == newest.checkpoint);
        let ranks: Vec<_> = of_newest.map(|key| key.rank.to_string()).collect();
        format!(
            "there is no checkpoint with the shards of all {} ranks to resume from; of the newest, {}, there are those of {} ({}), such as {}",
            self.ranks,
            newest.checkpoint,
            match ranks.len() {
                1 => "one rank".to_owned(),
                count => format!("{count} ranks"),
            },
            ranks.join(", "),
            self.checkpoints.describe(*newest)
        )
        .into()
    }

    /// Describes where this rank's shard of a first checkpoint would be.
    fn first_shard(&self) -> String {
        self.checkpoints.describe(ShardKey {
            checkpoint: 1,
            rank: self.rank,
        })
    }

    /// Checks that shards of which no checkpoint is complete are of this flow's first checkpoint, which a crash left
    /// incomplete. Each rank checks its own ones, which no other rank removes.
    fn check_unfinished(&self, shards: &[ShardKey]) -> Result<(), BoxError> {
        if shards.iter().any(|key| key.rank >= self.ranks) {
            return Err(self.none_complete(shards));
        }
        let own = shards.iter().filter(|key| key.rank == self.rank);
        own.map(|key| key.checkpoint)
            .try_for_each(|number| self.read(number, shards).map(drop))
    }

    /// Removes this rank's shards of later checkpoints, which were not complete: else they could be taken for shards
    /// of those to come.
    fn remove_later(&self, number: u64) -> Result<(), BoxError> {
        let shards = self.checkpoints.list()?;
        let own = shards.iter().filter(|key| key.rank == self.rank);
        own.filter(|key| key.checkpoint > number)
            .try_for_each(|key| self.checkpoints.remove(*key))
    }

    /// Stores this rank's shard of the first checkpoint. Those of the run count on from it.
    pub fn store_first(&self, shard: PendingShard) -> Result<(), BoxError> {
        // A run that cannot begin says so at once.
        self.set_ending(true);
        self.store(1, shard);
        self.finish();
        self.set_ending(false);
        if !self.is_stored(1) {
            let shard = self.first_shard();
            let counts = self.counts.lock();
            let error = counts.error.as_deref().unwrap_or("it panicked");
            return Err(format!("the first checkpoint cannot be stored: {shard}: {error}").into());
        }
        self.first.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Stores a shard in the background. One is written at a time: the flow waits for the one before.
    pub fn store(&self, number: u64, shard: PendingShard) {
        self.finish();
        let head = Head {
            flow: self.flow.clone(),
            ranks: self.ranks,
            run: self.run.load(Ordering::Relaxed),
        };
        let key = ShardKey {
            checkpoint: self.checkpoint(number),
            rank: self.rank,
        };
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

    /// Ends the waiting for changelogs: the flow ends where it stands.
    pub fn cancel(&self) {
        self.bell.cancel();
    }

    /// Waits for the shard that is being written, and unlocks the store for other runs.
    pub fn end(&self) {
        self.finish();
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

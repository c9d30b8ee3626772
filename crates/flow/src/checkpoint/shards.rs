//! Checkpoints: what a flow needs to go on after its end, however it ended.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use millstream_base::Clock;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::checkpoint::decisions::News;
use crate::error::BoxError;

/// Holds a place of checkpoints for one run of a flow, until it is dropped or the process ends.
pub type PlaceLock = Box<dyn Send + Sync>;

/// Where checkpoints are kept. All ranks of a flow see the same place.
pub trait Checkpoints: Send + Sync + 'static {
    /// Holds the place for one run, so that no other run keeps its checkpoints there meanwhile. Rank 0 asks for it before
    /// it looks at what is there, and lets it go when its last part is kept. `None` where the place cannot be held.
    ///
    /// # Errors
    /// When another run holds the place; then the flow does not begin.
    fn lock(&self) -> Result<Option<PlaceLock>, BoxError> {
        Ok(None)
    }

    /// Keeps the part of a rank, whole or not at all, and so that it outlasts a crash.
    ///
    /// # Errors
    /// The flow goes on, and tries again with the next checkpoint. When it is the first one, the flow does not begin.
    fn put(&self, key: PartKey, part: &[u8]) -> Result<(), BoxError>;

    /// A part that was kept.
    ///
    /// # Errors
    /// When it cannot be read.
    fn get(&self, key: PartKey) -> Result<Vec<u8>, BoxError>;

    /// All parts that are kept.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn list(&self) -> Result<Vec<PartKey>, BoxError>;

    /// Forgets a part.
    ///
    /// # Errors
    /// When it stays; it does no harm.
    fn remove(&self, key: PartKey) -> Result<(), BoxError>;

    /// Where a part is, for messages.
    fn describe(&self, key: PartKey) -> String {
        let PartKey { checkpoint, rank } = key;
        format!("the part of rank {rank} of checkpoint {checkpoint}")
    }
}

/// Which part of which checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartKey {
    /// Counted from 1 by the flow's runs together; the last one of a run may lie far behind the others.
    pub checkpoint: u64,
    /// Whose part it is.
    pub rank: u32,
}

/// How a flow keeps checkpoints.
#[derive(Clone)]
pub struct Checkpointing {
    /// Where.
    pub place: Arc<dyn Checkpoints>,
    /// How often.
    pub interval: Duration,
    /// Where it begins.
    pub resume: Resume,
}

/// Whether a flow goes on from the last checkpoint that is complete: of which all ranks have kept their parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// It begins at the start, and there must be no checkpoint.
    Never,
    /// If there is one; else it begins at the start. For those who start it again without looking what there is.
    IfAny,
    /// There must be one.
    Always,
}

impl fmt::Debug for Checkpointing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpointing")
            .field("interval", &self.interval)
            .field("resume", &self.resume)
            .finish_non_exhaustive()
    }
}

/// How a flow's checkpoints fare.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CheckpointCounts {
    /// Parts of this rank that are kept for good.
    pub kept: u64,
    /// Parts that could not be kept.
    pub failed: u64,
    /// Why the last of them could not.
    pub error: Option<String>,
    /// The last part of this rank that is kept, be it of a run before.
    pub last: Option<LastCheckpoint>,
}

/// The last part of a checkpoint that a rank has kept. A checkpoint is complete when all ranks have kept theirs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LastCheckpoint {
    /// The checkpoint's number.
    pub number: u64,
    /// When it was kept, in milliseconds since 1970; `None` for that of an earlier run.
    pub kept_at_ms: Option<i64>,
    /// How long ago that was, in seconds.
    pub age_seconds: Option<f64>,
    /// How long it took to write.
    pub seconds: Option<f64>,
    /// Its size.
    pub bytes: Option<u64>,
}

/// A rank's part of a checkpoint: of each element of the flow what it needs to go on.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    elements: BTreeMap<String, Vec<u8>>,
}

impl Saved {
    pub fn put(&mut self, element: String, bytes: Vec<u8>) {
        self.elements.insert(element, bytes);
    }

    /// # Errors
    /// When there is no such element.
    pub fn get(&self, element: &str) -> Result<&[u8], BoxError> {
        let bytes = self.elements.get(element);
        bytes.map(Vec::as_slice).ok_or_else(|| {
            format!("it holds nothing of \"{element}\": it is of another flow").into()
        })
    }
}

/// Of which flow a part is.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    flow: String,
    ranks: u32,
    /// Which of the flow's runs kept it: a number that its ranks agreed on.
    run: u64,
    /// By which keys are spread.
    seed: u64,
}

/// Version of the format.
const VERSION: u8 = 4;

/// `VERSION`, the CRC-32C of all that follows (little-endian), then [`Head`] and [`Saved`], each as postcard writes it.
fn encode(head: &Head, saved: &Saved) -> Result<Vec<u8>, BoxError> {
    let mut bytes = vec![VERSION, 0, 0, 0, 0];
    postcard::to_io(head, &mut bytes)?;
    postcard::to_io(saved, &mut bytes)?;
    let checksum = millstream_base::crc32c(&bytes[5..]);
    bytes[1..5].copy_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

fn decode(bytes: &[u8]) -> Result<(Head, Saved), BoxError> {
    let [version, a, b, c, d, body @ ..] = bytes else {
        return Err("it is cut short".into());
    };
    if *version != VERSION {
        return Err(
            format!("its format has version {version}, and this program reads {VERSION}").into(),
        );
    }
    if u32::from_le_bytes([*a, *b, *c, *d]) != millstream_base::crc32c(body) {
        return Err("its checksum is wrong".into());
    }
    let (head, rest) = postcard::take_from_bytes(body)?;
    Ok((head, postcard::from_bytes(rest)?))
}

/// The number of a run's last checkpoint, counted from where it began: that of its end. Ranks end one after another,
/// and those that end later may have taken more cuts; so each knows the number without asking. A run never takes as many
/// cuts.
pub const LAST: u64 = 1_000_000_000_000;

/// What a run begins with.
pub struct Beginning {
    /// The number of the last complete checkpoint, 0 for none.
    pub number: u64,
    /// By which it was kept.
    pub run: u64,
    pub seed: u64,
    pub saved: Saved,
}

/// The place of this rank's parts.
pub struct Keeper {
    place: Arc<dyn Checkpoints>,
    flow: String,
    rank: u32,
    ranks: u32,
    run: AtomicU64,
    seed: AtomicU64,
    /// Of the last checkpoint before this run: those of the run count on from it.
    first: AtomicU64,
    counts: Arc<Mutex<CheckpointCounts>>,
    clock: Arc<dyn Clock>,
    /// Is told what is kept, if something waits for that.
    news: Option<Arc<News>>,
    /// Writes a part while the flow goes on.
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Held by rank 0, from [`beginning`](Self::beginning) to [`end`](Self::end).
    lock: Mutex<Option<PlaceLock>>,
}

impl Keeper {
    pub fn new(
        place: Arc<dyn Checkpoints>,
        flow: &str,
        rank: u32,
        ranks: u32,
        clock: &Arc<dyn Clock>,
    ) -> Keeper {
        Keeper {
            clock: Arc::clone(clock),
            place,
            flow: flow.to_owned(),
            rank,
            ranks,
            run: AtomicU64::new(0),
            seed: AtomicU64::new(0),
            first: AtomicU64::new(0),
            counts: Arc::default(),
            news: None,
            writer: Mutex::new(None),
            lock: Mutex::new(None),
        }
    }

    /// Tells of each part that is kept.
    pub fn tell(&mut self, news: Arc<News>) {
        self.news = Some(news);
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

    /// Begins a run behind the checkpoint `number`, which all ranks have agreed on: nothing is left of this
    /// rank that parts to come could be mixed with.
    pub fn begin(&self, number: u64, run: u64, seed: u64) -> Result<(), BoxError> {
        self.first.store(number, Ordering::Relaxed);
        self.counts.lock().last = (number > 0).then_some(LastCheckpoint {
            number,
            kept_at_ms: None,
            age_seconds: None,
            seconds: None,
            bytes: None,
        });
        self.run.store(run, Ordering::Relaxed);
        self.seed.store(seed, Ordering::Relaxed);
        self.remove_later(number)
    }

    /// What to go on from, if from anything, as this rank sees it. The place is held from then on.
    pub fn beginning(&self, resume: Resume) -> Result<Option<Beginning>, BoxError> {
        if self.rank == 0 {
            *self.lock.lock() = self.place.lock()?;
        }
        let parts = self.place.list()?;
        let newest = match resume {
            Resume::Never => return self.check_empty(&parts).map(|()| None),
            Resume::IfAny | Resume::Always => newest_complete(&parts, self.ranks),
        };
        match newest {
            Some(number) => self.read(number, &parts).map(Some),
            None if resume == Resume::IfAny => self.check_unfinished(&parts).map(|()| None),
            None => Err(self.none_complete(&parts)),
        }
    }

    /// Whether nothing is kept that a new run would mix with.
    fn check_empty(&self, parts: &[PartKey]) -> Result<(), BoxError> {
        match parts.iter().max() {
            None => Ok(()),
            Some(key) => Err(format!(
                "there is a checkpoint, number {}, of an earlier run: {}; resume from it, or remove it first",
                key.checkpoint,
                self.place.describe(*key)
            )
            .into()),
        }
    }

    /// This rank's part of a checkpoint. `parts` are all that are there.
    fn read(&self, number: u64, parts: &[PartKey]) -> Result<Beginning, BoxError> {
        let key = PartKey {
            checkpoint: number,
            rank: self.rank,
        };
        let part = self.place.get(key).and_then(|part| decode(&part));
        let (head, saved) = part.map_err(|error| self.damaged(key, parts, &error))?;
        if (head.flow.as_str(), head.ranks) != (&self.flow, self.ranks) {
            return Err(format!(
                "the checkpoint {number} is of flow \"{}\" on {} ranks, and this is \"{}\" on {}",
                head.flow, head.ranks, self.flow, self.ranks
            )
            .into());
        }
        Ok(Beginning {
            number,
            run: head.run,
            seed: head.seed,
            saved,
        })
    }

    /// What is wrong with this rank's part, and what can be done. No older checkpoint is taken by itself: results that
    /// came after it would come again.
    fn damaged(&self, key: PartKey, parts: &[PartKey], error: &BoxError) -> BoxError {
        let PartKey { checkpoint, .. } = key;
        let older = parts.iter().filter(|part| part.checkpoint < checkpoint);
        let older: Vec<PartKey> = older.copied().collect();
        let place = self.place.describe(key);
        let advice = match newest_complete(&older, self.ranks) {
            Some(older) => format!(
                "remove that part to go on from checkpoint {older}, the newest one that is complete without it; \
                 results that came after checkpoint {older} come again"
            ),
            None => "no older checkpoint is complete: bring back a copy of that part, or remove all checkpoints of the \
                     flow and start it anew, without resuming"
                .to_owned(),
        };
        format!("the checkpoint {checkpoint} cannot be read: {place}: {error}; {advice}").into()
    }

    fn none_complete(&self, parts: &[PartKey]) -> BoxError {
        let Some(newest) = parts.iter().max() else {
            let first = self.first_part();
            return format!("there is no checkpoint to resume from: {first} is not there").into();
        };
        let of_newest = parts
            .iter()
            .filter(|key| key.checkpoint == newest.checkpoint);
        let ranks: Vec<_> = of_newest.map(|key| key.rank.to_string()).collect();
        format!(
            "there is no checkpoint with the parts of all {} ranks to resume from; of the newest, {}, there are those of {} ({}), such as {}",
            self.ranks,
            newest.checkpoint,
            match ranks.len() {
                1 => "one rank".to_owned(),
                count => format!("{count} ranks"),
            },
            ranks.join(", "),
            self.place.describe(*newest)
        )
        .into()
    }

    /// Where this rank's part of a first checkpoint would be.
    fn first_part(&self) -> String {
        self.place.describe(PartKey {
            checkpoint: 1,
            rank: self.rank,
        })
    }

    /// Whether parts of which none is complete are of this flow's first checkpoint, which it did not live to
    /// complete. Each rank looks at its own ones, which nobody else removes.
    fn check_unfinished(&self, parts: &[PartKey]) -> Result<(), BoxError> {
        if parts.iter().any(|key| key.rank >= self.ranks) {
            return Err(self.none_complete(parts));
        }
        let own = parts.iter().filter(|key| key.rank == self.rank);
        own.map(|key| key.checkpoint)
            .try_for_each(|number| self.read(number, parts).map(drop))
    }

    /// Forgets this rank's parts of later checkpoints, which were not complete: else they could be taken for parts
    /// of those to come.
    fn remove_later(&self, number: u64) -> Result<(), BoxError> {
        let parts = self.place.list()?;
        let own = parts.iter().filter(|key| key.rank == self.rank);
        own.filter(|key| key.checkpoint > number)
            .try_for_each(|key| self.place.remove(*key))
    }

    /// Keeps this rank's part of the first checkpoint there is. Those of the run count on from it.
    pub fn keep_first(&self, saved: Saved) -> Result<(), BoxError> {
        self.keep(1, saved);
        self.finish();
        let counts = self.counts.lock();
        if counts.failed > 0 {
            let place = self.first_part();
            let error = counts.error.as_deref().unwrap_or("it panicked");
            return Err(format!(
                "the checkpoint of the beginning cannot be kept: {place}: {error}"
            )
            .into());
        }
        self.first.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Keeps a part in the background. One is written at a time: the flow waits for the one before.
    pub fn keep(&self, number: u64, saved: Saved) {
        self.finish();
        let head = Head {
            flow: self.flow.clone(),
            ranks: self.ranks,
            run: self.run.load(Ordering::Relaxed),
            seed: self.seed.load(Ordering::Relaxed),
        };
        let key = PartKey {
            checkpoint: self.checkpoint(number),
            rank: self.rank,
        };
        let news = self.news.clone();
        let (place, counts, ranks) = (
            Arc::clone(&self.place),
            Arc::clone(&self.counts),
            self.ranks,
        );
        let clock = Arc::clone(&self.clock);
        let write = move || {
            let started_at = clock.monotonic();
            let kept = encode(&head, &saved).and_then(|part| {
                place.put(key, &part)?;
                Ok(part.len() as u64)
            });
            let mut counts = counts.lock();
            if let (Ok(_), Some(news)) = (&kept, &news) {
                news.kept(key.checkpoint);
            }
            match kept {
                Ok(bytes) => {
                    counts.kept += 1;
                    let took = clock.monotonic().saturating_sub(started_at);
                    counts.last = Some(LastCheckpoint {
                        number: key.checkpoint,
                        kept_at_ms: Some(clock.now().0),
                        age_seconds: None,
                        seconds: Some(took.as_secs_f64()),
                        bytes: Some(bytes),
                    });
                }
                Err(error) => {
                    counts.failed += 1;
                    counts.error = Some(error.to_string());
                }
            }
            drop(counts);
            // What cannot be removed does no harm.
            let _ = remove_old(&*place, key, ranks);
        };
        match thread::Builder::new()
            .name("checkpoint".into())
            .spawn(write)
        {
            Ok(writer) => *self.writer.lock() = Some(writer),
            Err(error) => {
                let mut counts = self.counts.lock();
                counts.failed += 1;
                counts.error = Some(format!("there is no thread to write it: {error}"));
            }
        }
    }

    /// Whether a part is being written.
    pub fn is_writing(&self) -> bool {
        let writer = self.writer.lock();
        writer.as_ref().is_some_and(|writer| !writer.is_finished())
    }

    /// Waits for what is being written, and lets other runs have the place.
    pub fn end(&self) {
        self.finish();
        *self.lock.lock() = None;
    }

    /// Waits for what is being written.
    pub fn finish(&self) {
        if let Some(writer) = self.writer.lock().take() {
            // Whatever it panicked on is the user's: it counts as not kept.
            if writer.join().is_err() {
                self.counts.lock().failed += 1;
            }
        }
    }
}

/// Of parts in some place the number of the newest checkpoint of which all ranks' parts are there.
fn newest_complete(parts: &[PartKey], ranks: u32) -> Option<u64> {
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    for key in parts.iter().filter(|key| key.rank < ranks) {
        *counts.entry(key.checkpoint).or_default() += 1;
    }
    let mut complete = counts.iter().rev().filter(|(_, count)| **count == ranks);
    complete.next().map(|(number, _)| *number)
}

/// Forgets this rank's parts that are of no use any more, `last` being the last one.
fn remove_old(place: &dyn Checkpoints, last: PartKey, ranks: u32) -> Result<(), BoxError> {
    let parts = place.list()?;
    old(&parts, last, ranks)
        .into_iter()
        .try_for_each(|key| place.remove(key))
}

/// Of a rank's parts those that are older than the newest complete checkpoint, and those that wait for the parts of
/// other ranks: else they would pile up where another rank can never keep its own. The last two stay, which others
/// may be writing, and the oldest that others may still come to, however far behind they are.
fn old(parts: &[PartKey], last: PartKey, ranks: u32) -> Vec<PartKey> {
    let newest = newest_complete(parts, ranks).unwrap_or(0);
    // Each rank keeps its parts in their order.
    let may_come = |number: u64| {
        (0..ranks).all(|rank| {
            let mut of_rank = parts.iter().filter(|key| key.rank == rank);
            let has_later = of_rank.clone().any(|key| key.checkpoint > number);
            !has_later || of_rank.any(|key| key.checkpoint == number)
        })
    };
    let own = || parts.iter().filter(|key| key.rank == last.rank).copied();
    let waiting =
        || own().filter(|key| key.checkpoint > newest && key.checkpoint + 1 < last.checkpoint);
    let oldest = waiting().filter(|key| may_come(key.checkpoint)).min();
    let before = own().filter(|key| key.checkpoint < newest);
    before
        .chain(waiting().filter(|key| Some(*key) != oldest))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> Vec<u8> {
        let head = Head {
            flow: "ads".to_owned(),
            ranks: 3,
            run: 5,
            seed: 7,
        };
        let mut saved = Saved::default();
        saved.put("state/counts".to_owned(), vec![1, 2, 3]);
        encode(&head, &saved).unwrap()
    }

    #[test]
    fn a_part_is_read_as_it_was_written() {
        let (head, saved) = decode(&part()).unwrap();
        assert_eq!((head.flow.as_str(), head.ranks), ("ads", 3));
        assert_eq!((head.run, head.seed), (5, 7));
        assert_eq!(saved.get("state/counts").unwrap(), [1, 2, 3]);
        assert!(saved.get("state/others").is_err());
    }

    #[test]
    fn a_part_that_is_cut_short_or_damaged_is_refused() {
        let part = part();
        for len in 0..part.len() {
            assert!(decode(&part[..len]).is_err());
        }
        for index in 0..part.len() {
            let mut damaged = part.clone();
            damaged[index] ^= 1;
            assert!(decode(&damaged).is_err());
        }
    }

    #[test]
    fn a_checkpoint_is_complete_when_all_ranks_have_kept_their_parts() {
        let key = |checkpoint, rank| PartKey { checkpoint, rank };
        let mut parts = vec![key(4, 0), key(4, 1), key(5, 0), key(6, 1)];
        assert_eq!(newest_complete(&parts, 2), Some(4));
        assert_eq!(newest_complete(&parts, 3), None);
        parts.push(key(5, 1));
        assert_eq!(newest_complete(&parts, 2), Some(5));
    }

    #[test]
    fn parts_do_not_pile_up_where_another_rank_keeps_none_of_its_own() {
        let key = |checkpoint, rank| PartKey { checkpoint, rank };
        let mut parts = vec![key(1, 0), key(1, 1)];
        for number in 2..100 {
            parts.push(key(number, 0));
            let old = old(&parts, key(number, 0), 2);
            parts.retain(|part| !old.contains(part));
            assert!(parts.len() <= 5, "{parts:?}");
            assert_eq!(newest_complete(&parts, 2), Some(1));
        }
        // The other one comes to the oldest after all, or leaves it out and comes to the last but one.
        assert_eq!(parts[2..], [key(2, 0), key(98, 0), key(99, 0)]);
        parts.push(key(98, 1));
        assert_eq!(newest_complete(&parts, 2), Some(98));
        assert_eq!(old(&parts, key(99, 0), 2), [key(1, 0), key(2, 0)]);
    }
}

//! Stores in which one record makes a checkpoint complete.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::{
    BoxError, CheckpointRecords, Checkpointing, Checkpoints, FinalError, Flow, FlowError,
    FlowSettings, Partial, Resume, Running, ShardKey, StoreLock,
};

use crate::support::{on_ranks, settings, wait_until};

const NUMBERS: u64 = 2_000;

/// The fate of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stored,
    /// The disk is full.
    Refused,
    /// Another run has begun.
    Fenced,
}

/// Shards in memory, and records if there are any.
struct RecordStore {
    shards: Mutex<BTreeMap<ShardKey, Vec<u8>>>,
    record: Mutex<Option<Vec<u8>>>,
    fate: Mutex<Fate>,
    has_records: bool,
    /// Given to readers before the last record, as if the last one was stored in between.
    former: Mutex<Option<Vec<u8>>>,
    locks: AtomicUsize,
}

impl RecordStore {
    fn new() -> Arc<RecordStore> {
        RecordStore::with(BTreeMap::new(), true)
    }

    fn with(shards: BTreeMap<ShardKey, Vec<u8>>, has_records: bool) -> Arc<RecordStore> {
        Arc::new(RecordStore {
            shards: Mutex::new(shards),
            record: Mutex::default(),
            fate: Mutex::new(Fate::Stored),
            has_records,
            former: Mutex::default(),
            locks: AtomicUsize::new(0),
        })
    }

    fn set(&self, fate: Fate) {
        *self.fate.lock().unwrap() = fate;
    }

    fn keys(&self) -> Vec<ShardKey> {
        self.shards.lock().unwrap().keys().copied().collect()
    }

    fn last(&self) -> Option<Vec<u8>> {
        self.record.lock().unwrap().clone()
    }

    /// Returns the error of a start.
    fn refusal(self: &Arc<Self>) -> String {
        let refused = start(self, &Ranks::alone(), Resume::Always).err();
        refused.expect("the start is refused").to_string()
    }
}

impl Checkpoints for RecordStore {
    fn lock(&self) -> Result<Option<StoreLock>, BoxError> {
        self.locks.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }

    fn records(&self) -> Option<&dyn CheckpointRecords> {
        self.has_records.then_some(self as _)
    }

    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        assert_eq!(key.run != 0, self.has_records);
        self.shards.lock().unwrap().insert(key, shard.to_vec());
        Ok(())
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        let shards = self.shards.lock().unwrap();
        Ok(shards.get(&key).ok_or("it is not there")?.clone())
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        Ok(self.keys())
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        self.shards.lock().unwrap().remove(&key);
        Ok(())
    }
}

impl CheckpointRecords for RecordStore {
    fn last(&self) -> Result<Option<Vec<u8>>, BoxError> {
        let former = self.former.lock().unwrap().take();
        Ok(former.or_else(|| RecordStore::last(self)))
    }

    fn append(&self, record: &[u8]) -> Result<(), BoxError> {
        match *self.fate.lock().unwrap() {
            Fate::Stored => {
                *self.record.lock().unwrap() = Some(record.to_vec());
                Ok(())
            }
            Fate::Refused => Err("the disk is full".into()),
            Fate::Fenced => Err(FinalError("another run has begun".to_owned()).into()),
        }
    }

    fn describe(&self) -> String {
        "in memory".to_owned()
    }
}

/// Adds up numbers on one rank, slowly enough to be interrupted.
fn start(
    store: &Arc<RecordStore>,
    ranks: &Ranks,
    resume: Resume,
) -> Result<(Running, Partial<u64>), FlowError> {
    start_version("1", store, ranks, resume)
}

/// The same with a version of the program.
fn start_version(
    version: &str,
    store: &Arc<RecordStore>,
    ranks: &Ranks,
    resume: Resume,
) -> Result<(Running, Partial<u64>), FlowError> {
    let flow = Flow::with_settings(
        "sum",
        FlowSettings {
            program: version.to_owned(),
            ranks: ranks.clone(),
            checkpoints: Some(Checkpointing {
                store: Arc::clone(store) as Arc<dyn Checkpoints>,
                interval: Some(Duration::from_millis(2)),
                resume,
            }),
            ..settings(1, 16)
        },
    );
    let sum = flow.partial::<u64>("sum");
    let numbers = Generator::new(|number| {
        thread::sleep(Duration::from_micros(100));
        number
    });
    flow.source("numbers", numbers.limit(NUMBERS))
        .fold_local(&sum, |sum, number| *sum += number);
    Ok((flow.run()?, sum))
}

/// Runs until the end, which is checked.
fn finish(store: &Arc<RecordStore>, ranks: &Ranks) {
    let (running, sum) = start(store, ranks, Resume::Always).unwrap();
    running.join().unwrap();
    assert_eq!(sum.merged(), NUMBERS * (NUMBERS - 1) / 2);
}

/// Ends early on one rank, when `count` records were stored.
fn interrupt(store: &Arc<RecordStore>, count: usize) {
    let (running, _) = start(store, &Ranks::alone(), Resume::IfAny).unwrap();
    for _ in 0..count {
        let before = store.last();
        wait_until("a record is stored", || store.last() != before);
    }
    drop(running);
}

#[test]
fn shards_without_a_record_are_ignored_and_removed() {
    let store = RecordStore::new();
    let (running, _) = start(&store, &Ranks::alone(), Resume::Never).unwrap();
    let first = store.last();
    wait_until("a record is stored", || store.last() != first);
    store.set(Fate::Refused);
    let newest = || store.keys().last().copied();
    let before = newest();
    wait_until("a later shard is stored", || newest() > before);
    let counts = || running.checkpoints().unwrap();
    wait_until("the refusal is counted", || counts().failed > 0);
    assert_eq!(counts().error.as_deref(), Some("the disk is full"));
    drop(running);
    let (record, former) = (store.last(), store.keys());
    assert!(former.len() > 1, "{former:?}");

    // It resumes from the record, and has nothing to add to it yet.
    let (running, _) = start(&store, &Ranks::alone(), Resume::Always).unwrap();
    assert_eq!(store.last(), record);
    let left = store.keys();
    let left = left.iter().filter(|key| former.contains(key));
    assert_eq!(left.count(), 1, "the one that the record names");
    drop(running);

    store.set(Fate::Stored);
    finish(&store, &Ranks::alone());
    finish(&store, &Ranks::alone());
}

/// A lock could end another run, which this one does not replace.
#[test]
fn a_start_that_is_refused_does_not_lock_the_store() {
    let store = RecordStore::new();
    interrupt(&store, 1);
    let locks = store.locks.load(Ordering::Relaxed);
    let begin = |ranks: &Ranks, resume| start(&store, ranks, resume).map(drop).unwrap_err();
    let error = begin(&Ranks::alone(), Resume::Never).to_string();
    assert!(error.contains("of an earlier run"), "{error}");
    let errors = Mutex::new(Vec::new());
    on_ranks(2, |ranks| {
        let error = begin(ranks, Resume::Always);
        errors.lock().unwrap().push(error.to_string());
    });
    let errors = errors.into_inner().unwrap();
    let refused = "is of flow \"sum\" on 1 ranks, and this is \"sum\" on 2";
    assert!(
        errors.iter().any(|error| error.contains(refused)),
        "{errors:?}"
    );
    let record = store.last();
    let mut shards = store.shards.lock().unwrap();
    for shard in shards.values_mut() {
        shard.pop();
    }
    drop(shards);
    let error = store.refusal();
    assert!(error.contains("and the record names"), "{error}");
    assert_eq!(store.locks.load(Ordering::Relaxed), locks);
    assert_eq!(store.last(), record);
}

#[test]
fn ranks_with_different_programs_do_not_lock_the_store() {
    let store = RecordStore::new();
    on_ranks(2, |ranks| {
        let version = ranks.rank().to_string();
        let started = start_version(&version, &store, ranks, Resume::Never);
        started.map(drop).unwrap_err();
    });
    assert_eq!(store.locks.load(Ordering::Relaxed), 0);
}

#[test]
fn a_start_reads_the_newer_checkpoint_that_another_run_stores_meanwhile() {
    let store = RecordStore::new();
    interrupt(&store, 1);
    let former = store.last();
    interrupt(&store, 1);
    assert_ne!(store.last(), former);
    *store.former.lock().unwrap() = former;
    finish(&store, &Ranks::alone());
}

#[test]
fn all_ranks_resume_from_the_record() {
    let store = RecordStore::new();
    on_ranks(3, |ranks| {
        let (running, _) = start(&store, ranks, Resume::Never).unwrap();
        running.join().unwrap();
    });
    let record = store.last();
    let newest = store.keys().iter().map(|key| key.checkpoint).max();
    let ends = store.keys().into_iter();
    let ends = ends.filter(|key| Some(key.checkpoint) == newest);
    assert_eq!(ends.count(), 3);
    on_ranks(3, |ranks| finish(&store, ranks));
    assert_ne!(store.last(), record);
}

#[test]
fn a_fenced_run_ends_with_the_stores_error() {
    let store = RecordStore::new();
    let (running, _) = start(&store, &Ranks::alone(), Resume::Never).unwrap();
    store.set(Fate::Fenced);
    let error = running.join().unwrap_err().to_string();
    assert!(error.contains("another run has begun"), "{error}");
}

#[test]
fn the_error_names_a_missing_or_damaged_shard() {
    let store = RecordStore::new();
    interrupt(&store, 2);
    let record = store.last().unwrap();
    let refusal = |store: &Arc<RecordStore>| {
        *store.record.lock().unwrap() = Some(record.clone());
        store.refusal()
    };
    let whole = store.shards.lock().unwrap().clone();
    for shard in store.shards.lock().unwrap().values_mut() {
        *shard.last_mut().unwrap() ^= 1;
    }
    let error = refusal(&store);
    assert!(
        error.contains("the shard of rank 0 of checkpoint"),
        "{error}"
    );
    assert!(error.contains("and the record names"), "{error}");
    store.shards.lock().unwrap().clear();
    let error = refusal(&store);
    assert!(error.contains("it is not there; bring back"), "{error}");
    *store.shards.lock().unwrap() = whole;
    finish(&store, &Ranks::alone());
}

#[test]
fn a_record_of_a_newer_version_or_a_damaged_one_is_refused() {
    let store = RecordStore::new();
    interrupt(&store, 1);
    let record = store.last().unwrap();
    let keys = store.keys();
    for (index, expected) in [(0, "its format has version"), (7, "its checksum is wrong")] {
        let mut other = record.clone();
        other[index] ^= 3;
        *store.record.lock().unwrap() = Some(other);
        let error = store.refusal();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("in memory"), "{error}");
    }
    assert_eq!(store.keys(), keys, "nothing is removed");
    let error = {
        *store.record.lock().unwrap() = Some(record);
        start(&store, &Ranks::alone(), Resume::Never).err().unwrap()
    };
    let error = error.to_string();
    assert!(error.contains("of an earlier run"), "{error}");
}

#[test]
fn a_flow_resumes_from_shards_of_a_store_that_had_no_records() {
    let former = RecordStore::with(BTreeMap::new(), false);
    let (running, _) = start(&former, &Ranks::alone(), Resume::Never).unwrap();
    wait_until("checkpoints are stored", || {
        running.checkpoints().unwrap().kept > 3
    });
    drop(running);
    let shards = former.shards.lock().unwrap().clone();
    let store = RecordStore::with(shards.clone(), true);
    // Killed before its first record, it resumes from the same shard once more.
    store.set(Fate::Refused);
    drop(start(&store, &Ranks::alone(), Resume::Always).unwrap());
    assert_eq!(store.last(), None);
    let newest = shards.last_key_value().unwrap();
    assert_eq!(store.get(*newest.0).unwrap(), *newest.1);
    store.set(Fate::Stored);
    finish(&store, &Ranks::alone());
    assert!(store.last().is_some());
}

//! Sinks whose results count when a checkpoint is complete on all ranks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{
    BoxError, CheckpointRecords, Checkpointing, Checkpoints, Flow, FlowError, FlowSettings, Output,
    Resume, Running, ShardKey, Sink, SinkStart, Source, SourcePartitions, SourceStatus, Watermarks,
};
use proptest::prelude::*;

use crate::support::{Collect, settings, wait_until};

const KEYS: u64 = 7;
const WINDOW_MS: i64 = 100;

type Counted = (u64, i64, u64);

/// The fate of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// They are stored.
    None,
    /// They are stored, and the answer is lost.
    Unknown,
    /// They are not stored.
    Lost,
}

/// Shards in memory.
struct MemoryStore {
    shards: Mutex<BTreeMap<ShardKey, Vec<u8>>>,
    has_records: bool,
    record: Mutex<Option<Vec<u8>>>,
    ranks: u32,
    fault: Mutex<Fault>,
    /// Rank 1 is far behind when it stores its second shard and its third one, and has its fourth wait.
    is_one_behind: bool,
    progress: Mutex<Progress>,
    has_progress: Condvar,
}

/// How far the ranks are.
#[derive(Default)]
struct Progress {
    /// The last checkpoint of which rank 0 stores its shard.
    ahead: u64,
    /// The last checkpoint that a sink was asked to commit.
    decided: u64,
}

/// The checkpoint of rank 0 when rank 1 stores its second shard.
const FAR_AHEAD: u64 = 9;

impl MemoryStore {
    fn new(ranks: u32) -> Arc<MemoryStore> {
        Arc::new(MemoryStore {
            shards: Mutex::default(),
            has_records: false,
            record: Mutex::default(),
            ranks,
            fault: Mutex::new(Fault::None),
            is_one_behind: false,
            progress: Mutex::default(),
            has_progress: Condvar::new(),
        })
    }

    /// The checkpoint that a run would resume from.
    fn newest_complete(&self) -> Option<u64> {
        let shards = self.shards.lock().unwrap();
        if self.has_records {
            let record = self.record.lock().unwrap();
            let (checkpoint, run) = record.as_deref().map(named_by)?;
            let is_there = |rank| {
                shards.contains_key(&ShardKey {
                    checkpoint,
                    rank,
                    run,
                })
            };
            assert!((0..self.ranks).all(is_there), "checkpoint {checkpoint}");
            return Some(checkpoint);
        }
        let is_complete = |checkpoint: &u64| {
            let checkpoint = *checkpoint;
            (0..self.ranks).all(|rank| {
                shards.contains_key(&ShardKey {
                    checkpoint,
                    rank,
                    run: 0,
                })
            })
        };
        let checkpoints = shards.keys().map(|key| key.checkpoint);
        checkpoints.filter(is_complete).max()
    }

    fn go_on(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock().unwrap());
        self.has_progress.notify_all();
    }

    fn wait_behind(&self, checkpoint: u64) {
        let waits = |progress: &mut Progress| match checkpoint {
            0 | 1 => false,
            2 | 3 => progress.ahead < FAR_AHEAD,
            _ => progress.decided < 3,
        };
        let progress = self.progress.lock().unwrap();
        let limit = Duration::from_secs(60);
        let waited = (self.has_progress).wait_timeout_while(progress, limit, waits);
        assert!(!waited.unwrap().1.timed_out(), "checkpoint {checkpoint}");
    }
}

/// Returns the checkpoint that a record names, and its run.
fn named_by(record: &[u8]) -> (u64, u64) {
    let body = &record[5..];
    let (_flow, _ranks, run, checkpoint): (String, u32, u64, u64) =
        postcard::take_from_bytes(body).unwrap().0;
    (checkpoint, run)
}

impl CheckpointRecords for MemoryStore {
    fn last(&self) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(self.record.lock().unwrap().clone())
    }

    fn append(&self, record: &[u8]) -> Result<(), BoxError> {
        let fault = match *self.fault.lock().unwrap() {
            Fault::Lost if named_by(record).0 == 1 => Fault::None,
            fault => fault,
        };
        if fault != Fault::Lost {
            *self.record.lock().unwrap() = Some(record.to_vec());
        }
        match fault {
            Fault::None => Ok(()),
            Fault::Unknown | Fault::Lost => Err("no answer".into()),
        }
    }

    fn describe(&self) -> String {
        "in memory".to_owned()
    }
}

impl Checkpoints for MemoryStore {
    fn records(&self) -> Option<&dyn CheckpointRecords> {
        self.has_records.then_some(self as _)
    }

    fn put(&self, key: ShardKey, part: &[u8]) -> Result<(), BoxError> {
        match key.rank {
            0 => self.go_on(|progress| progress.ahead = key.checkpoint),
            1 if self.is_one_behind => self.wait_behind(key.checkpoint),
            _ => {}
        }
        let fault = match *self.fault.lock().unwrap() {
            // A flow that cannot keep its beginning does not begin.
            Fault::Lost if key.checkpoint == 1 => Fault::None,
            fault => fault,
        };
        if fault != Fault::Lost {
            self.shards.lock().unwrap().insert(key, part.to_vec());
        }
        match fault {
            Fault::None => Ok(()),
            Fault::Unknown | Fault::Lost => Err("no answer".into()),
        }
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        let shards = self.shards.lock().unwrap();
        Ok(shards.get(&key).ok_or("it is not there")?.clone())
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        Ok(self.shards.lock().unwrap().keys().copied().collect())
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        self.shards.lock().unwrap().remove(&key);
        Ok(())
    }
}

/// The server's side of one rank's sink: it outlasts the flow.
#[derive(Default)]
struct Store {
    /// By a number that no other transaction has.
    prepared: BTreeMap<u64, Vec<Counted>>,
    transactions: u64,
    committed: Vec<Counted>,
}

/// Puts results into transactions.
struct Transactions {
    store: Arc<Mutex<Store>>,
    place: Arc<MemoryStore>,
    open: Vec<Counted>,
    /// By transaction its checkpoint.
    undecided: BTreeMap<u64, u64>,
    /// A commit takes two calls.
    asked: AtomicBool,
}

impl Sink<WindowResult<u64, u64>> for Transactions {
    fn push(&mut self, items: &[WindowResult<u64, u64>], _: &Waker) -> Result<usize, BoxError> {
        let counted = items.iter().map(|it| (it.key, it.start.0, it.value));
        self.open.extend(counted);
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }

    fn waits_for_commit(&self) -> bool {
        true
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        let named: Vec<u64> = match start.prepared {
            Some(prepared) => prepared
                .chunks(8)
                .map(|it| u64::from_le_bytes(it.try_into().unwrap()))
                .collect(),
            None => Vec::new(),
        };
        let store = &mut *self.store.lock().unwrap();
        for (transaction, results) in std::mem::take(&mut store.prepared) {
            if named.contains(&transaction) {
                store.committed.extend(results);
            }
        }
        Ok(())
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        let store = &mut *self.store.lock().unwrap();
        if !self.open.is_empty() {
            store.transactions += 1;
            let results = std::mem::take(&mut self.open);
            store.prepared.insert(store.transactions, results);
            self.undecided.insert(store.transactions, checkpoint);
        }
        Ok(self
            .undecided
            .keys()
            .flat_map(|it| it.to_le_bytes())
            .collect())
    }

    fn commit(&mut self, checkpoint: u64, waker: &Waker) -> Result<bool, BoxError> {
        self.place.go_on(|progress| progress.decided = checkpoint);
        let newest = self.place.newest_complete();
        assert!(
            newest >= Some(checkpoint),
            "a run would resume from {newest:?}, and {checkpoint} is committed"
        );
        if !self.asked.swap(true, Ordering::Relaxed) {
            let waker = waker.clone();
            thread::spawn(move || waker.wake());
            return Ok(false);
        }
        self.asked.store(false, Ordering::Relaxed);
        let store = &mut *self.store.lock().unwrap();
        self.undecided.retain(|transaction, of| {
            let is_left = *of > checkpoint;
            if !is_left {
                let results = store.prepared.remove(transaction).expect("it is prepared");
                store.committed.extend(results);
            }
            is_left
        });
        Ok(true)
    }
}

/// Numbers, and then nothing, for ever or until the end.
struct Numbers<S> {
    numbers: S,
    stays: bool,
}

impl<S: Source<Item = u64>> Source for Numbers<S> {
    type Item = u64;

    fn poll(
        &mut self,
        output: &mut Output<u64>,
        budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        match self.numbers.poll(output, budget, waker)? {
            SourceStatus::End if self.stays => Ok(SourceStatus::Idle),
            status => Ok(status),
        }
    }

    fn partitions(&self) -> SourcePartitions<'_, u64> {
        self.numbers.partitions()
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        self.numbers.save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        self.numbers.restore(saved)
    }
}

/// Counts numbers by key and window on one rank. The last of several ranks has no sources.
fn start(
    ranks: &Ranks,
    place: &Arc<MemoryStore>,
    store: &Arc<Mutex<Store>>,
    items: u64,
    stays: bool,
) -> Result<Running, FlowError> {
    let flow = Flow::with_settings(
        "counted",
        FlowSettings {
            // By and by all workers sleep: a worker that nothing wakes sleeps for seconds.
            interval: Duration::from_secs(3600),
            ranks: ranks.clone(),
            checkpoints: Some(Checkpointing {
                store: Arc::clone(place) as Arc<dyn Checkpoints>,
                interval: Some(Duration::from_millis(1)),
                resume: Resume::IfAny,
            }),
            ..settings(2, 16)
        },
    );
    let counts = flow.windowed::<u64, _>("counts", Windows::tumbling(WINDOW_MS), Count);
    let numbers = || Numbers {
        stays,
        numbers: Generator::new(|number| {
            if number % 512 == 0 {
                thread::sleep(Duration::from_micros(300));
            }
            number
        })
        .limit(items),
    };
    let time = |number: &u64| Timestamp(*number as i64);
    let sources = (0..sources(ranks.rank(), ranks.count())).map(|_| numbers());
    flow.sources("numbers", sources)
        .watermarks(time, Watermarks::bounded(Duration::ZERO))
        .key_by(|number| number % KEYS)
        .aggregate("count", &counts, time)
        .sink(
            "results",
            Transactions {
                store: Arc::clone(store),
                place: Arc::clone(place),
                open: Vec::new(),
                undecided: BTreeMap::new(),
                asked: AtomicBool::new(false),
            },
        );
    flow.run()
}

fn sources(rank: u32, ranks: u32) -> usize {
    if ranks > 1 && rank + 1 == ranks { 0 } else { 2 }
}

/// Runs on all ranks until the end, or until one of them dies. Returns whether all ended.
fn run(
    place: &Arc<MemoryStore>,
    stores: &[Arc<Mutex<Store>>],
    items: u64,
    death: Option<(u32, Duration)>,
) -> bool {
    let rank = |ranks: Ranks, store: &Arc<Mutex<Store>>| {
        // Another rank may have died by now.
        let Ok(running) = start(&ranks, place, store, items, false) else {
            return false;
        };
        match death {
            Some((rank, after)) if rank == ranks.rank() => {
                thread::sleep(after);
                drop(running);
                false
            }
            _ => running.join().is_ok() && ranks.leave().is_ok(),
        }
    };
    let rank = &rank;
    thread::scope(|scope| {
        let ranks = Ranks::threads(stores.len() as u32).into_iter().zip(stores);
        let threads: Vec<_> = ranks
            .map(|(ranks, store)| scope.spawn(move || rank(ranks, store)))
            .collect();
        let ends: Vec<bool> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        ends.into_iter().all(|is_end| is_end)
    })
}

fn check(stores: &[Arc<Mutex<Store>>], items: u64) {
    let ranks = stores.len() as u32;
    let sources: usize = (0..ranks).map(|rank| sources(rank, ranks)).sum();
    let mut found = BTreeMap::new();
    for store in stores {
        let store = store.lock().unwrap();
        assert!(store.prepared.is_empty(), "everything is decided");
        for (key, start, count) in &store.committed {
            let former = found.insert((*key, *start), *count);
            assert_eq!(former, None, "no window comes twice");
        }
    }
    let mut expected = BTreeMap::new();
    for number in 0..items {
        let window = number as i64 / WINDOW_MS * WINDOW_MS;
        *expected.entry((number % KEYS, window)).or_default() += sources as u64;
    }
    assert_eq!(found, expected);
}

fn stores(ranks: u32) -> Vec<Arc<Mutex<Store>>> {
    (0..ranks).map(|_| Arc::default()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn each_result_is_committed_once_although_ranks_die(
        ranks in 1u32..4,
        has_records in any::<bool>(),
        deaths in prop::collection::vec(
            (0u32..4, 0u64..40, prop_oneof![Just(Fault::None), Just(Fault::Unknown), Just(Fault::Lost)]),
            0..5,
        ),
    ) {
        let items = 20_000;
        let (mut place, stores) = (MemoryStore::new(ranks), stores(ranks));
        Arc::get_mut(&mut place).unwrap().has_records = has_records;
        for (rank, after_ms, fault) in deaths {
            *place.fault.lock().unwrap() = fault;
            run(&place, &stores, items, Some((rank % ranks, Duration::from_millis(after_ms))));
        }
        *place.fault.lock().unwrap() = Fault::None;
        prop_assert!(run(&place, &stores, items, None));
        check(&stores, items);
        // It was at its end: nothing comes again.
        prop_assert!(run(&place, &stores, items, None));
        check(&stores, items);
    }
}

#[test]
fn results_are_committed_while_the_flow_is_idle() {
    let (place, stores) = (MemoryStore::new(2), stores(2));
    let committed = || {
        let stores = stores.iter();
        stores
            .map(|store| store.lock().unwrap().committed.len())
            .sum::<usize>()
    };
    let items = 3000;
    // All windows but the last one, which the sources keep open.
    let expected = (items / WINDOW_MS as u64 - 1) * KEYS;
    thread::scope(|scope| {
        let threads: Vec<_> = Ranks::threads(2)
            .into_iter()
            .zip(&stores)
            .map(|(ranks, store)| {
                let place = &place;
                scope.spawn(move || (start(&ranks, place, store, items, true).unwrap(), ranks))
            })
            .collect();
        let running: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        wait_until("everything is committed", || committed() as u64 == expected);
        running.iter().for_each(|(running, _)| running.stop());
        for (running, _) in &running {
            running.join().unwrap();
        }
    });
    assert_eq!(committed() as u64, expected, "windows stay open");
}

#[test]
fn a_checkpoint_is_not_committed_after_another_rank_removed_its_shard() {
    let (mut place, stores) = (MemoryStore::new(2), stores(2));
    Arc::get_mut(&mut place).unwrap().is_one_behind = true;
    // More than there is time for.
    let items = 1 << 40;
    thread::scope(|scope| {
        let threads: Vec<_> = Ranks::threads(2)
            .into_iter()
            .zip(&stores)
            .map(|(ranks, store)| {
                let place = &place;
                scope.spawn(move || start(&ranks, place, store, items, false).unwrap())
            })
            .collect();
        let running: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        wait_until("a checkpoint of both is committed", || {
            place.progress.lock().unwrap().decided >= 3
        });
        running.iter().for_each(|running| running.stop());
        for running in &running {
            running.join().unwrap();
        }
    });
}

#[test]
fn results_without_a_stored_last_checkpoint_do_not_count_as_committed() {
    let (place, stores) = (MemoryStore::new(1), stores(1));
    *place.fault.lock().unwrap() = Fault::Lost;
    let running = start(&Ranks::alone(), &place, &stores[0], 1000, false).unwrap();
    let error = running.join().unwrap_err().to_string();
    assert!(
        error.contains("the last checkpoint is not stored"),
        "{error}"
    );
    assert!(stores[0].lock().unwrap().committed.is_empty());
    *place.fault.lock().unwrap() = Fault::None;
    assert!(run(&place, &stores, 1000, None));
    check(&stores, 1000);
}

#[test]
fn two_sinks_of_one_name_are_refused() {
    let flow = Flow::new("f");
    for stage in ["one", "other"] {
        flow.source(stage, Generator::new(|number| number).limit(1))
            .sink("results", Collect::new().0);
    }
    let error = flow.run().err().unwrap().to_string();
    assert!(error.contains("two elements named \"results\""), "{error}");
}

//! Stores that refuse shards, beside sinks that have room for the results of few checkpoints: a flow that is stopped ends all
//! the same.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::{
    BoxError, Checkpointing, Checkpoints, Flow, FlowSettings, PassingError, Resume, Running,
    ShardKey, Sink,
};

use crate::support::{settings, wait_until};

/// The transactions of a sink that are not decided, and the one that is open.
const SLOTS: usize = 8;

/// Shards in memory; the store refuses the shards of some ranks.
#[derive(Default)]
struct Store {
    shards: Mutex<BTreeMap<ShardKey, Vec<u8>>>,
    refused: Mutex<Vec<u32>>,
    /// It refuses all shards but those of the first checkpoint.
    is_away: AtomicBool,
    /// The error of refused shards may pass within this time.
    retry_for: Option<Duration>,
}

impl Store {
    fn refuse(&self, ranks: &[u32]) {
        *self.refused.lock().unwrap() = ranks.to_vec();
    }

    /// A store that is away once a flow has begun.
    fn away(retry_for: Option<Duration>) -> Arc<Store> {
        Arc::new(Store {
            is_away: AtomicBool::new(true),
            retry_for,
            ..Store::default()
        })
    }
}

impl Checkpoints for Store {
    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        let is_away = key.checkpoint > 1 && self.is_away.load(Ordering::SeqCst);
        if is_away || self.refused.lock().unwrap().contains(&key.rank) {
            return Err(match self.retry_for {
                Some(retry_for) => {
                    let error = "no answer".to_owned();
                    PassingError { error, retry_for }.into()
                }
                None => "no room".into(),
            });
        }
        self.shards.lock().unwrap().insert(key, shard.to_vec());
        Ok(())
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

/// How far a sink is.
#[derive(Default)]
struct Progress {
    undecided: AtomicU64,
    committed: AtomicU64,
}

/// Takes one item at a time.
struct Slots {
    progress: Arc<Progress>,
    is_open: bool,
    /// Checkpoints with results that are not committed.
    undecided: VecDeque<u64>,
    waker: Option<Waker>,
}

impl Slots {
    fn show(&self) {
        let count = self.undecided.len() as u64;
        self.progress.undecided.store(count, Ordering::SeqCst);
    }
}

impl Sink<u64> for Slots {
    fn push(&mut self, items: &[u64], waker: &Waker) -> Result<usize, BoxError> {
        if self.undecided.len() == SLOTS {
            self.waker = Some(waker.clone());
            return Ok(0);
        }
        self.is_open = true;
        thread::sleep(Duration::from_micros(10));
        Ok(items.len().min(1))
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }

    fn waits_for_commit(&self) -> bool {
        true
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        if self.is_open {
            self.undecided.push_back(checkpoint);
            self.is_open = false;
        }
        self.show();
        Ok(Vec::new())
    }

    fn commit(&mut self, checkpoint: u64, _: &Waker) -> Result<bool, BoxError> {
        self.undecided.retain(|number| *number > checkpoint);
        self.show();
        self.progress
            .committed
            .fetch_max(checkpoint, Ordering::SeqCst);
        self.waker.take().inspect(Waker::wake_by_ref);
        Ok(true)
    }
}

/// A rank that hands numbers to its sink, and none to other ranks.
struct Rank {
    running: Running,
    progress: Arc<Progress>,
    _ranks: Ranks,
}

impl Rank {
    fn start(ranks: Ranks, store: &Arc<Store>, items: u64) -> Rank {
        let checkpoints = Checkpointing {
            store: Arc::clone(store) as _,
            interval: Some(Duration::from_millis(1)),
            resume: Resume::IfAny,
        };
        let settings = FlowSettings {
            ranks: ranks.clone(),
            checkpoints: Some(checkpoints),
            ..settings(2, 256)
        };
        let flow = Flow::with_settings("numbers", settings);
        let progress = Arc::<Progress>::default();
        let sink = Slots {
            progress: Arc::clone(&progress),
            is_open: false,
            undecided: VecDeque::new(),
            waker: None,
        };
        let queue = flow.channel("queue");
        flow.source("numbers", Generator::new(|number| number).limit(items))
            .to(&queue);
        flow.stage("queue", &queue).sink("results", sink);
        Rank {
            running: flow.run().unwrap(),
            progress,
            _ranks: ranks,
        }
    }

    fn failed(&self) -> u64 {
        self.running.checkpoints().unwrap().failed
    }
}

/// Starts two ranks with `items` items each.
fn start_two(store: &Arc<Store>, items: [u64; 2]) -> Vec<Rank> {
    thread::scope(|scope| {
        let ranks = Ranks::threads(2).into_iter().zip(items);
        let start = |(ranks, items)| scope.spawn(move || Rank::start(ranks, store, items));
        let threads: Vec<_> = ranks.map(start).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

/// Stops all ranks. Returns their errors.
fn stop(ranks: &[Rank]) -> Vec<String> {
    ranks.iter().for_each(|rank| rank.running.stop());
    wait_until("all ranks end", || {
        ranks.iter().all(|rank| rank.running.is_finished())
    });
    let errors = ranks.iter().map(|rank| rank.running.join().unwrap_err());
    errors.map(|error| error.to_string()).collect()
}

const EXPECTED: &str = "the last checkpoint is not stored";

const ENDLESS: u64 = u64::MAX;

#[test]
fn two_ranks_whose_shards_are_refused_end_when_stopped() {
    let store = Arc::<Store>::default();
    let ranks = start_two(&store, [ENDLESS, ENDLESS]);
    let is_committed = |rank: &Rank| rank.progress.committed.load(Ordering::SeqCst) > 3;
    wait_until("checkpoints are complete", || {
        ranks.iter().all(is_committed)
    });
    store.refuse(&[0, 1]);
    wait_until("shards are refused", || {
        ranks.iter().all(|rank| rank.failed() > 2)
    });
    let errors = stop(&ranks);
    assert!(
        errors.iter().any(|error| error.contains(EXPECTED)),
        "{errors:?}"
    );
    drop(ranks);
    // They go on from the last complete checkpoint.
    store.refuse(&[]);
    let ranks = start_two(&store, [ENDLESS, ENDLESS]);
    wait_until("checkpoints are complete", || {
        ranks.iter().all(is_committed)
    });
}

#[test]
fn an_ended_rank_whose_shards_are_refused_does_not_block_a_stopped_rank() {
    let store = Arc::<Store>::default();
    let ranks = start_two(&store, [0, ENDLESS]);
    store.refuse(&[0]);
    let undecided = || ranks[1].progress.undecided.load(Ordering::SeqCst);
    wait_until("the sink is full, and shards are refused", || {
        undecided() == SLOTS as u64 && ranks[0].failed() > 5
    });
    let errors = stop(&ranks);
    assert!(errors[0].contains(EXPECTED), "{errors:?}");
}

#[test]
fn results_are_committed_again_after_the_shards_of_one_rank_were_refused_for_a_while() {
    let store = Arc::<Store>::default();
    let ranks = start_two(&store, [ENDLESS, ENDLESS]);
    let committed = || {
        let committed = ranks.iter().map(|rank| &rank.progress.committed);
        let committed = committed.map(|number| number.load(Ordering::SeqCst));
        committed.min().unwrap()
    };
    wait_until("checkpoints are complete", || committed() > 3);
    for _ in 0..3 {
        store.refuse(&[0]);
        let undecided = || ranks[1].progress.undecided.load(Ordering::SeqCst);
        wait_until("the other sink is full, and shards are refused", || {
            undecided() == SLOTS as u64 && ranks[0].failed() > 5
        });
        let before = committed();
        store.refuse(&[]);
        wait_until("checkpoints are complete", || committed() > before + 10);
    }
}

/// A shard that is stored at the second attempt counts as stored.
#[test]
fn an_ended_rank_whose_shard_was_refused_for_a_while_ends_without_an_error() {
    let store = Arc::<Store>::default();
    let ranks = start_two(&store, [100, ENDLESS]);
    store.refuse(&[0]);
    wait_until("shards are refused", || ranks[0].failed() > 1);
    store.refuse(&[]);
    let committed = ranks[1].progress.committed.load(Ordering::SeqCst);
    wait_until("checkpoints are complete", || {
        ranks[1].progress.committed.load(Ordering::SeqCst) > committed
    });
    ranks.iter().for_each(|rank| rank.running.stop());
    for rank in &ranks {
        wait_until("it ends", || rank.running.is_finished());
        rank.running.join().unwrap();
    }
}

/// The number of items with which a flow ends at once.
const FEW: u64 = 100;

fn end_of(rank: &Rank) -> Result<(), String> {
    wait_until("it ends", || rank.running.is_finished());
    let joined = rank.running.join();
    joined.map(drop).map_err(|error| error.to_string())
}

#[test]
fn a_flow_at_its_end_waits_for_a_store_whose_error_passes() {
    let store = Store::away(Some(Duration::from_secs(60)));
    let rank = Rank::start(Ranks::alone(), &store, FEW);
    // Each attempt comes after a longer pause: they take more than a second.
    wait_until("shards are refused", || rank.failed() > 7);
    assert!(!rank.running.is_finished());
    store.is_away.store(false, Ordering::SeqCst);
    end_of(&rank).unwrap();
    let last = rank.running.checkpoints().unwrap().last.unwrap().number;
    assert_eq!(rank.progress.committed.load(Ordering::SeqCst), last);
}

#[test]
fn a_flow_at_its_end_fails_when_the_error_of_its_store_does_not_pass() {
    let error = end_of(&Rank::start(Ranks::alone(), &Store::away(None), FEW)).unwrap_err();
    assert!(error.contains(EXPECTED), "{error}");
    assert!(error.ends_with("no room"), "{error}");

    let retry_for = Duration::from_secs(2);
    let began = Instant::now();
    let rank = Rank::start(Ranks::alone(), &Store::away(Some(retry_for)), FEW);
    let error = end_of(&rank).unwrap_err();
    assert!(began.elapsed() >= retry_for, "{:?}", began.elapsed());
    assert!(error.contains(EXPECTED), "{error}");
    assert!(error.ends_with("no answer"), "{error}");
}

#[test]
fn a_dropped_flow_does_not_wait_for_a_store_whose_error_may_pass() {
    let store = Store::away(Some(Duration::from_secs(600)));
    let rank = Rank::start(Ranks::alone(), &store, FEW);
    wait_until("shards are refused", || rank.failed() > 5);
    let began = Instant::now();
    drop(rank);
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
}

//! Joins of two streams by key without windows, against plain programs.

mod connected;
mod intervals;
mod rows;
mod steps;
mod versions;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::{
    Checkpointing, Checkpoints, FlowError, FlowSettings, Resume, Running, Watermarks,
};

use crate::changelogs::log::LogStore;
use crate::support::{MemoryStore, settings};

/// The numbers of ranks, workers and sources of each side on each rank, and the items of a ring.
const SHAPES: [(u32, usize, u64, usize); 4] =
    [(1, 1, 1, 64), (1, 3, 2, 16), (2, 2, 2, 64), (4, 2, 1, 16)];

/// Watermarks of sources whose items are out of order by this many milliseconds, and are never idle.
fn disorder(bound_ms: u64) -> Watermarks {
    Watermarks::bounded(Duration::from_millis(bound_ms))
        .idle_after(Duration::from_secs(3_600))
        .ahead_max(None)
        .skew_max(None)
}

/// A source of these items. If `is_slow`, it takes about a tenth of a second, so that the flow can die in the midst.
fn source<T: Clone + Send + 'static>(
    items: Vec<T>,
    is_slow: bool,
) -> Generator<impl FnMut(u64) -> T + Send> {
    let count = items.len() as u64;
    let pauses = count.clamp(1, 50);
    let item = move |number: u64| {
        if is_slow && number.is_multiple_of(count / pauses) {
            thread::sleep(Duration::from_millis(100) / pauses as u32);
        }
        items[number as usize].clone()
    };
    Generator::new(item).limit(count)
}

/// The time of a timed item, with any payload.
fn time<T>((_, time, _): &(u64, i64, T)) -> Timestamp {
    Timestamp(*time)
}

/// The results of each rank.
type Results<T> = Vec<Arc<Mutex<Vec<T>>>>;

fn results<T>(ranks: u32) -> Results<T> {
    (0..ranks).map(|_| Arc::default()).collect()
}

/// The results of all ranks, sorted.
fn sorted<T: Ord + Clone>(results: &Results<T>) -> Vec<T> {
    let mut all: Vec<T> = Vec::new();
    for of_rank in results {
        all.extend_from_slice(&of_rank.lock().unwrap());
    }
    all.sort_unstable();
    all
}

/// The settings for checkpoints in memory. A flow that is stopped takes one.
fn checkpointing(store: &Arc<MemoryStore>, resume: Resume) -> Checkpointing {
    Checkpointing {
        store: Arc::clone(store) as _,
        interval: Some(Duration::from_millis(1)),
        resume,
    }
}

/// The number of entries of a state element on this rank.
fn entries(running: &Running, element: &str) -> u64 {
    running.state(element).unwrap().keys(1_000_000).len() as u64
}

/// The count of an element that counts, such as `pairs.late`.
fn count(running: &Running, element: &str) -> u64 {
    let element = running.state(element).unwrap();
    element.get("count").unwrap().as_u64().unwrap()
}

/// Runs the flow that `start` starts on all ranks until the end, or until one of them dies after `until`. Returns whether all have
/// ended.
fn run<S: Checkpoints>(
    store: &Arc<S>,
    ranks: u32,
    until: Option<(u32, Duration)>,
    start: impl Fn(FlowSettings) -> Result<Running, FlowError> + Sync,
    check: impl Fn(&Running) + Sync,
) -> bool {
    let rank = |ranks: Ranks| {
        let settings = FlowSettings {
            ranks: ranks.clone(),
            checkpoints: Some(Checkpointing {
                store: Arc::clone(store) as _,
                interval: Some(Duration::from_millis(1)),
                resume: Resume::IfAny,
            }),
            ..settings(2, 16)
        };
        // Another rank may have died before this one began.
        let Ok(running) = start(settings).inspect_err(|error| println!("{error}")) else {
            return false;
        };
        if let Some((rank, after)) = until
            && rank == ranks.rank()
        {
            thread::sleep(after);
            drop(running);
            return false;
        }
        let joined = running.join().inspect_err(|error| println!("{error}"));
        let has_ended = joined.is_ok() && ranks.leave().is_ok();
        if has_ended {
            check(&running);
        }
        has_ended
    };
    let rank = &rank;
    thread::scope(|scope| {
        let ranks = Ranks::threads(ranks).into_iter();
        let threads: Vec<_> = ranks
            .map(|ranks| scope.spawn(move || rank(ranks)))
            .collect();
        let ends = threads.into_iter().map(|thread| thread.join().unwrap());
        ends.collect::<Vec<_>>().iter().all(|has_ended| *has_ended)
    })
}

/// Runs the flow with checkpoints until the end, through the deaths of some ranks. `check` is called on each rank at the end.
fn run_through_deaths<S: Checkpoints>(
    store: &Arc<S>,
    ranks: u32,
    start: impl Fn(FlowSettings) -> Result<Running, FlowError> + Sync,
    check: impl Fn(&Running) + Sync,
) {
    for (rank, after_ms) in [(0, 25), (1, 40), (0, 10)] {
        let until = Some((rank % ranks, Duration::from_millis(after_ms)));
        run(store, ranks, until, &start, |_| ());
    }
    assert!(run(store, ranks, None, &start, check), "all ranks end");
}

/// As [`run_through_deaths`], on some numbers of ranks, with whole checkpoints and with changelogs. `test` gets the number of ranks
/// and a function that runs the flow.
fn with_deaths(test: impl Fn(u32, &dyn Fn(&Start, &Check))) {
    for ranks in [1, 3] {
        let store = Arc::new(MemoryStore::default());
        test(ranks, &|start, check| {
            run_through_deaths(&store, ranks, start, check);
        });
    }
    for ranks in [1, 2] {
        let store = Arc::new(LogStore::default());
        test(ranks, &|start, check| {
            run_through_deaths(&store, ranks, start, check);
        });
    }
}

type Start<'a> = dyn Fn(FlowSettings) -> Result<Running, FlowError> + Sync + 'a;
type Check<'a> = dyn Fn(&Running) + Sync + 'a;

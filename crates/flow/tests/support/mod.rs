//! Sources and sinks that tests can look into.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_exchange::Ranks;
use millstream_flow::{
    BoxError, DeadLetter, DeadLetters, FlowSettings, Output, Pool, Sink, Source, SourcePartitions,
    SourceStatus, Watermarks,
};

mod memory_store;

pub use memory_store::MemoryStore;

pub fn settings(workers: usize, ring_items_max: usize) -> FlowSettings {
    FlowSettings {
        workers: NonZeroUsize::new(workers).unwrap(),
        // Its own: tests of one process take no slots from each other.
        pool: Pool::new(NonZeroUsize::new(workers).unwrap()),
        ring_items_max: NonZeroUsize::new(ring_items_max).unwrap(),
        ..FlowSettings::default()
    }
}

/// Watermarks for events that come up to `ms` milliseconds after later ones.
pub fn disorder(ms: u64) -> Watermarks {
    Watermarks::bounded(Duration::from_millis(ms)).ahead_max(None)
}

/// Waits until `condition` holds, for up to a minute. Checks it ever less often, since it may be costly.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        let waited = started_at.elapsed();
        assert!(waited < Duration::from_secs(60), "{what}");
        let pause = (waited / 10).clamp(Duration::from_millis(1), Duration::from_millis(100));
        thread::sleep(pause);
    }
}

/// Runs the same on several ranks, each a thread, until all have left. Returns the results by rank.
pub fn on_ranks<R: Send>(count: u32, run: impl Fn(&Ranks) -> R + Sync) -> Vec<R> {
    let run_rank = |ranks: Ranks| {
        let result = run(&ranks);
        // The test judges failures.
        let _ = ranks.leave();
        result
    };
    let run_rank = &run_rank;
    thread::scope(|scope| {
        let threads: Vec<_> = Ranks::threads(count)
            .into_iter()
            .map(|ranks| scope.spawn(move || run_rank(ranks)))
            .collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect()
    })
}

/// Keeps all items.
pub struct Collect<T>(Arc<Mutex<Vec<T>>>);

impl<T> Collect<T> {
    pub fn new() -> (Self, Arc<Mutex<Vec<T>>>) {
        let items = Arc::new(Mutex::new(Vec::new()));
        (Collect(Arc::clone(&items)), items)
    }
}

impl<T: Clone + Send + 'static> Sink<T> for Collect<T> {
    /// Takes only some at a time, so that callers have to come again.
    fn push(&mut self, items: &[T], _waker: &Waker) -> Result<usize, BoxError> {
        let taken = items.len().min(3);
        self.0.lock().unwrap().extend_from_slice(&items[..taken]);
        Ok(taken)
    }

    fn flush(&mut self, _waker: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}

/// Keeps all dead letters.
#[derive(Default)]
pub struct Letters(pub Mutex<Vec<DeadLetter>>);

impl DeadLetters for Letters {
    fn put(&self, letters: &[DeadLetter]) -> Result<(), BoxError> {
        self.0.lock().unwrap().extend_from_slice(letters);
        Ok(())
    }
}

/// A source, and a sink with a valve, that are worked from outside.
#[derive(Clone, Default)]
pub struct Hand(Arc<Mutex<HandState>>);

#[derive(Default)]
struct HandState {
    items: VecDeque<u64>,
    has_ended: bool,
    is_open: bool,
    waker: Option<Waker>,
}

impl Hand {
    fn change(&self, change: impl FnOnce(&mut HandState)) {
        let mut state = self.0.lock().unwrap();
        change(&mut state);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    pub fn give(&self, items: impl IntoIterator<Item = u64>) {
        self.change(|state| state.items.extend(items));
    }

    pub fn end(&self) {
        self.change(|state| state.has_ended = true);
    }

    pub fn open(&self) {
        self.change(|state| state.is_open = true);
    }

    pub fn taken(&self) -> Vec<u64> {
        self.0.lock().unwrap().items.iter().copied().collect()
    }
}

impl Source for Hand {
    type Item = u64;

    fn partitions(&self) -> SourcePartitions<'_, u64> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        out: &mut Output<u64>,
        budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        let mut state = self.0.lock().unwrap();
        if state.items.is_empty() {
            if state.has_ended {
                return Ok(SourceStatus::End);
            }
            state.waker = Some(waker.clone());
            return Ok(SourceStatus::Idle);
        }
        let count = state.items.len().min(budget);
        out.extend(state.items.drain(..count));
        Ok(SourceStatus::Ready)
    }

    /// Items that were taken do not come again.
    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(Vec::new())
    }

    fn restore(&mut self, _: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }
}

impl Sink<u64> for Hand {
    fn push(&mut self, items: &[u64], waker: &Waker) -> Result<usize, BoxError> {
        let mut state = self.0.lock().unwrap();
        if !state.is_open {
            state.waker = Some(waker.clone());
            return Ok(0);
        }
        state.items.extend(items);
        Ok(items.len())
    }

    fn flush(&mut self, _waker: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}

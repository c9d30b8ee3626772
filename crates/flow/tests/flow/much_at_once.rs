//! Many results that come of one item, or of one moment.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Combine, Count, Trigger, WindowResult, Windows};
use millstream_flow::{BoxError, Emit, Flow, Sink};

use crate::support::{disorder, settings, wait_until};

/// An ending flow runs for less than 100 ms more, but the machine may be busy otherwise. Without bounds it would run for
/// minutes.
const SOON: Duration = Duration::from_secs(10);

/// Takes few items at a time, and each time it takes a while.
struct Slow {
    at_once: usize,
    pause: Duration,
    pushes: Arc<AtomicUsize>,
    taken: Arc<AtomicUsize>,
    largest: Arc<AtomicUsize>,
}

impl Slow {
    fn new(at_once: usize, pause: Duration) -> Slow {
        Slow {
            at_once,
            pause,
            pushes: Arc::default(),
            taken: Arc::default(),
            largest: Arc::default(),
        }
    }
}

impl<T: 'static> Sink<T> for Slow {
    fn push(&mut self, items: &[T], _: &Waker) -> Result<usize, BoxError> {
        let taken = items.len().min(self.at_once);
        if !self.pause.is_zero() {
            thread::sleep(self.pause);
        }
        self.pushes.fetch_add(1, Ordering::Relaxed);
        self.taken.fetch_add(taken, Ordering::Relaxed);
        self.largest.fetch_max(items.len(), Ordering::Relaxed);
        Ok(taken)
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}

const MANY: u64 = 1_000_000;

/// An item of a few words.
type Large = [u64; 8];

fn expand(count: &u64, emit: &mut Emit<'_, Large>) {
    (0..*count).for_each(|number| emit(&[number; 8]));
}

#[test]
fn a_sink_that_takes_twenty_items_a_call_gets_a_million_results() {
    let sink = Slow::new(20, Duration::ZERO);
    let taken = Arc::clone(&sink.taken);
    let flow = Flow::with_settings("much", settings(2, 1 << 16));
    flow.source("one", Generator::new(|_| MANY).limit(1))
        .flat_map(expand)
        .sink("slow", sink);
    let started_at = Instant::now();
    flow.run().unwrap().join().unwrap();
    assert_eq!(taken.load(Ordering::Relaxed) as u64, MANY);
    // Moving the rest up each time would be 1.6 TB.
    assert!(started_at.elapsed() < 6 * SOON);
}

#[test]
fn dropping_a_flow_with_a_million_unsent_results_is_fast() {
    let sink = Slow::new(20, Duration::from_millis(1));
    let pushes = Arc::clone(&sink.pushes);
    let flow = Flow::with_settings("much", settings(2, 1 << 16));
    flow.source("one", Generator::new(|_| MANY).limit(1))
        .flat_map(expand)
        .sink("slow", sink);
    let running = flow.run().unwrap();
    wait_until("the sink takes some", || pushes.load(Ordering::Relaxed) > 0);
    let started_at = Instant::now();
    drop(running);
    assert!(started_at.elapsed() < SOON, "all of it takes 50 s");
}

#[test]
fn dropping_a_flow_that_emits_many_results_of_one_item_is_fast() {
    let worked: Arc<AtomicUsize> = Arc::default();
    let count = Arc::clone(&worked);
    let flow = Flow::with_settings("much", settings(2, 1 << 16));
    flow.source("one", Generator::new(|_| MANY).limit(1))
        .flat_map(expand)
        .boundary("work")
        .map(move |_| {
            thread::sleep(Duration::from_millis(1));
            count.fetch_add(1, Ordering::Relaxed)
        })
        .sink("slow", Slow::new(usize::MAX, Duration::ZERO));
    let running = flow.run().unwrap();
    wait_until("it works", || worked.load(Ordering::Relaxed) > 0);
    let started_at = Instant::now();
    drop(running);
    assert!(started_at.elapsed() < SOON, "all of it takes 17 minutes");
}

fn kinds() -> Vec<Windows> {
    vec![
        Windows::tumbling(1_000),
        Windows::sliding(1_000, 500),
        Windows::session(1_000),
        Windows::global(Trigger::every_ms(1_000)),
        Windows::global(Trigger::every_ms(1_000).purging()),
        Windows::global(Trigger::every_events(7)),
        Windows::global(Trigger::every_events(7).purging()),
    ]
}

/// One event of each key, all at the same time, and aggregated.
fn keys<A>(
    windows: Windows,
    keys: Range<u64>,
    aggregate: A,
    sink: impl Sink<WindowResult<u64, A::Out>>,
) -> Flow
where
    A: Combine + millstream_flow::windows::Aggregate<u64>,
{
    let flow = Flow::with_settings("windows", settings(1, 1 << 16));
    let state = flow.windowed("counts", windows, aggregate);
    let (first, count) = (keys.start, keys.end - keys.start);
    flow.source(
        "keys",
        Generator::new(move |number| first + number).limit(count),
    )
    .watermarks(|_| Timestamp(10), disorder(0))
    .key_by(|key| *key)
    .aggregate("count", &state, |_| Timestamp(10))
    .sink("results", sink);
    flow
}

#[test]
fn windows_of_many_keys_are_emitted_in_batches() {
    for windows in kinds() {
        let sink = Slow::new(usize::MAX, Duration::ZERO);
        let (taken, largest) = (Arc::clone(&sink.taken), Arc::clone(&sink.largest));
        keys(windows, 0..60_000, Count, sink)
            .run()
            .unwrap()
            .join()
            .unwrap();
        let windows_of_key = if windows == Windows::sliding(1_000, 500) {
            2
        } else {
            1
        };
        assert_eq!(
            taken.load(Ordering::Relaxed),
            windows_of_key * 60_000,
            "{windows:?}"
        );
        let largest = largest.load(Ordering::Relaxed);
        assert!(largest <= 16 << 10, "{windows:?}: {largest} at once");
    }
}

/// An aggregate whose results take a while.
#[derive(Clone, Default)]
struct SlowCount(Arc<AtomicUsize>);

impl Combine for SlowCount {
    type State = u64;
    type Out = u64;

    fn empty(&self) -> u64 {
        0
    }

    fn merge(&self, state: &mut u64, other: &u64) {
        *state += other;
    }

    fn result(&self, state: &u64, _: u64) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(1));
        *state
    }
}

impl millstream_flow::windows::Aggregate<u64> for SlowCount {
    fn add(&self, state: &mut u64, _: &u64) {
        *state += 1;
    }
}

#[test]
fn dropping_a_flow_that_releases_windows_of_many_keys_is_fast() {
    for windows in kinds() {
        let aggregate = SlowCount::default();
        let results = Arc::clone(&aggregate.0);
        let sink = Slow::new(usize::MAX, Duration::ZERO);
        let running = keys(windows, 0..60_000, aggregate, sink).run().unwrap();
        wait_until("results come", || results.load(Ordering::Relaxed) > 0);
        let started_at = Instant::now();
        drop(running);
        assert!(
            started_at.elapsed() < SOON,
            "{windows:?}: all of it takes a minute"
        );
    }
}

#[test]
fn the_error_names_a_sink_that_claims_to_have_taken_too_many_items() {
    struct Boaster;
    impl Sink<u64> for Boaster {
        fn push(&mut self, items: &[u64], _: &Waker) -> Result<usize, BoxError> {
            Ok(items.len() + 1)
        }
        fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
            Ok(true)
        }
    }
    let flow = Flow::with_settings("boast", settings(1, 8));
    flow.source("numbers", Generator::new(|number| number).limit(100))
        .map(|number| number + 1)
        .sink("boaster", Boaster);
    let error = flow.run().unwrap().join().unwrap_err().to_string();
    assert!(error.contains("\"boaster\""), "{error}");
    assert!(error.contains("returned that it took"), "{error}");
}

//! Which stage has its turn when.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use millstream_base::{Clock, Timestamp};
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{
    BoxError, Flow, FlowSettings, Output, Sink, Source, SourcePartitions, SourceStatus, Watermarks,
};

use crate::support::settings;

const KEYS: u64 = 1_000;
const WINDOW_MS: i64 = 20;
const RUN_MS: i64 = 400;
const ITEM_NS: u64 = 1_000;

/// Waits for progress, not for time, so that a loaded machine changes nothing.
#[derive(Default)]
struct WorkClock(AtomicU64);

impl WorkClock {
    fn work(&self, ns: u64) -> Duration {
        Duration::from_nanos(self.0.fetch_add(ns, Ordering::Relaxed) + ns)
    }
}

impl Clock for WorkClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.monotonic().as_millis() as i64)
    }

    /// Several times in each activation.
    fn monotonic(&self) -> Duration {
        self.work(200)
    }
}

/// Always has more, until the end.
struct Rich {
    clock: Arc<WorkClock>,
    next: u64,
}

impl Source for Rich {
    type Item = (u64, Timestamp);

    fn partitions(&self) -> SourcePartitions<'_, Self::Item> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        out: &mut Output<Self::Item>,
        budget: usize,
        _: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        for _ in 0..budget {
            let time = self.clock.work(ITEM_NS).as_millis() as i64;
            if time >= RUN_MS {
                return Ok(SourceStatus::End);
            }
            out.push((self.next % KEYS, Timestamp(time)));
            self.next += 1;
        }
        Ok(SourceStatus::Ready)
    }
}

/// Notes how long after the end of its window each result came.
struct Delays(Arc<WorkClock>, Arc<Mutex<Vec<Duration>>>);

impl Sink<WindowResult<u64, u64>> for Delays {
    fn push(&mut self, items: &[WindowResult<u64, u64>], _: &Waker) -> Result<usize, BoxError> {
        let now = self.0.monotonic();
        let delay = |result: &WindowResult<_, _>| {
            now.saturating_sub(Duration::from_millis(result.end.0 as u64))
        };
        self.1.lock().unwrap().extend(items.iter().map(delay));
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}

/// Stages that ran rarely were thought expensive, and had a turn every 2 ms at each step on their way.
#[test]
fn busy_sources_do_not_delay_results_of_windows() {
    let clock = Arc::new(WorkClock::default());
    let delays = Arc::new(Mutex::new(Vec::new()));
    let flow = Flow::with_settings(
        "turns",
        FlowSettings {
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            ..settings(1, 1 << 16)
        },
    );
    let counts = flow.windowed("counts", Windows::tumbling(WINDOW_MS), Count);
    let source = Rich {
        clock: Arc::clone(&clock),
        next: 0,
    };
    let watermarks = Watermarks::bounded(Duration::ZERO).ahead_max(None);
    flow.source("events", source)
        .watermarks(|(_, time)| *time, watermarks)
        .key_by(|(key, _)| *key)
        .aggregate("count", &counts, |(_, time)| *time)
        .sink("results", Delays(Arc::clone(&clock), Arc::clone(&delays)));
    flow.run().unwrap().join().unwrap();
    let mut delays = delays.lock().unwrap();
    assert_eq!(delays.len() as u64, KEYS * (RUN_MS / WINDOW_MS) as u64);
    delays.sort();
    let p99 = delays[delays.len() * 99 / 100];
    assert!(p99 < Duration::from_millis(1), "{p99:?}");
}

/// Has something to do and nothing to give, until it is stopped, or has been asked too often.
struct Busy {
    polls: u64,
    is_over: Arc<AtomicBool>,
}

impl Busy {
    const POLLS_MAX: u64 = 5_000_000;
}

impl Source for Busy {
    type Item = (u64, Timestamp);

    fn partitions(&self) -> SourcePartitions<'_, Self::Item> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        _: &mut Output<Self::Item>,
        _: usize,
        _: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        self.polls += 1;
        if self.is_over.load(Ordering::Relaxed) {
            return Ok(SourceStatus::End);
        }
        match self.polls < Self::POLLS_MAX {
            true => Ok(SourceStatus::Ready),
            false => Err("no other stage has had a turn".into()),
        }
    }
}

/// A source is asked again within an activation: one that gives nothing was asked for ever.
#[test]
fn a_busy_source_without_items_does_not_starve_other_stages() {
    let is_over = Arc::new(AtomicBool::new(false));
    let flow = Flow::with_settings("busy", settings(1, 8));
    let counts = flow.windowed("counts", Windows::tumbling(WINDOW_MS), Count);
    let seen = flow.partial::<u64>("seen");
    let busy = Busy {
        polls: 0,
        is_over: Arc::clone(&is_over),
    };
    flow.source("busy", busy)
        .watermarks(|(_, time)| *time, Watermarks::bounded(Duration::ZERO))
        .key_by(|(key, _)| *key)
        .aggregate("count", &counts, |(_, time)| *time)
        .map(|result| result.value)
        .fold_local(&seen, |seen, _| *seen += 1);
    flow.source("other", Generator::new(|number| number).limit(1))
        .boundary("pass")
        .fold_local(&seen, move |seen, _| {
            is_over.store(true, Ordering::Relaxed);
            *seen += 1;
        });
    flow.run().unwrap().join().unwrap();
    assert_eq!(seen.merged(), 1);
}

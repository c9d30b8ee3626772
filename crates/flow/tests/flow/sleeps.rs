//! Flows that have work do not sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{Flow, FlowSettings, Pick, Scheduler, Stages, Watermarks};

use crate::support::settings;

/// Several times as many as pre-aggregation passes on at a time.
const KEYS: u64 = 50_000;

/// The stages of the flow, in the order in which an idle worker visits them: the reading stages come before the source that
/// feeds them.
const LOOKS: [usize; 3] = [1, 2, 0];

/// The last stage with something to read, or else all in the order of [`LOOKS`].
#[derive(Default)]
struct ReadersFirst {
    looks: AtomicUsize,
}

impl Scheduler for ReadersFirst {
    fn pick(&self, stages: &Stages<'_>) -> Option<Pick> {
        let mut readers = stages.all().skip(1);
        if let Some(ready) = readers.rfind(|stage| stage.readable() > 0) {
            self.looks.store(0, Ordering::Relaxed);
            return Some(ready.pick());
        }
        let look = self.looks.fetch_add(1, Ordering::Relaxed);
        let stage = LOOKS[look % LOOKS.len()];
        Some(Pick { stage, items: None })
    }
}

/// Counts by many keys; returns how often a timer had to wake the workers.
fn lost_wakeups(settings: FlowSettings) -> u64 {
    let flow = Flow::with_settings("counts", settings);
    let counts = flow.windowed::<u64, _>("counts", Windows::tumbling(1_000), Count);
    let sum = flow.partial::<u64>("sum");
    let time = |number: &u64| Timestamp((number / (2 * KEYS)) as i64 * 500);
    flow.source("numbers", Generator::new(|number| number).limit(10 * KEYS))
        .watermarks(time, Watermarks::bounded(Duration::ZERO))
        .key_by(|number| number % KEYS)
        .aggregate("count", &counts, time)
        .fold_local(&sum, |sum, result| *sum += result.value);
    let summary = flow.run().unwrap().join().unwrap();
    assert_eq!(sum.merged(), 10 * KEYS);
    summary.lost_wakeups
}

/// The source passed on partial results, had no room for all of them, and counted as blocked: the worker had tried
/// their reader before, and slept until the scheduler's next adjustment.
#[test]
fn a_worker_that_flushes_results_of_earlier_slices_wakes_their_reader() {
    let settings = FlowSettings {
        scheduler: Arc::new(ReadersFirst::default()),
        interval: Duration::from_millis(20),
        ..settings(1, 1 << 16)
    };
    assert_eq!(lost_wakeups(settings), 0);
}

#[test]
fn many_keys_cause_no_lost_wakeup() {
    for workers in [2, 4] {
        for ring_items_max in [64, 1 << 16] {
            let settings = settings(workers, ring_items_max);
            assert_eq!(lost_wakeups(settings), 0, "{workers} {ring_items_max}");
        }
    }
}

//! Starting, sleeping, stopping and failing.

use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{Clock, SystemClock, Timestamp};
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{
    BoxError, Flow, Latency, Output, Running, Sink, Source, SourcePartitions, SourceStatus,
    Watermarks,
};

use crate::support::{Collect, Hand, settings, wait_until};

fn activations(running: &Running) -> u64 {
    running
        .metrics()
        .iter()
        .map(|stage| stage.activations)
        .sum()
}

/// Waits until no stage is activated for some time. Until the flow has adjusted itself once, which takes half a
/// second, it is not idle.
#[track_caller]
fn wait_until_quiet(running: &Running, time: Duration) {
    wait_until("nothing is activated any more", || {
        let before = activations(running);
        thread::sleep(time);
        activations(running) == before
    });
}

#[test]
fn an_idle_flow_sleeps_until_it_is_woken() {
    let hand = Hand::default();
    let (sink, collected) = Collect::new();
    let flow = Flow::with_settings("idle", settings(2, 8));
    flow.source("hand", hand.clone())
        .boundary("pass")
        .sink("collect", sink);
    let running = flow.run().unwrap();
    hand.give(0..100);
    wait_until("the items arrive", || {
        collected.lock().unwrap().len() == 100
    });
    wait_until_quiet(&running, Duration::from_millis(300));
    hand.give([1]);
    wait_until("the flow wakes up", || {
        collected.lock().unwrap().len() == 101
    });
    hand.end();
    assert!(!running.join().unwrap().is_stopped);
    assert!(running.is_finished());
}

#[test]
fn a_full_sink_blocks_the_flow_without_busy_waiting() {
    let sink = Hand::default();
    let flow = Flow::with_settings("blocked", settings(2, 4));
    flow.source("numbers", Generator::new(|number| number).limit(5000))
        .boundary("pass")
        .sink("hand", sink.clone());
    let running = flow.run().unwrap();
    wait_until_quiet(&running, Duration::from_millis(100));
    assert!(running.metrics().iter().all(|stage| stage.blocked > 0));
    sink.open();
    running.join().unwrap();
    let mut taken = sink.taken();
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..5000));
}

#[test]
fn a_generator_keeps_to_its_rate() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let mut settings = settings(2, 8);
    settings.clock = Arc::clone(&clock);
    let flow = Flow::with_settings("rate", settings);
    let count = flow.partial::<u64>("count");
    flow.source(
        "numbers",
        Generator::new(|number| number)
            .limit(200)
            .rate(1000.0, clock),
    )
    .fold_local(&count, |count, _| *count += 1);
    let started_at = Instant::now();
    let running = flow.run().unwrap();
    running.join().unwrap();
    assert_eq!(count.merged(), 200);
    assert!(started_at.elapsed() >= Duration::from_millis(199));
    // A pause lasts a millisecond: the workers do not spin in between.
    assert!(activations(&running) < 2000, "{:?}", running.metrics());
}

#[test]
fn all_items_of_a_stopped_source_are_processed() {
    let flow = Flow::with_settings("stop", settings(2, 8));
    let (sink, collected) = Collect::new();
    flow.source("numbers", Generator::new(|number| number))
        .boundary("pass")
        .sink("collect", sink);
    let running = flow.run().unwrap();
    wait_until("the flow works", || collected.lock().unwrap().len() > 1000);
    running.stop();
    let summary = running.join().unwrap();
    assert!(summary.is_stopped);
    let mut collected = collected.lock().unwrap().clone();
    collected.sort_unstable();
    assert_eq!(collected.len() as u64, summary.stages[0].items_in);
    assert!(collected.into_iter().eq(0..summary.stages[0].items_in));
}

#[test]
fn a_flow_that_is_dropped_ends() {
    let flow = Flow::with_settings("drop", settings(2, 8));
    // Never opened: the flow could not even be stopped in good order.
    flow.source("numbers", Generator::new(|number| number))
        .sink("hand", Hand::default());
    drop(flow.run().unwrap());
}

fn error_of(build: impl FnOnce(&Flow) -> Flow) -> String {
    let flow = build(&Flow::with_settings("failing", settings(2, 8)));
    let running = flow.run().unwrap();
    let error = running.join().unwrap_err().to_string();
    assert_eq!(running.join().unwrap_err().to_string(), error);
    error
}

fn numbers() -> impl Source<Item = u64> {
    Generator::new(|number| number)
}

#[test]
fn a_panic_of_user_code_fails_the_flow_and_names_the_operator() {
    let error = error_of(|flow| {
        let count = flow.partial::<u64>("count");
        flow.source("numbers", numbers())
            .map(|number| number + 1)
            .filter(|number| {
                if *number == 5000 {
                    panic!("five thousand")
                } else {
                    true
                }
            })
            .map(|number| number + 1)
            .fold_local(&count, |count, _| *count += 1)
    });
    assert_eq!(
        error,
        "flow \"failing\": \"numbers/2.filter\" panicked: five thousand; it was given 5000"
    );

    let error = error_of(|flow| {
        let count = flow.partial::<u64>("count");
        flow.source("numbers", numbers())
            .boundary("many")
            .flat_map(|number, emit| (0..*number).for_each(|number| emit(&number)))
            .fold_local(&count, |count, number| *count += 10 / (20 - number))
    });
    assert!(error.contains("\"many/1.fold_local\" panicked"), "{error}");

    let error = error_of(|flow| {
        let (sink, _) = Collect::new();
        let source = Generator::new(|number| [1, 2, 3][number as usize]);
        flow.source("numbers", source).sink("collect", sink)
    });
    assert!(
        error.contains("\"numbers\" panicked: index out of bounds"),
        "{error}"
    );
}

struct Broken;

impl Source for Broken {
    type Item = u64;

    fn partitions(&self) -> SourcePartitions<'_, u64> {
        SourcePartitions::One
    }

    fn poll(&mut self, _: &mut Output<u64>, _: usize, _: &Waker) -> Result<SourceStatus, BoxError> {
        Err("no input".into())
    }
}

impl Sink<u64> for Broken {
    fn push(&mut self, _: &[u64], _: &Waker) -> Result<usize, BoxError> {
        Err("no output".into())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}

#[test]
fn errors_of_sources_and_sinks_fail_the_flow() {
    let error = error_of(|flow| flow.source("numbers", Broken).sink("hand", Hand::default()));
    assert_eq!(error, "flow \"failing\": \"numbers\" failed: no input");
    let error = error_of(|flow| {
        let source: Box<dyn Source<Item = u64>> = Box::new(numbers());
        let sink: Box<dyn Sink<u64>> = Box::new(Broken);
        flow.source("numbers", source).sink("out", sink)
    });
    assert_eq!(error, "flow \"failing\": \"out\" failed: no output");
}

/// An item that holds a thousand records.
#[derive(Debug)]
struct Block;

struct Blocks(u64);

impl Source for Blocks {
    type Item = Block;

    fn partitions(&self) -> SourcePartitions<'_, Block> {
        SourcePartitions::One
    }

    fn records_of(&self, _: &Block) -> u64 {
        1_000
    }

    fn poll(
        &mut self,
        out: &mut Output<Block>,
        _: usize,
        _: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        out.push(Block);
        self.0 -= 1;
        Ok(match self.0 {
            0 => SourceStatus::End,
            _ => SourceStatus::Ready,
        })
    }
}

fn latency_of_blocks(blocks: u64) -> Latency {
    let flow = Flow::new("blocks");
    let count = flow.partial::<u64>("count");
    flow.source("blocks", Blocks(blocks))
        .fold_local(&count, |count, _: &Block| *count += 1_000);
    let running = flow.run().unwrap();
    running.join().unwrap();
    assert_eq!(count.merged(), blocks * 1_000);
    running.latency()
}

#[test]
fn latency_samples_count_the_records_of_an_item() {
    let latency = latency_of_blocks(50);
    assert_eq!(latency.samples, 500);
    assert!(latency.p50_us <= latency.p99_us && latency.p99_us.is_some());
    assert!(latency.p99_us.unwrap() <= latency.max_us);
}

#[test]
fn few_latency_samples_give_no_high_percentiles() {
    let latency = latency_of_blocks(2);
    assert_eq!(latency.samples, 20);
    assert!(latency.p90_us.is_some() && latency.max_us > 0.0);
    assert_eq!((latency.p99_us, latency.p999_us), (None, None));
}

#[test]
fn the_latency_of_windowed_records_is_sampled_at_the_window_stage() {
    const EVENTS: u64 = 20_000;
    let flow = Flow::new("windows");
    let state = flow.windowed("counts", Windows::tumbling(1_000_000), Count);
    let (sink, _) = Collect::new();
    let time = |number: &u64| Timestamp(*number as i64);
    flow.source("numbers", Generator::new(|number| number).limit(EVENTS))
        .watermarks(time, Watermarks::bounded(Duration::ZERO))
        .key_by(|number| *number)
        .aggregate("count", &state, time)
        .sink("results", sink);
    let running = flow.run().unwrap();
    running.join().unwrap();
    let samples = running.latency().samples;
    // The results add samples of their own, which do not matter here.
    assert!(samples >= EVENTS / 100, "{samples}");
}

#[test]
fn a_decaying_selectivity_reaches_zero() {
    let flow = Flow::new("none");
    let (sink, _) = Collect::<u64>::new();
    flow.source("numbers", Generator::new(|number| number).limit(2_000_000))
        .filter(|_| false)
        .boundary("rest")
        .sink("results", sink);
    let running = flow.run().unwrap();
    running.join().unwrap();
    let selectivity = running.metrics()[0].selectivity;
    assert!(selectivity == 0.0 || selectivity > 1e-20, "{selectivity:e}");
}

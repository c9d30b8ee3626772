//! The work of workers for stages: no stage starves, no worker works in vain, every flow ends.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{
    BoxError, Emit, Flow, FlowError, FlowSettings, Order, Output, Pick, Pool, Priority, RoundRobin,
    Running, Scheduler, Sink, Source, SourcePartitions, SourceStatus, Stages, Watermarks,
};

use crate::support::{Collect, Hand, Letters, settings, wait_until};

fn workers(count: usize) -> FlowSettings {
    FlowSettings {
        workers: NonZeroUsize::new(count).unwrap(),
        // Its own: tests of one process take no slots from each other.
        pool: Pool::new(NonZeroUsize::new(count).unwrap()),
        ..FlowSettings::default()
    }
}

fn work_for(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {}
}

/// Waits for the end of a flow that is not to hang.
fn join(running: &Running) {
    wait_until("the flow hangs", || running.is_finished());
    running.join().unwrap();
}

fn activations(running: &Running) -> u64 {
    let stages = running.metrics();
    stages.iter().map(|stage| stage.activations).sum()
}

#[test]
fn a_flow_with_more_workers_than_slots_in_its_ring_does_not_hang() {
    for count in 1..=9 {
        for order in [Order::Kept, Order::Free] {
            let settings = FlowSettings {
                order,
                ..workers(count)
            };
            let flow = Flow::with_settings("many", settings);
            let sum = flow.partial::<u64>("sum");
            flow.source("numbers", Generator::new(|number| number).limit(3_000))
                .boundary("work")
                .map(|number| {
                    work_for(Duration::from_micros(5));
                    *number
                })
                .boundary("add")
                .fold_local(&sum, |sum, number| *sum += number);
            join(&flow.run().unwrap());
            assert_eq!(sum.merged(), 2_999 * 1_500, "{count} {order:?}");
        }
    }
}

#[test]
fn a_few_results_reach_the_sink_while_the_source_continues() {
    for count in 1..=2 {
        let sink = Hand::default();
        sink.open();
        let flow = Flow::with_settings("few", workers(count));
        flow.source("numbers", Generator::new(|number| number))
            .filter(|number| *number < 10)
            .boundary("end")
            .sink("sink", sink.clone());
        let running = flow.run().unwrap();
        wait_until("nothing arrives", || sink.taken().len() == 10);
        drop(running);
    }
}

#[test]
fn one_worker_reads_each_of_several_endless_sources() {
    let settings = workers(1);
    let clock = Arc::clone(&settings.clock);
    let flow = Flow::with_settings("sources", settings);
    let all = flow.channel::<usize>("all");
    let counts: [Arc<AtomicU64>; 4] = Default::default();
    for source in 0..3 {
        flow.source(
            &format!("endless {source}"),
            Generator::new(move |_| source),
        )
        .to(&all);
    }
    // After the others, since the scheduler prefers later stages.
    let ticks = Generator::new(|_| 3).rate(1000.0, clock);
    flow.source("ticks", ticks).to(&all);
    let add = counts.clone();
    let state = flow.partial::<u64>("state");
    flow.stage("add", &all)
        .fold_local(&state, move |_, source| {
            add[*source].fetch_add(1, Ordering::Relaxed);
        });
    let running = flow.run().unwrap();
    wait_until("a source is not read", || {
        counts
            .iter()
            .all(|count| count.load(Ordering::Relaxed) > 300)
    });
    drop(running);
}

#[test]
fn items_that_a_full_sink_left_are_sent_later_without_further_input() {
    let (source, sink) = (Hand::default(), Hand::default());
    let flow = Flow::with_settings("left", workers(2));
    flow.source("numbers", source.clone())
        .boundary("end")
        .sink("sink", sink.clone());
    let running = flow.run().unwrap();
    source.give(0..5);
    wait_until("no worker tries to send", || {
        running.metrics()[1].blocked > 0
    });
    sink.open();
    wait_until("the items stay", || sink.taken().len() == 5);
    source.end();
    join(&running);
}

#[test]
fn workers_sleep_while_a_full_sink_blocks_their_flow() {
    let sink = Hand::default();
    let flow = Flow::with_settings("held", workers(2));
    flow.sources("numbers", [(); 2].map(|()| Generator::new(|number| number)))
        .boundary("work")
        .map(|number| {
            work_for(Duration::from_micros(5));
            *number
        })
        .boundary("end")
        .sink("sink", sink.clone());
    let running = flow.run().unwrap();
    wait_until("there is room", || running.metrics()[2].blocked > 0);
    thread::sleep(Duration::from_millis(500));
    let before = activations(&running);
    thread::sleep(Duration::from_secs(1));
    // The scheduler adjusts from time to time.
    let count = activations(&running) - before;
    assert!(count < 50, "{count} activations in vain");
}

#[test]
fn a_flow_without_input_sleeps() {
    let source = Hand::default();
    let flow = Flow::with_settings("idle", workers(2));
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", source.clone())
        .boundary("add")
        .fold_local(&sum, |sum, number| *sum += number);
    let running = flow.run().unwrap();
    source.give(0..100_000);
    wait_until("nothing arrives", || sum.merged() == 99_999 * 50_000);
    // The scheduler adjusts until the rings have shrunk.
    wait_until("no worker sleeps", || {
        let before = activations(&running);
        thread::sleep(Duration::from_secs(1));
        activations(&running) == before
    });
    source.end();
    join(&running);
}

/// Flushing takes long, and another worker may come meanwhile.
#[derive(Clone, Default)]
struct SlowSink {
    taken: Arc<AtomicU64>,
    is_flushing: Arc<AtomicBool>,
}

impl Sink<u64> for SlowSink {
    fn push(&mut self, items: &[u64], _: &Waker) -> Result<usize, BoxError> {
        self.taken.fetch_add(items.len() as u64, Ordering::SeqCst);
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        self.is_flushing.store(true, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(20));
        self.is_flushing.store(false, Ordering::SeqCst);
        Ok(true)
    }
}

#[test]
fn an_item_that_arrives_during_a_flush_of_the_sink_is_sent_too() {
    let settings = FlowSettings {
        // No worker looks by chance.
        interval: Duration::from_secs(600),
        ..workers(2)
    };
    let (source, sink) = (Hand::default(), SlowSink::default());
    let flow = Flow::with_settings("flush", settings);
    let burnt = flow.partial::<u64>("burnt");
    // Makes a second worker worth it.
    flow.sources(
        "burn",
        [(); 2].map(|()| Generator::new(|number| number).limit(40)),
    )
    .map(|number| {
        work_for(Duration::from_millis(1));
        *number
    })
    .fold_local(&burnt, |sum, number| *sum += number);
    flow.source("numbers", source.clone())
        .boundary("end")
        .sink("sink", sink.clone());
    let running = flow.run().unwrap();
    wait_until("nothing burns", || running.workers() == 2);
    for round in 1..=10 {
        source.give([0]);
        wait_until("no flush", || sink.is_flushing.load(Ordering::SeqCst));
        source.give([1]);
        let given_at = Instant::now();
        wait_until("the item is left", || {
            sink.taken.load(Ordering::SeqCst) == 2 * round
        });
        let took = given_at.elapsed();
        assert!(took < Duration::from_secs(2), "it took {took:?}");
        wait_until("still flushing", || {
            !sink.is_flushing.load(Ordering::SeqCst)
        });
    }
    source.end();
    join(&running);
}

#[test]
fn a_cycle_that_produces_more_items_than_its_rings_hold_ends() {
    for count in [1, 2, 4, 6] {
        for order in [Order::Kept, Order::Free] {
            let settings = FlowSettings {
                order,
                ring_items_max: NonZeroUsize::new(16).unwrap(),
                ..workers(count)
            };
            let flow = Flow::with_settings("tree", settings);
            let around = flow.channel::<u32>("around");
            let out = flow.channel::<u32>("out");
            let leaves = flow.partial::<u64>("leaves");
            flow.source("root", Generator::new(|number| number as u32).limit(1))
                .to(&around);
            // A tree with three branches at each of eight levels.
            flow.stage("branch", &around)
                .flat_map(|level: &u32, emit: &mut Emit<u32>| {
                    (0..3).for_each(|_| emit(&(level + 1)));
                })
                .split(&[around.clone(), out.clone()], |level| {
                    usize::from(*level == 8)
                });
            flow.stage("leaves", &out)
                .fold_local(&leaves, |leaves, _| *leaves += 1);
            join(&flow.run().unwrap());
            assert_eq!(leaves.merged(), 3_u64.pow(8), "{count} {order:?}");
        }
    }
}

#[test]
fn a_cycle_in_which_a_stage_writes_to_a_channel_twice_ends() {
    let flow = Flow::with_settings("twice", workers(2));
    let around = flow.channel::<u64>("around");
    let out = flow.channel::<u64>("out");
    let count = flow.partial::<u64>("count");
    flow.source("numbers", Generator::new(|number| number).limit(1000))
        .to(&around);
    let outputs = [around.clone(), around.clone(), out.clone()];
    flow.stage("halve", &around)
        .map(|number| number / 2)
        .split(&outputs, |number| match number {
            0 => 2,
            number => (number % 2) as usize,
        });
    flow.stage("count", &out)
        .fold_local(&count, |count, _| *count += 1);
    join(&flow.run().unwrap());
    assert_eq!(count.merged(), 1000);
}

#[test]
fn the_rings_of_a_cycle_do_not_grow_while_a_sink_blocks_it() {
    let sink = Hand::default();
    let flow = Flow::with_settings("held", settings(1, 64));
    let around = flow.channel::<u64>("around");
    let out = flow.channel::<u64>("out");
    flow.source("numbers", Generator::new(|number| number))
        .to(&around);
    flow.stage("turn", &around)
        .split(&[around.clone(), out.clone()], |number| {
            usize::from(number % 7 > 0)
        });
    flow.stage("end", &out).sink("sink", sink);
    let running = flow.run().unwrap();
    wait_until("there is room", || running.metrics()[1].blocked > 0);
    thread::sleep(Duration::from_millis(300));
    let capacity = running.metrics()[1].capacity.unwrap();
    assert!(capacity <= 256, "{capacity}");
}

#[test]
fn windows_in_a_cycle_are_refused() {
    let flow = Flow::new("cycle");
    let around = flow.channel::<u64>("around");
    let counts = flow.windowed("counts", Windows::tumbling(1000), Count);
    flow.source("numbers", Generator::new(|number| number).limit(10))
        .watermarks(
            |number| Timestamp(*number as i64),
            Watermarks::bounded(Duration::ZERO),
        )
        .to(&around);
    flow.stage("turn", &around)
        .key_by(|number| *number)
        .aggregate("count", &counts, |number| Timestamp(*number as i64))
        .map(|result| result.key)
        .to(&around);
    let error = flow.run().err().unwrap();
    assert!(matches!(error, FlowError::WindowsInCycle { .. }), "{error}");
    assert!(error.to_string().contains("\"count\""), "{error}");
}

/// Picks the same stage again and again, whether it has work or not, and then a stage that does
/// not exist.
struct Stubborn(AtomicU64);

impl Scheduler for Stubborn {
    fn pick(&self, stages: &Stages<'_>) -> Option<Pick> {
        let stage = match self.0.fetch_add(1, Ordering::Relaxed) % 3 {
            2 => stages.all().len(),
            _ => 1,
        };
        Some(Pick {
            stage,
            items: Some(0),
        })
    }
}

#[test]
fn a_flow_of_one_worker_ends_with_any_scheduler() {
    let schedulers: [Arc<dyn Scheduler>; 4] = [
        Arc::new(Priority::default()),
        Arc::new(RoundRobin::default()),
        Arc::new(RoundRobin { items: vec![0; 3] }),
        Arc::new(Stubborn(AtomicU64::new(0))),
    ];
    for scheduler in schedulers {
        let settings = FlowSettings {
            scheduler,
            ..workers(1)
        };
        let flow = Flow::with_settings("stubborn", settings);
        let sum = flow.partial::<u64>("sum");
        flow.source("numbers", Generator::new(|number| number).limit(10))
            .boundary("same")
            .boundary("add")
            .fold_local(&sum, |sum, number| *sum += number);
        join(&flow.run().unwrap());
        assert_eq!(sum.merged(), 45);
    }
}

#[derive(Debug)]
struct PanicsOnClone(u64);

impl Clone for PanicsOnClone {
    fn clone(&self) -> Self {
        assert_ne!(self.0, 7, "not this one");
        PanicsOnClone(self.0)
    }
}

#[test]
fn an_item_whose_clone_panics_becomes_a_dead_letter() {
    let letters = Arc::new(Letters::default());
    let settings = FlowSettings {
        dead_letters: Some(letters.clone()),
        ..workers(1)
    };
    let flow = Flow::with_settings("clone", settings);
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", Generator::new(PanicsOnClone).limit(10))
        .boundary("add")
        .fold_local(&sum, |sum, number| *sum += number.0);
    join(&flow.run().unwrap());
    assert_eq!(sum.merged(), 45 - 7);
    let letters = letters.0.lock().unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(&*letters[0].operator, "numbers");
    assert!(letters[0].error.contains("not this one"), "{letters:?}");
}

#[test]
fn killed_workers_change_neither_the_items_nor_their_order() {
    const ITEMS: u64 = 200_000;
    let (sink, collected) = Collect::new();
    let flow = Flow::with_settings("killed", workers(3));
    flow.source("numbers", Generator::new(|number| number).limit(ITEMS))
        .boundary("double")
        .flat_map(|number: &u64, emit: &mut Emit<u64>| {
            emit(&(2 * number));
            emit(&(2 * number + 1));
        })
        .boundary("end")
        .sink("collect", sink);
    let running = flow.run().unwrap();
    while !running.is_finished() {
        running.kill_workers(2);
        thread::sleep(Duration::from_micros(100));
    }
    let summary = running.join().unwrap();
    assert!(
        summary.workers_replaced > 10,
        "{}",
        summary.workers_replaced
    );
    let collected = collected.lock().unwrap();
    assert!(collected.iter().copied().eq(0..2 * ITEMS));
}

#[test]
fn a_flow_without_worker_replacement_completes_on_its_last_worker() {
    const ITEMS: u64 = 200_000;
    const WORKERS: usize = 4;
    let (sink, collected) = Collect::new();
    let settings = FlowSettings {
        replaces_workers: false,
        ..workers(WORKERS)
    };
    let flow = Flow::with_settings("not replaced", settings);
    let may_end = Arc::new(AtomicBool::new(false));
    let waits = Arc::clone(&may_end);
    flow.source("numbers", Generator::new(|number| number).limit(ITEMS))
        .boundary("work")
        .map(move |number: &u64| {
            // Slow until all but one are dead, so that there is work for all of them.
            if !waits.load(Ordering::Relaxed) {
                work_for(Duration::from_micros(100));
            }
            *number
        })
        .boundary("end")
        .sink("collect", sink);
    let running = flow.run().unwrap();
    wait_until("the flow does not use all workers", || {
        running.workers() == WORKERS
    });
    wait_until("workers do not stay dead", || {
        running.kill_workers(1);
        running.workers() == 1
    });
    may_end.store(true, Ordering::Relaxed);
    // Work for all of them brings none of them back.
    let mut workers_max = 0;
    while !running.is_finished() {
        workers_max = workers_max.max(running.workers());
        thread::sleep(Duration::from_micros(100));
    }
    let summary = running.join().unwrap();
    assert_eq!(workers_max, 1);
    assert!(summary.workers_died >= WORKERS as u64 - 1, "{summary:?}");
    let dead = summary.workers_died - summary.workers_replaced;
    assert!(dead < WORKERS as u64, "{summary:?}");
    let collected = collected.lock().unwrap();
    assert!(collected.iter().copied().eq(0..ITEMS));
}

#[test]
fn stages_with_slow_items_get_their_turns() {
    let flow = Flow::with_settings("turns", workers(1));
    let counts = ["one", "two", "three", "four"].map(|name| {
        let count = flow.partial::<u64>(&format!("count {name}"));
        flow.source(name, Generator::new(|number| number))
            .map(|number| {
                work_for(Duration::from_millis(3));
                *number
            })
            .fold_local(&count, |count, _| *count += 1);
        count
    });
    let running = flow.run().unwrap();
    wait_until("a stage starves", || {
        counts.iter().all(|count| count.merged() > 5)
    });
    drop(running);
}

/// A source of a single item that panics in `commit`, or when the flow is over.
struct PanicsAtTheEnd {
    has_given: bool,
    at_commit: bool,
}

impl Source for PanicsAtTheEnd {
    type Item = u64;

    fn partitions(&self) -> SourcePartitions<'_, u64> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        out: &mut Output<u64>,
        _: usize,
        _: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        if std::mem::replace(&mut self.has_given, true) {
            return Ok(SourceStatus::End);
        }
        out.push(1);
        Ok(SourceStatus::Ready)
    }

    fn wants_commits(&self) -> bool {
        true
    }

    fn commit(&mut self) -> Result<(), BoxError> {
        assert!(!self.at_commit, "cannot be kept");
        Ok(())
    }

    fn close(&mut self) {
        assert!(self.at_commit, "cannot be closed");
    }
}

#[test]
fn a_source_that_panics_at_its_end_fails_the_flow_and_wakes_waiting_callers() {
    for (at_commit, message) in [(true, "cannot be kept"), (false, "cannot be closed")] {
        let flow = Flow::with_settings("end", workers(2));
        let sum = flow.partial::<u64>("sum");
        let source = PanicsAtTheEnd {
            has_given: false,
            at_commit,
        };
        flow.source("numbers", source)
            .fold_local(&sum, |sum, number| *sum += number);
        let running = flow.run().unwrap();
        wait_until("the flow hangs", || running.is_finished());
        let error = running.join().unwrap_err().to_string();
        assert!(
            error.contains("\"numbers\"") && error.contains(message),
            "{error}"
        );
    }
}

/// Numbers below a thousand, more at a time than rings of eight have room for.
struct Bursts(u64);

impl Source for Bursts {
    type Item = u64;

    fn partitions(&self) -> SourcePartitions<'_, u64> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        out: &mut Output<u64>,
        _budget: usize,
        _waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        out.extend(self.0..self.0 + 10);
        self.0 += 10;
        Ok(match self.0 < 1000 {
            true => SourceStatus::Ready,
            false => SourceStatus::End,
        })
    }
}

#[test]
fn a_stage_with_two_outputs_to_one_ring_reserves_room_for_both() {
    let flow = Flow::with_settings("twice", settings(1, 8));
    let numbers = flow.channel::<u64>("numbers");
    let sum = flow.partial::<u64>("sum");
    flow.source("bursts", Bursts(0))
        .split(&[numbers.clone(), numbers.clone()], |number| {
            (*number % 2) as usize
        });
    flow.stage("sum", &numbers)
        .fold_local(&sum, |sum, number| *sum += number);
    join(&flow.run().unwrap());
    assert_eq!(sum.merged(), 999 * 1000 / 2);
}

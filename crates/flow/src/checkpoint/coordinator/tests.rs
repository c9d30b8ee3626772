//! Flows whose ranks die and go on from their checkpoints, step by step: each step is an activation of a stage, a pause, or
//! a try of a snapshot on some rank. Workers may take these steps in any order, so in no order is anything lost or counted
//! twice.

use crate::topology::cycles::Cycle;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicUsize;
use std::task::Waker;

use foldhash::fast::FixedState;
use millstream_base::{Clock, Timestamp};
use millstream_exchange::Ranks;

use super::*;
use crate::build::flow::Flow;
use crate::checkpoint::decision_signal::Waiting;
use crate::checkpoint::pace::Pace;
use crate::checkpoint::shard::PendingShard;
use crate::checkpoint::store::{Checkpoints, Resume, ShardKey};
use crate::error::BoxError;
use crate::graph::Graph;
use crate::run::align::align;
use crate::run::begin;
use crate::run::settings::FlowSettings;
use crate::sinks::sink::{Sink, SinkStart};
use crate::sources::Generator;
use crate::stage::activation::Context;
use crate::stage::metrics::SLICE_NS;
use crate::state::partial::StateReader;
use crate::time::watermarks::Watermarks;
use crate::topology::cycles;
use crate::topology::upstream::want_events;
use crate::windows::{Count, Trigger, WindowResult, Windows, fold};

const ITEMS: u64 = 80;
const SOURCES: usize = 2;

/// How often ranks die, at most.
const DEATHS: u64 = 10;

const SEEDS: u64 = 4;

/// Time that one step takes.
const STEP_US: u64 = 50;

/// Far more steps than any run takes.
const STEPS_MAX: u64 = 1_000_000;

#[derive(Default)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp(1_000_000)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

#[derive(Default)]
struct MemoryStore(Mutex<BTreeMap<ShardKey, Vec<u8>>>);

impl Checkpoints for MemoryStore {
    fn put(&self, key: ShardKey, part: &[u8]) -> Result<(), BoxError> {
        self.0.lock().insert(key, part.to_vec());
        Ok(())
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        Ok(self.0.lock().get(&key).ok_or("it is not there")?.clone())
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        Ok(self.0.lock().keys().copied().collect())
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        self.0.lock().remove(&key);
        Ok(())
    }
}

type Results = Arc<Mutex<Vec<WindowResult<u64, u64>>>>;

/// A sink that replaces a result when it comes again.
struct Ledger(Results);

impl Sink<WindowResult<u64, u64>> for Ledger {
    fn push(&mut self, items: &[WindowResult<u64, u64>], _: &Waker) -> Result<usize, BoxError> {
        self.0.lock().extend_from_slice(items);
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }

    fn prepare(&mut self, _: u64) -> Result<Vec<u8>, BoxError> {
        Ok(self.0.lock().len().to_le_bytes().to_vec())
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        let len = match start.prepared {
            Some(prepared) => usize::from_le_bytes(prepared.try_into()?),
            None => 0,
        };
        self.0.lock().truncate(len);
        Ok(())
    }
}

/// The shape of the flow.
#[derive(Debug, Clone, Copy)]
struct Shape {
    ranks: u32,
    /// In which windows numbers are counted. These counts are added up by half of the keys, in other windows.
    windows: Windows,
    /// Numbers go round in a cycle before.
    is_led_round: bool,
}

fn time(number: &u64) -> Timestamp {
    // With gaps, so that sessions end.
    Timestamp((number + number / 7 * 6) as i64)
}

/// Other workers, as a state element: they go on while a snapshot is taken of it, and find nothing to do.
#[derive(Clone, Default)]
struct Others(Arc<Mutex<Option<Work>>>);

struct Work {
    stages: Vec<Arc<dyn Stage>>,
    clock: Arc<dyn Clock>,
    /// The other ones.
    states: Vec<(String, Arc<dyn StateReader>)>,
    dice: u64,
}

/// Their activations meanwhile: enough to come from any of the sources to the sink.
const ACTIVATIONS_IN_SNAPSHOT: u64 = 100;

impl StateReader for Others {
    fn get(&self, _: &str) -> Option<serde_json::Value> {
        None
    }

    fn keys(&self, _: usize) -> Vec<String> {
        Vec::new()
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        if let Some(work) = &mut *self.0.lock() {
            let before: Vec<_> = work.states.iter().map(|it| it.1.save().unwrap()).collect();
            for _ in 0..ACTIVATIONS_IN_SNAPSHOT {
                work.dice = FixedState::with_seed(0).hash_one(work.dice);
                activate(&work.stages, &*work.clock, work.dice);
                for cycle in cycles::find(&work.stages) {
                    cycle.close_if_at_rest();
                }
            }
            for ((name, state), before) in work.states.iter().zip(before) {
                let is_same = state.save().unwrap() == before;
                assert!(
                    is_same,
                    "\"{name}\" changes while a checkpoint is taken of it"
                );
            }
        }
        Ok(Vec::new())
    }

    fn restore(&self, _: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }
}

fn activate(stages: &[Arc<dyn Stage>], clock: &dyn Clock, dice: u64) {
    let context = Context {
        clock,
        items: Some(1 + (dice >> 8) as usize % 8),
        slice_ns: SLICE_NS,
        rings: 0,
        condemned: &AtomicUsize::new(0),
        dead_letters: None,
    };
    match stages[(dice >> 16) as usize % stages.len()].activate(&context) {
        Ok(_) => {}
        Err(Failure::Error { operator, error }) => panic!("{operator}: {error}"),
        Err(Failure::Panicked { operator, message }) => panic!("{operator}: {message}"),
    }
}

fn build(shape: Shape, settings: FlowSettings, results: &Results, others: &Others) -> Flow {
    let flow = Flow::with_settings("simulated", settings);
    flow.state("others", others.clone());
    let counts = flow.windowed("counts", shape.windows, Count);
    let sum = fold(
        || 0,
        |sum: &mut u64, result: &WindowResult<u64, u64>| *sum += result.value,
        |sum, other| *sum += other,
    );
    let sums = flow.windowed("sums", Windows::tumbling(50), sum);
    let sources = (0..SOURCES).map(|_| Generator::new(|number| number).limit(ITEMS));
    let numbers = flow.channel("numbers");
    let around = shape.is_led_round.then(|| flow.channel("around"));
    flow.sources("source", sources)
        .watermarks(time, Watermarks::bounded(Duration::ZERO))
        .to(around.as_ref().unwrap_or(&numbers));
    if let Some(around) = &around {
        flow.stage("around", around)
            .map(|number| number + ONE_ROUND)
            .split(&[around.clone(), numbers.clone()], |number| {
                usize::from(*number >= ROUNDS * ONE_ROUND)
            });
    }
    flow.stage("numbers", &numbers)
        .map(|number| number % ONE_ROUND)
        .key_by(|number| number % 5)
        .aggregate("count", &counts, time)
        .key_by(|result| result.key / 2)
        .aggregate("sum", &sums, |result| Timestamp(result.end.0 - 1))
        .sink("results", Ledger(Arc::clone(results)));
    flow
}

/// The growth of a number each time that it is led round.
const ONE_ROUND: u64 = 1 << 32;
const ROUNDS: u64 = 2;

/// A rank at work.
struct Rank {
    /// Has the settings, and with them the connection to the other ranks.
    flow: Flow,
    graph: Graph,
    cycles: Vec<Cycle>,
    coordinator: Coordinator,
    has_ended: bool,
}

impl Rank {
    /// Resumes from the last checkpoint, if there is one.
    fn begin(
        shape: Shape,
        settings: FlowSettings,
        place: &Arc<MemoryStore>,
        results: &Results,
    ) -> Rank {
        let (rank, ranks) = (settings.ranks.rank(), settings.ranks.count());
        let clock = Arc::clone(&settings.clock);
        let place: Arc<dyn Checkpoints> = Arc::clone(place) as _;
        let others = Others::default();
        let flow = build(shape, settings, results, &others);
        let graph = flow.take().graph;
        let waiting = Waiting {
            are_sinks: false,
            is_any: false,
            has_records: false,
        };
        let (ranks_of, doorbell) = (&flow.settings.ranks, &graph.doorbell);
        let pace = Pace::new(Some(Duration::ZERO), Duration::ZERO);
        let decisions = Decisions::new(ranks_of, doorbell, Vec::new(), Vec::new(), waiting, pace);
        let signal = Arc::clone(decisions.signal());
        let shards = Shards::new(place, "simulated", rank, ranks, &clock, signal);
        let beginning = shards.resume_point(Resume::IfAny, None).unwrap();
        if let Some(beginning) = &beginning {
            begin::restore(&graph, beginning, Duration::ZERO).unwrap();
        }
        begin::recover_sinks(&graph, &flow.settings, beginning.as_ref()).unwrap();
        let number = beginning.as_ref().map_or(0, |beginning| beginning.number);
        shards.begin(number, 1).unwrap();
        if beginning.is_none() {
            let saved = begin::save_first(&graph, shards.checkpoint(1)).unwrap();
            shards.store_first(saved).unwrap();
        }
        let completion = shards.completion();
        decisions.begin(shards.checkpoint(0), beginning.is_some(), completion);
        let states = graph.states.iter().filter(|(name, _)| name != "others");
        *others.0.lock() = Some(Work {
            stages: graph.stages.clone(),
            clock,
            states: states.cloned().collect(),
            dice: u64::from(rank),
        });
        let cycles = cycles::find(&graph.stages);
        want_events(&graph.stages);
        align(&graph.stages, &graph.step);
        let purpose = Purpose::Checkpoints(Box::new(shards), Box::new(decisions));
        let pause = Arc::clone(&graph.pause);
        let coordinator = Coordinator::new(
            &graph.stages,
            !graph.exits.is_empty(),
            purpose,
            pause,
            Arc::clone(&graph.stopping),
            Duration::ZERO,
            Duration::ZERO,
        );
        graph.stages.iter().for_each(|stage| stage.begin());
        let unused = graph.exits.iter().try_for_each(|exit| exit.end_if_unused());
        assert!(unused.is_ok());
        Rank {
            flow,
            graph,
            cycles,
            coordinator,
            has_ended: false,
        }
    }

    fn elements(&self) -> Elements<'_> {
        Elements {
            stages: &self.graph.stages,
            cycles: &self.cycles,
            states: &self.graph.states,
            sinks: &self.graph.sinks,
            logged: &self.graph.logged,
            trail: &self.graph.trail,
        }
    }

    /// Returns whether it has taken a snapshot.
    fn step(&mut self, dice: u64) -> bool {
        let done = self.coordinator.pause.done.load(Ordering::SeqCst);
        let now = self.flow.settings.clock.monotonic();
        let elements = self.elements();
        if let Some(decisions) = self.coordinator.decisions_due() {
            assert!(decisions.decide().is_ok());
        }
        if self.graph.stages.iter().all(|stage| stage.has_ended()) {
            let ended = self.coordinator.end(&elements).ok();
            self.has_ended = ended.expect("nothing fails");
        } else {
            match dice % 64 {
                // Something was processed; a pause for another rank needs nothing of the kind.
                0 => self.coordinator.worked(),
                1 => self.coordinator.pause_if_due(now, false),
                2..24 => assert!(self.coordinator.take_if_at_rest(&elements, now).is_ok()),
                24..26 => self.cycles.iter().for_each(|cycle| {
                    cycle.close_if_at_rest();
                    cycle.grow_full_rings();
                }),
                _ => activate(&self.graph.stages, &*self.flow.settings.clock, dice),
            }
        }
        let Purpose::Checkpoints(shards, _) = self.coordinator.purpose() else {
            unreachable!("it takes checkpoints");
        };
        shards.finish();
        assert_eq!(shards.counts().error, None);
        self.coordinator.pause.done.load(Ordering::SeqCst) > done
    }
}

/// Runs all ranks until they have ended, or have died. Returns whether they have ended.
fn run(
    shape: Shape,
    place: &Arc<MemoryStore>,
    results: &[Results],
    are_mortal: bool,
    dice: impl Fn(u64) -> u64,
) -> bool {
    let clock = Arc::new(HandClock::default());
    let begin = |(ranks, results)| {
        let settings = FlowSettings {
            workers: NonZeroUsize::new(2).unwrap(),
            ring_items_max: NonZeroUsize::new(16).unwrap(),
            clock: Arc::clone(&clock) as _,
            ranks,
            ..FlowSettings::default()
        };
        Rank::begin(shape, settings, place, results)
    };
    let handles = Ranks::threads(shape.ranks).into_iter();
    let mut ranks: Vec<Rank> = handles.zip(results).map(begin).collect();
    for step in 0..STEPS_MAX {
        let mut live: Vec<_> = ranks.iter_mut().filter(|rank| !rank.has_ended).collect();
        if live.is_empty() {
            return true;
        }
        clock.0.fetch_add(STEP_US, Ordering::Relaxed);
        let dice = dice(step);
        let index = (dice >> 56) as usize % live.len();
        let has_snapshot = live[index].step(dice);
        // As a rule the next checkpoint would repair the faults of the last one.
        let lot = (dice >> 40) % 1_000;
        if are_mortal && lot < if has_snapshot { 200 } else { 2 } {
            return false;
        }
    }
    panic!("{shape:?} stands still");
}

/// The value of each window of each key, once all ranks have ended; they die up to `deaths` times before.
fn windows(shape: Shape, deaths: u64, seed: u64) -> BTreeMap<(u64, Timestamp), u64> {
    let dice = FixedState::with_seed(seed);
    let place = Arc::new(MemoryStore::default());
    let results: Vec<Results> = (0..shape.ranks).map(|_| Results::default()).collect();
    for death in 0..deaths {
        if run(shape, &place, &results, true, |step| {
            dice.hash_one((death, step))
        }) {
            break;
        }
    }
    run(shape, &place, &results, false, |step| dice.hash_one(step));
    let mut windows = BTreeMap::new();
    for result in results.iter().flat_map(|results| results.lock().clone()) {
        let former = windows.insert((result.key, result.start), result.value);
        assert_eq!(
            former, None,
            "{shape:?} with seed {seed}: {result:?} comes twice"
        );
    }
    windows
}

#[test]
fn a_due_checkpoint_starts_at_once_when_the_previous_one_is_written() {
    let place = Arc::new(MemoryStore::default());
    let clock = Arc::new(HandClock::default()) as Arc<dyn Clock>;
    let shape = Shape {
        ranks: 1,
        windows: Windows::tumbling(10),
        is_led_round: false,
    };
    let settings = FlowSettings::default();
    let ranks = settings.ranks.clone();
    let flow = build(shape, settings, &Results::default(), &Others::default());
    let graph = flow.take().graph;
    let waiting = Waiting {
        are_sinks: false,
        is_any: false,
        has_records: false,
    };
    let interval = Duration::from_secs(10);
    let pace = Pace::new(Some(interval), Duration::ZERO);
    let decisions = Decisions::new(
        &ranks,
        &graph.doorbell,
        Vec::new(),
        Vec::new(),
        waiting,
        pace,
    );
    let signal = Arc::clone(decisions.signal());
    let shards = Shards::new(Arc::clone(&place) as _, "simulated", 0, 1, &clock, signal);
    let coordinator = Coordinator::new(
        &graph.stages,
        false,
        Purpose::Checkpoints(Box::new(shards), Box::new(decisions)),
        Arc::clone(&graph.pause),
        Arc::clone(&graph.stopping),
        Duration::ZERO,
        Duration::ZERO,
    );
    let Purpose::Checkpoints(shards, _) = coordinator.purpose() else {
        unreachable!("it takes checkpoints");
    };
    coordinator.worked();
    assert_eq!(coordinator.alarm(), Some(interval));
    let is_paused = |now, are_many_changes| {
        coordinator.pause_if_due(now, are_many_changes);
        graph.pause.is_on.load(Ordering::SeqCst)
    };
    // Nothing is stored meanwhile.
    let held = place.0.lock();
    shards.store(1, PendingShard::default(), None);
    assert!(!is_paused(interval, false));
    assert_eq!(coordinator.alarm(), None, "a worker would not sleep");
    drop(held);
    shards.finish();
    // Nor does another worker pause while one takes a snapshot.
    let gates = coordinator.gates.lock();
    assert!(!is_paused(interval, false));
    drop(gates);
    assert!(is_paused(interval, false));
    // Changes are bounded.
    graph.pause.is_on.store(false, Ordering::SeqCst);
    assert!(!is_paused(Duration::ZERO, false));
    assert!(is_paused(Duration::ZERO, true));
}

#[test]
fn ranks_that_die_and_resume_give_the_windows_of_an_undisturbed_run() {
    let kinds = [
        Windows::tumbling(10),
        Windows::sliding(20, 10),
        Windows::session(4),
        Windows::global(Trigger::every_ms(10)),
    ];
    for counted_in in kinds {
        for (ranks, is_led_round) in [(1, false), (1, true), (2, false), (2, true), (3, false)] {
            let shape = Shape {
                ranks,
                windows: counted_in,
                is_led_round,
            };
            let expected = windows(shape, 0, 0);
            for seed in 1..SEEDS {
                let found = windows(shape, DEATHS, seed);
                assert_eq!(found, expected, "{shape:?} with seed {seed}");
            }
        }
    }
}

//! Panics of user code: in code that changes state they fail the flow, elsewhere they make dead letters; nothing is
//! lost and nothing counted twice.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{self, AssertUnwindSafe};
use std::str::FromStr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Aggregate, Combine, Count, Trigger, WindowResult, Windows, fold};
use millstream_flow::{
    BoxError, Checkpointing, Checkpoints, DeadLetter, DeadLetters, Emit, Flow, FlowSettings,
    PartialState, Resume, Sink, SinkStart,
};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::support::{Collect, Letters, MemoryStore, disorder, on_ranks, settings};

const ITEMS: u64 = 1_000;

/// A flow with a keeper of dead letters, and its results.
struct Trial {
    flow: Flow,
    letters: Arc<Letters>,
}

impl Trial {
    fn new() -> Trial {
        let letters = Arc::new(Letters::default());
        let settings = FlowSettings {
            dead_letters: Some(letters.clone()),
            ..settings(2, 64)
        };
        Trial {
            flow: Flow::with_settings("trial", settings),
            letters,
        }
    }

    /// The flow fails, and its error names the operator and the panic.
    #[track_caller]
    fn fails(self, operator: &str, message: &str) {
        let error = self.flow.run().unwrap().join().unwrap_err().to_string();
        assert!(
            error.contains(operator) && error.contains(message),
            "{error}"
        );
        assert!(self.letters.0.lock().unwrap().is_empty());
    }
}

/// Panics when it was called so often.
fn once(count: i64) -> impl Fn() + Clone + Send + Sync + 'static {
    let left = Arc::new(AtomicI64::new(count));
    move || {
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            panic!("once");
        }
    }
}

fn time(number: &u64) -> Timestamp {
    Timestamp(*number as i64)
}

fn count_in_windows<A: Aggregate<u64>>(flow: &Flow, windows: Windows, aggregate: A) {
    let state = flow.windowed("counts", windows, aggregate);
    let (sink, _) = Collect::new();
    // Several sources, so that there is something to merge.
    let source = || Generator::new(|number| number).limit(ITEMS);
    flow.sources("numbers", [source(), source(), source()])
        .watermarks(time, disorder(0))
        .key_by(|number| number % 3)
        .aggregate("count", &state, time)
        .sink("results", sink);
}

fn kinds() -> [Windows; 6] {
    [
        Windows::tumbling(100),
        Windows::sliding(100, 20),
        Windows::session(5),
        Windows::global(Trigger::every_ms(100)),
        Windows::global(Trigger::every_events(10)),
        Windows::global(Trigger::every_events(10).purging()),
    ]
}

#[test]
fn a_merge_that_panics_fails_the_flow() {
    for windows in kinds() {
        for calls in [1, 3] {
            let panics = once(calls);
            let trial = Trial::new();
            let merge = move |sum: &mut u64, other: &u64| {
                *sum += other;
                panics();
            };
            let aggregate = fold(|| 0, |sum: &mut u64, _: &u64| *sum += 1, merge);
            count_in_windows(&trial.flow, windows, aggregate);
            trial.fails("aggregate\" panicked", "once");
        }
    }
}

#[test]
fn an_add_that_changed_the_state_before_it_panicked_is_not_called_again() {
    for windows in kinds() {
        let panics = once(500);
        let trial = Trial::new();
        let add = move |sum: &mut u64, _: &u64| {
            *sum += 1;
            panics();
        };
        let aggregate = fold(|| 0, add, |sum: &mut u64, other: &u64| *sum += other);
        count_in_windows(&trial.flow, windows, aggregate);
        trial.fails("aggregate\" panicked", "once");
    }
}

#[test]
fn a_fold_that_changed_the_state_before_it_panicked_is_not_called_again() {
    let panics = once(500);
    let trial = Trial::new();
    let count = trial.flow.partial::<u64>("count");
    trial
        .flow
        .source("numbers", Generator::new(|number| number).limit(ITEMS))
        .fold_local(&count, move |count, _| {
            *count += 1;
            panics();
        });
    trial.fails("\"numbers/0.fold_local\" panicked", "once");
    assert_eq!(count.merged(), 500, "no code runs on the changed state");
}

#[test]
fn a_fold_in_a_branch_that_panics_fails_the_flow() {
    let panics = once(500);
    let trial = Trial::new();
    let count = trial.flow.partial::<u64>("count");
    trial
        .flow
        .source("numbers", Generator::new(|number| number).limit(ITEMS))
        .fork(
            &["all"],
            |_| 0,
            |_, all| {
                all.fold_local(&count, {
                    let panics = panics.clone();
                    move |count, _| {
                        *count += 1;
                        panics();
                    }
                })
            },
        );
    trial.fails("\"numbers/all/0.fold_local\" panicked", "once");
}

#[test]
fn a_panic_of_a_state_fails_the_flow_also_if_user_code_catches_it() {
    let panics = once(500);
    let trial = Trial::new();
    let count = trial.flow.partial::<u64>("count");
    trial
        .flow
        .source("numbers", Generator::new(|number| number).limit(ITEMS))
        .flat_map(|number, emit: &mut Emit<u64>| {
            let _ = panic::catch_unwind(AssertUnwindSafe(|| emit(number)));
        })
        .fold_local(&count, move |count, _| {
            *count += 1;
            panics();
        });
    trial.fails("\"numbers/1.fold_local\" panicked", "half changed");
}

/// Counts, and panics when it makes a result or a copy of a state of a given number of items.
struct PanicsWith<F>(F);

impl<F: Fn() + Send + Sync + 'static> Combine for PanicsWith<F> {
    type State = u64;
    type Out = u64;

    fn empty(&self) -> u64 {
        0
    }

    fn merge(&self, state: &mut u64, other: &u64) {
        *state += other;
    }

    fn result(&self, state: &u64, _: u64) -> u64 {
        (self.0)();
        *state
    }
}

impl<F: Fn() + Send + Sync + 'static> Aggregate<u64> for PanicsWith<F> {
    fn add(&self, state: &mut u64, _: &u64) {
        *state += 1;
    }
}

#[test]
fn a_result_that_panics_while_windows_are_released_fails_the_flow() {
    for windows in kinds() {
        let trial = Trial::new();
        count_in_windows(&trial.flow, windows, PanicsWith(once(3)));
        trial.fails("\"count/0.aggregate\" panicked", "once");
    }
}

#[test]
fn key_and_time_functions_that_panic_make_dead_letters_and_change_no_state() {
    for windows in kinds() {
        let trial = Trial::new();
        let state = trial.flow.windowed("counts", windows, Count);
        let (sink, _) = Collect::new();
        trial
            .flow
            .source("numbers", Generator::new(|number| number).limit(ITEMS))
            .watermarks(time, disorder(0))
            .key_by(|number| {
                assert_ne!(number % 100, 7, "no key");
                number % 3
            })
            .aggregate("count", &state, |number| {
                assert_ne!(number % 100, 8, "no time");
                time(number)
            })
            .sink("results", sink);
        trial.flow.run().unwrap().join().unwrap();
        assert_eq!(trial.letters.0.lock().unwrap().len(), 20);
        let totals = state.totals();
        assert_eq!(totals.open_events + totals.closed_events, ITEMS - 20);
    }
}

/// A key whose hash, comparison, copy or end panics when its time has come.
#[derive(Debug, Serialize, Deserialize)]
struct Touchy(u64);

/// The call that panics, and how many calls are left.
static TOUCHY: Mutex<Option<(&str, i64)>> = Mutex::new(None);
/// Held by one test at a time.
static TOUCHED: Mutex<()> = Mutex::new(());

fn touch(what: &str) {
    let mut touchy = TOUCHY.lock().unwrap_or_else(|broken| broken.into_inner());
    if let Some((touched, left)) = &mut *touchy
        && *touched == what
    {
        *left -= 1;
        if *left == 0 {
            *touchy = None;
            drop(touchy);
            panic!("touched: {what}");
        }
    }
}

impl Hash for Touchy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        touch("hash");
        self.0.hash(state);
    }
}

impl PartialEq for Touchy {
    fn eq(&self, other: &Self) -> bool {
        touch("eq");
        self.0 == other.0
    }
}

impl Eq for Touchy {}

impl Clone for Touchy {
    fn clone(&self) -> Self {
        touch("clone");
        Touchy(self.0)
    }
}

impl Drop for Touchy {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            touch("drop");
        }
    }
}

impl fmt::Display for Touchy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Touchy {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Touchy)
    }
}

#[test]
fn keys_that_panic_in_a_table_fail_the_flow_or_change_no_state() {
    let _touched = TOUCHED.lock().unwrap_or_else(|broken| broken.into_inner());
    for windows in kinds() {
        for what in ["hash", "eq", "clone", "drop"] {
            for calls in [1, 5, 40, 333] {
                let trial = Trial::new();
                let state = trial.flow.windowed("counts", windows, Count);
                let (sink, _) = Collect::new();
                trial
                    .flow
                    .source("numbers", Generator::new(|number| number).limit(ITEMS))
                    .watermarks(time, disorder(0))
                    .key_by(|number| Touchy(number % 30))
                    .aggregate("count", &state, time)
                    .map(|result: &WindowResult<Touchy, u64>| result.value)
                    .sink("results", sink);
                *TOUCHY.lock().unwrap() = Some((what, calls));
                let running = trial.flow.run().unwrap();
                let ended = running.join();
                *TOUCHY.lock().unwrap() = None;
                if let Err(error) = ended {
                    let error = error.to_string();
                    assert!(error.contains("touched"), "{error}");
                    continue;
                }
                // It panicked where no state was changed, or not at all.
                let totals = state.totals();
                assert_eq!(
                    totals.open_events + totals.closed_events,
                    ITEMS,
                    "{windows:?}, {what} {calls}"
                );
            }
        }
    }
}

#[test]
fn a_key_that_panics_in_the_exchange_fails_all_ranks() {
    let _touched = TOUCHED.lock().unwrap_or_else(|broken| broken.into_inner());
    *TOUCHY.lock().unwrap() = Some(("hash", 40));
    let ended = on_ranks(3, |ranks| {
        let settings = FlowSettings {
            ranks: ranks.clone(),
            dead_letters: Some(Arc::new(Letters::default())),
            ..settings(1, 64)
        };
        let flow = Flow::with_settings("ranks", settings);
        let state = flow.windowed("counts", Windows::tumbling(100), Count);
        let (sink, _) = Collect::new();
        flow.source("numbers", Generator::new(|number| number).limit(ITEMS))
            .watermarks(time, disorder(0))
            .key_by(|number| Touchy(number % 30))
            .aggregate("count", &state, time)
            .map(|result: &WindowResult<Touchy, u64>| result.value)
            .sink("results", sink);
        let ended = flow.run().and_then(|running| running.join().map(drop));
        ended.map_err(|error| error.to_string())
    });
    *TOUCHY.lock().unwrap() = None;
    for ended in ended {
        let error = ended.unwrap_err();
        assert!(error.contains("touched: hash"), "{error}");
    }
}

/// A number whose copies panic, each so often.
struct Copied(u64, Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Clone for Copied {
    fn clone(&self) -> Self {
        (self.1)();
        Copied(self.0, Arc::clone(&self.1))
    }
}

#[test]
fn an_item_whose_clone_panics_is_sent_to_no_channel_twice() {
    // Each item is copied twice.
    for (calls, is_dead) in [(499, false), (500, true)] {
        let panics: Arc<dyn Fn() + Send + Sync> = Arc::new(once(calls));
        let trial = Trial::new();
        let channels = ["a", "b"].map(|name| trial.flow.channel::<Copied>(name));
        let source = Generator::new(move |number| Copied(number, Arc::clone(&panics)));
        trial
            .flow
            .source("numbers", source.limit(ITEMS))
            .to_all(&channels);
        let sums = channels.map(|channel| {
            let name = format!("{channel:?}");
            let sum = trial.flow.partial::<u64>(&name);
            trial
                .flow
                .stage(&name, &channel)
                .fold_local(&sum, |sum, number| *sum += number.0);
            sum
        });
        if is_dead {
            trial.fails("\"numbers/0.to_all\" panicked", "once");
        } else {
            trial.flow.run().unwrap().join().unwrap();
            assert_eq!(sums.map(|sum| sum.merged()), [ITEMS * (ITEMS - 1) / 2; 2]);
        }
    }
}

#[test]
fn a_late_item_whose_clone_panics_is_counted_once() {
    let panics: Arc<dyn Fn() + Send + Sync> = Arc::new(once(5));
    let trial = Trial::new();
    let state = trial.flow.windowed("counts", Windows::tumbling(10), Count);
    let late = trial.flow.channel("late");
    // Every other item is of the beginning.
    let source = Generator::new(move |number| Copied(number, Arc::clone(&panics)));
    let time = |number: &Copied| {
        Timestamp(if number.0.is_multiple_of(2) {
            number.0 as i64
        } else {
            0
        })
    };
    trial
        .flow
        .source("numbers", source.limit(ITEMS))
        .watermarks(time, disorder(0))
        .key_by(|number| number.0 % 3)
        .late_to(&late)
        .aggregate("count", &state, time)
        .sink("results", Collect::new().0);
    let lates = trial.flow.partial::<u64>("lates");
    trial
        .flow
        .stage("late", &late)
        .fold_local(&lates, |lates, _| *lates += 1);
    trial.flow.run().unwrap().join().unwrap();
    let totals = state.totals();
    assert_eq!(totals.closed_events + state.late_events(), ITEMS);
    assert_eq!(lates.merged(), state.late_events());
}

#[test]
fn the_error_names_a_dead_letter_store_that_panics() {
    struct Unkept;
    impl DeadLetters for Unkept {
        fn put(&self, _: &[DeadLetter]) -> Result<(), BoxError> {
            panic!("no room for letters")
        }
    }
    let settings = FlowSettings {
        dead_letters: Some(Arc::new(Unkept)),
        ..settings(1, 64)
    };
    let flow = Flow::with_settings("letters", settings);
    let count = flow.partial::<u64>("count");
    flow.source("numbers", Generator::new(|number| number).limit(ITEMS))
        .map(|number| assert_ne!(*number, 7))
        .fold_local(&count, |count, ()| *count += 1);
    let error = flow.run().unwrap().join().unwrap_err().to_string();
    assert_eq!(
        error,
        "flow \"letters\": \"dead letters\" panicked: no room for letters"
    );
}

/// A sum that panics when it is saved or restored and this flag is set.
#[derive(Default)]
struct Fragile(u64);

static FRAGILE: Mutex<&str> = Mutex::new("");

impl PartialState for Fragile {
    fn merge(&mut self, part: &Self) {
        self.0 += part.0;
    }

    fn get(_: &[&Self], _: &str) -> Option<Value> {
        None
    }

    fn keys(_: &[&Self], _: usize) -> Vec<String> {
        Vec::new()
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        let fragile = *FRAGILE.lock().unwrap();
        assert!(
            fragile != "save" || self.0 == 0,
            "it breaks when it is saved"
        );
        Ok(self.0.to_le_bytes().to_vec())
    }

    fn restored(saved: &[u8]) -> Result<Self, BoxError> {
        let fragile = *FRAGILE.lock().unwrap();
        assert_ne!(fragile, "restore", "it breaks when it is restored");
        Ok(Fragile(u64::from_le_bytes(saved.try_into()?)))
    }
}

fn with_checkpoints(place: &Arc<MemoryStore>, resume: Resume) -> FlowSettings {
    FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::clone(place) as Arc<dyn Checkpoints>,
            interval: Some(Duration::from_millis(1)),
            resume,
        }),
        ..settings(2, 64)
    }
}

#[test]
fn a_panic_during_a_checkpoint_or_a_restore_names_the_state() {
    let place = Arc::new(MemoryStore::default());
    let flow = |limit| {
        let flow = Flow::with_settings("fragile", with_checkpoints(&place, Resume::IfAny));
        let sum = flow.partial::<Fragile>("fragile sum");
        flow.source("numbers", Generator::new(|number| number).limit(limit))
            .fold_local(&sum, |sum, number| sum.0 += number);
        (flow, sum)
    };
    *FRAGILE.lock().unwrap() = "save";
    let error = flow(u64::MAX)
        .0
        .run()
        .unwrap()
        .join()
        .unwrap_err()
        .to_string();
    assert!(error.contains("\"fragile sum\" panicked"), "{error}");
    assert!(error.contains("it breaks when it is saved"), "{error}");
    *FRAGILE.lock().unwrap() = "restore";
    let kept = place.list().unwrap().len();
    let began = flow(1000).0.run();
    // There is a checkpoint of the beginning at least.
    assert!(kept > 0);
    let error = began.err().unwrap().to_string();
    assert!(error.contains("\"fragile sum\""), "{error}");
    assert!(error.contains("it breaks when it is restored"), "{error}");
    *FRAGILE.lock().unwrap() = "";
    let (flow, sum) = flow(1000);
    flow.run().unwrap().join().unwrap();
    assert_eq!(sum.merged().0, 999 * 1000 / 2);
}

/// Results that are truncated to a checkpoint.
#[derive(Clone)]
struct Ledger<T>(Arc<Mutex<Vec<T>>>);

impl<T: Clone + Send + 'static> Sink<T> for Ledger<T> {
    fn push(&mut self, items: &[T], _: &Waker) -> Result<usize, BoxError> {
        self.0.lock().unwrap().extend_from_slice(items);
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }

    fn prepare(&mut self, _: u64) -> Result<Vec<u8>, BoxError> {
        Ok(self.0.lock().unwrap().len().to_le_bytes().to_vec())
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        if let Some(prepared) = start.prepared {
            let len = usize::from_le_bytes(prepared.try_into()?);
            self.0.lock().unwrap().truncate(len);
        }
        Ok(())
    }
}

/// The functions of the user in which a bomb can explode.
const SITES: [&str; 8] = [
    "map", "key", "time", "add", "merge", "result", "fold", "route",
];

/// Panics at some calls of some sites.
struct Bombs(BTreeMap<&'static str, (AtomicU64, Vec<u64>)>);

impl Bombs {
    fn call(&self, site: &str) {
        let (calls, bombs) = &self.0[site];
        let call = calls.fetch_add(1, Ordering::Relaxed);
        assert!(!bombs.contains(&call), "call {call} of {site}");
    }
}

struct BombCount(Arc<Bombs>);

impl Combine for BombCount {
    type State = u64;
    type Out = u64;

    fn empty(&self) -> u64 {
        0
    }

    fn merge(&self, state: &mut u64, other: &u64) {
        *state += other;
        self.0.call("merge");
    }

    fn result(&self, state: &u64, _: u64) -> u64 {
        self.0.call("result");
        *state
    }
}

impl Aggregate<u64> for BombCount {
    fn add(&self, state: &mut u64, _: &u64) {
        *state += 1;
        self.0.call("add");
    }
}

/// Runs until the end, however often that fails; each failure is followed by another start.
fn survives(windows: Windows, bombs: Vec<(usize, u64)>) {
    let mut calls = BTreeMap::new();
    for (index, site) in SITES.into_iter().enumerate() {
        let own = bombs.iter().filter(|(site, _)| *site == index);
        let own: Vec<u64> = own.map(|(_, call)| *call).collect();
        calls.insert(site, (AtomicU64::new(0), own));
    }
    let starts_max = bombs.len() + 1;
    let bombs = Arc::new(Bombs(calls));
    let place = Arc::new(MemoryStore::default());
    let letters = Arc::new(Letters::default());
    let results: Ledger<WindowResult<u64, u64>> = Ledger(Arc::default());
    for start in 1.. {
        assert!(start <= starts_max, "each bomb fails it once at most");
        let settings = FlowSettings {
            dead_letters: Some(letters.clone()),
            ..with_checkpoints(&place, Resume::IfAny)
        };
        let flow = Flow::with_settings("survivor", settings);
        let counts = flow.windowed("counts", windows, BombCount(Arc::clone(&bombs)));
        let sum = flow.partial::<u64>("sum");
        let call = |site| {
            let bombs = Arc::clone(&bombs);
            move || bombs.call(site)
        };
        let [map, key, at, fold, route] = ["map", "key", "time", "fold", "route"].map(call);
        flow.source("numbers", Generator::new(|number| number).limit(ITEMS))
            .watermarks(time, disorder(0))
            .map(move |number| {
                map();
                *number
            })
            .fork(
                &["windows", "sum"],
                move |number| {
                    route();
                    (number % 2) as usize
                },
                |branch, numbers| match branch {
                    0 => {
                        let (key, at) = (key.clone(), at.clone());
                        numbers
                            .key_by(move |number| {
                                key();
                                number % 3
                            })
                            .aggregate("count", &counts, move |number| {
                                at();
                                time(number)
                            })
                            .sink("results", results.clone())
                    }
                    _ => {
                        let fold = fold.clone();
                        numbers.fold_local(&sum, move |sum, number| {
                            *sum += number;
                            fold();
                        })
                    }
                },
            );
        if flow.run().unwrap().join().is_err() {
            continue;
        }
        // All that panicked without state passed when it was called again.
        assert!(letters.0.lock().unwrap().is_empty());
        assert_eq!(sum.merged(), (0..ITEMS).filter(|n| n % 2 == 1).sum::<u64>());
        let mut found: Vec<_> = (results.0.lock().unwrap().iter())
            .map(|result| (result.key, result.start, result.end, result.value))
            .collect();
        let mut expected = undisturbed(windows);
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        return;
    }
}

/// The windows of a run without panics.
fn undisturbed(windows: Windows) -> Vec<(u64, Timestamp, Timestamp, u64)> {
    let flow = Flow::with_settings("model", settings(1, 64));
    let counts = flow.windowed("counts", windows, Count);
    let results: Ledger<WindowResult<u64, u64>> = Ledger(Arc::default());
    flow.source("numbers", Generator::new(|number| number).limit(ITEMS))
        .watermarks(time, disorder(0))
        .filter(|number| number % 2 == 0)
        .key_by(|number| number % 3)
        .aggregate("count", &counts, time)
        .sink("results", results.clone());
    flow.run().unwrap().join().unwrap();
    let results = results.0.lock().unwrap();
    let windows = results.iter();
    windows
        .map(|result| (result.key, result.start, result.end, result.value))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_flow_that_panics_anywhere_and_restarts_gives_the_results_of_an_undisturbed_one(
        windows in prop::sample::select(kinds().to_vec()),
        bombs in prop::collection::vec((0..SITES.len(), 0..600_u64), 0..5),
    ) {
        survives(windows, bombs);
    }
}

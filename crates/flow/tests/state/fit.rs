//! Programs that have other elements than the checkpoint: a run that would lose some says which, and touches nothing.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::windows::{Aggregate, Key, Sum, Windows, fold};
use millstream_flow::{
    BoxError, Checkpoints, DeadLetter, DeadLetters, Flow, FlowError, Resume, Running, Sink,
    SinkStart,
};

use crate::changelogs::log::LogStore;
use crate::changelogs::settings_of;
use crate::support::{Hand, Letters, MemoryStore, disorder};

/// A sink that prepares results, and notes that it was called.
struct Preparing {
    prepared: &'static [u8],
    is_recovered: Arc<AtomicBool>,
}

impl Sink<u64> for Preparing {
    fn push(&mut self, items: &[u64], _: &Waker) -> Result<usize, BoxError> {
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }

    fn recover(&mut self, _: &SinkStart<'_>) -> Result<(), BoxError> {
        self.is_recovered.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn prepare(&mut self, _: u64) -> Result<Vec<u8>, BoxError> {
        Ok(self.prepared.to_vec())
    }
}

/// The elements of a program. Items come from `source`, are counted by key in `values`, and go to a partial state and to
/// sinks.
#[derive(Clone, Copy)]
struct Program {
    source: &'static str,
    values: &'static str,
    partial: &'static str,
    /// The sinks, each with its prepared bytes.
    sinks: &'static [(&'static str, &'static [u8])],
}

const PROGRAM: Program = Program {
    source: "numbers",
    values: "counts",
    partial: "sum",
    sinks: &[("totals", b"results"), ("shown", b"")],
};

impl Program {
    /// Starts it; also returns whether a sink got a decision about its results.
    fn start(
        self,
        store: &Arc<impl Checkpoints>,
        resume: Resume,
        letters: Option<Arc<dyn DeadLetters>>,
    ) -> (Result<Running, FlowError>, bool) {
        let mut settings = settings_of(store, resume, &Ranks::alone());
        settings.dead_letters = letters;
        let flow = Flow::with_settings("numbers", settings);
        let counts = flow.values::<u64, u64>(self.values);
        let sum = flow.partial::<u64>(self.partial);
        let numbers = Hand::default();
        numbers.give([1, 2, 1]);
        numbers.end();
        let to_counts = flow.channel::<u64>("to counts");
        let to_sum = flow.channel::<u64>("to sum");
        let mut channels = vec![to_counts.clone(), to_sum.clone()];
        let is_recovered = Arc::new(AtomicBool::new(false));
        for (name, prepared) in self.sinks {
            let channel = flow.channel::<u64>(&format!("to {name}"));
            let sink = Preparing {
                prepared,
                is_recovered: Arc::clone(&is_recovered),
            };
            flow.stage(&format!("to {name}"), &channel).sink(name, sink);
            channels.push(channel);
        }
        flow.source(self.source, numbers).to_all(&channels);
        flow.stage("to counts", &to_counts)
            .key_by(|number| *number)
            .count("count", &counts);
        flow.stage("to sum", &to_sum)
            .fold_local(&sum, |sum, number| *sum += number);
        let running = flow.run();
        (running, is_recovered.load(Ordering::Relaxed))
    }

    /// Runs it to its end.
    fn finish(self, store: &Arc<impl Checkpoints>, resume: Resume) {
        let (running, _) = self.start(store, resume, None);
        running.unwrap().join().unwrap();
    }

    #[track_caller]
    fn refusal(self, store: &Arc<impl Checkpoints>) -> String {
        let (resumed, is_recovered) = self.start(store, Resume::Always, None);
        assert!(!is_recovered, "a sink has decided results");
        resumed.err().unwrap().to_string()
    }
}

const OTHER: Program = Program {
    source: "others",
    values: "counted",
    partial: "sum",
    sinks: &[("results", b"results"), ("more", b"")],
};

const REFUSAL: &str = "flow \"numbers\": the checkpoint does not fit this program: \
    the checkpoint has source \"numbers\", state \"counts\", sink \"totals\", which the program does not have; \
    the program has source \"others\", state \"counted\", sink \"more\", sink \"results\", of which the checkpoint has nothing; \
    resume with a program that has the same elements with the same names and types, or start the flow anew: under another \
    name, or without resuming once all of its checkpoints are removed";

#[test]
fn one_error_names_all_elements_missing_from_checkpoint_or_program() {
    let store = Arc::new(LogStore::default());
    PROGRAM.finish(&store, Resume::Never);
    let calls = store.all_calls();
    assert_eq!(OTHER.refusal(&store), REFUSAL);
    assert_eq!(store.all_calls(), calls);
    assert_eq!(store.opened(), ["counts"]);
    // It is still there.
    PROGRAM.finish(&store, Resume::Always);
}

#[test]
fn the_error_also_names_missing_elements_that_are_saved_whole() {
    let store = Arc::new(MemoryStore::default());
    PROGRAM.finish(&store, Resume::Never);
    let shards = store.parts.lock().unwrap().clone();
    assert_eq!(OTHER.refusal(&store), REFUSAL);
    assert_eq!(*store.parts.lock().unwrap(), shards);
    PROGRAM.finish(&store, Resume::Always);
}

#[test]
fn a_program_may_drop_a_sink_without_prepared_results() {
    let store = Arc::new(MemoryStore::default());
    PROGRAM.finish(&store, Resume::Never);
    let fewer = Program {
        sinks: &PROGRAM.sinks[..1],
        ..PROGRAM
    };
    fewer.finish(&store, Resume::Always);
    let none = Program {
        sinks: &[],
        ..PROGRAM
    };
    let refusal = none.refusal(&store);
    assert!(
        refusal.contains("the checkpoint has sink \"totals\", which the program does not have"),
        "{refusal}"
    );
    assert!(!refusal.contains("the program has"), "{refusal}");
}

/// Keeps letters that count once they are committed.
struct Waiting;

impl DeadLetters for Waiting {
    fn put(&self, _: &[DeadLetter]) -> Result<(), BoxError> {
        Ok(())
    }

    fn prepare(&self, _: u64) -> Result<Vec<u8>, BoxError> {
        Ok(b"letters".to_vec())
    }
}

#[test]
fn a_dead_letter_store_may_be_added_and_may_not_be_dropped_with_uncommitted_letters() {
    let store = Arc::new(MemoryStore::default());
    PROGRAM.finish(&store, Resume::Never);
    let resume = |letters: Option<Arc<dyn DeadLetters>>| {
        let (running, _) = PROGRAM.start(&store, Resume::Always, letters);
        running.map(|running| drop(running.join().unwrap()))
    };
    // It keeps them at once.
    resume(Some(Arc::new(Letters::default()))).unwrap();
    resume(None).unwrap();
    resume(Some(Arc::new(Waiting))).unwrap();
    let error = resume(None).unwrap_err().to_string();
    let expected = "the checkpoint has sink \"dead letters\", which the program does not have";
    assert!(error.contains(expected), "{error}");
    resume(Some(Arc::new(Waiting))).unwrap();
}

/// Aggregates numbers by key in windows that are open at the end, and in a state of the same types for each key.
fn aggregate<K: Key + Default + Debug, A: Aggregate<u64>>(
    store: &Arc<MemoryStore>,
    resume: Resume,
    windows: Windows,
    aggregate: A,
) -> Result<(), FlowError>
where
    A::State: Default,
    A::Out: Debug,
{
    let settings = settings_of(store, resume, &Ranks::alone());
    let flow = Flow::with_settings("numbers", settings);
    let totals = flow.windowed("totals", windows, aggregate);
    let newest = flow.values::<K, A::State>("newest");
    let nothing = flow.partial::<u64>("nothing");
    let numbers = Hand::default();
    numbers.give([1, 2, 1]);
    numbers.end();
    let [to_totals, to_newest] = ["totals", "newest"].map(|name| flow.channel::<u64>(name));
    flow.source("numbers", numbers)
        .watermarks(|number| Timestamp(*number as i64), disorder(0))
        .to_all(&[to_totals.clone(), to_newest.clone()]);
    flow.stage("to totals", &to_totals)
        .key_by(|_| K::default())
        .aggregate("total", &totals, |number| Timestamp(*number as i64))
        .fold_local(&nothing, |_, _| ());
    flow.stage("to newest", &to_newest)
        .key_by(|_| K::default())
        .fold("set", &newest, |value, _| *value = A::State::default());
    flow.run()?.join().map(drop)
}

#[test]
fn types_of_state_that_is_saved_whole_are_compared() {
    let second = Windows::tumbling(1_000);
    let unsigned = || {
        fold(
            || 0_u64,
            |sum: &mut u64, number: &u64| *sum += number,
            |sum: &mut u64, other: &u64| *sum += other,
        )
    };
    let signed = || {
        fold(
            || 0_i64,
            |sum: &mut i64, number: &u64| *sum += *number as i64,
            |sum: &mut i64, other: &i64| *sum += other,
        )
    };
    let store = Arc::new(MemoryStore::default());
    aggregate::<u64, _>(&store, Resume::Never, second, unsigned()).unwrap();
    let shards = store.parts.lock().unwrap().clone();
    let always = Resume::Always;
    let lateness = second.allowed_lateness(1);
    // Each of these types reads the bytes of the other, as another number.
    let of_values = |found: &str, now: &str| {
        format!(
            "state \"newest\" has the types ({found}) in the checkpoint, and ({now}) in the program"
        )
    };
    for (resumed, types, is_of_values) in [
        (
            aggregate::<u64, _>(&store, always, second, signed()),
            "(u64, i64)",
            true,
        ),
        (
            aggregate::<i64, _>(&store, always, second, unsigned()),
            "(i64, u64)",
            true,
        ),
        (
            aggregate::<u64, _>(&store, always, second, Sum::of(|number: &u64| *number)),
            "(u64, i128)",
            true,
        ),
        (
            aggregate::<u64, _>(&store, always, lateness, unsigned()),
            "(u64, u64)",
            false,
        ),
    ] {
        let error = resumed.unwrap_err().to_string();
        let windows = if is_of_values { second } else { lateness };
        let expected = format!(
            "state \"totals\" has the types (u64, u64) in {second} in the checkpoint, and {types} in {windows} in the program"
        );
        assert!(error.contains(&expected), "{error}");
        let now = types.trim_matches(['(', ')']);
        let values = of_values("u64, u64", now);
        assert_eq!(error.contains(&values), is_of_values, "{error}");
        assert_eq!(*store.parts.lock().unwrap(), shards);
    }
    // Functions may change.
    let other = fold(
        || 0_u64,
        |sum: &mut u64, number: &u64| *sum += number + 1,
        |sum: &mut u64, other: &u64| *sum += other,
    );
    aggregate::<u64, _>(&store, always, second, other).unwrap();
}

//! Branches that go on within a stage.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{Emit, Flow, FlowSettings};
use proptest::prelude::*;

use crate::support::{Collect, Letters, disorder, settings};
use crate::windows::{self, Event, Outcome, sources};

/// The kind of fork.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fork {
    AtTheSource,
    BehindARing,
    /// Behind a ring, where one branch ends in a sink.
    IntoASink,
}

/// Numbers fork by their remainder modulo three: the first are doubled and go through a ring, the second into a sink,
/// the third are added up.
fn run(
    fork: Fork,
    items: u64,
    settings: FlowSettings,
    is_deadly: bool,
) -> (Vec<u64>, Vec<u64>, u64) {
    let (first_sink, first) = Collect::new();
    let (second_sink, second) = Collect::new();
    let mut sinks = (Some(first_sink), Some(second_sink));
    let flow = Flow::with_settings("forked", settings);
    let third = flow.partial::<u64>("third");
    let doubled = flow.channel::<u64>("doubled");
    // A sink in a branch makes the stage one for all workers; behind a channel of its own it does not.
    let into_sink = fork == Fork::IntoASink;
    let passed = if into_sink {
        doubled.clone()
    } else {
        flow.channel::<u64>("passed")
    };
    let names = ["first", "second", "third"];
    let route = |number: &u64| (number % 3) as usize;
    let numbers = Generator::new(|number| number).limit(items);
    macro_rules! build {
        () => {
            |branch, numbers| match branch {
                0 => numbers
                    .flat_map(|number: &u64, emit: &mut Emit<u64>| emit(&(2 * number)))
                    .to(&doubled),
                1 => match into_sink {
                    true => numbers.sink("second", sinks.1.take().unwrap()),
                    false => numbers.to(&passed),
                },
                _ => numbers.fold_local(&third, |sum, number| *sum += number),
            }
        };
    }
    let numbers = flow.source("numbers", numbers);
    match fork {
        Fork::AtTheSource => numbers.fork(&names, route, build!()),
        Fork::BehindARing | Fork::IntoASink => {
            numbers.boundary("fork").fork(&names, route, build!())
        }
    };
    if !into_sink {
        flow.stage("passed", &passed)
            .sink("second", sinks.1.take().unwrap());
    }
    flow.stage("doubled", &doubled)
        .sink("first", sinks.0.take().unwrap());
    let running = flow.run().unwrap();
    while is_deadly && !running.is_finished() {
        running.kill_workers(1);
        thread::sleep(Duration::from_micros(100));
    }
    let summary = running.join().unwrap();
    assert!(!is_deadly || summary.workers_replaced > 0);
    let (first, second) = (
        first.lock().unwrap().clone(),
        second.lock().unwrap().clone(),
    );
    (first, second, third.merged())
}

fn check(items: u64, (first, second, third): &(Vec<u64>, Vec<u64>, u64)) {
    let of = |rest| (0..items).filter(move |number| number % 3 == rest);
    assert!(first.iter().copied().eq(of(0).map(|number| 2 * number)));
    assert!(second.iter().copied().eq(of(1)));
    assert_eq!(*third, of(2).sum::<u64>());
}

/// Counts events in two branches, by whether their keys are even.
fn count(sources: &[Vec<Event>], windows: Windows, bound_ms: u64, workers: usize) -> Outcome {
    let kinds = ["even", "odd"];
    let flow = Flow::with_settings("counts", settings(workers, 7));
    let states = kinds.map(|kind| flow.windowed(&format!("{kind} counts"), windows, Count));
    let (sink, results) = Collect::new();
    let (late_sink, late) = Collect::new();
    let counted = flow.channel("counted");
    let late_events = flow.channel::<Event>("late");
    let generators = sources.iter().map(|events| {
        let (events, count) = (events.clone(), events.len() as u64);
        Generator::new(move |number| events[number as usize]).limit(count)
    });
    flow.sources("events", generators)
        .watermarks(|(_, time)| Timestamp(*time), disorder(bound_ms))
        .fork(
            &kinds,
            |(key, _)| (key % 2) as usize,
            |branch, events| {
                events
                    .key_by(|(key, _)| *key)
                    .late_to(&late_events)
                    .aggregate(kinds[branch], &states[branch], |(_, time)| Timestamp(*time))
                    .to(&counted)
            },
        );
    flow.stage("counted", &counted).sink("results", sink);
    flow.stage("late", &late_events).sink("late", late_sink);
    flow.run().unwrap().join().unwrap();
    Outcome {
        results: results.lock().unwrap().clone(),
        late: late.lock().unwrap().clone(),
        late_events: states.iter().map(|state| state.late_events()).sum(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn each_branch_gets_its_items_in_order(
        fork in prop_oneof![
            Just(Fork::AtTheSource),
            Just(Fork::BehindARing),
            Just(Fork::IntoASink),
        ],
        items in 0u64..3000,
        workers in 1usize..4,
    ) {
        check(items, &run(fork, items, settings(workers, 7), false));
    }

    #[test]
    fn windows_in_branches_and_at_the_source_find_the_same_items_late(
        sources in sources(3),
        size_ms in 1i64..300,
        bound_ms in 0u64..2500,
        workers in 1usize..4,
    ) {
        let windows = Windows::tumbling(size_ms);
        let outcome = count(&sources, windows, bound_ms, workers);
        windows::check(outcome, &sources, windows, bound_ms);
    }
}

#[test]
fn killed_workers_change_no_result_of_branches() {
    const ITEMS: u64 = 150_000;
    for fork in [Fork::AtTheSource, Fork::BehindARing, Fork::IntoASink] {
        check(ITEMS, &run(fork, ITEMS, settings(3, 64), true));
    }
}

#[test]
fn only_the_item_on_which_a_branch_panics_becomes_a_dead_letter() {
    let letters = Arc::new(Letters::default());
    let settings = FlowSettings {
        dead_letters: Some(letters.clone()),
        ..settings(1, 64)
    };
    let flow = Flow::with_settings("panics", settings);
    let sums = ["even", "odd"].map(|name| flow.partial::<u64>(name));
    flow.source("numbers", Generator::new(|number| number).limit(1000))
        .fork(
            &["even", "odd"],
            |number| {
                assert_ne!(*number, 500, "nowhere");
                (number % 2) as usize
            },
            |branch, numbers| {
                numbers
                    .map(move |number| {
                        assert!(number % 100 != 7, "not this one");
                        *number
                    })
                    .fold_local(&sums[branch], |sum, number| *sum += number)
            },
        );
    flow.run().unwrap().join().unwrap();
    let sum_of = |numbers: &dyn Fn(&u64) -> bool| (0..1000).filter(|n| numbers(n)).sum::<u64>();
    assert_eq!(sums[0].merged(), sum_of(&|n| n % 2 == 0 && *n != 500));
    assert_eq!(sums[1].merged(), sum_of(&|n| n % 2 == 1 && n % 100 != 7));
    let letters = letters.0.lock().unwrap();
    let mut said: Vec<_> = letters
        .iter()
        .map(|letter| (letter.operator.to_string(), letter.item.clone()))
        .collect();
    said.sort();
    let sevens = (0..10).map(|hundred| {
        (
            "numbers/odd/1.map".to_owned(),
            (100 * hundred + 7).to_string(),
        )
    });
    let mut expected: Vec<_> = sevens.collect();
    expected.push(("numbers/0.fork".to_owned(), "500".to_owned()));
    expected.sort();
    assert_eq!(said, expected);
}

#[test]
fn the_error_names_a_branch_without_an_output() {
    let flow = Flow::new("f");
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", Generator::new(|number| number).limit(1))
        .fork(
            &["some", "others"],
            |_| 0,
            |branch, numbers| match branch {
                0 => numbers.fold_local(&sum, |sum, number| *sum += number),
                _ => {
                    drop(numbers);
                    flow.clone()
                }
            },
        );
    let error = flow.run().err().unwrap();
    assert!(error.to_string().contains("numbers/others"), "{error}");
}

#[test]
fn branches_that_write_to_one_channel_do_not_take_each_others_room() {
    let flow = Flow::with_settings("shared", settings(2, 8));
    let numbers = flow.channel::<u64>("numbers");
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", Generator::new(|number| number).limit(20_000))
        .boundary("behind")
        .fork(
            &["even", "odd"],
            |number| (number % 2) as usize,
            |_, part| part.to(&numbers),
        );
    flow.stage("add", &numbers)
        .fold_local(&sum, |sum, number| *sum += number);
    flow.run().unwrap().join().unwrap();
    assert_eq!(sum.merged(), (0..20_000).sum::<u64>());
}

#[test]
fn a_fork_behind_no_source_ends() {
    let flow = Flow::new("none");
    let numbers = flow.channel::<u64>("numbers");
    let sum = flow.partial::<u64>("sum");
    flow.sources("none", Vec::<Generator<fn(u64) -> u64>>::new())
        .fork(&["all"], |_| 0, |_, all| all.to(&numbers));
    flow.stage("add", &numbers)
        .fold_local(&sum, |sum, number| *sum += number);
    flow.run().unwrap().join().unwrap();
    assert_eq!(sum.merged(), 0);
}

#[test]
fn a_dead_letter_of_a_branch_stays_when_its_item_panics_afterwards() {
    let letters = Arc::new(Letters::default());
    let settings = FlowSettings {
        dead_letters: Some(letters.clone()),
        ..settings(1, 64)
    };
    let flow = Flow::with_settings("panics", settings);
    let count = flow.partial::<u64>("count");
    flow.source("one", Generator::new(|number| number).limit(1))
        .flat_map(|_, emit: &mut Emit<u64>| {
            (0..1000).for_each(|number| emit(&number));
            panic!("at the end");
        })
        .fork(
            &["all"],
            |_| 0,
            |_, all| {
                all.map(|number| assert_ne!(*number, 7, "not this one"))
                    .fold_local(&count, |count, ()| *count += 1)
            },
        );
    flow.run().unwrap().join().unwrap();
    assert_eq!(count.merged(), 999);
    let letters = letters.0.lock().unwrap();
    let mut said: Vec<_> = letters.iter().map(|letter| letter.error.clone()).collect();
    said.sort();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].contains("not this one") && said[1].contains("at the end"),
        "{said:?}"
    );
}

/// Panics when the last of its clones is dropped that a branch had.
#[derive(Debug, Clone)]
struct PanicsOnDrop(Arc<u64>);

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        let is_copy = Arc::strong_count(&self.0) > 1;
        assert!(*self.0 != 7 || !is_copy, "not this one");
    }
}

#[test]
fn an_item_whose_clone_panics_in_drop_is_processed_once() {
    let letters = Arc::new(Letters::default());
    let settings = FlowSettings {
        dead_letters: Some(letters.clone()),
        ..settings(1, 64)
    };
    let flow = Flow::with_settings("drops", settings);
    let sum = flow.partial::<u64>("sum");
    let numbers = Generator::new(|number| PanicsOnDrop(Arc::new(number)));
    flow.source("numbers", numbers.limit(1000)).fork(
        &["all"],
        |_| 0,
        |_, all| all.fold_local(&sum, |sum, number| *sum += *number.0),
    );
    flow.run().unwrap().join().unwrap();
    assert_eq!(sum.merged(), (0..1000).sum::<u64>());
    assert_eq!(letters.0.lock().unwrap().len(), 1);
}

//! Branches that go on within a stage.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{Emit, Flow, FlowSettings};
use proptest::prelude::*;

use crate::support::{Collect, Letters, settings};
use crate::windows::{self, Event, Outcome, disorder, sources};

/// Where numbers fork.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fork {
    AtTheSource,
    BehindARing,
}

/// Numbers fork by what is left of them when they are divided by three: the first are doubled and go through a
/// ring, the second into a sink, the third are added up.
fn run(
    fork: Fork,
    items: u64,
    settings: FlowSettings,
    is_deadly: bool,
) -> (Vec<u64>, Vec<u64>, u64) {
    let (first_sink, first) = Collect::new();
    let (second_sink, second) = Collect::new();
    let mut sinks = (Some(first_sink), Some(second_sink));
    let mut flow = Flow::with_settings("forked", settings);
    let third = flow.partial::<u64>("third");
    let doubled = flow.channel::<u64>("doubled");
    let names = ["first", "second", "third"];
    let route = |number: &u64| (number % 3) as usize;
    let numbers = Generator::new(|number| number).limit(items);
    macro_rules! build {
        () => {
            |branch, numbers| match branch {
                0 => numbers
                    .flat_map(|number: &u64, emit: &mut Emit<u64>| emit(&(2 * number)))
                    .to(&doubled),
                1 => numbers.sink("second", sinks.1.take().unwrap()),
                _ => numbers.fold_local(&third, |sum, number| *sum += number),
            }
        };
    }
    let numbers = flow.source("numbers", numbers);
    match fork {
        Fork::AtTheSource => numbers.fork(&names, route, build!()),
        Fork::BehindARing => numbers.boundary("fork").fork(&names, route, build!()),
    }
    flow.stage("doubled", &doubled)
        .sink("first", sinks.0.take().unwrap());
    let running = flow.run().unwrap();
    while is_deadly && !running.is_finished() {
        running.kill_workers(1);
        thread::sleep(Duration::from_micros(100));
    }
    running.join().unwrap();
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
    let mut flow = Flow::with_settings("counts", settings(workers, 7));
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
                    .to(&counted);
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
    fn each_branch_gets_its_items_in_their_order(
        fork in prop_oneof![Just(Fork::AtTheSource), Just(Fork::BehindARing)],
        items in 0u64..3000,
        workers in 1usize..4,
    ) {
        check(items, &run(fork, items, settings(workers, 7), false));
    }

    #[test]
    fn windows_in_branches_find_late_what_is_late_at_its_source(
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
fn killed_workers_change_nothing_in_branches() {
    const ITEMS: u64 = 150_000;
    for fork in [Fork::AtTheSource, Fork::BehindARing] {
        check(ITEMS, &run(fork, ITEMS, settings(3, 64), true));
    }
}

#[test]
fn what_a_branch_panics_on_is_a_dead_letter_and_all_else_goes_its_way() {
    let letters = Arc::new(Letters::default());
    let settings = FlowSettings {
        dead_letters: Some(letters.clone()),
        ..settings(1, 64)
    };
    let mut flow = Flow::with_settings("panics", settings);
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
                    .fold_local(&sums[branch], |sum, number| *sum += number);
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
fn a_branch_that_leads_nowhere_is_named() {
    let mut flow = Flow::new("f");
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", Generator::new(|number| number).limit(1))
        .fork(
            &["some", "others"],
            |_| 0,
            |branch, numbers| match branch {
                0 => numbers.fold_local(&sum, |sum, number| *sum += number),
                _ => drop(numbers),
            },
        );
    let error = flow.run().err().unwrap();
    assert!(error.to_string().contains("numbers/others"), "{error}");
}

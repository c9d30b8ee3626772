//! Operators behind a type that can be named.

use std::sync::Arc;

use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{Flow, FlowSettings, Order, Pipeline};

use crate::shapes::{generators, own};
use crate::support::{Collect, Letters, disorder, on_ranks, settings};
use crate::windows::{Event, Outcome, check, sources};
use proptest::prelude::*;

type Pairs = Vec<(u64, u64)>;

fn numbers(flow: &Flow, sources: u64, limit: u64) -> Pipeline<(u64, u64)> {
    let source = |source| Generator::new(move |number| (source, number)).limit(limit);
    flow.sources("numbers", (0..sources).map(source))
        .filter(|(_, number)| number % 3 > 0)
        .boxed()
}

/// Behind as many boxes as that.
fn boxed(mut pairs: Pipeline<(u64, u64)>, boxes: usize) -> Pipeline<(u64, u64)> {
    for _ in 0..boxes {
        pairs = pairs
            .map(|(source, number)| (*source, number + 1))
            .map(|(source, number)| (*source, number - 1))
            .boxed();
    }
    pairs
}

fn collected(order: Order, sources: u64, limit: u64, boxes: usize) -> Pairs {
    let (sink, results) = Collect::new();
    let settings = FlowSettings {
        order,
        ..settings(3, 16)
    };
    let flow = Flow::with_settings("boxes", settings);
    boxed(numbers(&flow, sources, limit), boxes).sink("results", sink);
    flow.run().unwrap().join().unwrap();
    results.lock().unwrap().clone()
}

fn expected(sources: u64, limit: u64) -> Pairs {
    let all = (0..sources).flat_map(|source| (0..limit).map(move |number| (source, number)));
    all.filter(|(_, number)| number % 3 > 0).collect()
}

#[test]
fn a_box_keeps_the_order_of_each_source() {
    for boxes in [0, 1, 3] {
        let mut results = collected(Order::Kept, 3, 2_000, boxes);
        // A stable sort leaves the order of each source.
        results.sort_by_key(|(source, _)| *source);
        assert_eq!(results, expected(3, 2_000), "{boxes} boxes");
        let mut results = collected(Order::Free, 3, 2_000, boxes);
        results.sort_unstable();
        assert_eq!(results, expected(3, 2_000), "{boxes} boxes");
    }
}

#[test]
fn a_box_without_sources_ends() {
    assert_eq!(collected(Order::Kept, 0, 10, 2), []);
}

#[test]
fn a_box_without_an_output_is_refused() {
    let flow = Flow::new("boxes");
    let _ = numbers(&flow, 1, 10);
    let sum = flow.partial::<u64>("sum");
    flow.source("others", Generator::new(|number| number).limit(10))
        .boxed()
        .fold_local(&sum, |sum, number| *sum += number);
    assert_eq!(
        flow.run().err().unwrap().to_string(),
        "flow \"boxes\": the results of \"numbers\" go nowhere; end it with a sink or a state"
    );
}

#[test]
fn order_is_kept_behind_a_box_that_reads_a_ring() {
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("boxes", settings(4, 16));
    let pairs = numbers(&flow, 1, 5_000);
    let pairs = pairs.boundary("second").map(|pair| *pair).boxed();
    boxed(pairs, 1).boundary("third").sink("results", sink);
    flow.run().unwrap().join().unwrap();
    assert_eq!(*results.lock().unwrap(), expected(1, 5_000));
}

#[test]
fn panics_before_and_behind_a_box_become_dead_letters() {
    let letters = Arc::new(Letters::default());
    let settings = FlowSettings {
        dead_letters: Some(Arc::clone(&letters) as _),
        ..settings(2, 16)
    };
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("boxes", settings);
    flow.source("numbers", Generator::new(|number| number).limit(1_000))
        .map(|number| {
            assert_ne!(*number, 500);
            *number
        })
        .boxed()
        .map(|number| {
            assert_ne!(*number, 700);
            *number
        })
        .sink("results", sink);
    flow.run().unwrap().join().unwrap();
    let expected: Vec<u64> = (0..1_000)
        .filter(|number| ![500, 700].contains(number))
        .collect();
    assert_eq!(*results.lock().unwrap(), expected);
    let letters = letters.0.lock().unwrap();
    let operators: Vec<_> = letters
        .iter()
        .map(|letter| (&*letter.operator, letter.item.as_str()))
        .collect();
    assert_eq!(
        operators,
        [("numbers/1.map", "500"), ("numbers/2.map", "700")]
    );
}

#[test]
fn a_box_forks_and_a_branch_has_boxes() {
    let flow = Flow::with_settings("boxes", settings(2, 16));
    let sums = ["even", "odd"].map(|name| flow.partial::<u64>(name));
    numbers(&flow, 2, 3_000).fork(
        &["even", "odd"],
        |(_, number)| (number % 2) as usize,
        |branch, pairs| {
            boxed(pairs.boxed(), 2).fold_local(&sums[branch], |sum, (_, number)| *sum += number)
        },
    );
    flow.run().unwrap().join().unwrap();
    let sum = |rest| -> u64 {
        let numbers = expected(2, 3_000).into_iter().map(|(_, number)| number);
        numbers.filter(|number| number % 2 == rest).sum()
    };
    assert_eq!(sums.map(|sum| sum.merged()), [sum(0), sum(1)]);
}

/// Counts the items of a box by key and window.
fn counted(
    sources: &[Vec<Event>],
    windows: Windows,
    bound_ms: u64,
    settings: FlowSettings,
) -> Outcome {
    let (sink, results) = Collect::new();
    let (late_sink, late) = Collect::new();
    let flow = Flow::with_settings("boxes", settings);
    let state = flow.windowed("counts", windows, Count);
    let late_events = flow.channel::<Event>("late");
    let time = |(_, time): &Event| Timestamp(*time);
    flow.sources("events", generators(sources))
        .watermarks(time, disorder(bound_ms))
        .boxed()
        .key_by(|(key, _)| *key)
        .late_to(&late_events)
        .aggregate("count", &state, time)
        .boxed()
        .sink("results", sink);
    flow.stage("late", &late_events).sink("late", late_sink);
    flow.run().unwrap().join().unwrap();
    Outcome {
        results: results.lock().unwrap().clone(),
        late: late.lock().unwrap().clone(),
        late_events: state.late_events(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn each_item_behind_a_box_is_counted_in_its_window_or_is_late(
        sources in sources(4),
        size_ms in 1i64..300,
        bound_ms in 0u64..2500,
        ranks in 1u32..4,
        workers in 1usize..4,
    ) {
        let windows = Windows::tumbling(size_ms);
        let outcomes = on_ranks(ranks, |ranks| {
            let settings = FlowSettings {
                ranks: ranks.clone(),
                ..settings(workers, 7)
            };
            counted(&own(ranks, &sources), windows, bound_ms, settings)
        });
        let mut sum = Outcome::default();
        for outcome in outcomes {
            sum.results.extend(outcome.results);
            sum.late.extend(outcome.late);
            sum.late_events += outcome.late_events;
        }
        check(sum, &sources, windows, bound_ms);
    }
}

//! The results of a graph do not depend on its division into stages or on its workers.

use millstream_flow::sources::Generator;
use millstream_flow::{Counts, Emit, Flow, FlowError};
use proptest::prelude::*;

use crate::support::{Collect, settings};

fn repeat(number: &u64, emit: &mut Emit<u64>) {
    (0..number % 5).for_each(|index| emit(&(number * 10 + index)));
}

fn expected(items: u64) -> Vec<u64> {
    (0..items)
        .map(|number| number * 3)
        .filter(|number| number % 2 == 0)
        .flat_map(|number| (0..number % 5).map(move |index| number * 10 + index))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn fused_operators_equal_iterators(items in 0u64..2000, workers in 1usize..4) {
        let (sink, collected) = Collect::new();
        let flow = Flow::with_settings("fused", settings(workers, 16));
        flow.source("numbers", Generator::new(|number| number).limit(items))
            .map(|number| number * 3)
            .filter(|number| number % 2 == 0)
            .flat_map(repeat)
            .sink("collect", sink);
        let summary = flow.run().unwrap().join().unwrap();
        prop_assert_eq!(&*collected.lock().unwrap(), &expected(items));
        prop_assert_eq!(summary.stages.len(), 1);
        prop_assert_eq!(summary.stages[0].items_in, items);
        prop_assert_eq!(summary.stages[0].items_out, collected.lock().unwrap().len() as u64);
    }

    #[test]
    fn stages_with_tiny_rings_give_the_same_results(
        items in 0u64..2000, workers in 1usize..4, ring_items in 1usize..5
    ) {
        let (sink, collected) = Collect::new();
        let flow = Flow::with_settings("stages", settings(workers, ring_items));
        flow.source("numbers", Generator::new(|number| number).limit(items))
            .boundary("triple")
            .map(|number| number * 3)
            .boundary("even")
            .filter(|number| number % 2 == 0)
            .boundary("repeat")
            .flat_map(repeat)
            .boundary("end")
            .sink("collect", sink);
        flow.run().unwrap().join().unwrap();
        prop_assert_eq!(&*collected.lock().unwrap(), &expected(items));
    }
}

#[test]
fn the_partial_states_of_all_workers_are_merged() {
    let flow = Flow::with_settings("parts", settings(3, 8));
    let counts = flow.partial::<Counts>("counts");
    let sources = (0..4).map(|_| Generator::new(|number| number).limit(1000));
    flow.sources("numbers", sources)
        .boundary("count")
        .map(|number| format!("key {}", number % 7))
        .fold_local(&counts, |counts, key| counts.add(key.as_bytes(), 1));
    let running = flow.run().unwrap();
    running.join().unwrap();
    let merged = counts.merged();
    assert_eq!(merged.iter().map(|(_, count)| count).sum::<u64>(), 4000);
    assert_eq!(merged.top(2), [(b"key 0".as_slice(), 572), (b"key 1", 572)]);
    let state = running.state("counts").unwrap();
    assert_eq!(state.get("key 6"), Some((4 * 142).into()));
    assert_eq!(state.get("key 7"), None);
    assert_eq!((state.keys(100).len(), state.keys(3).len()), (7, 3));
    assert!(running.state("other").is_none());
}

#[test]
fn the_empty_flow_is_an_error() {
    assert!(matches!(Flow::new("f").run(), Err(FlowError::Empty { .. })));
}

#[test]
fn a_flow_runs_once_although_several_handles_start_it() {
    let flow = Flow::new("f");
    let sum = flow.partial::<u64>("sum");
    let running = flow
        .source("numbers", Generator::new(|number| number).limit(10))
        .fold_local(&sum, |sum, number| *sum += number)
        .run()
        .unwrap();
    running.join().unwrap();
    assert_eq!(sum.merged(), 45);
    flow.source("more", Generator::new(|number| number).limit(10))
        .fold_local(&sum, |sum, number| *sum += number);
    let error = flow.run().err().unwrap();
    assert_eq!(
        error.to_string(),
        "flow \"f\" has run already: build a new one"
    );
}

#[test]
fn the_error_names_operators_without_an_output() {
    let flow = Flow::new("f");
    let numbers = flow.source("numbers", Generator::new(|number| number));
    drop(numbers.boundary("next"));
    let error = flow.run().err().unwrap();
    assert!(error.to_string().contains("\"next\""), "{error}");
}

#[test]
fn a_name_that_is_used_twice_is_an_error() {
    let flow = Flow::new("f");
    let count = flow.partial::<u64>("count");
    for _ in 0..2 {
        flow.source("numbers", Generator::new(|number| number).limit(1))
            .fold_local(&count, |count, _| *count += 1);
    }
    let error = flow.run().err().unwrap();
    assert!(matches!(error, FlowError::DuplicateName { .. }), "{error}");
}

#[test]
fn an_operator_without_channels_or_branches_is_refused_by_name() {
    let numbers = |flow: &Flow| flow.source("source", Generator::new(|number| number).limit(1_000));
    let check = |kind: &str, build: &dyn Fn(&Flow)| {
        let flow = Flow::with_settings("numbers", settings(1, 16));
        build(&flow);
        let error = flow.run().err().unwrap();
        assert!(matches!(error, FlowError::NoOutputs { .. }), "{error}");
        let expected = format!(
            "flow \"numbers\": \"source/0.{kind}\" has no channels or branches to give its items to; name at least one"
        );
        assert_eq!(error.to_string(), expected);
    };
    check("split", &|flow| drop(numbers(flow).split(&[], |_| 0)));
    check("to_all", &|flow| drop(numbers(flow).to_all(&[])));
    check("fork", &|flow| {
        drop(numbers(flow).fork(&[], |_| 0, |_, _| unreachable!("there is no branch")));
    });
}

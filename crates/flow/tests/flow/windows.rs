//! Windows of a flow, on one rank and on several, against a dumb model.

use std::collections::BTreeMap;

use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{Flow, FlowError, FlowSettings, Order};
use proptest::prelude::*;

use crate::support::{Collect, disorder, on_ranks, settings, wait_until};

pub type Event = (u32, i64);
pub type Result = WindowResult<u32, u64>;

/// The results of one rank.
#[derive(Default)]
pub struct Outcome {
    pub results: Vec<Result>,
    pub late: Vec<Event>,
    pub late_events: u64,
}

/// Counts the events of some sources, each in order, by key and window.
pub fn run(
    sources: &[Vec<Event>],
    windows: Windows,
    bound_ms: u64,
    settings: FlowSettings,
) -> Outcome {
    let (sink, results) = Collect::new();
    let (late_sink, late) = Collect::new();
    let ranks = settings.ranks.count();
    let flow = Flow::with_settings("windows", settings);
    let state = flow.windowed("counts", windows, Count);
    let late_events = flow.channel::<Event>("late");
    let generators = sources.iter().map(|events| {
        let (events, count) = (events.clone(), events.len() as u64);
        Generator::new(move |number| events[number as usize]).limit(count)
    });
    flow.sources("events", generators)
        .watermarks(|(_, time)| Timestamp(*time), disorder(bound_ms))
        .key_by(|(key, _)| *key)
        .late_to(&late_events)
        .aggregate("count", &state, |(_, time)| Timestamp(*time))
        .sink("results", sink);
    flow.stage("late", &late_events).sink("late", late_sink);
    let running = flow.run().unwrap();
    let stages = running.join().unwrap().stages;
    let stage = |name: &str| stages.iter().find(|it| it.stage == name).unwrap();
    // Other ranks read items of this one, and this one reads theirs.
    if ranks == 1 {
        let read = stage("count").items_in + stage("late").items_in;
        assert_eq!(stage("events").items_out, read, "{stages:?}");
    }
    assert_eq!(stage("count").items_out, stage("count/results").items_in);
    let totals = state.totals();
    assert_eq!(
        totals.open_windows, 0,
        "the end of the input closes all windows"
    );
    let outcome = Outcome {
        results: results.lock().unwrap().clone(),
        late: late.lock().unwrap().clone(),
        late_events: state.late_events(),
    };
    assert_eq!(totals.closed_windows, outcome.results.len() as u64);
    outcome
}

/// The same on several ranks, each of which reads a share of the sources.
pub fn run_on_ranks(
    ranks: u32,
    sources: &[Vec<Event>],
    windows: Windows,
    bound_ms: u64,
) -> Outcome {
    let outcomes = on_ranks(ranks, |ranks| {
        let (rank, count) = (ranks.rank() as usize, ranks.count() as usize);
        let own: Vec<_> = sources.iter().skip(rank).step_by(count).cloned().collect();
        let settings = FlowSettings {
            ranks: ranks.clone(),
            ..settings(1 + rank % 2, 7)
        };
        run(&own, windows, bound_ms, settings)
    });
    let mut sum = Outcome::default();
    for outcome in outcomes {
        sum.results.extend(outcome.results);
        sum.late.extend(outcome.late);
        sum.late_events += outcome.late_events;
    }
    sum
}

/// The expected results: each window once, and the late items of each source.
fn model(
    sources: &[Vec<Event>],
    windows: Windows,
    bound_ms: u64,
) -> (BTreeMap<(u32, i64), u64>, Vec<Event>) {
    let (mut counts, mut late) = (BTreeMap::new(), Vec::new());
    for events in sources {
        let mut latest = i64::MIN;
        for (key, time) in events {
            latest = latest.max(*time);
            let pane = windows.pane_of(Timestamp(*time));
            if pane.end.0 <= latest.saturating_sub(bound_ms as i64) {
                late.push((*key, *time));
            } else {
                *counts.entry((*key, pane.start.0)).or_default() += 1;
            }
        }
    }
    late.sort_unstable();
    (counts, late)
}

pub fn check(outcome: Outcome, sources: &[Vec<Event>], windows: Windows, bound_ms: u64) {
    let (counts, late) = model(sources, windows, bound_ms);
    let mut found = BTreeMap::new();
    for result in &outcome.results {
        assert_eq!(result.value, result.events);
        let former = found.insert((result.key, result.start.0), result.value);
        assert_eq!(former, None, "a window gives one result");
    }
    assert_eq!(found, counts);
    assert_eq!(outcome.late_events, late.len() as u64);
    let mut late_items = outcome.late;
    late_items.sort_unstable();
    assert_eq!(late_items, late);
}

/// The last result of each window: updates replace earlier results.
pub fn settled(results: &[Result]) -> Vec<Result> {
    let mut settled: Vec<Result> = Vec::new();
    for result in results {
        let before = settled.len();
        let is_replaced = |other: &Result| {
            let is_same = (other.start, other.end) == (result.start, result.end);
            let is_within = other.start >= result.start && other.end <= result.end;
            other.key == result.key && (is_same || result.is_update && is_within)
        };
        settled.retain(|other| !is_replaced(other));
        assert_eq!(settled.len() < before, result.is_update, "{result:?}");
        settled.push(result.clone());
    }
    settled
}

pub fn sources(count: usize) -> impl Strategy<Value = Vec<Vec<Event>>> {
    let events = prop::collection::vec((0u32..10, -1000i64..1000), 0..700);
    prop::collection::vec(events, count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_item_is_counted_in_its_window_or_is_late(
        sources in sources(3),
        size_ms in 1i64..300,
        bound_ms in 0u64..2500,
        workers in 1usize..4,
    ) {
        let windows = Windows::tumbling(size_ms);
        let outcome = run(&sources, windows, bound_ms, settings(workers, 7));
        check(outcome, &sources, windows, bound_ms);
    }

    #[test]
    fn results_are_the_same_on_any_number_of_ranks(
        sources in sources(5),
        size_ms in 1i64..300,
        bound_ms in 0u64..2500,
        ranks in 1u32..5,
    ) {
        let windows = Windows::tumbling(size_ms);
        let outcome = run_on_ranks(ranks, &sources, windows, bound_ms);
        check(outcome, &sources, windows, bound_ms);
    }
}

#[test]
fn items_with_extreme_timestamps_are_counted() {
    let sources = [vec![(1, i64::MIN), (2, 0), (1, i64::MAX), (1, i64::MIN)]];
    let windows = Windows::tumbling(10_000);
    let outcome = run(&sources, windows, 1000, settings(2, 7));
    check(outcome, &sources, windows, 1000);
}

#[test]
fn open_windows_are_read_while_the_flow_runs_and_stay_open_when_it_stops() {
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("live", settings(2, 64));
    let state = flow.windowed("counts", Windows::tumbling(10_000), Count);
    // A millisecond for every ten events.
    flow.source(
        "events",
        Generator::new(|number| (number as u32 % 10, number as i64 / 10)),
    )
    .watermarks(|(_, time)| Timestamp(*time), disorder(0))
    .key_by(|(key, _)| *key)
    .aggregate("count", &state, |(_, time)| Timestamp(*time))
    .sink("results", sink);
    let running = flow.run().unwrap();
    wait_until("a window closes", || !results.lock().unwrap().is_empty());
    let reader = running.state("counts").unwrap();
    wait_until("all keys are known", || reader.keys(100).len() == 10);
    assert!(reader.get("3").unwrap()["events"].as_u64() > Some(0));
    assert_eq!((reader.get("10"), reader.get("three")), (None, None));
    assert_eq!(reader.keys(4).len(), 4);
    running.stop();
    let summary = running.join().unwrap();
    let totals = state.totals();
    assert!(totals.open_events > 0);
    assert_eq!(
        totals.open_events + totals.closed_events,
        summary.stages[0].items_in
    );
    let results = results.lock().unwrap();
    let closed: u64 = results.iter().map(|result| result.events).sum();
    assert_eq!(closed, totals.closed_events);
    assert_eq!(state.late_events(), 0);
}

#[test]
fn windows_without_watermarks_or_order_are_refused() {
    let build = |order, tells_time: bool| {
        let flow = Flow::with_settings(
            "refused",
            FlowSettings {
                order,
                ..settings(1, 8)
            },
        );
        let state = flow.windowed("counts", Windows::tumbling(10), Count);
        let (sink, _) = Collect::<Result>::new();
        let times = Generator::new(|number| (1u32, number as i64)).limit(10);
        match tells_time {
            true => flow
                .source("events", times)
                .watermarks(|(_, time)| Timestamp(*time), disorder(0))
                .key_by(|(key, _)| *key)
                .aggregate("count", &state, |(_, time)| Timestamp(*time))
                .sink("results", sink),
            false => flow
                .source("events", times)
                .key_by(|(key, _)| *key)
                .aggregate("count", &state, |(_, time)| Timestamp(*time))
                .sink("results", sink),
        };
        flow.run().err()
    };
    let message = |error: Option<FlowError>| error.unwrap().to_string();
    assert_eq!(
        message(build(Order::Kept, false)),
        "flow \"refused\": the windows of \"count\" close by event time, and source \"events\" emits no watermarks; add `.watermarks(…)` there"
    );
    assert_eq!(
        message(build(Order::Free, true)),
        "flow \"refused\": the windows of \"count\" close by event time, which needs Order::Kept"
    );
}

#[test]
fn a_second_operator_that_fills_a_window_state_is_refused() {
    let flow = Flow::new("taken");
    let state = flow.windowed::<u32, _>("counts", Windows::tumbling(10), Count);
    for name in ["one", "other"] {
        let (sink, _) = Collect::<Result>::new();
        flow.source(
            name,
            Generator::new(|number| (1u32, number as i64)).limit(10),
        )
        .watermarks(|(_, time)| Timestamp(*time), disorder(0))
        .key_by(|(key, _)| *key)
        .aggregate(&format!("count {name}"), &state, |(_, time)| {
            Timestamp(*time)
        })
        .sink(&format!("results {name}"), sink);
    }
    let error = flow.run().err().unwrap().to_string();
    assert!(error.contains("\"count other\" fills"), "{error}");
}

#[test]
fn items_split_into_one_channel_twice_are_counted_once() {
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("twice", settings(2, 8));
    let state = flow.windowed("counts", Windows::tumbling(10), Count);
    let numbers = flow.channel::<i64>("numbers");
    flow.source("events", Generator::new(|number| number as i64).limit(1000))
        .watermarks(|time| Timestamp(*time), disorder(0))
        .split(&[numbers.clone(), numbers.clone()], |time| {
            (*time % 2) as usize
        });
    flow.stage("count", &numbers)
        .aggregate("windows", &state, |time| Timestamp(*time))
        .sink("results", sink);
    flow.run().unwrap().join().unwrap();
    assert_eq!(state.late_events(), 0);
    let results = results.lock().unwrap();
    assert!(results.iter().all(|result| result.value == 10));
    assert_eq!(results.len(), 100);
}

#[test]
fn gathering_on_a_missing_rank_is_refused() {
    let flow = Flow::new("gather");
    let (sink, _) = Collect::<u64>::new();
    flow.source("numbers", Generator::new(|number| number).limit(10))
        .gather("gathered", 1)
        .sink("results", sink);
    let error = flow.run().err().unwrap().to_string();
    assert_eq!(
        error,
        "flow \"gather\": \"gathered\" gathers on rank 1, and there are 1, counted from 0"
    );
}

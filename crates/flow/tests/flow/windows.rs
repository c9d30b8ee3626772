//! Windows against a dumb model.

use std::collections::BTreeMap;

use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::{Flow, TumblingWindows, WindowResult};
use proptest::prelude::*;

use crate::support::{Collect, settings, wait_until};

type Event = (u32, i64);

/// Runs the events, in order, through windows.
fn run(
    events: &[Event],
    windows: TumblingWindows,
    workers: usize,
) -> (Vec<WindowResult<u32, u64>>, u64) {
    let (sink, results) = Collect::new();
    let mut flow = Flow::with_settings("windows", settings(workers, 7));
    let state = flow.windowed::<u32, u64>("counts", windows);
    let source = {
        let events = events.to_vec();
        Generator::new(move |number| events[number as usize])
    };
    flow.source("events", source.limit(events.len() as u64))
        .key_by(|(key, _)| *key)
        .count_in_windows("count", &state, |(_, time)| Timestamp(*time))
        .sink("results", sink);
    let running = flow.run().unwrap();
    running.join().unwrap();
    let results = results.lock().unwrap().clone();
    let totals = state.totals();
    assert_eq!(
        totals.open_events, 0,
        "the end of the input closes all windows"
    );
    assert_eq!(totals.closed_windows, results.len() as u64);
    assert_eq!(totals.closed_events, events.len() as u64);
    let late = results.iter().filter(|result| result.is_late);
    assert_eq!(
        totals.late_events,
        late.map(|result| result.events).sum::<u64>()
    );
    (results, totals.late_events)
}

fn sums(results: &[WindowResult<u32, u64>]) -> BTreeMap<(u32, i64), u64> {
    let mut sums = BTreeMap::new();
    for result in results {
        assert_eq!(result.value, result.events);
        *sums.entry((result.key, result.window_start.0)).or_default() += result.value;
    }
    sums
}

fn model(events: &[Event], size_ms: i64) -> BTreeMap<(u32, i64), u64> {
    let mut sums = BTreeMap::new();
    for (key, time) in events {
        *sums
            .entry((*key, time.div_euclid(size_ms) * size_ms))
            .or_default() += 1;
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_item_is_counted_once_in_its_window(
        events in prop::collection::vec((0u32..10, -1000i64..1000), 0..1500),
        size_ms in 1i64..300,
        lateness_ms in 0i64..300,
        workers in 1usize..4,
    ) {
        let (results, _) = run(&events, TumblingWindows { size_ms, lateness_ms }, workers);
        prop_assert_eq!(sums(&results), model(&events, size_ms));
    }

    /// Items that are out of order by no more than is allowed are never late, and every window
    /// gives one result.
    #[test]
    fn allowed_disorder_makes_nothing_late(
        delays in prop::collection::vec((0u32..10, 0i64..100), 0..1500),
        size_ms in 1i64..300,
        workers in 1usize..4,
    ) {
        let events: Vec<Event> =
            delays.iter().enumerate().map(|(now, (key, delay))| (*key, now as i64 - delay)).collect();
        let (results, late) = run(&events, TumblingWindows { size_ms, lateness_ms: 100 }, workers);
        prop_assert_eq!(late, 0);
        let expected = model(&events, size_ms);
        prop_assert_eq!(results.len(), expected.len());
        prop_assert_eq!(sums(&results), expected);
    }
}

#[test]
fn late_items_are_results_of_their_own() {
    // More than one slice, so that windows have closed before the last event comes.
    let mut events: Vec<Event> = (0..1000).map(|number| (1, number * 10)).collect();
    events.push((1, 5));
    let windows = TumblingWindows {
        size_ms: 1000,
        lateness_ms: 500,
    };
    let (results, late) = run(&events, windows, 1);
    assert_eq!(late, 1);
    let first: Vec<_> = results
        .iter()
        .filter(|result| result.window_start.0 == 0)
        .collect();
    assert_eq!((first[0].value, first[0].is_late), (100, false));
    assert_eq!((first[1].value, first[1].is_late), (1, true));
    assert_eq!(results.len(), 11);
}

#[test]
fn times_at_the_ends_of_the_range_are_counted() {
    let events = [(1, i64::MIN), (1, i64::MAX), (2, 0), (1, i64::MIN)];
    let windows = TumblingWindows {
        size_ms: 10_000,
        lateness_ms: 1000,
    };
    run(&events, windows, 2);
}

#[test]
fn open_windows_are_read_while_the_flow_runs_and_stay_open_when_it_stops() {
    let (sink, results) = Collect::new();
    let mut flow = Flow::with_settings("live", settings(2, 64));
    let windows = TumblingWindows {
        size_ms: 10_000,
        lateness_ms: 0,
    };
    let state = flow.windowed::<u32, u64>("counts", windows);
    // A millisecond for every ten events.
    flow.source(
        "events",
        Generator::new(|number| (number as u32 % 10, number as i64 / 10)),
    )
    .key_by(|(key, _)| *key)
    .count_in_windows("count", &state, |(_, time)| Timestamp(*time))
    .sink("results", sink);
    let running = flow.run().unwrap();
    wait_until("a window closes", || !results.lock().unwrap().is_empty());
    let reader = running.state("counts").unwrap();
    assert!(reader.get("3").unwrap()["events"].as_u64() > Some(0));
    assert_eq!((reader.get("10"), reader.get("three")), (None, None));
    assert_eq!((reader.keys(100).len(), reader.keys(4).len()), (10, 4));
    running.stop();
    let summary = running.join().unwrap();
    let totals = state.totals();
    assert!(totals.open_events > 0);
    assert_eq!(
        totals.open_events + totals.closed_events,
        summary.stages[0].items_out
    );
    let closed: u64 = results
        .lock()
        .unwrap()
        .iter()
        .map(|result| result.events)
        .sum();
    assert_eq!(closed, totals.closed_events);
    assert_eq!(totals.late_events, 0);
}

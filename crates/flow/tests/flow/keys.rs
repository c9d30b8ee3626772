//! Keys of any type, and windows that have none.

use std::collections::BTreeMap;
use std::fmt::Debug;

use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::windows::{All, Count, Key, WindowResult, Windows};
use millstream_flow::{Flow, FlowSettings};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::shapes::{generators, own};
use crate::support::{Collect, disorder, on_ranks, settings};
use crate::windows::{Event, sources};

const WINDOW_MS: i64 = 100;

fn time((_, time): &Event) -> Timestamp {
    Timestamp(*time)
}

fn start((_, time): &Event) -> i64 {
    time.div_euclid(WINDOW_MS) * WINDOW_MS
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
enum Kind {
    Even,
    Odd { rest: u32 },
}

fn kind(key: u32) -> Kind {
    match key % 2 {
        0 => Kind::Even,
        _ => Kind::Odd { rest: key % 3 },
    }
}

type Counts<K> = BTreeMap<(K, i64), u64>;

fn settings_of(ranks: &Ranks) -> FlowSettings {
    FlowSettings {
        ranks: ranks.clone(),
        ..settings(2, 7)
    }
}

/// Counts by key, and the state under the texts of keys.
fn count_by<K: Key + Ord + Debug>(
    ranks: &Ranks,
    sources: &[Vec<Event>],
    key: impl Fn(u32) -> K + Send + Sync + 'static,
) -> (Counts<K>, BTreeMap<String, Value>) {
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("keys", settings_of(ranks));
    let state = flow.windowed("counts", Windows::tumbling(WINDOW_MS), Count);
    flow.sources("events", generators(&own(ranks, sources)))
        .watermarks(time, disorder(2500))
        .key_by(move |(number, _)| key(*number))
        .aggregate("count", &state, time)
        .sink("results", sink);
    let running = flow.run().unwrap();
    running.join().unwrap();
    let mut counts = Counts::new();
    for result in &*results.lock().unwrap() {
        let result: &WindowResult<K, u64> = result;
        let former = counts.insert((result.key.clone(), result.start.0), result.value);
        assert_eq!(former, None, "a window gives one result");
    }
    let reader = running.state("counts").unwrap();
    let entry = |key: String| (key.clone(), reader.get(&key).expect("a listed key"));
    (counts, reader.keys(1000).into_iter().map(entry).collect())
}

fn check_keys<K: Key + Ord + Debug>(
    ranks: u32,
    sources: &[Vec<Event>],
    key: impl Fn(u32) -> K + Send + Sync + Copy + 'static,
    text: impl Fn(&K) -> String,
) {
    let mut expected = Counts::new();
    for event in sources.iter().flatten() {
        *expected.entry((key(event.0), start(event))).or_default() += 1;
    }
    let (mut found, mut read) = (Counts::new(), BTreeMap::new());
    for (counts, entries) in on_ranks(ranks, |ranks| count_by(ranks, sources, key)) {
        found.extend(counts);
        read.extend(entries);
    }
    assert_eq!(found, expected);
    let newest: BTreeMap<String, Value> = expected
        .into_iter()
        .map(|((key, start), count)| {
            let value = json!({
                "window_start": start,
                "window_end": start + WINDOW_MS,
                "value": count,
                "events": count,
            });
            (text(&key), value)
        })
        .collect();
    assert_eq!(read, newest, "state is read by the keys' texts");
}

/// Counts all items, without a key.
fn count_all(
    ranks: &Ranks,
    sources: &[Vec<Event>],
    windows: Windows,
) -> Vec<WindowResult<All, u64>> {
    let (sink, results) = Collect::new();
    let (late_sink, late) = Collect::new();
    let flow = Flow::with_settings("all", settings_of(ranks));
    let state = flow.windowed("counts", windows, Count);
    let late_events = flow.channel::<Event>("late");
    flow.sources("events", generators(&own(ranks, sources)))
        .watermarks(time, disorder(2500))
        .late_to(&late_events)
        .aggregate("count", &state, time)
        .gather("gathered", 0)
        .sink("results", sink);
    flow.stage("late", &late_events).sink("late", late_sink);
    flow.run().unwrap().join().unwrap();
    assert!(late.lock().unwrap().is_empty());
    results.lock().unwrap().clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn pairs_and_enums_can_be_keys(sources in sources(3), ranks in 1u32..4) {
        check_keys(ranks, &sources, |number| (number, "tea"[..(number % 3) as usize].to_owned()), |(number, word)| {
            format!("[{number},\"{word}\"]")
        });
        check_keys(ranks, &sources, kind, |kind| match kind {
            Kind::Even => "Even".to_owned(),
            Kind::Odd { rest } => format!("{{\"Odd\":{{\"rest\":{rest}}}}}"),
        });
    }

    #[test]
    fn windows_over_all_items_have_one_result_on_any_number_of_ranks(
        sources in sources(4),
        ranks in 1u32..4,
    ) {
        let windows = Windows::tumbling(WINDOW_MS);
        let mut parts = on_ranks(ranks, |ranks| count_all(ranks, &sources, windows));
        prop_assert!(parts.iter().skip(1).all(Vec::is_empty));
        let mut expected = BTreeMap::<i64, u64>::new();
        for event in sources.iter().flatten() {
            *expected.entry(start(event)).or_default() += 1;
        }
        let found: Vec<_> = parts.swap_remove(0).iter().map(|result| (result.start.0, result.value)).collect();
        prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "in the order of their ends");
    }
}

#[test]
fn a_result_over_all_items_shows_no_key() {
    let result = WindowResult {
        key: All,
        start: Timestamp(0),
        end: Timestamp(10),
        value: 3_u64,
        events: 3,
        time_max: Timestamp(9),
        is_update: false,
    };
    let text = serde_json::to_value(&result).unwrap();
    assert_eq!(
        text,
        json!({ "start": 0, "end": 10, "value": 3, "events": 3, "time_max": 9, "is_update": false })
    );
    assert_eq!(
        serde_json::from_value::<WindowResult<All, u64>>(text).unwrap(),
        result
    );
    let with_key = json!({ "key": 7, "start": 0, "end": 10, "value": 3, "events": 3, "time_max": 9, "is_update": false });
    let read: WindowResult<u8, u64> = serde_json::from_value(with_key.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), with_key);
    let missing = json!({ "start": 0, "end": 10, "value": 3, "events": 3, "time_max": 9, "is_update": false });
    assert!(serde_json::from_value::<WindowResult<u8, u64>>(missing).is_err());
}

/// Start and end of a window, and its busiest keys with their counts.
type Busiest = (i64, i64, Vec<(u32, u64)>);

fn busiest_on(
    ranks: &Ranks,
    sources: &[Vec<Event>],
    windows: Windows,
    count: usize,
) -> Vec<Busiest> {
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("busiest", settings_of(ranks));
    let counts = flow.windowed("counts", windows, Count);
    flow.sources("events", generators(&own(ranks, sources)))
        .watermarks(time, disorder(2500))
        .key_by(|(key, _)| *key)
        .aggregate("count", &counts, time)
        .top("busiest", count, |window| window.value)
        .gather("gathered", 0)
        .sink("results", sink);
    let running = flow.run().unwrap();
    running.join().unwrap();
    let state = running.state("busiest").unwrap();
    let results: Vec<WindowResult<All, Vec<WindowResult<u32, u64>>>> =
        results.lock().unwrap().clone();
    if let (1, Some(last)) = (ranks.count(), results.last()) {
        let newest = state.get("all").unwrap();
        let value = serde_json::to_value(&last.value).unwrap();
        assert_eq!(newest["window_start"], last.start.0);
        assert_eq!(
            (&newest["window_end"], &newest["value"]),
            (&json!(last.end), &value)
        );
    }
    let keys = |result: &WindowResult<All, Vec<WindowResult<u32, u64>>>| {
        let keys = result.value.iter().map(|window| (window.key, window.value));
        (result.start.0, result.end.0, keys.collect())
    };
    results.iter().map(keys).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_busiest_keys_of_each_window_equal_the_models(
        sources in sources(3),
        slide in prop_oneof![Just(250i64), Just(130), Just(77)],
        count in 1usize..5,
        ranks in 1u32..4,
    ) {
        let size = 250;
        let windows = Windows::sliding(size, slide);
        let mut parts = on_ranks(ranks, |ranks| busiest_on(ranks, &sources, windows, count));
        let mut counts = BTreeMap::<i64, BTreeMap<u32, u64>>::new();
        for (key, time) in sources.iter().flatten() {
            let mut start = time.div_euclid(slide) * slide;
            while start + size > *time {
                *counts.entry(start).or_default().entry(*key).or_default() += 1;
                start -= slide;
            }
        }
        let expected: Vec<_> = counts
            .into_iter()
            .map(|(start, counts)| {
                let mut keys: Vec<_> = counts.into_iter().collect();
                // Keys below 128 are one byte each.
                keys.sort_by_key(|(key, count)| (std::cmp::Reverse(*count), *key));
                keys.truncate(count);
                (start, start + size, keys)
            })
            .collect();
        prop_assert_eq!(parts.swap_remove(0), expected);
    }
}

//! Windows behind boundaries, splits, merges and other windows, and behind joins and gathers.

use std::collections::BTreeMap;

use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Joined, Side, Windows, reduce};
use millstream_flow::{Flow, FlowSettings, Table};
use proptest::prelude::*;

use crate::support::{Collect, Hand, disorder, on_ranks, settings, wait_until};
use crate::windows::{Event, Outcome, Result, sources};

const WINDOW_MS: i64 = 100;

/// A bound of the disorder with which nothing is late.
const ANY_DISORDER_MS: u64 = 2_500;

pub type Generators = Vec<Generator<Box<dyn FnMut(u64) -> Event + Send>>>;

pub fn generators(sources: &[Vec<Event>]) -> Generators {
    let generator = |events: &Vec<Event>| {
        let (events, count) = (events.clone(), events.len() as u64);
        let make: Box<dyn FnMut(u64) -> Event + Send> =
            Box::new(move |number| events[number as usize]);
        Generator::new(make).limit(count)
    };
    sources.iter().map(generator).collect()
}

/// A rank's share of the sources.
pub fn own(ranks: &Ranks, sources: &[Vec<Event>]) -> Vec<Vec<Event>> {
    let (rank, count) = (ranks.rank() as usize, ranks.count() as usize);
    sources.iter().skip(rank).step_by(count).cloned().collect()
}

fn time((_, time): &Event) -> Timestamp {
    Timestamp(*time)
}

/// How many items there are by key and start of the window.
fn counts<'a>(events: impl IntoIterator<Item = &'a Event>) -> BTreeMap<(u32, i64), u64> {
    let mut counts = BTreeMap::new();
    for (key, time) in events {
        let start = time.div_euclid(WINDOW_MS) * WINDOW_MS;
        *counts.entry((*key, start)).or_default() += 1;
    }
    counts
}

fn found<'a>(results: impl IntoIterator<Item = &'a Result>) -> BTreeMap<(u32, i64), u64> {
    let mut found = BTreeMap::new();
    for result in results {
        let former = found.insert((result.key, result.start.0), result.value);
        assert_eq!(former, None, "a window gives one result");
    }
    found
}

/// The operators between the sources and the windows.
#[derive(Debug, Clone, Copy)]
enum Between {
    Boundary,
    SplitAndMerge,
}

fn run(between: Between, sources: &[Vec<Event>], bound_ms: u64, settings: FlowSettings) -> Outcome {
    let (sink, results) = Collect::new();
    let (late_sink, late) = Collect::new();
    let flow = Flow::with_settings("shapes", settings);
    let state = flow.windowed("counts", Windows::tumbling(WINDOW_MS), Count);
    let late_events = flow.channel::<Event>("late");
    let merged = flow.channel::<Event>("merged");
    let parts = ["even", "odd"];
    match between {
        Between::Boundary => {
            flow.sources("events", generators(sources))
                .watermarks(time, disorder(bound_ms))
                .to(&merged);
        }
        Between::SplitAndMerge => {
            let channels = parts.map(|name| flow.channel::<Event>(name));
            flow.sources("events", generators(sources))
                .watermarks(time, disorder(bound_ms))
                .split(&channels, |(key, _)| (key % 2) as usize);
            for (name, channel) in parts.into_iter().zip(&channels) {
                flow.stage(name, channel).map(|event| *event).to(&merged);
            }
        }
    }
    flow.stage("windows", &merged)
        .key_by(|(key, _)| *key)
        .late_to(&late_events)
        .aggregate("count", &state, time)
        .sink("results", sink);
    flow.stage("late", &late_events).sink("late", late_sink);
    flow.run().unwrap().join().unwrap();
    Outcome {
        results: results.lock().unwrap().clone(),
        late: late.lock().unwrap().clone(),
        late_events: state.late_events(),
    }
}

/// Items that their own sources bring too late. Behind a ring fewer of them may be, since watermarks come behind a
/// slice.
fn late_at_source(sources: &[Vec<Event>], bound_ms: u64) -> Vec<Event> {
    let late_of = |events: &Vec<Event>| {
        let mut latest = i64::MIN;
        let is_late = move |event: &&Event| {
            latest = latest.max(event.1);
            let end = (event.1.div_euclid(WINDOW_MS) + 1) * WINDOW_MS;
            end <= latest - bound_ms as i64
        };
        events.iter().filter(is_late).copied().collect::<Vec<_>>()
    };
    sources.iter().flat_map(late_of).collect()
}

/// Each item is counted or late, and none is late that was in time at its source.
fn check(outcome: &Outcome, sources: &[Vec<Event>], bound_ms: u64) {
    let mut counted = found(&outcome.results);
    for (window, count) in counts(&outcome.late) {
        *counted.entry(window).or_default() += count;
    }
    assert_eq!(counted, counts(sources.iter().flatten()));
    assert_eq!(outcome.late_events, outcome.late.len() as u64);
    let late = counts(&late_at_source(sources, bound_ms));
    for (window, count) in counts(&outcome.late) {
        assert!(late.get(&window).is_some_and(|late| count <= *late));
    }
}

fn between() -> impl Strategy<Value = Between> {
    prop_oneof![Just(Between::Boundary), Just(Between::SplitAndMerge)]
}

/// The items of both streams of a key in a window, by key and start.
type Pairs = BTreeMap<(u32, i64), (Vec<Event>, Vec<Event>)>;

fn pairs(sides: [&[Vec<Event>]; 2]) -> Pairs {
    let mut pairs = Pairs::new();
    for (side, sources) in sides.into_iter().enumerate() {
        for event in sources.iter().flatten() {
            let start = event.1.div_euclid(WINDOW_MS) * WINDOW_MS;
            let (left, right) = pairs.entry((event.0, start)).or_default();
            match side {
                0 => left.push(*event),
                _ => right.push(*event),
            }
        }
    }
    for (left, right) in pairs.values_mut() {
        left.sort_unstable();
        right.sort_unstable();
    }
    pairs
}

fn either<T: Copy>(side: &Side<T, T>) -> T {
    match side {
        Side::Left(item) | Side::Right(item) => *item,
    }
}

fn settings_of(ranks: &Ranks) -> FlowSettings {
    FlowSettings {
        ranks: ranks.clone(),
        ..settings(2, 7)
    }
}

fn joined_on(ranks: &Ranks, sides: [&[Vec<Event>]; 2]) -> Pairs {
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("joined", settings_of(ranks));
    let joined = Joined::<Event, Event>::new();
    let state = flow.windowed("pairs", Windows::tumbling(WINDOW_MS), joined);
    let both = flow.channel::<Side<Event, Event>>("both");
    flow.sources("left", generators(&own(ranks, sides[0])))
        .watermarks(time, disorder(ANY_DISORDER_MS))
        .map(|event| Side::Left(*event))
        .to(&both);
    flow.sources("right", generators(&own(ranks, sides[1])))
        .watermarks(time, disorder(ANY_DISORDER_MS))
        .map(|event| Side::Right(*event))
        .to(&both);
    flow.stage("both", &both)
        .key_by(|side| either(side).0)
        .aggregate("join", &state, |side| time(&either(side)))
        .sink("results", sink);
    flow.run().unwrap().join().unwrap();
    assert_eq!(state.late_events(), 0);
    let results = results.lock().unwrap().clone();
    let pairs = results.into_iter().map(|result| {
        let (mut left, mut right) = result.value;
        left.sort_unstable();
        right.sort_unstable();
        ((result.key, result.start.0), (left, right))
    });
    pairs.collect()
}

/// Key, time and value.
type Sum = (u32, i64, u64);

/// Counts of two branches by key and window, joined by a third window and gathered on the last rank.
fn counts_of_branches(ranks: &Ranks, sources: &[Vec<Event>]) -> Vec<(u32, i64, [u64; 2])> {
    let (sink, results) = Collect::new();
    let windows = Windows::tumbling(WINDOW_MS);
    let flow = Flow::with_settings("branches", settings_of(ranks));
    let kinds = ["even", "odd"];
    let channels = kinds.map(|kind| flow.channel::<Event>(kind));
    let states = kinds.map(|kind| flow.windowed::<u32, _>(kind, windows, Count));
    let pairs = flow.windowed("pairs", windows, Joined::<Sum, Sum>::new());
    let both = flow.channel::<Side<Sum, Sum>>("both");
    flow.sources("events", generators(&own(ranks, sources)))
        .watermarks(time, disorder(ANY_DISORDER_MS))
        .split(&channels, |(_, time)| time.rem_euclid(2) as usize);
    for (index, kind) in kinds.into_iter().enumerate() {
        flow.stage(kind, &channels[index])
            .key_by(|(key, _)| *key)
            .aggregate(&format!("count {kind}"), &states[index], time)
            .map(move |result| {
                let sum = (result.key, result.end.0 - 1, result.value);
                match index {
                    0 => Side::Left(sum),
                    _ => Side::Right(sum),
                }
            })
            .to(&both);
    }
    flow.stage("both", &both)
        .key_by(|side| either(side).0)
        .aggregate("join", &pairs, |side| Timestamp(either(side).1))
        .map(|result| {
            let (even, odd) = &result.value;
            assert!(
                even.len() <= 1 && odd.len() <= 1,
                "a window gives one result"
            );
            let value = |side: &[Sum]| side.first().map_or(0, |(_, _, value)| *value);
            (result.key, result.start.0, [value(even), value(odd)])
        })
        .gather("gathered", ranks.count() - 1)
        .sink("results", sink);
    flow.run().unwrap().join().unwrap();
    assert_eq!(pairs.late_events(), 0);
    results.lock().unwrap().clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn behind_rings_each_item_is_counted_or_late(
        between in between(),
        sources in sources(3),
        bound_ms in 0u64..2500,
        workers in 1usize..5,
    ) {
        let outcome = run(between, &sources, bound_ms, settings(workers, 7));
        check(&outcome, &sources, bound_ms);
    }

    #[test]
    fn behind_rings_of_several_ranks_each_item_is_counted_or_late(
        between in between(),
        sources in sources(5),
        bound_ms in 0u64..2500,
        ranks in 1u32..5,
    ) {
        let outcomes = on_ranks(ranks, |ranks| {
            run(between, &own(ranks, &sources), bound_ms, settings_of(ranks))
        });
        let mut sum = Outcome::default();
        for outcome in outcomes {
            sum.results.extend(outcome.results);
            sum.late.extend(outcome.late);
            sum.late_events += outcome.late_events;
        }
        check(&sum, &sources, bound_ms);
    }

    #[test]
    fn two_streams_are_joined_by_key_and_window_on_any_number_of_ranks(
        left in sources(2),
        right in sources(3),
        ranks in 1u32..5,
    ) {
        let mut found = Pairs::new();
        for part in on_ranks(ranks, |ranks| joined_on(ranks, [&left, &right])) {
            for (window, pair) in part {
                prop_assert_eq!(found.insert(window, pair), None);
            }
        }
        prop_assert_eq!(found, pairs([&left, &right]));
    }

    #[test]
    fn windows_over_results_of_windows_count_each_result_once(
        sources in sources(4),
        ranks in 1u32..5,
    ) {
        let mut parts = on_ranks(ranks, |ranks| counts_of_branches(ranks, &sources));
        let mut found = parts.pop().unwrap_or_default();
        prop_assert!(parts.iter().all(Vec::is_empty), "all are gathered on the last rank");
        found.sort_unstable();
        let mut expected = BTreeMap::<(u32, i64), [u64; 2]>::new();
        for (key, time) in sources.iter().flatten() {
            let start = time.div_euclid(WINDOW_MS) * WINDOW_MS;
            expected.entry((*key, start)).or_default()[time.rem_euclid(2) as usize] += 1;
        }
        let expected: Vec<_> = expected
            .into_iter()
            .map(|((key, start), values)| (key, start, values))
            .collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn gather_sends_all_items_to_one_rank_in_the_order_of_each_source(
        counts in prop::collection::vec(0u64..2000, 1..5),
        home in 0u32..5,
    ) {
        let ranks = counts.len() as u32;
        let home = home % ranks;
        let parts = on_ranks(ranks, |ranks| {
            let (sink, results) = Collect::new();
            let flow = Flow::with_settings("gathered", settings_of(ranks));
            let rank = ranks.rank();
            let numbers = Generator::new(move |number| (rank, number));
            flow.source("numbers", numbers.limit(counts[rank as usize]))
                .boundary("behind a ring")
                .gather("gathered", home)
                .sink("results", sink);
            flow.run().unwrap().join().unwrap();
            results.lock().unwrap().clone()
        });
        for (rank, part) in parts.iter().enumerate() {
            for (from, count) in counts.iter().enumerate() {
                let numbers = part.iter().filter(|(source, _)| *source == from as u32);
                let numbers: Vec<u64> = numbers.map(|(_, number)| *number).collect();
                let expected = if rank == home as usize { *count } else { 0 };
                prop_assert_eq!(numbers, (0..expected).collect::<Vec<_>>());
            }
        }
    }
}

/// The sum of all times of a key in a window, by key and start.
fn reduced_on(ranks: &Ranks, sources: &[Vec<Event>]) -> BTreeMap<(u32, i64), i64> {
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("reduced", settings_of(ranks));
    let sum = reduce(|sum: &mut Event, other: &Event| sum.1 += other.1);
    let state = flow.windowed("sums", Windows::tumbling(WINDOW_MS), sum);
    flow.sources("events", generators(&own(ranks, sources)))
        .watermarks(time, disorder(ANY_DISORDER_MS))
        .key_by(|(key, _)| *key)
        .aggregate("reduce", &state, time)
        .sink("results", sink);
    flow.run().unwrap().join().unwrap();
    let results = results.lock().unwrap();
    let sums = results.iter().map(|result| {
        let (key, sum) = result.value.expect("a window has items");
        assert_eq!(key, result.key);
        ((key, result.start.0), sum)
    });
    sums.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_reduction_is_the_same_on_any_number_of_ranks(sources in sources(4), ranks in 1u32..5) {
        let mut expected = BTreeMap::new();
        for (key, time) in sources.iter().flatten() {
            let start = time.div_euclid(WINDOW_MS) * WINDOW_MS;
            *expected.entry((*key, start)).or_insert(0) += time;
        }
        let parts = on_ranks(ranks, |ranks| reduced_on(ranks, &sources));
        let count: usize = parts.iter().map(BTreeMap::len).sum();
        let found: BTreeMap<_, _> = parts.into_iter().flatten().collect();
        prop_assert_eq!((count, &found), (expected.len(), &expected));
    }
}

#[test]
fn an_item_too_late_for_a_window_may_be_in_time_for_a_larger_one() {
    let hand = Hand::default();
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("late", settings(2, 64));
    let small = flow.windowed("small", Windows::tumbling(10), Count);
    let large = flow.windowed("large", Windows::tumbling(100), Count);
    let late = flow.channel::<u64>("late");
    let at = |number: &u64| Timestamp(*number as i64);
    flow.source("numbers", hand.clone())
        .watermarks(at, disorder(0))
        .late_to(&late)
        .aggregate("count", &small, at)
        .sink("windows", Collect::new().0);
    flow.stage("late", &late)
        .aggregate("count late", &large, at)
        .sink("results", sink);
    let running = flow.run().unwrap();
    hand.give([5, 50, 6]);
    wait_until("one comes late", || large.totals().open_events == 1);
    // The flow runs on, and yet the window closes.
    hand.give([150]);
    wait_until("the large window closes", || {
        results.lock().unwrap().len() == 1
    });
    assert_eq!((small.late_events(), large.late_events()), (1, 0));
    hand.give([7]);
    wait_until("one comes late for both", || large.late_events() == 1);
    hand.end();
    running.join().unwrap();
    assert_eq!(results.lock().unwrap().len(), 1);
}

#[test]
fn items_are_joined_with_the_current_rows_of_a_reloaded_table() {
    let hand = Hand::default();
    let table = Table::new([(0, "zero"), (1, "one")]);
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("names", settings(2, 8));
    flow.source("numbers", hand.clone())
        .join(&table, |number| *number, |number, name| (*number, *name))
        .sink("results", sink);
    let running = flow.run().unwrap();
    let wait_for = |count| {
        wait_until("items are joined", || {
            results.lock().unwrap().len() == count
        });
    };
    hand.give([0, 1, 2, 1]);
    wait_for(3);
    table.load([(1, "eins"), (2, "zwei")]);
    hand.give([0, 1, 2]);
    wait_for(5);
    table.load([]);
    hand.give([0, 1, 2]);
    hand.end();
    running.join().unwrap();
    let results = results.lock().unwrap();
    let expected = [
        (0, "zero"),
        (1, "one"),
        (1, "one"),
        (1, "eins"),
        (2, "zwei"),
    ];
    assert_eq!(*results, expected);
}

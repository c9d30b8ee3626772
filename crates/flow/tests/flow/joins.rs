//! Joins of two streams by key and window, against nested loops.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::windows::Windows;
use millstream_flow::{Flow, FlowSettings, WindowJoin};
use proptest::prelude::*;

use crate::support::{Collect, Hand, Letters, disorder, on_ranks, settings, wait_until};
use crate::windows::Event;

/// Key, time, and a number of its own.
type Item = (u32, i64, usize);

/// The fate of an item, or a pair.
type Pair = (Option<Item>, Option<Item>);

#[derive(Debug, Clone, Copy)]
enum Kind {
    Inner,
    Left,
    Right,
    Full,
}

#[derive(Debug, Clone, Copy)]
enum Shape {
    Tumbling(i64),
    Sliding(i64, i64),
    Session(i64),
}

impl Shape {
    fn windows(self) -> Windows {
        match self {
            Shape::Tumbling(size) => Windows::tumbling(size),
            Shape::Sliding(size, slide) => Windows::sliding(size, slide),
            Shape::Session(gap) => Windows::session(gap),
        }
    }

    /// Returns the windows with items of one key: all overlapping windows of a grid, or the sessions of all items.
    fn spans(self, times: &BTreeSet<i64>) -> Vec<(i64, i64)> {
        let (size, slide) = match self {
            Shape::Tumbling(size) => (size, size),
            Shape::Sliding(size, slide) => (size, slide),
            Shape::Session(gap) => return sessions(times, gap),
        };
        let mut spans = BTreeSet::new();
        for time in times {
            let mut start = time.div_euclid(slide) * slide;
            while start + size > *time {
                spans.insert((start, start + size));
                start -= slide;
            }
        }
        spans.into_iter().collect()
    }
}

fn sessions(times: &BTreeSet<i64>, gap: i64) -> Vec<(i64, i64)> {
    let mut spans: Vec<(i64, i64)> = Vec::new();
    for time in times {
        match spans.last_mut() {
            Some((_, end)) if time < end => *end = time + gap,
            _ => spans.push((*time, time + gap)),
        }
    }
    spans
}

/// Two sides: of each its sources, in order.
type Sides = [Vec<Vec<Item>>; 2];

fn sides(events: [Vec<Vec<Event>>; 2]) -> Sides {
    let mut number = 0;
    events.map(|sources| {
        let mut numbered = Vec::new();
        for events in sources {
            let items = events.into_iter().map(|(key, time)| {
                number += 1;
                (key, time, number)
            });
            numbered.push(items.collect());
        }
        numbered
    })
}

/// By its number: the watermark of an item's source when it came.
type Watermarks = BTreeMap<usize, i64>;

/// The items of each source that are in time, and those that are late.
fn in_time(
    sources: &[Vec<Item>],
    windows: Windows,
    bound_ms: u64,
    watermarks: &mut Watermarks,
) -> (Vec<Item>, Vec<Item>) {
    let mut all = (Vec::new(), Vec::new());
    for items in sources {
        let mut latest = i64::MIN;
        for item in items {
            latest = latest.max(item.1);
            let watermark = Timestamp(latest.saturating_sub(bound_ms as i64));
            watermarks.insert(item.2, watermark.0);
            match windows.is_late(Timestamp(item.1), watermark) {
                true => all.1.push(*item),
                false => all.0.push(*item),
            }
        }
    }
    all
}

/// Returns the pairs of nested loops. An item is in the windows that were still open when it came.
fn model(
    kind: Kind,
    shape: Shape,
    [lefts, rights]: [&[Item]; 2],
    watermarks: &Watermarks,
) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for key in 0..10 {
        let of_key = |items: &[Item]| -> Vec<Item> {
            items.iter().filter(|item| item.0 == key).copied().collect()
        };
        let (lefts, rights) = (of_key(lefts), of_key(rights));
        let times = lefts.iter().chain(&rights).map(|item| item.1).collect();
        for (start, end) in shape.spans(&times) {
            let is_in = |item: &&Item| (start..end).contains(&item.1) && end > watermarks[&item.2];
            for left in lefts.iter().filter(is_in) {
                let partners: Vec<_> = rights.iter().filter(is_in).collect();
                pairs.extend(partners.iter().map(|right| (Some(*left), Some(**right))));
                if partners.is_empty() && matches!(kind, Kind::Left | Kind::Full) {
                    pairs.push((Some(*left), None));
                }
            }
            for right in rights.iter().filter(is_in) {
                let has_partner = lefts.iter().filter(is_in).count() > 0;
                if !has_partner && matches!(kind, Kind::Right | Kind::Full) {
                    pairs.push((None, Some(*right)));
                }
            }
        }
    }
    pairs.sort_unstable();
    pairs
}

/// The results of a flow on one rank: pairs, and the late items of each side.
#[derive(Default)]
struct Outcome {
    pairs: Vec<Pair>,
    late: [Vec<Item>; 2],
    late_events: u64,
}

fn time((_, time, _): &Item) -> Timestamp {
    Timestamp(*time)
}

fn settings_of(ranks: &Ranks, workers: usize) -> FlowSettings {
    FlowSettings {
        ranks: ranks.clone(),
        ..settings(workers, 7)
    }
}

fn generators(
    ranks: &Ranks,
    sources: &[Vec<Item>],
) -> Vec<Generator<impl FnMut(u64) -> Item + Send + use<>>> {
    let (rank, count) = (ranks.rank() as usize, ranks.count() as usize);
    let own = sources.iter().skip(rank).step_by(count);
    own.map(|items| {
        let (items, count) = (items.clone(), items.len() as u64);
        Generator::new(move |number| items[number as usize]).limit(count)
    })
    .collect()
}

fn joined_on(
    ranks: &Ranks,
    kind: Kind,
    shape: Shape,
    sides: &Sides,
    bound_ms: u64,
    workers: usize,
) -> Outcome {
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("joined", settings_of(ranks, workers));
    let pairs = flow.window_join("pairs", shape.windows());
    let names = ["late left", "late right"];
    let late_channels = names.map(|name| flow.channel::<Item>(name));
    let late = names.map(|name| {
        let (sink, late) = Collect::new();
        (name, sink, late)
    });
    flow.sources("right", generators(ranks, &sides[1]))
        .watermarks(time, disorder(bound_ms))
        .key_by(|(key, _, _)| *key)
        .late_to(&late_channels[1])
        .to_join(&pairs, time);
    let joined = flow
        .sources("left", generators(ranks, &sides[0]))
        .watermarks(time, disorder(bound_ms))
        .key_by(|(key, _, _)| *key)
        .late_to(&late_channels[0])
        .join(&pairs, time);
    match kind {
        Kind::Inner => joined
            .inner(|left, right| (Some(*left), Some(*right)))
            .sink("pairs sink", sink),
        Kind::Left => joined
            .left_outer(|left, right| (Some(*left), right.copied()))
            .sink("pairs sink", sink),
        Kind::Right => joined
            .right_outer(|left, right| (left.copied(), Some(*right)))
            .sink("pairs sink", sink),
        Kind::Full => joined
            .full_outer(|left, right| (left.copied(), right.copied()))
            .sink("pairs sink", sink),
    };
    let late = late
        .into_iter()
        .zip(&late_channels)
        .map(|((name, sink, late), channel)| {
            flow.stage(name, channel)
                .sink(&format!("{name} sink"), sink);
            late
        });
    let late: Vec<_> = late.collect();
    flow.run().unwrap().join().unwrap();
    assert_eq!(pairs.totals().open_windows, 0);
    Outcome {
        pairs: results.lock().unwrap().clone(),
        late: [0, 1].map(|side| late[side].lock().unwrap().clone()),
        late_events: pairs.late_events(),
    }
}

fn check(ranks: u32, workers: usize, kind: Kind, shape: Shape, sides: &Sides, bound_ms: u64) {
    let mut sum = Outcome::default();
    for outcome in on_ranks(ranks, |ranks| {
        joined_on(ranks, kind, shape, sides, bound_ms, workers)
    }) {
        sum.pairs.extend(outcome.pairs);
        for (all, late) in sum.late.iter_mut().zip(outcome.late) {
            all.extend(late);
        }
        sum.late_events += outcome.late_events;
    }
    sum.pairs.sort_unstable();
    let windows = shape.windows();
    let mut watermarks = Watermarks::new();
    let [(lefts, late_lefts), (rights, late_rights)] =
        [0, 1].map(|side| in_time(&sides[side], windows, bound_ms, &mut watermarks));
    let pairs = model(kind, shape, [&lefts, &rights], &watermarks);
    assert_eq!(sum.pairs, pairs);
    assert_eq!(
        sum.late_events,
        (late_lefts.len() + late_rights.len()) as u64
    );
    for (mut found, mut expected) in sum.late.into_iter().zip([late_lefts, late_rights]) {
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(
            found, expected,
            "each side's late items go to its own channel"
        );
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Inner),
        Just(Kind::Left),
        Just(Kind::Right),
        Just(Kind::Full)
    ]
}

fn few_sources(count: usize) -> impl Strategy<Value = Vec<Vec<Event>>> {
    let events = prop::collection::vec((0u32..10, -1000i64..1000), 0..150);
    prop::collection::vec(events, count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_join_emits_the_pairs_of_nested_loops(
        lefts in few_sources(2),
        rights in few_sources(3),
        kind in kinds(),
        shape in prop_oneof![
            (1i64..300).prop_map(Shape::Tumbling),
            (1i64..100, 1i64..4).prop_map(|(slide, slides)| Shape::Sliding(slide * slides + slide / 2, slide)),
        ],
        bound_ms in 0u64..2500,
        ranks in 1u32..4,
        workers in 1usize..5,
    ) {
        check(ranks, workers, kind, shape, &sides([lefts, rights]), bound_ms);
    }

    #[test]
    fn a_join_by_sessions_emits_the_pairs_of_nested_loops(
        lefts in few_sources(2),
        rights in few_sources(2),
        kind in kinds(),
        gap in 1i64..60,
        ranks in 1u32..4,
        workers in 1usize..5,
    ) {
        // With this bound nothing is late.
        check(ranks, workers, kind, Shape::Session(gap), &sides([lefts, rights]), 2500);
    }
}

/// Two streams of numbers, which are keys and times: evens and thirds.
fn evens_and_thirds(
    settings: FlowSettings,
    end: impl FnOnce(&Flow, &WindowJoin<i64, i64, i64>),
) -> std::result::Result<(), String> {
    let flow = Flow::with_settings("numbers", settings);
    let join = flow.window_join("both", Windows::tumbling(10));
    let thirds = Generator::new(|number| number as i64 * 3).limit(20);
    flow.source("thirds", thirds)
        .watermarks(|number| Timestamp(*number), disorder(0))
        .key_by(|number| *number)
        .to_join(&join, |number| Timestamp(*number));
    end(&flow, &join);
    let running = flow.run().map_err(|error| error.to_string())?;
    running
        .join()
        .map(|_| ())
        .map_err(|error| error.to_string())
}

fn evens(
    flow: &Flow,
    join: &WindowJoin<i64, i64, i64>,
    name: &str,
    poison: i64,
    sink: Collect<i64>,
) {
    let evens = Generator::new(|number| number as i64 * 2).limit(30);
    flow.source(name, evens)
        .watermarks(|number| Timestamp(*number), disorder(0))
        .key_by(|number| *number)
        .join(join, |number| Timestamp(*number))
        .inner(move |even, _| {
            assert_ne!(*even, poison);
            *even
        })
        .sink(&format!("{name} sink"), sink);
}

#[test]
fn only_a_pair_that_panics_becomes_a_dead_letter() {
    let letters = Arc::new(Letters::default());
    let settings = FlowSettings {
        dead_letters: Some(Arc::clone(&letters) as _),
        ..settings(2, 7)
    };
    let (sink, results) = Collect::new();
    evens_and_thirds(settings, |flow, join| evens(flow, join, "evens", 12, sink)).unwrap();
    let mut results = results.lock().unwrap().clone();
    results.sort_unstable();
    assert_eq!(results, [0, 6, 18, 24, 30, 36, 42, 48, 54]);
    let letters = letters.0.lock().unwrap();
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0].item, "(Some(12), Some(12))");
    assert!(letters[0].operator.ends_with(".inner"), "{letters:?}");
}

#[test]
fn a_join_without_its_second_stream_is_refused() {
    let without_first = evens_and_thirds(settings(1, 7), |_, _| ()).unwrap_err();
    assert!(
        without_first.contains("channel \"both\""),
        "{without_first}"
    );
    let flow = Flow::with_settings("numbers", settings(1, 7));
    let join = flow.window_join("both", Windows::tumbling(10));
    evens(&flow, &join, "evens", -1, Collect::new().0);
    assert_eq!(
        flow.run().err().unwrap().to_string(),
        "flow \"numbers\": the join \"both\" has no second stream; end one in it with `.to_join(…)`"
    );
}

#[test]
fn a_second_first_stream_of_a_join_is_refused() {
    let error = evens_and_thirds(settings(1, 7), |flow, join| {
        evens(flow, join, "evens", -1, Collect::new().0);
        evens(flow, join, "others", -1, Collect::new().0);
    });
    let error = error.unwrap_err();
    assert!(error.contains("\"both\" fills"), "{error}");
}

#[test]
fn several_streams_can_form_the_second_side_of_a_join() {
    let (sink, results) = Collect::new();
    evens_and_thirds(settings(2, 7), |flow, join| {
        let fives = Generator::new(|number| number as i64 * 5).limit(3);
        flow.source("fives", fives)
            .watermarks(|number| Timestamp(*number), disorder(0))
            .key_by(|number| *number)
            .to_join(join, |number| Timestamp(*number));
        evens(flow, join, "evens", -1, sink);
    })
    .unwrap();
    let mut results = results.lock().unwrap().clone();
    results.sort_unstable();
    assert_eq!(results, [0, 0, 6, 10, 12, 18, 24, 30, 36, 42, 48, 54]);
}

#[test]
fn queries_read_items_until_they_are_joined() {
    let hands = [Hand::default(), Hand::default()];
    let (sink, results) = Collect::new();
    let at = |number: &u64| Timestamp(*number as i64);
    let flow = Flow::with_settings("numbers", settings(2, 8));
    let join = flow.window_join("both", Windows::tumbling(100));
    flow.source("rights", hands[1].clone())
        .watermarks(at, disorder(0))
        .key_by(|number| number % 10)
        .to_join(&join, at);
    flow.source("lefts", hands[0].clone())
        .watermarks(at, disorder(0))
        .key_by(|number| number % 10)
        .join(&join, at)
        .inner(|left, right| (*left, *right))
        .sink("pairs", sink);
    let running = flow.run().unwrap();
    let state = running.state("both").unwrap();
    hands[0].give([3, 13, 14]);
    hands[1].give([23]);
    wait_until("both are there", || {
        let both = state.get("3").map(|window| window["value"].clone());
        both == Some(serde_json::json!([[3, 13], [23]]))
    });
    // Another partition has this key.
    wait_until("the other key is there", || {
        state.get("4").is_some_and(|window| window["events"] == 1)
    });
    // Only one stream has items so far.
    hands[0].give([103]);
    wait_until("it is there", || join.totals().open_events == 5);
    assert!(results.lock().unwrap().is_empty());
    hands[1].give([104]);
    wait_until("the pairs are made", || results.lock().unwrap().len() == 2);
    hands.iter().for_each(Hand::end);
    running.join().unwrap();
    let mut results = results.lock().unwrap().clone();
    results.sort_unstable();
    assert_eq!(results, [(3, 23), (13, 23)]);
    assert_eq!(state.keys(10), [""; 0], "closed windows keep no items");
}

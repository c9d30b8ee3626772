//! Count windows give the aggregates that a plain model computes of the last items.

mod resumed;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use millstream_exchange::Ranks;
use millstream_flow::counted::{CountRecord, CountSizes, CountStep};
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Aggregate, All, Count, Max, Sum};
use millstream_flow::{
    CountWindow, Element, Flow, FlowError, FlowSettings, Lockable, Maps, Order, ReadLevel, Resume,
    Running,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::changelogs::log::LogStore;
use crate::changelogs::settings_of;
use crate::changes::Kept;
use crate::support::{Collect, Hand, on_ranks, settings, wait_until};

/// A key and a value.
type Item = (u64, i64);

/// Number, sum and largest value.
type Totals = (u64, i64, Option<i64>);

fn value(item: &Item) -> i64 {
    item.1
}

/// Aggregates values to their [`Totals`].
fn totals() -> impl Aggregate<Item, Out = Totals> {
    (Count, Sum::of(value), Max::of(value))
}

/// A result: the totals, the number of items, and that of the last item.
type Found = (Totals, u64, u64);

fn found<K>(window: &CountWindow<K, Totals>) -> Found {
    (window.value, window.events, window.last)
}

/// The results over the values of one key, each computed of all items of its window.
fn expected(values: &[i64], size: u64, slide: u64) -> Vec<Found> {
    let ends = (1..=values.len() as u64).filter(|end| end.is_multiple_of(slide));
    ends.map(|end| {
        let window = &values[end.saturating_sub(size) as usize..end as usize];
        let sum = window.iter().sum();
        let events = window.len() as u64;
        ((events, sum, window.iter().max().copied()), events, end)
    })
    .collect()
}

/// Sizes and slides: tumbling, sliding, with gaps, and slides that do not divide their size.
const SIZES: [(u64, u64); 12] = [
    (1, 1),
    (8, 8),
    (3, 7),
    (1, 5),
    (10, 3),
    (17, 5),
    (64, 16),
    (33, 1),
    (100, 1),
    (2, 1),
    (u64::MAX, 4),
    (5, u64::MAX),
];

type Records<S> = Maps<u64, Option<u64>, CountRecord<S>>;

/// Returns all records of a key as another run restores them.
fn restored<S: Clone + Send + Serialize + DeserializeOwned + 'static>(
    records: &Records<S>,
    as_json: bool,
) -> Records<S> {
    let restored = Flow::with_settings("restored", settings(1, 16)).maps("windows");
    let entries = records.entries(&0);
    let partition: <Records<S> as Element<u64>>::Partition = restored.partition(0);
    restored.change(&mut partition.lock_all(), &0, |mut map| {
        for (field, record) in entries {
            let record = match as_json {
                true => serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap(),
                false => postcard::from_bytes(&postcard::to_stdvec(&record).unwrap()).unwrap(),
            };
            map.insert(&field, record);
        }
    });
    restored
}

/// Runs values through the windows of one key, with restores in between.
fn check_step<A>(aggregate: A, mut rng: fastrand::Rng, (size, slide): (u64, u64))
where
    A: Aggregate<Item, Out = Totals>,
{
    let values: Vec<i64> = (0..700).map(|_| rng.i64(-100..100)).collect();
    let sizes = CountSizes::new(size, slide).unwrap();
    let step = CountStep::new(sizes, aggregate);
    let mut records: Records<A::State> =
        Flow::with_settings("windows", settings(1, 16)).maps("windows");
    let mut results = Vec::new();
    for value in &values {
        let partition = records.partition(0);
        records.change(&mut partition.lock_all(), &0, |mut records| {
            step.apply(&0, &mut records, &(0, *value), &mut |window| {
                assert_eq!(window.key, 0);
                results.push(found(window));
            });
        });
        // A block has 16 fragments, of which there are two for each slide at most.
        let fragments = 2 * (size.min(values.len() as u64) / slide.min(size)) + 1;
        let count = records.entries(&0).len() as u64;
        assert!(count <= 2 + fragments / 16, "{count} records");
        if rng.u32(..40) == 0 {
            records = restored(&records, rng.bool());
        }
    }
    assert_eq!(results, expected(&values, size, slide), "{size} by {slide}");
}

#[test]
fn each_step_gives_the_result_of_the_last_items_also_of_restored_records() {
    for (seed, sizes) in (0..).zip(SIZES.iter().chain(&SIZES)) {
        check_step(totals(), fastrand::Rng::with_seed(seed), *sizes);
    }
    let mut rng = fastrand::Rng::with_seed(99);
    for _ in 0..60 {
        let sizes = (rng.u64(1..120), rng.u64(1..40));
        check_step(totals(), rng.fork(), sizes);
    }
}

#[test]
fn a_key_begins_anew_with_other_sizes_and_leaves_no_records() {
    let records = Flow::with_settings("windows", settings(1, 16)).maps("windows");
    let partition = records.partition(0);
    let run = |size, slide, values: std::ops::Range<i64>| {
        let sizes = CountSizes::new(size, slide).unwrap();
        let step = CountStep::new(sizes, totals());
        let mut results = Vec::new();
        for value in values {
            records.change(&mut partition.lock_all(), &0, |mut records| {
                step.apply(&0, &mut records, &(0, value), &mut |window| {
                    results.push(found(window));
                });
            });
        }
        results
    };
    run(500, 1, 0..1_000);
    assert!(records.entries(&0).len() > 30);
    let values: Vec<i64> = (0..100).collect();
    assert_eq!(run(40, 2, 0..100), expected(&values, 40, 2));
    assert!(records.entries(&0).len() <= 4);
    assert_eq!(run(7, 7, 0..100), expected(&values, 7, 7));
    assert_eq!(records.entries(&0).len(), 1);
}

/// The results of a flow on one rank, by its windows.
type Results = Vec<Arc<Mutex<Vec<CountWindow<u64, Totals>>>>>;

/// The sizes of the windows in a flow.
const OF_FLOW: [(u64, u64); 4] = [(40, 1), (17, 5), (8, 8), (3, 7)];

fn no_results() -> Results {
    OF_FLOW.iter().map(|_| Arc::default()).collect()
}

/// Runs all windows over the items of each source of a rank. `wait` is called for each item.
fn start(
    settings: FlowSettings,
    sources: Vec<Vec<Item>>,
    results: &Results,
    wait: fn(u64),
) -> Result<Running, FlowError> {
    let flow = Flow::with_settings("windows", settings);
    let names = OF_FLOW.map(|(size, slide)| format!("{size} by {slide}"));
    let channels: Vec<_> = names
        .iter()
        .map(|name| flow.channel(&format!("of {name}")))
        .collect();
    let source = |items: Vec<Item>| {
        let limit = items.len() as u64;
        let item = move |number| {
            wait(number);
            items[number as usize]
        };
        Generator::new(item).limit(limit)
    };
    flow.sources("items", sources.into_iter().map(source))
        .to_all(&channels);
    for (((size, slide), name), (channel, results)) in OF_FLOW
        .into_iter()
        .zip(&names)
        .zip(channels.iter().zip(results))
    {
        flow.stage(&format!("of {name}"), channel)
            .key_by(|(key, _)| *key)
            .count_windows(name, size, slide, totals())
            .sink(name, Kept(Arc::clone(results)));
    }
    flow.run()
}

/// The items of a source: no other one has its keys, so their order is known.
fn items_of(source: u64, count: usize) -> Vec<Item> {
    let mut rng = fastrand::Rng::with_seed(source);
    let item = |_| (source * 10 + rng.u64(..7), rng.i64(-1_000..1_000));
    (0..count).map(item).collect()
}

/// Compares the results of all ranks with those over the items of all sources.
fn check(results: &[Results], sources: &[Vec<Item>]) {
    let mut values: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
    for (key, value) in sources.iter().flatten() {
        values.entry(*key).or_default().push(*value);
    }
    for (place, (size, slide)) in OF_FLOW.into_iter().enumerate() {
        let mut of_keys: BTreeMap<u64, Vec<Found>> = BTreeMap::new();
        for results in results {
            for window in results[place].lock().unwrap().iter() {
                of_keys.entry(window.key).or_default().push(found(window));
            }
        }
        for (key, values) in &values {
            let of_key = of_keys.remove(key).unwrap_or_default();
            assert_eq!(
                of_key,
                expected(values, size, slide),
                "{size} by {slide} of {key}"
            );
        }
        assert!(of_keys.is_empty());
    }
}

#[test]
fn windows_on_any_number_of_ranks_workers_and_sources_have_the_last_items_of_each_key() {
    for (ranks, workers, sources, ring) in [
        (1, 1, 1, 64),
        (1, 3, 3, 16),
        (2, 2, 2, 64),
        (3, 1, 1, 16),
        (4, 2, 1, 16),
    ] {
        let of_rank = |rank: u32| -> Vec<_> {
            let numbers = 0..sources;
            numbers
                .map(|number| items_of(u64::from(rank) * sources + number, 3_000))
                .collect()
        };
        let results = on_ranks(ranks, |ranks: &Ranks| {
            let settings = FlowSettings {
                ranks: ranks.clone(),
                ..settings(workers, ring)
            };
            let results = no_results();
            let running = start(settings, of_rank(ranks.rank()), &results, |_| ()).unwrap();
            running.join().unwrap();
            results
        });
        let all: Vec<_> = (0..ranks).flat_map(of_rank).collect();
        check(&results, &all);
    }
}

#[test]
fn windows_over_all_items_follow_the_order_of_their_source() {
    for (ranks, workers) in [(1, 1), (1, 4), (3, 2)] {
        let items = items_of(5, 5_000);
        let found_on = on_ranks(ranks, |ranks: &Ranks| {
            let settings = FlowSettings {
                ranks: ranks.clone(),
                ..settings(workers, 16)
            };
            // The other ranks have no items.
            let count = if ranks.rank() == 0 { items.len() } else { 0 };
            let items = items.clone();
            let (sink, results) = Collect::new();
            let flow = Flow::with_settings("windows", settings);
            flow.source(
                "items",
                Generator::new(move |number| items[number as usize]).limit(count as u64),
            )
            .count_windows("recent", 250, 1, totals())
            .sink("results", sink);
            flow.run().unwrap().join().unwrap();
            let results = results.lock().unwrap();
            assert!(results.iter().all(|window| window.key == All));
            results.iter().map(found).collect::<Vec<_>>()
        });
        let values: Vec<i64> = items.iter().map(value).collect();
        let all: Vec<_> = found_on.into_iter().flatten().collect();
        assert_eq!(all, expected(&values, 250, 1));
    }
}

/// Returns the error of a flow with these windows.
fn refused(order: Order, size: u64, slide: u64) -> String {
    let settings = FlowSettings {
        order,
        ..settings(2, 16)
    };
    let (sink, _) = Collect::new();
    let flow = Flow::with_settings("numbers", settings);
    flow.source("numbers", Generator::new(|number| number).limit(1))
        .key_by(|number| *number)
        .count_windows("recent", size, slide, Count)
        .sink("windows", sink);
    flow.run().map(drop).unwrap_err().to_string()
}

#[test]
fn windows_without_items_or_order_are_refused() {
    let sizes = "flow \"numbers\": \"recent\" cannot have these windows: their size and slide are at least one item";
    assert_eq!(refused(Order::Kept, 0, 1), sizes);
    assert_eq!(refused(Order::Kept, 1, 0), sizes);
    let order = "flow \"numbers\": \"recent\" cannot have these windows: they hold the last items of a key, which needs Order::Kept";
    assert_eq!(refused(Order::Free, 10, 1), order);
}

#[test]
fn a_checkpoint_writes_the_changed_fragments_and_not_the_window() {
    const SIZE: u64 = 10_240;
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let settings = settings_of(&store, Resume::Never, &Ranks::alone());
    let flow = Flow::with_settings("numbers", settings);
    let (sink, results) = Collect::new();
    flow.source("numbers", hand.clone())
        .key_by(|_| 7)
        .count_windows("recent", SIZE, 1, Sum::of(|number: &u64| *number))
        .sink("windows", sink);
    let running = flow.run().unwrap();
    let pushes = || {
        let calls = store.all_calls();
        calls.iter().filter(|call| call.starts_with("push")).count()
    };
    let mut given = 0;
    let mut give = |count: u64| {
        hand.give(given..given + count);
        given += count;
        wait_until("windows come", || {
            results.lock().unwrap().len() as u64 == given
        });
    };
    give(2 * SIZE);
    wait_until("windows are in a checkpoint", || {
        pushes() as u64 > SIZE / 16
    });
    let state = running.state("recent").unwrap();
    wait_until("the last item is in a checkpoint", || {
        let ordered = state.ordered().expect("its keys have an order");
        let head = ordered.read("[7,null]", ReadLevel::Committed);
        let head = head.and_then(|head| head.value);
        head.is_some_and(|head| head["head"]["items"] == 2 * SIZE)
    });
    let before = pushes();
    give(16);
    hand.end();
    running.join().unwrap();
    let written = pushes() - before;
    // A block, and the head in each of the checkpoints.
    assert!((2..=1 + 16).contains(&written), "{written} records");
    let last = results.lock().unwrap().last().unwrap().value;
    assert_eq!(last, (SIZE + 16..2 * SIZE + 16).sum::<u64>());
}

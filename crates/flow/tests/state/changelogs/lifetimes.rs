//! Values with a lifetime, whose changes go to changelogs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use millstream_base::{Clock, KeyRange, SystemClock, Timestamp};
use millstream_exchange::Ranks;
use millstream_flow::{
    Checkpoints, Emit, Flow, FlowError, FlowSettings, OrderedState, ReadLevel, Resume, Running,
    StateMemory, StateReader, Value, Values,
};
use serde_json::{Value as Json, json};

use super::log::{LogStore, Scan};
use super::settings_of;
use crate::support::{Hand, MemoryStore, settings, wait_until};

/// A wall clock that is moved by hand; all else goes on by itself.
#[derive(Default)]
pub struct WallClock(AtomicI64, SystemClock);

impl WallClock {
    pub fn advance(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1_000, Ordering::Relaxed);
    }
}

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        self.1.monotonic()
    }
}

/// In seconds.
const LIFETIME: u64 = 100;

/// Counts numbers, each for a lifetime in seconds.
fn count(
    settings: FlowSettings,
    clock: &Arc<WallClock>,
    lifetime: u64,
    numbers: &Hand,
) -> Result<(Running, Values<u64, u64>), FlowError> {
    let settings = FlowSettings {
        clock: Arc::clone(clock) as _,
        ..settings
    };
    let flow = Flow::with_settings("numbers", settings);
    let lasting = flow.lifetime(Duration::from_secs(lifetime));
    let values = lasting.values::<u64, u64>("counts");
    flow.source("numbers", numbers.clone())
        .key_by(|number| *number)
        .count("count", &values);
    Ok((flow.run()?, values))
}

fn settings_in(store: &Arc<impl Checkpoints>) -> FlowSettings {
    settings_of(store, Resume::IfAny, &Ranks::alone())
}

fn all(values: &Values<u64, u64>, level: ReadLevel) -> BTreeMap<u64, u64> {
    let page = values.scan(&KeyRange::all(), 10_000, level);
    let entries = page.entries.into_iter();
    entries
        .map(|entry| (entry.key.parse().unwrap(), entry.value.as_u64().unwrap()))
        .collect()
}

/// Waits until a checkpoint has these counts.
#[track_caller]
fn wait_until_committed(values: &Values<u64, u64>, expected: &[(u64, u64)]) {
    let expected = expected.iter().copied().collect();
    wait_until("counts are committed", || {
        all(values, ReadLevel::Committed) == expected
    });
    assert_eq!(all(values, ReadLevel::Live), expected);
    for key in 0..5 {
        assert_eq!(values.get(&key), expected.get(&key).copied());
    }
}

#[test]
fn entries_end_in_the_changelog_and_while_the_flow_is_stopped() {
    for scan in [Scan::AtOnce, Scan::Slow, Scan::Held] {
        let store = Arc::new(LogStore::default());
        let clock = Arc::new(WallClock::default());
        clock.advance(1_000);
        let hand = Hand::default();
        let (running, values) = count(settings_in(&store), &clock, LIFETIME, &hand).unwrap();
        hand.give([1, 2]);
        wait_until_committed(&values, &[(1, 1), (2, 1)]);
        clock.advance(60);
        hand.give([2, 3]);
        wait_until_committed(&values, &[(1, 1), (2, 2), (3, 1)]);
        let ends = [
            (1, ("[1000000,1]".to_owned(), Some(1_100_000))),
            (2, ("[1060000,2]".to_owned(), Some(1_160_000))),
            (3, ("[1060000,1]".to_owned(), Some(1_160_000))),
        ];
        assert_eq!(store.ends("counts"), BTreeMap::from(ends));
        drop(running);
        clock.advance(50);
        store.scan(scan);
        let hand = Hand::default();
        let (running, values) = count(settings_in(&store), &clock, LIFETIME, &hand).unwrap();
        wait_until_committed(&values, &[(2, 2), (3, 1)]);
        // The function does not find the first count, either.
        hand.give([1, 3]);
        wait_until_committed(&values, &[(1, 1), (2, 2), (3, 2)]);
        clock.advance(60);
        wait_until_committed(&values, &[(1, 1), (3, 2)]);
        // Other changes let a checkpoint be taken, which removes it where it is in memory.
        let given = Cell::new(0);
        wait_until("it has left the changelog", || {
            hand.give([4]);
            given.set(given.get() + 1);
            !store.ends("counts").contains_key(&2)
        });
        hand.end();
        running.join().unwrap();
        assert_eq!(values.get(&4), Some(given.get()));
    }
}

#[test]
fn values_that_have_left_memory_end_all_the_same() {
    let store = Arc::new(LogStore::default());
    let clock = Arc::new(WallClock::default());
    let memory = Arc::new(StateMemory::new(0));
    let run = |hand: &Hand| {
        let settings = FlowSettings {
            state_memory: Arc::clone(&memory),
            ..settings_in(&store)
        };
        count(settings, &clock, LIFETIME, hand).unwrap()
    };
    let hand = Hand::default();
    let (running, values) = run(&hand);
    hand.give(0..4_000);
    wait_until("all are committed", || {
        all(&values, ReadLevel::Committed).len() == 4_000
    });
    clock.advance(60);
    hand.give(2_000..6_000);
    wait_until("all are committed", || {
        let all = all(&values, ReadLevel::Committed);
        all.len() == 6_000 && all[&3_999] == 2
    });
    wait_until("values have left", || !values.is_whole().unwrap());
    clock.advance(50);
    let expected: BTreeMap<u64, u64> = (2_000..6_000)
        .map(|key| (key, 1 + u64::from(key < 4_000)))
        .collect();
    for level in [ReadLevel::Live, ReadLevel::Committed] {
        assert_eq!(all(&values, level), expected);
    }
    assert!((0..6_000).all(|key| values.get(&key) == expected.get(&key).copied()));
    // The function finds the first ones ended, and the others in the changelog.
    hand.give(1_000..3_000);
    hand.end();
    running.join().unwrap();
    let expected: BTreeMap<u64, u64> = (1_000..6_000)
        .map(|key| {
            let again = u64::from((2_000..3_000).contains(&key));
            (key, 1 + u64::from((2_000..4_000).contains(&key)) + again)
        })
        .collect();
    let (running, values) = run(&Hand::default());
    assert_eq!(all(&values, ReadLevel::Live), expected);
    clock.advance(55);
    assert_eq!(all(&values, ReadLevel::Live).len(), 2_000);
    drop(running);
}

#[test]
fn entries_of_whole_checkpoints_end_while_the_flow_is_stopped() {
    let store = Arc::new(MemoryStore::default());
    let clock = Arc::new(WallClock::default());
    let hand = Hand::default();
    let (running, values) = count(settings_in(&store), &clock, LIFETIME, &hand).unwrap();
    hand.give([1]);
    wait_until_committed(&values, &[(1, 1)]);
    clock.advance(60);
    hand.give([2]);
    wait_until_committed(&values, &[(1, 1), (2, 1)]);
    drop(running);
    // A longer lifetime counts from the last changes, too.
    clock.advance(25);
    let (running, values) = count(settings_in(&store), &clock, 120, &Hand::default()).unwrap();
    wait_until_committed(&values, &[(1, 1), (2, 1)]);
    drop(running);
    clock.advance(25);
    let hand = Hand::default();
    let (running, values) = count(settings_in(&store), &clock, LIFETIME, &hand).unwrap();
    wait_until_committed(&values, &[(2, 1)]);
    hand.give([3]);
    wait_until_committed(&values, &[(2, 1), (3, 1)]);
    drop(running);
    // The clock goes back: no entry comes back, and none ends until the clock has caught up.
    for advanced in [-1_000, 995] {
        clock.advance(advanced);
        let (running, values) =
            count(settings_in(&store), &clock, LIFETIME, &Hand::default()).unwrap();
        wait_until_committed(&values, &[(2, 1), (3, 1)]);
        drop(running);
    }
    clock.advance(55);
    let (running, values) = count(settings_in(&store), &clock, LIFETIME, &Hand::default()).unwrap();
    wait_until_committed(&values, &[(3, 1)]);
    drop(running);
}

#[test]
fn a_lifetime_is_neither_zero_nor_of_a_list_and_stays_from_run_to_run() {
    let fails = |build: &dyn Fn(&Flow), expected: &str| {
        let flow = Flow::with_settings("numbers", settings(1, 64));
        build(&flow.lifetime(Duration::from_secs(60)));
        let error = flow.run().err().unwrap().to_string();
        assert!(error.starts_with(expected), "{error}");
    };
    let refused = "flow \"numbers\": state \"it\" cannot have a lifetime of 60s: only values, ";
    fails(&|flow| drop(flow.lists::<u64, u64>("it")), refused);
    fails(&|flow| drop(flow.partial::<u64>("it")), refused);
    fails(
        &|flow| drop(flow.partial_map::<u64, u64>("it", |sum, one| *sum += one)),
        refused,
    );
    fails(&|flow| drop(flow.partial_matrix::<u64, u64>("it")), refused);
    fails(
        &|flow| drop(flow.lifetime(Duration::ZERO).maps::<u64, u64, u64>("it")),
        "flow \"numbers\": state \"it\" cannot have a lifetime of 0ns: ",
    );
    // With and without a changelog.
    let clock = Arc::new(WallClock::default());
    let logs = Arc::new(LogStore::default());
    check_change_of_kind(settings_in(&logs), &clock);
    let shards = Arc::new(MemoryStore::default());
    check_change_of_kind(settings_in(&shards), &clock);
}

fn check_change_of_kind(settings: FlowSettings, clock: &Arc<WallClock>) {
    let hand = Hand::default();
    let (running, values) = count(settings.clone(), clock, LIFETIME, &hand).unwrap();
    hand.give([1]);
    wait_until_committed(&values, &[(1, 1)]);
    drop(running);
    let flow = Flow::with_settings("numbers", settings);
    let values = flow.values::<u64, u64>("counts");
    let nothing = flow.partial::<u64>("nothing");
    flow.source("numbers", Hand::default())
        .key_by(|number| *number)
        .update("count", &values, |_, _, _, _: &mut Emit<'_, u64>| ())
        .fold_local(&nothing, |_, _| ());
    let error = flow.run().err().unwrap().to_string();
    let expected = "state \"counts\" has the types (u64, u64) with a lifetime in the checkpoint, and (u64, u64) in the program";
    assert!(error.contains(expected), "{error}");
}

/// Begins a flow that keeps a value for each number, with a lifetime or for ever.
fn keep<V: Value>(
    store: &Arc<LogStore>,
    has_lifetime: bool,
    numbers: &Hand,
    value_of: fn(u64) -> V,
) -> Result<Running, FlowError> {
    let flow = Flow::with_settings("numbers", settings_in(store));
    let values = match has_lifetime {
        true => flow
            .lifetime(Duration::from_secs(LIFETIME))
            .values("counts"),
        false => flow.values::<u64, V>("counts"),
    };
    let nothing = flow.partial::<u64>("nothing");
    flow.source("numbers", numbers.clone())
        .key_by(|number| *number)
        .update(
            "keep",
            &values,
            move |_, value, number, _: &mut Emit<'_, u64>| *value = Some(value_of(*number)),
        )
        .fold_local(&nothing, |_, _| ());
    flow.run()
}

/// A program that keeps values for ever, and one that keeps values with a lifetime, cannot continue each other.
fn check_lifetime_stays<A: Value, B: Value>(
    for_ever: fn(u64) -> A,
    with_lifetime: fn(u64) -> B,
    removed: &str,
) {
    let added = "state \"counts\" has no lifetime in the checkpoint, and one in the program";
    for (scan, is_added) in [
        (Scan::AtOnce, true),
        (Scan::AtOnce, false),
        (Scan::Held, true),
        (Scan::Held, false),
    ] {
        for numbers in [vec![], vec![7]] {
            let store = Arc::new(LogStore::default());
            let hand = Hand::default();
            let running = match is_added {
                true => keep(&store, false, &hand, for_ever),
                false => keep(&store, true, &hand, with_lifetime),
            };
            hand.give(numbers);
            hand.end();
            running.unwrap().join().unwrap();
            let calls = store.all_calls();
            store.scan(scan);
            let (resumed, expected) = match is_added {
                true => (keep(&store, true, &hand, with_lifetime), added),
                false => (keep(&store, false, &hand, for_ever), removed),
            };
            let error = resumed.err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(store.all_calls(), calls, "nothing is touched");
            // The same program continues.
            match is_added {
                true => drop(keep(&store, false, &hand, for_ever).unwrap()),
                false => drop(keep(&store, true, &hand, with_lifetime).unwrap()),
            }
        }
    }
}

/// In a changelog, a value with a lifetime is a list of a time and the value.
#[test]
fn a_lifetime_is_neither_added_nor_removed_where_values_look_alike() {
    check_lifetime_stays::<(i64, u64), u64>(
        |number| (1_000, number),
        |number| number,
        "state \"counts\" has the types (u64, u64) with a lifetime in the checkpoint, and (u64, (i64, u64)) in the program",
    );
    check_lifetime_stays::<Vec<i64>, i64>(
        |number| vec![1_000, number as i64],
        |number| number as i64,
        "state \"counts\" has the types (u64, i64) with a lifetime in the checkpoint, and (u64, alloc::vec::Vec<i64>) in the program",
    );
    check_lifetime_stays::<Json, Json>(
        |number| json!([1_000, number]),
        |number| json!([1_000, number]),
        "state \"counts\" has the types (u64, serde_json::value::Value) with a lifetime in the checkpoint, and (u64, serde_json::value::Value) in the program",
    );
}

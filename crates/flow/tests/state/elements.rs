//! State elements beside values: each item changes the content of its key at the key's owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_base::KeyRange;
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::{
    Checkpointing, Counters, Emit, Flow, FlowSettings, MapOf, Maps, ReadLevel, Resume, Running,
    Sets,
};
use serde_json::json;

use crate::support::{Hand, MemoryStore, on_ranks, settings, wait_until};

const KEYS: u64 = 50;
const FIELDS: u64 = 40;
const ITEMS: u64 = 20_000;

/// The key, and the field of its map. Each key meets some of the fields, and each field often.
fn key_and_field(number: u64) -> (u64, u64) {
    (number % KEYS, number / 7 % FIELDS)
}

type Plain = BTreeMap<(u64, u64), u64>;

/// Counts by key and field; an odd field restarts after each third item.
fn apply(count: &mut Option<u64>, field: u64) {
    *count.get_or_insert_default() += 1;
    if field % 2 == 1 && *count == Some(3) {
        *count = None;
    }
}

fn plain(sources: u64, items: u64) -> Plain {
    let mut plain = BTreeMap::new();
    for number in (0..items).flat_map(|number| (0..sources).map(move |_| number)) {
        let (key, field) = key_and_field(number);
        apply(plain.entry((key, field)).or_default(), field);
    }
    let present = plain.into_iter();
    present
        .filter_map(|(key, count)| Some((key, count?)))
        .collect()
}

struct Elements {
    maps: Maps<u64, u64, u64>,
    sets: Sets<u64, u64>,
    counters: Counters<u64>,
}

impl Elements {
    /// Reads all, and checks that they agree.
    fn read(&self) -> Plain {
        let mut read = BTreeMap::new();
        for key in 0..KEYS {
            let entries = self.maps.entries(&key);
            let sum: u64 = entries.iter().map(|(_, count)| count).sum();
            assert_eq!(self.counters.get(&key), sum as i64);
            let fields: Vec<u64> = entries.iter().map(|(field, _)| *field).collect();
            assert_eq!(self.sets.elements(&key), fields);
            read.extend(
                entries
                    .into_iter()
                    .map(|(field, count)| ((key, field), count)),
            );
        }
        read
    }
}

/// Counts in a map, then keeps its fields in a set, and its sum in a counter.
fn start(settings: FlowSettings, sources: u64, items: u64) -> (Running, Elements) {
    let flow = Flow::with_settings("numbers", settings);
    let elements = Elements {
        maps: flow.maps("maps"),
        sets: flow.sets("sets"),
        counters: flow.counters("counters"),
    };
    let number = |number| {
        // Slow enough to be stopped.
        if number % 512 == 0 {
            thread::sleep(Duration::from_micros(300));
        }
        number
    };
    let count = |key: &u64,
                 mut map: MapOf<'_, u64, u64, u64>,
                 number: &u64,
                 emit: &mut Emit<'_, (u64, u64, bool, i64)>| {
        let (_, field) = key_and_field(*number);
        let before = map.get(&field).copied().unwrap_or(0);
        map.update(&field, |count| apply(count, field));
        let after = map.get(&field).copied().unwrap_or(0);
        emit(&(*key, field, after > 0, after as i64 - before as i64));
    };
    flow.sources(
        "numbers",
        (0..sources).map(|_| Generator::new(number).limit(items)),
    )
    .key_by(|number| key_and_field(*number).0)
    .update("count", &elements.maps, count)
    .key_by(|(key, ..)| *key)
    .update(
        "keep",
        &elements.sets,
        |_, mut set, change, emit: &mut Emit<'_, _>| {
            match change.2 {
                true => set.insert(&change.1),
                false => set.remove(&change.1),
            };
            emit(change);
        },
    )
    .key_by(|(key, ..)| *key)
    .update(
        "sum",
        &elements.counters,
        |_, mut counter, (.., by), _: &mut Emit<'_, u64>| {
            counter.add(*by);
        },
    )
    .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    (flow.run().unwrap(), elements)
}

#[test]
fn maps_sets_and_counters_equal_plain_ones_for_any_number_of_workers() {
    for (workers, sources) in [(1, 1), (2, 3), (4, 2)] {
        let (running, elements) = start(settings(workers, 64), sources, ITEMS);
        running.join().unwrap();
        assert_eq!(elements.read(), plain(sources, ITEMS));
    }
}

#[test]
fn all_entries_of_a_key_are_on_the_rank_that_owns_the_key() {
    let found = on_ranks(3, |ranks| {
        let settings = FlowSettings {
            ranks: ranks.clone(),
            ..settings(2, 64)
        };
        let (running, elements) = start(settings, 1, ITEMS);
        running.join().unwrap();
        elements.read()
    });
    let mut all = Plain::new();
    let mut keys = BTreeSet::new();
    for of_rank in found {
        let of_this: BTreeSet<u64> = of_rank.keys().map(|(key, _)| *key).collect();
        assert!(!of_this.is_empty() && keys.is_disjoint(&of_this));
        keys.extend(of_this);
        all.extend(of_rank);
    }
    assert_eq!(all, plain(3, ITEMS));
}

#[test]
fn elements_resume_from_whole_checkpoints_with_another_number_of_partitions() {
    let store = Arc::new(MemoryStore::default());
    let start = |workers, resume| {
        let checkpoints = Checkpointing {
            store: Arc::clone(&store) as _,
            interval: Some(Duration::from_millis(1)),
            resume,
        };
        let settings = FlowSettings {
            ranks: Ranks::alone(),
            checkpoints: Some(checkpoints),
            ..settings(workers, 64)
        };
        start(settings, 1, 100_000)
    };
    let mut resume = Resume::Never;
    for workers in [2, 3, 1] {
        let (running, _) = start(workers, resume);
        let kept = || running.checkpoints().unwrap().kept;
        wait_until("checkpoints are stored", || kept() > 3);
        drop(running);
        resume = Resume::Always;
    }
    let (running, elements) = start(4, resume);
    running.join().unwrap();
    assert_eq!(elements.read(), plain(1, 100_000));
}

#[test]
fn entries_are_read_by_text_and_in_ranges_and_show_their_kind() {
    let hand = Hand::default();
    let flow = Flow::with_settings("shop", settings(2, 64));
    let carts = flow.maps::<String, u64, u64>("carts");
    let seen = flow.sets::<u64, u64>("seen");
    let hits = flow.counters::<u64>("hits");
    let nothing = flow.partial::<u64>("nothing");
    flow.source("numbers", hand.clone())
        .key_by(|number| format!("user {}", number % 2))
        .update(
            "count",
            &carts,
            |_, mut cart, number, emit: &mut Emit<'_, u64>| {
                *cart.or_default(number) += 1;
                emit(number);
            },
        )
        .key_by(|number| *number)
        .update(
            "see",
            &seen,
            |_, mut seen, number, emit: &mut Emit<'_, u64>| {
                seen.insert(&(number + 1));
                emit(number);
            },
        )
        .key_by(|number| *number)
        .update("hit", &hits, |_, mut hits, _, _: &mut Emit<'_, u64>| {
            hits.add(1);
        })
        .fold_local(&nothing, |_, _| ());
    let running = flow.run().unwrap();
    hand.give([3, 5, 256, 3, 1]);
    // Partitions of keys count independently of each other.
    wait_until("all are counted", || {
        [1, 3, 5, 256]
            .iter()
            .map(|number| hits.get(number))
            .sum::<i64>()
            == 5
    });
    let state = running.state("carts").unwrap();
    assert_eq!(state.get(r#"["user 1",3]"#), Some(json!(2)));
    assert_eq!(state.get("user 1"), None);
    assert_eq!(
        running.state("seen").unwrap().get("[3,4]"),
        Some(json!(true))
    );
    assert_eq!(running.state("hits").unwrap().get("3"), Some(json!(2)));
    let ordered = state.ordered().unwrap();
    let from = ordered.encode(r#"["user 1",2]"#).unwrap();
    let page = ordered.scan(&KeyRange::new(from, None), 2, ReadLevel::Live);
    let keys: Vec<&str> = page.entries.iter().map(|entry| &*entry.key).collect();
    assert_eq!(keys, [r#"["user 1",3]"#, r#"["user 1",5]"#]);
    assert!(!page.has_more);
    let elements = running.elements();
    let shown: Vec<_> = elements
        .iter()
        .map(|it| (&*it.kind, it.entries.unwrap()))
        .collect();
    assert_eq!(shown[..3], [("maps", 4), ("sets", 4), ("counters", 4)]);
    assert!(elements[0].memory_bytes > Some(4 * 16));
    hand.end();
    running.join().unwrap();
}

#[test]
fn a_panic_in_an_update_of_a_map_fails_the_flow() {
    let flow = Flow::with_settings("numbers", settings(1, 64));
    let maps = flow.maps::<u64, u64, u64>("maps");
    flow.source("numbers", Generator::new(|number| number).limit(10))
        .key_by(|number| *number)
        .update(
            "fill",
            &maps,
            |_, mut map, number, _: &mut Emit<'_, u64>| {
                assert!(*number < 5, "enough of {number}");
                map.insert(number, 1);
            },
        )
        .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    let error = flow.run().unwrap().join().unwrap_err().to_string();
    let expected = "flow \"numbers\": \"fill/0.update\" panicked: enough of 5";
    assert_eq!(error, expected);
}

#[test]
fn the_replicas_of_all_instances_merge_to_the_counts_also_after_a_resume_with_others() {
    let store = Arc::new(MemoryStore::default());
    let start = |sources: u64, resume| {
        let checkpoints = Checkpointing {
            store: Arc::clone(&store) as _,
            interval: Some(Duration::from_millis(1)),
            resume,
        };
        let settings = FlowSettings {
            checkpoints: Some(checkpoints),
            ..settings(sources as usize, 64)
        };
        let flow = Flow::with_settings("numbers", settings);
        let counts = flow.partial_map::<u64, u64>("counts", |sum, other| *sum += other);
        let source = |number| {
            if number % 512 == 0 {
                thread::sleep(Duration::from_micros(300));
            }
            number
        };
        flow.source("numbers", Generator::new(source).limit(ITEMS))
            .boundary("others")
            .update_local(
                "count",
                &counts,
                |mut counts, number, emit: &mut Emit<'_, u64>| {
                    *counts.or_default(&(number % KEYS)) += 1;
                    emit(number);
                },
            )
            .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
        (flow.run().unwrap(), counts)
    };
    let mut resume = Resume::Never;
    for workers in [3, 1, 2] {
        let (running, _) = start(workers, resume);
        let kept = || running.checkpoints().unwrap().kept;
        wait_until("checkpoints are stored", || kept() > 3);
        drop(running);
        resume = Resume::Always;
    }
    let (running, counts) = start(4, resume);
    running.join().unwrap();
    assert_eq!(counts.get(&7), Some(ITEMS / KEYS));
    let merged: BTreeMap<u64, u64> = counts.merged().into_iter().collect();
    let expected = (0..KEYS).map(|key| (key, ITEMS / KEYS));
    assert_eq!(merged, expected.collect());
    let state = running.state("counts").unwrap();
    assert_eq!(state.get("7"), Some(json!(ITEMS / KEYS)));
    assert_eq!(state.keys(100).len(), KEYS as usize);
    assert_eq!(running.elements()[0].kind, "partial map");
}

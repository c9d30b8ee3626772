//! Values by key: each item changes the value of its key once, at the key's owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use millstream_flow::sources::Generator;
use millstream_flow::{Checkpointing, Emit, Flow, FlowSettings, Order, Resume, StateReader};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::support::{Collect, Hand, Letters, MemoryStore, on_ranks, settings, wait_until};

const KEYS: u64 = 1000;

/// Reads all values as other programs do: by the text of their keys.
pub fn read(state: &dyn StateReader) -> BTreeMap<String, u64> {
    let keys = state.keys(usize::MAX);
    let value = |key: String| {
        let value = state.get(&key).expect("it is one of the keys");
        (key, value.as_u64().expect("a number"))
    };
    keys.into_iter().map(value).collect()
}

/// Compares counts, and shows those that differ.
pub fn check(found: &BTreeMap<String, u64>, expected: &BTreeMap<String, u64>) {
    let keys: BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let wrong = keys.into_iter().filter_map(|key| {
        let [found, expected] = [found, expected].map(|counts| counts.get(key));
        (found != expected).then(|| format!("{key}: {found:?}, not {expected:?}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(
        wrong.is_empty(),
        "{} are wrong: {}",
        wrong.len(),
        wrong[..wrong.len().min(10)].join("; ")
    );
}

/// The counts of numbers by their remainders, of `sources` sources of `items` items each.
fn counts(sources: u64, items: u64) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for number in 0..items {
        *counts.entry((number % KEYS).to_string()).or_default() += sources;
    }
    counts
}

#[test]
fn counts_equal_a_plain_maps_for_any_number_of_workers() {
    for (workers, sources, order) in [
        (1, 1, Order::Kept),
        (2, 3, Order::Kept),
        (4, 4, Order::Kept),
        (4, 4, Order::Free),
    ] {
        let settings = FlowSettings {
            order,
            ..settings(workers, 64)
        };
        let flow = Flow::with_settings("numbers", settings);
        let values = flow.values::<u64, u64>("counts");
        flow.sources(
            "numbers",
            (0..sources).map(|_| Generator::new(|number| number).limit(20_500)),
        )
        .key_by(|number| number % KEYS)
        .count("count", &values);
        let running = flow.run().unwrap();
        running.join().unwrap();
        check(&read(&values), &counts(sources, 20_500));
    }
}

#[test]
fn results_of_a_key_are_emitted_in_the_order_of_its_items() {
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("numbers", settings(3, 64));
    let values = flow.values::<u64, u64>("counts");
    flow.source("numbers", Generator::new(|number| number).limit(10_000))
        .boundary("others")
        .key_by(|number| number % 7)
        .update(
            "count",
            &values,
            |key, count, number, emit: &mut Emit<(u64, u64, u64)>| {
                let count = count.get_or_insert_default();
                *count += 1;
                emit(&(*key, *count, *number));
            },
        )
        .sink("results", sink);
    flow.run().unwrap().join().unwrap();
    let results = results.lock().unwrap();
    assert_eq!(results.len(), 10_000);
    let mut next = [0; 7];
    for (key, count, number) in &*results {
        let expected = &mut next[*key as usize];
        assert_eq!((*count, *number), (*expected + 1, *key + *expected * 7));
        *expected += 1;
    }
}

#[test]
fn a_removed_value_is_absent_and_starts_from_its_default() {
    let flow = Flow::with_settings("numbers", settings(2, 64));
    let values = flow.values::<String, Vec<u64>>("lists");
    let sums = flow.partial::<u64>("sums");
    // The third item of each key removes the value of the first two.
    flow.source("numbers", Generator::new(|number| number).limit(40))
        .key_by(|number| format!("key {}", number % 10))
        .update(
            "list",
            &values,
            |_, list: &mut Option<Vec<u64>>, number, emit: &mut Emit<u64>| {
                match number / 10 {
                    2 => emit(&list.take().into_iter().flatten().sum()),
                    _ => list.get_or_insert_default().push(*number),
                };
            },
        )
        .fold_local(&sums, |sums, sum| *sums += sum);
    let running = flow.run().unwrap();
    running.join().unwrap();
    assert_eq!(sums.merged(), (0..20).sum::<u64>());
    let state = running.state("lists").unwrap();
    assert_eq!(state.keys(100).len(), 10);
    assert_eq!(state.keys(3).len(), 3);
    assert_eq!(state.get("key 4").unwrap().to_string(), "[34]");
    assert_eq!(state.get("key 10"), None);
    assert_eq!(values.get(&"key 7".to_owned()), Some(vec![37]));
}

#[test]
fn each_key_is_on_one_rank_and_the_ranks_together_have_all_items() {
    let found = on_ranks(3, |ranks| {
        let settings = FlowSettings {
            ranks: ranks.clone(),
            ..settings(2, 64)
        };
        let flow = Flow::with_settings("numbers", settings);
        let values = flow.values::<u64, u64>("counts");
        // One rank gives nothing.
        let sources = if ranks.rank() == 1 { 0 } else { 2 };
        let sources = (0..sources).map(|_| Generator::new(|number| number).limit(5000));
        flow.sources("numbers", sources)
            .key_by(|number| number % KEYS)
            .fold("count", &values, |count, _: &u64| *count += 1);
        flow.run().unwrap().join().unwrap();
        read(&values)
    });
    let mut all = BTreeMap::new();
    for of_rank in found {
        assert!(of_rank.len() > 200, "keys are spread: {}", of_rank.len());
        for (key, count) in of_rank {
            assert_eq!(all.insert(key, count), None, "a key has one owner");
        }
    }
    check(&all, &counts(4, 5000));
}

#[test]
fn several_operators_update_one_state_element() {
    let flow = Flow::with_settings("bank", settings(2, 64));
    let balances = flow.values::<u64, i64>("balances");
    for (name, amount) in [("in", 5), ("out", -2)] {
        flow.source(name, Generator::new(|number| number).limit(3000))
            .key_by(|number| number % 30)
            .fold(&format!("pay {name}"), &balances, move |sum, _: &u64| {
                *sum += amount;
            });
    }
    flow.run().unwrap().join().unwrap();
    for account in 0..30 {
        assert_eq!(balances.get(&account), Some(300));
    }
}

#[test]
fn values_are_read_while_the_flow_runs() {
    let hand = Hand::default();
    let flow = Flow::with_settings("numbers", settings(2, 64));
    let values = flow.values::<u64, u64>("counts");
    flow.source("numbers", hand.clone())
        .key_by(|number| *number)
        .count("count", &values);
    let running = flow.run().unwrap();
    let state = running.state("counts").unwrap();
    hand.give([3, 4, 3]);
    let is_counted = || state.get("3") == Some(2.into()) && state.get("4") == Some(1.into());
    wait_until("three numbers are counted", is_counted);
    hand.give([3]);
    wait_until("one more", || values.get(&3) == Some(3));
    hand.end();
    running.join().unwrap();
}

#[test]
fn a_flow_resumes_from_whole_values_with_another_number_of_partitions() {
    let store = Arc::new(MemoryStore::default());
    let start = |workers, resume| {
        let settings = FlowSettings {
            checkpoints: Some(Checkpointing {
                store: Arc::clone(&store) as _,
                interval: Some(Duration::from_millis(1)),
                resume,
            }),
            ..settings(workers, 64)
        };
        let flow = Flow::with_settings("numbers", settings);
        let values = flow.values::<u64, u64>("counts");
        // Slow enough to be stopped.
        let number = |number| {
            if number % 512 == 0 {
                thread::sleep(Duration::from_micros(300));
            }
            number
        };
        flow.source("numbers", Generator::new(number).limit(100_000))
            .key_by(|number| number % KEYS)
            .count("count", &values);
        (flow.run().unwrap(), values)
    };
    let mut resume = Resume::Never;
    for workers in [2, 3, 1] {
        let (running, _) = start(workers, resume);
        let kept = || running.checkpoints().unwrap().kept;
        wait_until("checkpoints are stored", || kept() > 3);
        drop(running);
        resume = Resume::Always;
    }
    let (running, values) = start(4, resume);
    running.join().unwrap();
    check(&read(&values), &counts(1, 100_000));
}

#[test]
fn a_panic_in_an_update_fails_the_flow_and_no_checkpoint_has_half_an_update() {
    let store = Arc::new(MemoryStore::default());
    let is_broken = Arc::new(AtomicBool::new(true));
    let start = |resume| {
        let settings = FlowSettings {
            checkpoints: Some(Checkpointing {
                store: Arc::clone(&store) as _,
                interval: Some(Duration::from_millis(1)),
                resume,
            }),
            dead_letters: Some(Arc::new(Letters::default())),
            ..settings(2, 64)
        };
        let flow = Flow::with_settings("numbers", settings);
        let values = flow.values::<u64, u64>("counts");
        let is_broken = Arc::clone(&is_broken);
        flow.source("numbers", Generator::new(|number| number).limit(50_000))
            .key_by(|number| number % KEYS)
            .fold("count", &values, move |count, number: &u64| {
                *count += 1;
                assert!(
                    *number != 40_000 || !is_broken.load(Ordering::Relaxed),
                    "enough of {number}"
                );
            });
        (flow.run().unwrap(), values)
    };
    let (running, _) = start(Resume::Never);
    assert_eq!(
        running.join().unwrap_err().to_string(),
        "flow \"numbers\": \"count/0.fold\" panicked: enough of 40000"
    );
    is_broken.store(false, Ordering::Relaxed);
    let (running, values) = start(Resume::Always);
    running.join().unwrap();
    check(&read(&values), &counts(1, 50_000));
}

#[test]
fn a_panic_in_a_key_function_makes_a_dead_letter_and_changes_no_value() {
    let letters = Arc::new(Letters::default());
    let settings = FlowSettings {
        dead_letters: Some(Arc::clone(&letters) as _),
        ..settings(2, 64)
    };
    let flow = Flow::with_settings("numbers", settings);
    let values = flow.values::<u64, u64>("counts");
    flow.source("numbers", Generator::new(|number| number).limit(1000))
        .key_by(|number| {
            assert!(*number != 500, "no key");
            number % 10
        })
        .count("count", &values);
    flow.run().unwrap().join().unwrap();
    let items: Vec<_> = letters
        .0
        .lock()
        .unwrap()
        .iter()
        .map(|it| it.item.clone())
        .collect();
    assert_eq!(items, ["500"]);
    assert_eq!(read(&values).values().sum::<u64>(), 999);
}

/// Leaves out a field, so its canonical encoding would be ambiguous.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
struct Gappy {
    number: u64,
}

impl Serialize for Gappy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Gappy", 1)?;
        match self.number {
            500 => fields.skip_field("number")?,
            number => fields.serialize_field("number", &number)?,
        }
        fields.end()
    }
}

#[test]
fn a_key_without_canonical_bytes_fails_at_its_operator_or_becomes_a_dead_letter() {
    for has_letters in [false, true] {
        let letters = Arc::new(Letters::default());
        let settings = FlowSettings {
            dead_letters: has_letters.then(|| Arc::clone(&letters) as _),
            ..settings(2, 64)
        };
        let flow = Flow::with_settings("numbers", settings);
        let values = flow.values::<Gappy, u64>("counts");
        flow.source("numbers", Generator::new(|number| number).limit(1000))
            .key_by(|number| Gappy { number: *number })
            .count("count", &values);
        let ended = flow.run().unwrap().join();
        if has_letters {
            ended.unwrap();
            assert_eq!(letters.0.lock().unwrap().len(), 1);
            assert_eq!(values.keys(usize::MAX).len(), 999);
        } else {
            let error = ended.unwrap_err().to_string();
            let expected = "flow \"numbers\": \"numbers/0.key_by\" failed: its key: ";
            assert!(error.starts_with(expected), "{error}");
        }
    }
}

#[test]
fn a_checkpoint_starts_early_when_many_keys_have_changed() {
    let checkpoints = Checkpointing {
        store: Arc::new(MemoryStore::default()),
        interval: Some(Duration::from_secs(3600)),
        resume: Resume::Never,
    };
    let settings = FlowSettings {
        checkpoints: Some(checkpoints),
        ..settings(2, 1024)
    };
    let flow = Flow::with_settings("numbers", settings);
    let counts = flow.values::<u64, u64>("counts");
    flow.source("numbers", Generator::new(|number| number).limit(1_200_000))
        .key_by(|number| *number)
        .count("count", &counts);
    let running = flow.run().unwrap();
    running.join().unwrap();
    // The first one, this one, and the last one.
    assert_eq!(running.checkpoints().unwrap().kept, 3);
}

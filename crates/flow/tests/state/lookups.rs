//! Look-ups in a table outside of the flow: each item sees the value of its key, and memory keeps few of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use millstream_base::key::decode_key;
use millstream_flow::sources::Generator;
use millstream_flow::{BoxError, Emit, Flow, KeyLookup};

use crate::support::{Collect, Hand, settings, wait_until};

const FOR_EVER: Duration = Duration::MAX;

/// A table of numbers: even keys have ten times the key, others nothing, unless a test sets them.
#[derive(Default)]
struct Tens {
    set: Mutex<BTreeMap<u64, Vec<u8>>>,
    /// Keys that were looked up, and the most at once.
    looked_up: AtomicUsize,
    at_once_max: AtomicUsize,
    /// A look-up fails with this error.
    error: Mutex<Option<String>>,
    /// Look-ups wait until the flow is over.
    hangs: AtomicBool,
}

impl KeyLookup for Tens {
    fn name(&self) -> String {
        "table tens".to_owned()
    }

    fn get(
        &self,
        keys: &[Vec<u8>],
        is_stopped: &AtomicBool,
    ) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        while self.hangs.load(Ordering::Relaxed) && !is_stopped.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        if let Some(error) = &*self.error.lock().unwrap() {
            return Err(error.clone().into());
        }
        self.looked_up.fetch_add(keys.len(), Ordering::Relaxed);
        self.at_once_max.fetch_max(keys.len(), Ordering::Relaxed);
        let set = self.set.lock().unwrap();
        let values = keys.iter().map(|key| {
            let key: u64 = decode_key(key)?;
            let ten = || {
                key.is_multiple_of(2)
                    .then(|| (10 * key).to_string().into_bytes())
            };
            Ok(set.get(&key).cloned().or_else(ten))
        });
        values.collect()
    }
}

fn number(value: &[u8]) -> Result<u64, BoxError> {
    Ok(str::from_utf8(value)?.parse()?)
}

/// Looks up `items` items by their remainders to `keys`, and returns each item with its value.
fn look_up(table: &Arc<Tens>, max_age: Duration, items: u64, keys: u64) -> Vec<(u64, Option<u64>)> {
    let flow = Flow::with_settings("tens", settings(2, 4096));
    let lookups = flow.lookups(
        "tens",
        Arc::clone(table) as Arc<dyn KeyLookup>,
        max_age,
        number,
    );
    let (sink, found) = Collect::new();
    flow.source("numbers", Generator::new(|number| number).limit(items))
        .key_by(move |number| number % keys)
        .update("find", &lookups, |_, value, item, emit: &mut Emit<_>| {
            emit(&(*item, value.copied()));
        })
        .sink("found", sink);
    flow.run().unwrap().join().unwrap();
    let mut found = found.lock().unwrap().clone();
    found.sort_unstable();
    found
}

fn expected(items: u64, keys: u64) -> Vec<(u64, Option<u64>)> {
    let value = |item: u64| Some(item % keys).filter(|key| key.is_multiple_of(2));
    let items = 0..items;
    items
        .map(|item| (item, value(item).map(|key| 10 * key)))
        .collect()
}

#[test]
fn each_item_sees_the_value_of_its_key_and_few_keys_are_looked_up_once() {
    let table = Arc::new(Tens::default());
    assert_eq!(
        look_up(&table, FOR_EVER, 20_000, 1_000),
        expected(20_000, 1_000)
    );
    assert_eq!(table.looked_up.load(Ordering::Relaxed), 1_000);
    assert!(table.at_once_max.load(Ordering::Relaxed) > 1);
}

#[test]
fn more_keys_than_memory_keeps_are_looked_up_again() {
    let table = Arc::new(Tens::default());
    assert_eq!(
        look_up(&table, FOR_EVER, 60_000, 20_000),
        expected(60_000, 20_000)
    );
    assert!(table.looked_up.load(Ordering::Relaxed) >= 60_000);
}

#[test]
fn values_that_may_not_last_are_looked_up_for_each_item() {
    let table = Arc::new(Tens::default());
    assert_eq!(look_up(&table, Duration::ZERO, 300, 3), expected(300, 3));
    assert!(table.looked_up.load(Ordering::Relaxed) >= 100);
}

#[test]
fn a_value_that_is_too_old_is_looked_up_again() {
    let table = Arc::new(Tens::default());
    let flow = Flow::new("tens");
    let max_age = Duration::from_millis(20);
    let lookups = flow.lookups(
        "tens",
        Arc::clone(&table) as Arc<dyn KeyLookup>,
        max_age,
        number,
    );
    let (sink, found) = Collect::new();
    let hand = Hand::default();
    flow.source("numbers", hand.clone())
        .key_by(|number| *number)
        .update("find", &lookups, |_, value, _, emit: &mut Emit<_>| {
            emit(&value.copied())
        })
        .sink("found", sink);
    let running = flow.run().unwrap();
    for value in [Some(40), Some(7), None] {
        if let Some(value) = value.filter(|value| *value != 40) {
            let set = value.to_string().into_bytes();
            table.set.lock().unwrap().insert(4, set);
        }
        let key = if value.is_some() { 4 } else { 5 };
        thread::sleep(2 * max_age);
        hand.give([key]);
        wait_until("the item has come", || {
            found.lock().unwrap().last() == Some(&value)
        });
    }
    hand.end();
    running.join().unwrap();
}

#[test]
fn an_error_of_a_look_up_ends_the_flow_and_names_the_table() {
    let table = Arc::new(Tens::default());
    *table.error.lock().unwrap() = Some("table tens: it burns".to_owned());
    let error = failure(&table);
    assert_eq!(
        error,
        "flow \"tens\": \"tens\" failed: table tens: it burns"
    );
}

#[test]
fn a_value_that_cannot_be_decoded_ends_the_flow_and_names_table_and_key() {
    let table = Arc::new(Tens::default());
    table.set.lock().unwrap().insert(4, b"four".to_vec());
    let error = failure(&table);
    let expected =
        "flow \"tens\": \"tens\" failed: table tens: key \"4\": invalid digit found in string";
    assert_eq!(error, expected);
}

/// Looks up the key 4 and returns the error of the flow.
fn failure(table: &Arc<Tens>) -> String {
    let flow = Flow::new("tens");
    let lookups = flow.lookups(
        "tens",
        Arc::clone(table) as Arc<dyn KeyLookup>,
        FOR_EVER,
        number,
    );
    let (sink, _) = Collect::<u64>::new();
    flow.source("numbers", Generator::new(|_| 4_u64).limit(1))
        .key_by(|number| *number)
        .update("find", &lookups, |_, value, _, emit: &mut Emit<u64>| {
            value.into_iter().for_each(emit);
        })
        .sink("found", sink);
    flow.run().unwrap().join().unwrap_err().to_string()
}

#[test]
fn a_flow_that_is_dropped_waits_for_no_look_up() {
    let table = Arc::new(Tens::default());
    table.hangs.store(true, Ordering::Relaxed);
    let flow = Flow::new("tens");
    let lookups = flow.lookups(
        "tens",
        Arc::clone(&table) as Arc<dyn KeyLookup>,
        FOR_EVER,
        number,
    );
    let (sink, found) = Collect::<u64>::new();
    flow.source("numbers", Generator::new(|number| number))
        .key_by(|number| *number)
        .update("find", &lookups, |_, value, _, emit: &mut Emit<u64>| {
            value.into_iter().for_each(emit);
        })
        .sink("found", sink);
    drop(flow.run().unwrap());
    assert_eq!(found.lock().unwrap().len(), 0);
}

#[test]
fn a_value_of_a_flow_and_a_looked_up_one_are_changed_and_seen_together() {
    let table = Arc::new(Tens::default());
    let flow = Flow::with_settings("tens", settings(2, 4096));
    let lookups = flow.lookups(
        "tens",
        Arc::clone(&table) as Arc<dyn KeyLookup>,
        FOR_EVER,
        number,
    );
    let sums = flow.values::<u64, u64>("sums");
    let (sink, _) = Collect::<u64>::new();
    flow.source("numbers", Generator::new(|number| number).limit(5_000))
        .key_by(|number| number % 50)
        .update(
            "add",
            &(sums.clone(), lookups),
            |_, (sum, value), _, _: &mut Emit<u64>| {
                *sum.get_or_insert_default() += value.copied().unwrap_or(1);
            },
        )
        .sink("none", sink);
    flow.run().unwrap().join().unwrap();
    for key in 0..50_u64 {
        let value = if key.is_multiple_of(2) { 10 * key } else { 1 };
        assert_eq!(sums.get(&key), Some(100 * value), "{key}");
    }
}

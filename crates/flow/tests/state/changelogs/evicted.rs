//! Values that leave memory, since it has no room for all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_base::KeyRange;
use millstream_exchange::Ranks;
use millstream_flow::{
    Emit, Flow, FlowSettings, OrderedState, ReadLevel, Resume, Running, StateMemory, StateReader,
    Values,
};

use super::log::LogStore;
use super::settings_of;
use crate::support::{Hand, wait_until};

const KEYS: u64 = 2_000;

/// How often a value repeats its number, so that it has about 100 bytes.
const TIMES: usize = 40;

fn text_of(count: u64, times: usize) -> String {
    format!("{count}-").repeat(times)
}

/// Counts numbers by key, in texts; 10,000 + k removes key k.
fn count(
    store: &Arc<LogStore>,
    memory: &Arc<StateMemory>,
    numbers: &Hand,
    times: usize,
) -> (Running, Values<u64, String>) {
    let settings = FlowSettings {
        state_memory: Arc::clone(memory),
        ..settings_of(store, Resume::IfAny, &Ranks::alone())
    };
    let flow = Flow::with_settings("numbers", settings);
    let values = flow.values::<u64, String>("texts");
    let nothing = flow.partial::<u64>("nothing");
    flow.source("numbers", numbers.clone())
        .key_by(|number| number % 10_000)
        .update(
            "count",
            &values,
            move |_, text, number, _: &mut Emit<'_, u64>| {
                let count = text
                    .as_ref()
                    .map_or(0, |text| text.split('-').next().unwrap().parse().unwrap());
                *text = (*number < 10_000).then(|| text_of(count + 1, times));
            },
        )
        .fold_local(&nothing, |_, _| ());
    (flow.run().unwrap(), values)
}

/// The values as the flow has them in the end.
fn expected(numbers: impl IntoIterator<Item = u64>, times: usize) -> BTreeMap<u64, String> {
    let mut counts = BTreeMap::new();
    for number in numbers {
        match number < 10_000 {
            true => *counts.entry(number).or_default() += 1,
            false => drop(counts.remove(&(number - 10_000))),
        }
    }
    counts
        .into_iter()
        .map(|(key, count)| (key, text_of(count, times)))
        .collect()
}

fn all(values: &Values<u64, String>, level: ReadLevel) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::new();
    let mut range = KeyRange::all();
    loop {
        let page = values.scan(&range, 500, level);
        for entry in &page.entries {
            let text = entry.value.as_str().unwrap().to_owned();
            assert!(found.insert(entry.key.parse().unwrap(), text).is_none());
        }
        match page.entries.last() {
            Some(last) if page.has_more => range.from = [&last.bytes[..], b"\0"].concat(),
            _ => return found,
        }
    }
}

#[test]
fn values_beyond_the_memory_leave_it_and_come_back() {
    let store = Arc::new(LogStore::default());
    let memory = Arc::new(StateMemory::new(96 << 10));
    let mut rng = fastrand::Rng::with_seed(7);
    let mut given = Vec::new();
    for run in 0..3 {
        let hand = Hand::default();
        let (running, values) = count(&store, &memory, &hand, TIMES);
        for _ in 0..12 {
            let number = |_| match rng.u32(..10) {
                0 => 10_000 + rng.u64(..KEYS),
                _ => rng.u64(..KEYS),
            };
            let numbers: Vec<u64> = (0..500).map(number).collect();
            given.extend_from_slice(&numbers);
            hand.give(numbers);
            // Reads load values beside the flow.
            let key = rng.u64(..KEYS);
            let found = values.get(&key);
            assert!(found.is_none_or(|text| text.len() >= 80));
        }
        let expected = expected(given.iter().copied(), TIMES);
        wait_until("all is processed", || {
            all(&values, ReadLevel::Live) == expected
        });
        wait_until("all is committed", || {
            all(&values, ReadLevel::Committed) == expected
        });
        // All values take more than four times the bound. The flow is silent now.
        wait_until("values have left", || {
            !values.is_whole().unwrap() && memory.used() <= memory.bytes_max()
        });
        let keys = values.keys(usize::MAX).len();
        assert_eq!(keys, expected.len());
        assert!((0..KEYS).all(|key| values.get(&key) == expected.get(&key).cloned()));
        match run {
            // The next run goes on from the last checkpoint.
            0 | 1 => drop(running),
            _ => {
                hand.end();
                running.join().unwrap();
            }
        }
        // Reads after the end still load values, for which others leave.
        assert!((0..KEYS).all(|key| values.get(&key) == expected.get(&key).cloned()));
        assert_eq!(
            values.is_whole().map_err(|error| error.to_string()),
            Ok(false)
        );
    }
}

#[test]
fn pages_of_large_values_have_all_keys() {
    let store = Arc::new(LogStore::default());
    let memory = Arc::new(StateMemory::new(1 << 20));
    let hand = Hand::default();
    let times = 128 << 10;
    let (running, values) = count(&store, &memory, &hand, times);
    let numbers: Vec<u64> = (0..40).chain(10_005..10_015).collect();
    hand.give(numbers.iter().copied());
    let expected = expected(numbers, times);
    for level in [ReadLevel::Live, ReadLevel::Committed] {
        wait_until("all is there", || all(&values, level) == expected);
    }
    wait_until("values have left", || !values.is_whole().unwrap());
    for level in [ReadLevel::Live, ReadLevel::Committed] {
        let page = values.scan(&KeyRange::all(), 500, level);
        assert!(page.has_more);
        assert!((2..20).contains(&page.entries.len()));
        assert!(all(&values, level) == expected);
    }
    drop(running);
}

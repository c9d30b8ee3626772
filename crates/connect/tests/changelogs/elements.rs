//! Flows whose state elements of all kinds are in changelogs.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use millstream_base::key::decode_key;
use millstream_flow::sources::Generator;
use millstream_flow::{Checkpointing, Element, Emit, Flow, FlowSettings, Resume, Running};
use serde::de::DeserializeOwned;

use crate::flows::wait_for_checkpoints;
use crate::support::{World, for_both};

const NUMBERS: u64 = 40_000;
const KEYS: u64 = 20;
const FIELDS: u64 = 30;

fn key(number: u64) -> u64 {
    number * number % KEYS
}

fn field(number: u64) -> u64 {
    number / 3 % FIELDS
}

/// Updates an element for each number, slowly enough to be interrupted.
fn start<E: Element<u64>>(
    world: &World,
    element: impl Fn(&Flow) -> E,
    update: impl Fn(&mut E::Content<'_>, u64) + Send + Sync + 'static,
) -> (Running, E) {
    let checkpoints = Checkpointing {
        store: world.store.clone(),
        interval: Some(Duration::from_millis(5)),
        resume: Resume::IfAny,
    };
    let settings = FlowSettings {
        checkpoints: Some(checkpoints),
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("shop", settings);
    let element = element(&flow);
    let numbers = Generator::new(|number| {
        if number % 128 == 0 {
            thread::sleep(Duration::from_micros(500));
        }
        number
    });
    flow.source("numbers", numbers.limit(NUMBERS))
        .key_by(|number| key(*number))
        .update(
            "change",
            &element,
            move |_, content, number, _: &mut Emit<'_, u64>| {
                update(content, *number);
            },
        )
        .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    (flow.run().unwrap(), element)
}

/// Runs a flow to its end, with interruptions, and compares the element and its changelog with a plain collection of
/// the records.
fn check<E, K, V>(
    element: impl Fn(&Flow) -> E + Copy,
    update: impl Fn(&mut E::Content<'_>, u64) + Copy + Send + Sync + 'static,
    read: impl Fn(&E) -> BTreeMap<K, V>,
    plain: &BTreeMap<K, V>,
) where
    E: Element<u64>,
    K: DeserializeOwned + Ord + std::fmt::Debug,
    V: DeserializeOwned + PartialEq + std::fmt::Debug,
{
    for_both(|world| {
        for _ in 0..3 {
            let (running, _) = start(world, element, update);
            wait_for_checkpoints(&running, 3);
            drop(running);
        }
        let (running, element) = start(world, element, update);
        running.join().unwrap();
        assert_eq!(&read(&element), plain);
        let records = world.begin(None).restore().unwrap().into_iter();
        let records = records.map(|(key, value)| {
            let value = serde_json::from_slice(&value).unwrap();
            (decode_key(&key).unwrap(), value)
        });
        assert_eq!(&BTreeMap::from_iter(records), plain);
    });
}

#[test]
fn each_entry_of_a_map_is_a_record_and_counts_once_although_the_flow_resumes() {
    let mut plain = BTreeMap::new();
    for number in 0..NUMBERS {
        let id = (key(number), field(number));
        match number % 5 {
            0 => drop(plain.remove(&id)),
            _ => *plain.entry(id).or_default() += number,
        }
    }
    check(
        |flow| flow.maps::<u64, u64, u64>("users"),
        |map, number| match number % 5 {
            0 => drop(map.remove(&field(number))),
            _ => *map.or_default(&field(number)) += number,
        },
        |maps| {
            let entries = (0..KEYS).flat_map(|key| {
                let entries = maps.entries(&key).into_iter();
                entries.map(move |(field, sum)| ((key, field), sum))
            });
            entries.collect()
        },
        &plain,
    );
}

#[test]
fn each_element_of_a_set_is_a_record_although_the_flow_resumes() {
    let mut plain = BTreeMap::new();
    for number in 0..NUMBERS {
        let id = (key(number), field(number));
        match number % 3 {
            0 => drop(plain.remove(&id)),
            _ => drop(plain.insert(id, true)),
        }
    }
    check(
        |flow| flow.sets::<u64, u64>("users"),
        |set, number| {
            match number % 3 {
                0 => set.remove(&field(number)),
                _ => set.insert(&field(number)),
            };
        },
        |sets| {
            let elements = (0..KEYS).flat_map(|key| {
                let elements = sets.elements(&key).into_iter();
                elements.map(move |element| ((key, element), true))
            });
            elements.collect()
        },
        &plain,
    );
}

#[test]
fn each_number_adds_to_its_counter_once_although_the_flow_resumes() {
    let by = |number: u64| number as i64 % 7 - 3;
    let mut plain = BTreeMap::new();
    for number in 0..NUMBERS {
        *plain.entry(key(number)).or_default() += by(number);
    }
    plain.retain(|_, count| *count != 0);
    check(
        |flow| flow.counters::<u64>("users"),
        move |counter, number| {
            counter.add(by(number));
        },
        |counters| {
            let counts = (0..KEYS).map(|key| (key, counters.get(&key)));
            counts.filter(|(_, count)| *count != 0).collect()
        },
        &plain,
    );
}

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
    update: impl Fn(E::Content<'_>, u64) + Send + Sync + 'static,
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
    update: impl Fn(E::Content<'_>, u64) + Copy + Send + Sync + 'static,
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
        |mut map, number| match number % 5 {
            0 => {
                map.remove(&field(number));
            }
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
        |mut set, number| {
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
        move |mut counter, number| {
            counter.add(by(number));
        },
        |counters| {
            let counts = (0..KEYS).map(|key| (key, counters.get(&key)));
            counts.filter(|(_, count)| *count != 0).collect()
        },
        &plain,
    );
}

#[test]
fn each_item_of_a_list_is_a_record_although_the_flow_resumes() {
    /// A record of a list.
    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Record {
        Bounds(i64, i64),
        Item(u64),
    }
    let mut plain = BTreeMap::new();
    for key in 0..KEYS {
        let items: Vec<u64> = (0..NUMBERS).filter(|it| self::key(*it) == key).collect();
        let (len, kept) = (items.len() as i64, items.len().min(3));
        if len > 0 {
            plain.insert((key, None), Record::Bounds(len - kept as i64, len));
        }
        let last = (0..len).zip(items).skip(len as usize - kept);
        plain.extend(last.map(|(position, item)| ((key, Some(position)), Record::Item(item))));
    }
    check(
        |flow| flow.lists::<u64, u64>("users"),
        |mut list, number| {
            list.push_back(number);
            if list.len() > 3 {
                list.pop_front();
            }
        },
        |lists| {
            let mut read = BTreeMap::new();
            for key in 0..KEYS {
                let items = lists.items(&key);
                let positions = plain
                    .keys()
                    .filter(|(of, position)| *of == key && position.is_some());
                let items = positions
                    .zip(items)
                    .map(|(id, item)| (*id, Record::Item(item)));
                read.extend(items);
                if let Some(Record::Bounds(first, end)) = plain.get(&(key, None)) {
                    read.insert((key, None), Record::Bounds(*first, *end));
                }
            }
            read
        },
        &plain,
    );
}

#[test]
fn each_number_of_a_matrix_is_a_record_although_the_flow_resumes() {
    let by = |number: u64| (number % 3) as f64 - 1.0;
    let mut plain = BTreeMap::new();
    for number in 0..NUMBERS {
        *plain.entry((key(number), field(number))).or_default() += by(number);
    }
    plain.retain(|_, number| *number != 0.0);
    check(
        |flow| flow.matrices::<u64, u64>("users"),
        move |mut row, number| {
            row.add(&field(number), by(number));
        },
        |matrix| {
            let rows = (0..KEYS).flat_map(|key| {
                let row = matrix.row(&key).into_iter();
                row.map(move |(column, number)| ((key, column), number))
            });
            rows.collect()
        },
        &plain,
    );
}

#[test]
fn ordered_maps_vectors_and_top_lists_resume() {
    let mut ordered = BTreeMap::new();
    let mut vectors: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    let mut tops: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for number in 0..NUMBERS {
        ordered.insert((key(number), field(number)), number);
        let vector = vectors.entry(key(number)).or_insert_with(|| vec![0.0; 3]);
        vector[number as usize % 3] += 1.0;
        let top = tops.entry(key(number)).or_default();
        top.retain(|(_, item)| *item != field(number));
        top.push((number, field(number)));
        top.sort_by(|one, other| other.cmp(one));
        top.truncate(4);
    }
    check(
        |flow| flow.ordered_maps::<u64, u64, u64>("users"),
        |mut map, number| {
            map.insert(&field(number), number);
        },
        |maps| {
            let entries = (0..KEYS).flat_map(|key| {
                let entries = maps.entries(&key).into_iter();
                entries.map(move |(field, number)| ((key, field), number))
            });
            entries.collect()
        },
        &ordered,
    );
    check(
        |flow| flow.vectors::<u64>("users"),
        |mut vector, number| {
            vector.add(2, 0.0);
            vector.add(number as usize % 3, 1.0);
        },
        |all| {
            let all = (0..KEYS).map(|key| (key, all.get(&key)));
            all.filter(|(_, vector)| !vector.is_empty()).collect()
        },
        &vectors,
    );
    check(
        |flow| flow.tops::<u64, u64, u64>("users", 4),
        |mut top, number| {
            top.put(&number, &field(number));
        },
        |all| {
            let all = (0..KEYS).map(|key| (key, all.get(&key)));
            all.filter(|(_, top)| !top.is_empty()).collect()
        },
        &tops,
    );
}

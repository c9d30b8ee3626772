//! Several state elements that one operator changes together.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use millstream_flow::sources::Generator;
use millstream_flow::{Emit, Flow, FlowError};

use crate::support::settings;

const KEYS: u64 = 20;
const ITEMS: u64 = 30_000;

#[test]
fn the_contents_of_four_elements_equal_plain_ones() {
    let flow = Flow::with_settings("four", settings(3, 64));
    let counts = flow.values::<u64, u64>("counts");
    let lists = flow.lists::<u64, u64>("lists");
    let maps = flow.maps::<u64, u64, u64>("maps");
    let tops = flow.tops::<u64, u64, u64>("tops", 3);
    let all = (counts.clone(), lists.clone(), maps.clone(), tops.clone());
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", Generator::new(|number| number).limit(ITEMS))
        .key_by(|number| number % KEYS)
        .update(
            "change",
            &all,
            |_, (count, mut list, mut map, mut top), number, emit: &mut Emit<'_, u64>| {
                *count.get_or_insert_default() += 1;
                list.push_back(*number);
                if list.len() > 5 {
                    list.pop_front();
                }
                *map.or_default(&(number % 7)) += number;
                top.put(&(number * 31 % 1_009), number);
                emit(&list.len().try_into().unwrap());
            },
        )
        .fold_local(&sum, |sum, length| *sum += length);
    flow.run().unwrap().join().unwrap();
    let each = ITEMS / KEYS;
    assert_eq!(sum.merged(), KEYS * (1 + 2 + 3 + 4 + 5 * (each - 4)));
    for key in 0..KEYS {
        let numbers: Vec<u64> = (0..each).map(|index| index * KEYS + key).collect();
        assert_eq!(counts.get(&key), Some(each));
        assert_eq!(lists.items(&key), numbers[numbers.len() - 5..]);
        let mut map = BTreeMap::new();
        for number in &numbers {
            *map.entry(number % 7).or_insert(0) += number;
        }
        assert_eq!(maps.entries(&key), Vec::from_iter(map));
        let scores = tops.get(&key);
        let highest = numbers.iter().map(|number| number * 31 % 1_009).max();
        assert_eq!(scores.first().map(|(score, _)| *score), highest);
    }
}

/// Two operators whose tuples name the same elements in different orders would wait for each other.
#[test]
fn operators_that_name_the_same_elements_in_different_orders_do_not_wait_for_each_other() {
    let flow = Flow::with_settings("orders", settings(4, 64));
    let first = flow.values::<u64, u64>("first");
    let second = flow.counters::<u64>("second");
    let third = flow.values::<u64, u64>("third");
    let numbers = || Generator::new(|number| number).limit(ITEMS);
    let (one, other) = (
        flow.source("one", numbers()),
        flow.source("other", numbers()),
    );
    one.key_by(|number| number % KEYS)
        .update(
            "forwards",
            &(first.clone(), second.clone(), third.clone()),
            |_, (first, mut second, third), _, _: &mut Emit<'_, u64>| {
                *first.get_or_insert_default() += 1;
                second.add(1);
                *third.get_or_insert_default() += 1;
            },
        )
        .fold_local(&flow.partial::<u64>("one end"), |_, _| ());
    other
        .key_by(|number| number % KEYS)
        .update(
            "backwards",
            &(third.clone(), (second.clone(), first.clone())),
            |_, (third, (mut second, first)), _, _: &mut Emit<'_, u64>| {
                *third.get_or_insert_default() += 1;
                second.add(1);
                *first.get_or_insert_default() += 1;
            },
        )
        .fold_local(&flow.partial::<u64>("other end"), |_, _| ());
    let running = flow.run().unwrap();
    // Readers lock tables, too.
    while !running.is_finished() {
        assert!((0..KEYS).all(|key| first.get(&key) <= Some(2 * ITEMS)));
        thread::sleep(Duration::from_millis(1));
    }
    running.join().unwrap();
    let each = 2 * ITEMS / KEYS;
    for key in 0..KEYS {
        assert_eq!(first.get(&key), Some(each));
        assert_eq!(second.get(&key), each as i64);
        assert_eq!(third.get(&key), Some(each));
    }
}

#[test]
fn an_element_that_is_there_twice_is_refused_when_the_flow_begins() {
    let flow = Flow::with_settings("twice", settings(2, 64));
    let counts = flow.values::<u64, u64>("counts");
    let others = flow.values::<u64, u64>("others");
    let elements = (counts.clone(), others, counts);
    flow.source("numbers", Generator::new(|number| number).limit(10))
        .key_by(|number| *number)
        .update("count", &elements, |_, _, _, _: &mut Emit<'_, u64>| ())
        .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    let error = flow.run().map(|_| ()).unwrap_err();
    let expected = "flow \"twice\": \"count\" cannot change its state elements together: one is there twice; name each once";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn elements_of_flows_with_different_numbers_of_workers_are_refused() {
    let flow = Flow::with_settings("mixed", settings(2, 64));
    let other = Flow::with_settings("other", settings(3, 64));
    let elements = (
        flow.values::<u64, u64>("counts"),
        other.values::<u64, u64>("counts"),
    );
    flow.source("numbers", Generator::new(|number| number).limit(10))
        .key_by(|number| *number)
        .update("count", &elements, |_, _, _, _: &mut Emit<'_, u64>| ())
        .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    let error = flow.run().map(|_| ()).unwrap_err();
    assert!(matches!(error, FlowError::Elements { .. }), "{error}");
}

//! Flows that begin before the values of their state are read.

use std::sync::Arc;

use millstream_base::KeyRange;
use millstream_base::key::encode_key;
use millstream_flow::{
    OrderedState, ReadLevel, Resume, StateAnswer, StateEntry, StatePage, StateReader, StateRequest,
};

use super::log::{LogStore, Scan};
use super::{count, counts_of, wait_until_committed};
use crate::support::{Hand, wait_until};
use crate::values::{check, read};

const KEYS: u64 = 100;

/// Returns a store in which each key has the count 1.
pub fn counted() -> Arc<LogStore> {
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let (running, _) = count(&store, Resume::Never, &hand).unwrap();
    hand.give(0..KEYS);
    wait_until_committed(&store, &but(&[]));
    drop(running);
    store
}

/// The counts in which these keys differ from 1.
fn but(other: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let counts = (0..KEYS).map(|key| (key, 1));
    let mut counts: std::collections::BTreeMap<_, _> = counts.collect();
    for (key, count) in other {
        match count {
            0 => drop(counts.remove(key)),
            count => drop(counts.insert(*key, *count)),
        }
    }
    counts.into_iter().collect()
}

#[test]
fn a_flow_that_resumes_counts_on_before_all_values_are_read() {
    let store = counted();
    store.scan(Scan::Held);
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Always, &hand).unwrap();
    hand.give([5, 5, 7, 500, 1008]);
    wait_until_committed(&store, &but(&[(5, 3), (7, 2), (500, 1), (8, 0)]));
    assert!(!values.is_whole().unwrap());
    // The loader does not forget a removed key, although the reader has an older value.
    for round in 1..10 {
        hand.give([9]);
        wait_until_committed(
            &store,
            &but(&[(5, 3), (7, 2), (500, 1), (8, 0), (9, 1 + round)]),
        );
    }
    assert_eq!((values.get(&8), values.get(&6)), (None, Some(1)));
    hand.give([8]);
    let expected = but(&[(5, 3), (7, 2), (500, 1), (8, 1), (9, 10)]);
    wait_until_committed(&store, &expected);
    let committed = OrderedState::read(&values, "4", ReadLevel::Committed).unwrap();
    assert_eq!(
        (committed.value, committed.is_committed),
        (Some(1.into()), true)
    );
    // Lists have the rest from the changelog.
    let request = |from: u64, limit| {
        let mut bytes = Vec::new();
        encode_key(&from, &mut bytes).unwrap();
        StateRequest::Range {
            element: "counts".into(),
            range: KeyRange::new(bytes, None),
            limit,
            level: ReadLevel::Live,
        }
    };
    let range = |from, limit| match running.read(&request(from, limit)).unwrap() {
        StateAnswer::Range(page) => page,
        other => panic!("{other:?}"),
    };
    let entries = |page: StatePage| {
        let entry = |entry: StateEntry| (entry.key.parse().unwrap(), entry.value.as_u64().unwrap());
        page.entries
            .into_iter()
            .map(entry)
            .collect::<Vec<(u64, u64)>>()
    };
    let page = range(0, 1000);
    assert!(!page.has_more);
    assert_eq!(entries(page), expected);
    let page = range(7, 3);
    assert!(page.has_more);
    assert_eq!(entries(page), expected[7..10]);
    check(&read(&values), &counts_of(&expected));
    assert!(!values.is_whole().unwrap());
    store.scan(Scan::Slow);
    wait_until("all are read", || values.is_whole().unwrap());
    check(&read(&values), &counts_of(&expected));
    assert_eq!(entries(range(0, 1000)), expected);
    hand.end();
    running.join().unwrap();
}

#[test]
fn values_that_a_dropped_flow_has_not_read_are_read_when_they_are_asked_for() {
    let store = counted();
    store.scan(Scan::Held);
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Always, &hand).unwrap();
    hand.give([5]);
    wait_until_committed(&store, &but(&[(5, 2)]));
    drop(running);
    store.scan(Scan::Slow);
    check(&read(&values), &counts_of(&but(&[(5, 2)])));
}

#[test]
fn a_value_that_cannot_be_read_ends_the_flow_and_names_its_state() {
    let expected = "\"counts\" failed: a value cannot be read from its changelog: it is broken";
    let store = counted();
    store.scan(Scan::Held);
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Always, &hand).unwrap();
    store.scan(Scan::Broken);
    wait_until("the scan fails", || running.is_finished());
    let error = running.join().unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    let error = values.is_whole().unwrap_err().to_string();
    assert!(error.contains("it is broken"), "{error}");
    assert_eq!(store.table("counts"), counts_of(&but(&[])));
    // The next run has all.
    store.scan(Scan::AtOnce);
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Always, &hand).unwrap();
    hand.give([1]);
    hand.end();
    running.join().unwrap();
    check(&read(&values), &counts_of(&but(&[(1, 2)])));
}

#[test]
fn a_flow_ends_although_not_all_values_were_read() {
    let store = counted();
    store.scan(Scan::Held);
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Always, &hand).unwrap();
    hand.give([0, 3, 3, 1004]);
    hand.end();
    running.join().unwrap();
    assert!(!values.is_whole().unwrap());
    assert_eq!(
        (values.get(&3), values.get(&4), values.get(&5)),
        (Some(3), None, Some(1))
    );
    let expected = but(&[(0, 2), (3, 3), (4, 0)]);
    assert_eq!(store.table("counts"), counts_of(&expected));
}

//! Change streams of plain items: `running`, `distinct`, `deduplicate`, `last` and `top`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::changes::{RowSet, RowTable, Within};
use millstream_flow::sources::Generator;
use millstream_flow::windows::{All, Mean, Min};
use millstream_flow::{Flow, FlowSettings, RowChange, Upsert};

use super::Kept;
use super::model::order_of_equals;
use crate::changelogs::lifetimes::WallClock;
use crate::support::{Hand, settings, wait_until};

/// A random number for each number, the same in each run.
fn dice(number: u64) -> u64 {
    (number + 1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(29)
        % 1_000
}

fn kept<T>() -> (Kept<T>, Arc<Mutex<Vec<T>>>) {
    let items = Arc::new(Mutex::new(Vec::new()));
    (Kept(Arc::clone(&items)), items)
}

fn numbers(count: u64) -> Generator<impl Fn(u64) -> u64 + Send + 'static> {
    Generator::new(dice).limit(count)
}

#[test]
fn running_aggregates_of_items_give_the_answer_over_each_prefix() {
    for count in (0..50).chain([5_000]) {
        let (sink, changes) = kept();
        let flow = Flow::with_settings("numbers", settings(1 + count as usize % 3, 16));
        let value = |number: &u64| *number;
        flow.source("numbers", numbers(count))
            .key_by(|number| number % 5)
            .running("means", (Mean::of(value), Min::of(value)))
            .sink("changes", sink);
        flow.run().unwrap().join().unwrap();
        let mut table = RowTable::default();
        for change in changes.lock().unwrap().iter() {
            table.apply(*change).unwrap();
        }
        let mut expected: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for number in (0..count).map(dice) {
            expected.entry(number % 5).or_default().push(number);
        }
        assert_eq!(table.len(), expected.len());
        for (key, of_key) in expected {
            let mean = of_key.iter().sum::<u64>() as f64 / of_key.len() as f64;
            assert_eq!(table.get(&key), Some(&(mean, of_key.into_iter().min())));
        }
    }
}

#[test]
fn a_result_that_stays_the_same_is_not_emitted_and_updates_are_pairs() {
    let (sink, changes) = kept();
    let flow = Flow::with_settings("numbers", settings(1, 16));
    let numbers = [5, 7, 3, 3, 9];
    flow.source(
        "numbers",
        Generator::new(move |number| numbers[number as usize]).limit(5),
    )
    .key_by(|_| All)
    .running("least", Min::of(|number: &i64| *number))
    .sink("changes", sink);
    flow.run().unwrap().join().unwrap();
    let expected = [
        RowChange::Insert((All, Some(5))),
        RowChange::UpdateBefore((All, Some(5))),
        RowChange::UpdateAfter((All, Some(3))),
    ];
    assert_eq!(*changes.lock().unwrap(), expected);
}

#[test]
fn upserts_leave_the_former_rows_of_updates_out() {
    let (sink, upserts) = kept();
    let flow = Flow::with_settings("numbers", settings(1, 16));
    let changes = [
        RowChange::Insert(1),
        RowChange::UpdateBefore(1),
        RowChange::UpdateAfter(2),
        RowChange::Delete(2),
    ];
    flow.source(
        "changes",
        Generator::new(move |number| changes[number as usize]).limit(4),
    )
    .upserts()
    .sink("upserts", sink);
    flow.run().unwrap().join().unwrap();
    let expected = [Upsert::Put(1), Upsert::Put(2), Upsert::Delete(2)];
    assert_eq!(*upserts.lock().unwrap(), expected);
}

#[test]
fn distinct_emits_each_key_once() {
    for workers in [1, 3] {
        let (sink, changes) = kept();
        let flow = Flow::with_settings("numbers", settings(workers, 16));
        flow.source("numbers", numbers(3_000))
            .key_by(|number| number % 100)
            .distinct("seen")
            .sink("changes", sink);
        flow.run().unwrap().join().unwrap();
        let mut keys: Vec<u64> = (changes.lock().unwrap().iter())
            .map(|change| match change {
                RowChange::Insert(key) => *key,
                other => panic!("{other:?}"),
            })
            .collect();
        keys.sort_unstable();
        let mut expected: Vec<u64> = (0..3_000).map(|number| dice(number) % 100).collect();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(keys, expected);
    }
}

#[test]
fn the_last_items_of_each_key_are_those_of_a_plain_queue_after_each_prefix() {
    for (count, last) in (0..40)
        .map(|count| (count, 3))
        .chain([(3_000, 1), (3_000, 7), (100, 0)])
    {
        let (sink, changes) = kept();
        let flow = Flow::with_settings("numbers", settings(1 + count as usize % 3, 16));
        flow.source(
            "numbers",
            Generator::new(|number| (number, dice(number))).limit(count),
        )
        .key_by(|(_, number)| number % 4)
        .last("recent", last)
        .sink("changes", sink);
        flow.run().unwrap().join().unwrap();
        let mut found = RowSet::default();
        let mut rows_max = 0;
        for change in changes.lock().unwrap().iter() {
            found.apply(*change).unwrap();
            rows_max = rows_max.max(found.len());
        }
        // A delete comes before the insert that needs its room.
        assert!(rows_max <= 4 * last as u64);
        let mut queues: BTreeMap<u64, VecDeque<(u64, u64)>> = BTreeMap::new();
        for item in (0..count).map(|number| (number, dice(number))) {
            let queue = queues.entry(item.1 % 4).or_default();
            queue.push_back(item);
            if queue.len() > last {
                queue.pop_front();
            }
        }
        let mut expected: Vec<_> = queues.into_values().flatten().collect();
        expected.sort_unstable();
        let found: Vec<_> = found.iter().map(|(row, times)| (*row, times)).collect();
        let expected: Vec<_> = expected.into_iter().map(|row| (row, 1)).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn the_top_of_items_is_that_of_all_items_sorted() {
    for (count, rows) in (0..60)
        .map(|count| (count, 4))
        .chain([(4_000, 10), (500, 1_000), (50, 0)])
    {
        let (sink, changes) = kept();
        let flow = Flow::with_settings("numbers", settings(1 + count as usize % 3, 16));
        // Many scores are equal, and some items.
        let score = |number: &u64| (number % 10) as f64 - 4.5;
        flow.source(
            "numbers",
            Generator::new(|number| dice(number) % 60).limit(count),
        )
        .key_by(|number| number % 3)
        .top("highest", rows, score)
        .sink("changes", sink);
        flow.run().unwrap().join().unwrap();
        let mut found = RowSet::default();
        for change in changes.lock().unwrap().iter() {
            found.apply(*change).unwrap();
            assert!(found.len() <= 3 * rows);
        }
        let mut groups = [vec![], vec![], vec![]];
        for number in (0..count).map(|number| dice(number) % 60) {
            groups[number as usize % 3].push(number);
        }
        let mut expected = RowSet::default();
        for mut group in groups {
            let place = |number: &u64| ((score(number) * 2.0) as i64, order_of_equals(number));
            group.sort_by_key(|number| Reverse(place(number)));
            for number in group.into_iter().take(rows as usize) {
                expected.apply(RowChange::Insert(number)).unwrap();
            }
        }
        assert_eq!(found, expected, "{count} items");
    }
}

#[test]
fn a_nan_is_in_no_top() {
    let (sink, changes) = kept();
    let flow = Flow::with_settings("numbers", settings(1, 16));
    let scores = [f64::NAN, 1.0, f64::NAN];
    flow.source("numbers", Generator::new(|number| number).limit(3))
        .key_by(|_| All)
        .top("highest", 5, move |number| scores[*number as usize])
        .sink("changes", sink);
    flow.run().unwrap().join().unwrap();
    assert_eq!(*changes.lock().unwrap(), [RowChange::Insert(1)]);
}

#[test]
fn duplicates_within_a_duration_of_event_time_are_dropped() {
    let (sink, passed) = kept();
    let flow = Flow::with_settings("numbers", settings(3, 16));
    // Times go forward, with disorder.
    let item = |number: u64| (number % 7, (number * 2 + dice(number) % 40) as i64);
    flow.source("numbers", Generator::new(item).limit(5_000))
        .key_by(|(key, _)| *key)
        .deduplicate("once", Duration::from_millis(50), |(_, time)| {
            Timestamp(*time)
        })
        .sink("passed", sink);
    flow.run().unwrap().join().unwrap();
    let mut newest: BTreeMap<u64, i64> = BTreeMap::new();
    let mut expected = Vec::new();
    for (key, time) in (0..5_000).map(item) {
        let is_new = newest
            .get(&key)
            .is_none_or(|passed| (time - passed).abs() >= 50);
        if is_new {
            let passed = newest.entry(key).or_insert(time);
            *passed = time.max(*passed);
            expected.push((key, time));
        }
    }
    let mut passed = passed.lock().unwrap().clone();
    passed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(passed, expected);
    assert!((500..2_000).contains(&passed.len()));
}

#[test]
fn the_state_of_silent_keys_leaves_memory() {
    let clock = Arc::new(WallClock::default());
    let hand = Hand::default();
    let (sink, passed) = kept();
    let settings = FlowSettings {
        clock: Arc::clone(&clock) as _,
        ..settings(1, 64)
    };
    let flow = Flow::with_settings("numbers", settings);
    let within = Within::new(Duration::from_secs(10)).lifetime(Duration::from_secs(100));
    flow.source("numbers", hand.clone())
        .key_by(|number| *number)
        .deduplicate("once", within, |_| Timestamp(0))
        .sink("passed", sink);
    let running = flow.run().unwrap();
    let passed = || passed.lock().unwrap().len() as u64;
    let entries = || running.elements()[0].entries.unwrap();
    hand.give(0..1_000);
    wait_until("all pass", || passed() == 1_000);
    assert_eq!(entries(), 1_000);
    clock.advance(101);
    hand.give(1_000..3_000);
    wait_until("others pass", || passed() == 3_000);
    // Each item removes some keys that have ended.
    assert!(entries() <= 2_000, "{}", entries());
    // A key that has ended begins anew, and others do not.
    hand.give([5, 2_999]);
    wait_until("the key passes again", || passed() == 3_001);
    hand.end();
    running.join().unwrap();
    assert_eq!(passed(), 3_001);
}

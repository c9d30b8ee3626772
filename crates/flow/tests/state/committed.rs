//! Values as of the last complete checkpoint, and in the order of their keys.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::KeyRange;
use millstream_flow::{
    Checkpointing, Emit, Flow, FlowSettings, OrderedState, ReadLevel, Resume, Running, StateReader,
    Values,
};

use crate::support::{Hand, MemoryStore, settings, wait_until};

fn count(store: &Arc<MemoryStore>, resume: Resume, numbers: &Hand) -> (Running, Values<u64, u64>) {
    let settings = FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::clone(store) as _,
            interval: Some(Duration::from_millis(1)),
            resume,
        }),
        ..settings(2, 64)
    };
    let flow = Flow::with_settings("numbers", settings);
    let values = flow.values::<u64, u64>("counts");
    let nothing = flow.partial::<u64>("nothing");
    // Number 1000 + k removes key k.
    flow.source("numbers", numbers.clone())
        .key_by(|number| number % 1000)
        .update(
            "count",
            &values,
            |_, count, number, _: &mut Emit<'_, u64>| match *number < 1000 {
                true => *count.get_or_insert_default() += 1,
                false => *count = None,
            },
        )
        .fold_local(&nothing, |_, _| ());
    (flow.run().unwrap(), values)
}

fn scan(values: &Values<u64, u64>, range: &KeyRange, level: ReadLevel) -> Vec<(u64, u64)> {
    let page = values.scan(range, 1000, level);
    let entries = page.entries.into_iter();
    entries
        .map(|entry| (entry.key.parse().unwrap(), entry.value.as_u64().unwrap()))
        .collect()
}

fn wait_until_committed(values: &Values<u64, u64>, expected: &[(u64, u64)]) {
    wait_until("a checkpoint is complete", || {
        scan(values, &KeyRange::all(), ReadLevel::Committed) == expected
    });
}

#[test]
fn queries_read_the_values_of_the_last_complete_checkpoint() {
    let store = Arc::new(MemoryStore::default());
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Never, &hand);
    hand.give([1, 2, 2, 300]);
    let before = [(1, 1), (2, 2), (300, 1)];
    wait_until_committed(&values, &before);
    let complete = running.complete_checkpoint().unwrap();
    // From now on no checkpoint is complete: a change, a removal, a new key, and one that comes and goes.
    store.refuse();
    hand.give([1, 1002, 4, 5, 1005]);
    let after = [(1, 2), (4, 1), (300, 1)];
    let live = || scan(&values, &KeyRange::all(), ReadLevel::Live);
    wait_until("changes are visible", || live() == after);
    // More checkpoints fail than segments of the history are kept apart.
    for round in 0..20 {
        let failed = running.checkpoints().unwrap().failed;
        hand.give([900 + round, 1900 + round]);
        wait_until("a shard is refused", || {
            running.checkpoints().unwrap().failed > failed
        });
    }
    wait_until("all are removed", || live() == after);
    assert_eq!(
        scan(&values, &KeyRange::all(), ReadLevel::Committed),
        before
    );
    for (key, now, then) in [
        ("1", Some(2), Some(1)),
        ("2", None, Some(2)),
        ("4", Some(1), None),
        ("5", None, None),
        ("300", Some(1), Some(1)),
        ("7", None, None),
    ] {
        let live = values.read(key, ReadLevel::Live).unwrap();
        assert_eq!(live.value, now.map(Into::into), "{key}");
        // Key 5 may have gone before any cut has seen it.
        if key != "5" {
            assert_eq!(live.is_committed, matches!(key, "300" | "7"), "{key}");
        }
        let committed = values.read(key, ReadLevel::Committed).unwrap();
        assert_eq!(committed.value, then.map(Into::into), "{key}");
        assert!(committed.is_committed);
        assert!(committed.checkpoint >= Some(complete.number));
    }
    assert!(
        !values
            .scan(&KeyRange::all(), 10, ReadLevel::Live)
            .is_committed
    );
    store.accept();
    hand.give([7]);
    wait_until_committed(&values, &[(1, 2), (4, 1), (7, 1), (300, 1)]);
    drop(running);
    // A run that resumes has the same, without a checkpoint of its own.
    let (running, values) = count(&store, Resume::Always, &Hand::default());
    assert_eq!(
        scan(&values, &KeyRange::all(), ReadLevel::Committed),
        [(1, 2), (4, 1), (7, 1), (300, 1)]
    );
    assert!(values.read("1", ReadLevel::Live).unwrap().is_committed);
    drop(running);
}

#[test]
fn ranges_are_in_the_order_of_keys_and_follow_changes() {
    let hand = Hand::default();
    let flow = Flow::with_settings("numbers", settings(3, 64));
    let values = flow.values::<u64, u64>("counts");
    flow.source("numbers", hand.clone())
        .key_by(|number| *number)
        .count("count", &values);
    let running = flow.run().unwrap();
    let range = |from: &str, to: &str| {
        KeyRange::new(
            values.encode(from).unwrap(),
            Some(values.encode(to).unwrap()),
        )
    };
    let keys = |range: &KeyRange, limit| {
        let page = values.scan(range, limit, ReadLevel::Live);
        let keys = page.entries.iter().map(|entry| entry.key.parse().unwrap());
        (keys.collect::<Vec<u64>>(), page.has_more)
    };
    assert_eq!(keys(&KeyRange::all(), 10), (vec![], false));
    hand.give((0..1000).rev());
    wait_until("all are counted", || values.keys(2000).len() == 1000);
    assert_eq!(keys(&range("9", "12"), 10), (vec![9, 10, 11], false));
    assert_eq!(keys(&range("9", "12"), 3), (vec![9, 10, 11], false));
    assert_eq!(keys(&range("9", "12"), 2), (vec![9, 10], true));
    assert_eq!(keys(&range("12", "9"), 2), (vec![], false));
    assert_eq!(
        keys(&KeyRange::all(), 2000).0,
        (0..1000).collect::<Vec<_>>()
    );
    assert_eq!(values.encode("x"), None);
    assert_eq!(values.read("x", ReadLevel::Live), None);
    // Without checkpoints nothing is committed.
    assert!(!values.read("9", ReadLevel::Live).unwrap().is_committed);
    hand.end();
    running.join().unwrap();
}

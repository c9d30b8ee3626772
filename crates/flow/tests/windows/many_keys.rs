//! More keys than fit into a processor's caches: other ways lead there.

use std::collections::HashMap;

use millstream_base::Timestamp;
use millstream_flow::windows::{Arrival, LocalPanes, Partial, Sum, WindowStore, Windows};

const KEYS: u64 = 50_000;
const ITEMS: u64 = 200_000;
const WINDOW_MS: i64 = 1_000;

/// The key and the time of an item; keys come in no order, and each several times.
fn item(number: u64) -> (u64, i64) {
    // Large numbers, which have no places of their own.
    let key = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % KEYS) << 32;
    (key, (number % 3_000) as i64)
}

/// By key and start of the window.
type Sums<K> = HashMap<(K, i64), u64>;

/// Adds items up where they arise and at the keys' owner, some at a time.
fn sums_of<K>(key_of: impl Fn(u64) -> K) -> Sums<K>
where
    K: std::hash::Hash + Eq + Clone + 'static,
{
    let sum = Sum::of(|value: &u64| *value);
    let mut panes = LocalPanes::new(Windows::tumbling(WINDOW_MS));
    let mut store = WindowStore::new(Windows::tumbling(WINDOW_MS), 10);
    let none = Timestamp(i64::MIN);
    let flush = |panes: &mut LocalPanes<_, _>, store: &mut WindowStore<_, _>, until: i64| loop {
        let before = panes.len();
        let mut given = 0;
        let is_done =
            panes.flush_some(Timestamp(until), 5_000, &mut |partial: Partial<K, i128>| {
                given += 1;
                assert_eq!(store.merge(&sum, partial), Arrival::OnTime);
            });
        assert_eq!(panes.len(), before - given);
        if is_done {
            return;
        }
        assert_eq!(given, 5_000);
    };
    for number in 0..ITEMS {
        let (key, time) = item(number);
        let arrival = panes.add(&sum, key_of(key), Timestamp(time), none, &number);
        assert_eq!(arrival, Arrival::OnTime);
        if number == ITEMS / 2 {
            // First one pane, then some partial results of the others.
            flush(&mut panes, &mut store, WINDOW_MS);
            panes.flush_some(Timestamp(i64::MAX), 7_000, &mut |partial| {
                assert_eq!(store.merge(&sum, partial), Arrival::OnTime);
            });
        }
    }
    flush(&mut panes, &mut store, i64::MAX);
    assert!(panes.is_empty());
    let mut sums = Sums::new();
    store.close_all(&sum, &mut |result| {
        let known = sums.insert((result.key, result.start.0), result.value);
        assert_eq!(known, None, "a window of a key comes once");
    });
    sums
}

fn expected() -> Sums<u64> {
    let mut sums = Sums::new();
    for number in 0..ITEMS {
        let (key, time) = item(number);
        *sums.entry((key, time - time % WINDOW_MS)).or_default() += number;
    }
    sums
}

#[test]
fn items_of_many_keys_are_added_in_batches_without_loss() {
    assert!(sums_of(|key| key) == expected());
}

#[test]
fn keys_with_memory_of_their_own_are_added_one_by_one() {
    let sums = sums_of(|key| key.to_string());
    let expected = expected().into_iter();
    let expected: Sums<String> = expected
        .map(|((key, start), sum)| ((key.to_string(), start), sum))
        .collect();
    assert!(sums == expected);
}

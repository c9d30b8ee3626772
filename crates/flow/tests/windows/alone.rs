//! A store that gets items one by one, and is checked after each item.

use std::collections::BTreeSet;

use millstream_base::Timestamp;
use millstream_flow::windows::{Arrival, WindowStore};
use proptest::prelude::*;

use crate::model::{self, Expected, Item, Spec};
use crate::plant::{as_expected, collect, windows};

/// The results of the model for `items`, of which the late ones must be known.
fn modelled(spec: Spec, lateness: i64, items: &[Item], late: &[bool]) -> Vec<Expected> {
    let (results, model_late) = model::run(spec, lateness, items);
    assert_eq!(late, model_late, "which items are late");
    results
}

fn agrees(spec: Spec, lateness: i64, steps: &[(u8, i64, Option<i64>)]) {
    let mut store = WindowStore::new(windows(spec, lateness), 100);
    let (mut items, mut late, mut results) = (Vec::new(), Vec::new(), Vec::new());
    let (mut time, mut newest_time) = (0, i64::MIN);
    for (key, step, lag) in steps {
        time += step;
        newest_time = newest_time.max(time);
        let value = items.len() as i64;
        items.push(Item {
            key: *key,
            time,
            value,
            watermark: store.watermark().0,
        });
        let arrival = store.add(&collect(), key, Timestamp(time), &value);
        late.push(arrival == Arrival::Late);
        if let Some(lag) = lag {
            let watermark = Timestamp(newest_time - lag);
            store.advance(&collect(), watermark, &mut |result| {
                results.push((as_expected(&result), result.is_update));
            });
        }
        let expected = modelled(spec, lateness, &items, &late);
        let keys: BTreeSet<u8> = expected.iter().map(|result| result.key).collect();
        assert_eq!(store.keys(100).into_iter().collect::<BTreeSet<u8>>(), keys);
        for key in keys {
            let of_key = expected.iter().filter(|result| result.key == key);
            let newest = store.newest(&collect(), &key);
            let newest = newest.as_ref().map(as_expected);
            assert_eq!(newest.as_ref(), of_key.max(), "the newest of key {key}");
        }
        let (totals, late) = (store.totals(), late.iter().filter(|late| **late).count());
        assert_eq!(totals.closed_windows, results.len() as u64);
        assert_eq!(totals.late_events, late as u64);
        assert_eq!(
            totals.open_events + totals.closed_events + totals.late_events,
            items.len() as u64
        );
    }
    store.close_all(&collect(), &mut |result| {
        results.push((as_expected(&result), result.is_update));
    });
    assert_eq!(
        model::settle(results),
        modelled(spec, lateness, &items, &late)
    );
}

fn spec() -> impl Strategy<Value = Spec> {
    prop_oneof![
        (1..80_i64).prop_map(|size| Spec::Tumbling { size }),
        (1..60_i64, 0..60_i64).prop_map(|(slide, more)| Spec::Sliding {
            size: slide + more,
            slide,
        }),
        (1..60_i64).prop_map(|gap| Spec::Session { gap }),
        (1..80_i64, any::<bool>()).prop_map(|(period, purges)| Spec::Every { period, purges }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn totals_and_newest_windows_equal_the_models_after_every_item(
        spec in spec(),
        lateness in prop_oneof![Just(0), 1..100_i64],
        steps in prop::collection::vec((0..3_u8, -40..60_i64, prop::option::of(0..100_i64)), 0..60),
    ) {
        agrees(spec, lateness, &steps);
    }
}

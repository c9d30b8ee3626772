//! Aggregates over items, however the items are split and ordered.

use std::cmp::Reverse;
use std::collections::HashSet;

use millstream_base::Timestamp;
use millstream_flow::windows::{
    Aggregate, Arrival, Combine, Distinct, ExactDistinct, Joined, LocalPanes, Max, Mean, Min,
    Quantiles, Side, Sum, WindowStore, Windows, top,
};
use proptest::prelude::*;

fn state_of<T, A: Aggregate<T>>(aggregate: &A, items: &[T]) -> A::State {
    let mut state = aggregate.empty();
    for item in items {
        aggregate.add(&mut state, item);
    }
    state
}

fn result_of<T, A: Aggregate<T>>(aggregate: &A, items: &[T]) -> A::Out {
    aggregate.result(&state_of(aggregate, items), items.len() as u64)
}

/// The result of partial results that are added up apart, serialized, and merged in another order.
fn result_of_parts<T, A: Aggregate<T>>(aggregate: &A, items: &[T], part: usize) -> A::Out {
    let mut total = aggregate.empty();
    for items in items.chunks(part).rev() {
        let bytes = serde_json::to_vec(&state_of(aggregate, items)).unwrap();
        aggregate.merge(&mut total, &serde_json::from_slice(&bytes).unwrap());
    }
    aggregate.result(&total, items.len() as u64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn an_aggregate_does_not_depend_on_how_items_are_split(
        items in prop::collection::vec(any::<i64>(), 1..200),
        part in 1..50_usize,
    ) {
        let all = (
            Sum::of(|item: &i64| *item),
            (Min::of(|item: &i64| *item), Max::of(|item: &i64| *item)),
            Mean::of(|item: &i64| *item),
            (
                Distinct::of(|item: &i64| item),
                Quantiles::of(|item: &i64| *item as f64, [0.0, 0.1, 0.5, 0.99, 1.0]),
            ),
        );
        prop_assert_eq!(result_of(&all, &items), result_of_parts(&all, &items, part));
    }

    #[test]
    fn the_highest_items_equal_sorting_for_any_split_of_the_items(
        items in prop::collection::vec((0u8..20, "[a-c]{0,2}"), 0..200),
        count in 0..12_usize,
        part in 1..50_usize,
    ) {
        let highest = top(count, |(score, _): &(u8, String)| *score);
        let mut expected = items.clone();
        // Equal scores go by their bytes: of a text these are its length and its letters.
        expected.sort_by_key(|(score, text)| (Reverse(*score), text.len(), text.clone()));
        expected.truncate(count);
        prop_assert_eq!(&result_of(&highest, &items), &expected);
        prop_assert_eq!(&result_of_parts(&highest, &items, part), &expected);
        prop_assert!(state_of(&highest, &items).len() <= count, "a state is bounded");
    }

    #[test]
    fn the_lowest_items_equal_sorting(
        mut items in prop::collection::vec(any::<i64>(), 0..100),
        part in 1..50_usize,
    ) {
        let lowest = top(3, |item: &i64| Reverse(*item));
        let found = result_of_parts(&lowest, &items, part);
        items.sort_unstable();
        items.truncate(3);
        prop_assert_eq!(found, items);
    }

    #[test]
    fn distinct_values_are_counted_exactly_for_any_split_of_the_items(
        items in prop::collection::vec("[a-d]{0,4}", 0..300),
        part in 1..50_usize,
    ) {
        let distinct = ExactDistinct::of(|item: &String| item.as_str());
        let expected = items.iter().collect::<HashSet<_>>().len() as u64;
        prop_assert_eq!(result_of(&distinct, &items), expected);
        prop_assert_eq!(result_of_parts(&distinct, &items, part), expected);
    }

    #[test]
    fn quantiles_are_within_one_percent(
        mut items in prop::collection::vec(prop_oneof![-1e12..1e12, -1.0..1.0_f64, Just(0.0)], 1..300),
        quantile in 0.0..=1.0_f64,
    ) {
        let approximate = result_of(&Quantiles::of(|item: &f64| *item, [quantile]), &items)[0];
        items.sort_by(f64::total_cmp);
        let exact = items[(quantile * (items.len() - 1) as f64) as usize];
        prop_assert!((approximate - exact).abs() <= exact.abs() * 0.0101 + 1e-9);
    }
}

#[test]
fn few_distinct_values_are_counted_exactly_and_many_within_five_percent() {
    let distinct = Distinct::of(|item: &u64| item);
    for (values, error) in [
        (0, 0),
        (1, 0),
        (10, 0),
        (100, 1),
        (5_000, 250),
        (100_000, 5_000),
    ] {
        let items: Vec<u64> = (0..values).chain(0..values).collect();
        let counted = result_of(&distinct, &items);
        assert!(counted.abs_diff(values) <= error, "{counted} of {values}");
        let parts = result_of_parts(&distinct, &items, 700);
        assert_eq!(parts, counted, "however they are split");
    }
}

#[test]
fn items_with_an_incomparable_score_are_ignored() {
    let items = [1.0, f64::NAN, 3.0, f64::INFINITY, -f64::NAN, 2.0];
    let highest = top(3, |item: &f64| *item);
    assert_eq!(result_of(&highest, &items), [f64::INFINITY, 3.0, 2.0]);
    let pairs = top(3, |item: &f64| (1, *item));
    assert_eq!(result_of(&pairs, &items), [f64::INFINITY, 3.0, 2.0]);
}

#[test]
fn many_distinct_values_are_counted_exactly() {
    let items: Vec<u64> = (0..50_000).chain(0..50_000).collect();
    let distinct = ExactDistinct::of(|item: &u64| item);
    assert_eq!(result_of(&distinct, &items), 50_000);
}

#[test]
fn sums_of_integers_do_not_overflow() {
    assert_eq!(
        result_of(&Sum::of(|item: &i64| *item), &[i64::MAX, 1, -1]),
        i64::MAX
    );
    assert_eq!(
        result_of(&Sum::of(|item: &i64| *item), &[i64::MAX, 1]),
        i64::MAX
    );
    assert_eq!(
        result_of(&Sum::of(|item: &i64| *item), &[i64::MIN, -1]),
        i64::MIN
    );
    assert_eq!(
        result_of(&Sum::of(|item: &u64| *item), &[u64::MAX, 5]),
        u64::MAX
    );
    assert_eq!(result_of(&Sum::of(|item: &u8| *item), &[255, 255]), 510);
    let mean = result_of(&Mean::of(|item: &u64| *item), &[u64::MAX, u64::MAX]);
    assert_eq!(mean, u64::MAX as f64);
}

#[test]
fn nan_and_infinite_numbers_do_not_panic() {
    let odd = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::MAX,
        f64::MIN,
        -0.0,
        1e-320,
    ];
    let value = |item: &f64| *item;
    assert_eq!(result_of(&Min::of(value), &odd), Some(f64::NEG_INFINITY));
    assert_eq!(result_of(&Max::of(value), &odd), Some(f64::INFINITY));
    assert_eq!(result_of(&Max::of(value), &[f64::NAN]), None);
    assert!(result_of(&Sum::of(value), &odd).is_nan());
    assert!(result_of(&Mean::of(value), &odd).is_nan());
    let quantiles = result_of(&Quantiles::of(value, [0.0, 0.5, 1.0]), &odd);
    assert!(quantiles[0] < -1e308 && quantiles[1] == 0.0 && quantiles[2] > 1e308);
    assert!(result_of(&Quantiles::of(value, [0.5]), &[f64::NAN]).is_empty());
}

#[test]
#[should_panic(expected = "a quantile is from 0 to 1")]
fn a_quantile_of_nan_is_refused() {
    Quantiles::of(|item: &f64| *item, [f64::NAN]);
}

#[test]
fn impossible_bins_of_a_sketch_do_not_panic() {
    let quantiles = Quantiles::of(|item: &f64| *item, [0.0, 0.5, 1.0]);
    let bins = format!(
        r#"{{"negative":{{"{}":{most},"7":{most}}},"zeros":{most},"positive":{{"{}":{most}}}}}"#,
        i32::MIN,
        i32::MAX,
        most = u64::MAX,
    );
    let mut state = serde_json::from_str(&bins).unwrap();
    let other = serde_json::from_str(&bins).unwrap();
    quantiles.merge(&mut state, &other);
    assert_eq!(quantiles.result(&state, u64::MAX).len(), 3);
}

#[test]
fn decoding_a_truncated_or_changed_distinct_sketch_does_not_panic() {
    let distinct = Distinct::of(|item: &u32| item);
    for values in [0, 3, 100, 20_000] {
        let items: Vec<u32> = (0..values).collect();
        let bytes = serde_json::to_value(state_of(&distinct, &items)).unwrap();
        let bytes: Vec<u8> = serde_json::from_value(bytes).unwrap();
        let read = |bytes: &[u8]| {
            let value = serde_json::to_value(bytes).unwrap();
            let state = serde_json::from_value(value).ok()?;
            let mut merged = state_of(&distinct, &[1, 2]);
            distinct.merge(&mut merged, &state);
            Some(distinct.result(&merged, 2 + u64::from(values)))
        };
        assert!(read(&bytes).is_some());
        for end in (0..bytes.len()).step_by(1 + bytes.len() / 100) {
            read(&bytes[..end]);
        }
        for place in (0..bytes.len().min(100)).chain(bytes.len().saturating_sub(10)..bytes.len()) {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[place] ^= 1 << bit;
                read(&changed);
            }
        }
        let mut number = 17_usize;
        let mut changed = bytes.clone();
        for _ in 0..500 {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let place = (number >> 33) % bytes.len();
            changed[place] = (number >> 24) as u8;
            if read(&changed).is_none() {
                changed[place] = bytes[place];
            }
        }
    }
}

/// The reference is made by nested loops over all pairs of items.
#[test]
fn the_join_aggregate_gives_the_pairs_of_nested_loops() {
    let mut number = 17_u64;
    let mut random = |below: u64| {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (number >> 33) % below
    };
    let items: Vec<(u64, i64, Side<u64, u64>)> = (0..400)
        .map(|id| {
            let side = if random(2) == 0 {
                Side::Left(id)
            } else {
                Side::Right(id)
            };
            (random(5), random(300) as i64, side)
        })
        .collect();

    let joined = Joined::<u64, u64>::new();
    let windows = Windows::sliding(60, 20);
    let mut locals = [LocalPanes::new(windows), LocalPanes::new(windows)];
    let mut store = WindowStore::new(windows, 0);
    for (count, (key, time, item)) in items.iter().enumerate() {
        let local = &mut locals[count % 2];
        let arrival = local.add(&joined, *key, Timestamp(*time), Timestamp(i64::MIN), item);
        assert_eq!(arrival, Arrival::OnTime);
        if count % 50 == 0 {
            local.flush_all(&mut |partial| {
                assert_eq!(store.merge(&joined, partial), Arrival::OnTime);
            });
        }
    }
    for local in &mut locals {
        local.flush_all(&mut |partial| {
            assert_eq!(store.merge(&joined, partial), Arrival::OnTime);
        });
    }
    let mut pairs = HashSet::new();
    store.close_all(&joined, &mut |result| {
        let (lefts, rights) = &result.value;
        for left in lefts {
            for right in rights {
                assert!(pairs.insert((result.start.0, *left, *right)), "given once");
            }
        }
    });

    let mut expected = HashSet::new();
    for start in (-60..300).step_by(20) {
        let is_in = |time: &i64| (start..start + 60).contains(time);
        for (left_key, left_time, left) in &items {
            for (right_key, right_time, right) in &items {
                if let (Side::Left(left), Side::Right(right)) = (left, right)
                    && left_key == right_key
                    && is_in(left_time)
                    && is_in(right_time)
                {
                    expected.insert((start, *left, *right));
                }
            }
        }
    }
    assert_eq!(pairs, expected);
}

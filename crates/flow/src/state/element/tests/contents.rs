//! The kinds of elements.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::{FIELDS, KEYS, State, Subject, change, check_random_runs};
use crate::state::counters::Counters;
use crate::state::maps::Maps;
use crate::state::sets::Sets;
use crate::state::values::Place;

struct MapSubject;

impl Subject for MapSubject {
    type Key = u64;
    type Element = Maps<u64, String, u64>;
    type Plain = BTreeMap<u64, BTreeMap<String, u64>>;

    fn element(place: &Place) -> Self::Element {
        Maps::new(place)
    }

    fn state(element: &Self::Element) -> &dyn State {
        &element.values
    }

    fn change(element: &Self::Element, plain: &mut Self::Plain, rng: &mut Rng) {
        let (key, field, value) = (rng.u64(..KEYS), rng.u64(..FIELDS), rng.u64(..3));
        let field = "x".repeat(field as usize);
        let plain_map = plain.entry(key).or_default();
        change(element, key, |mut map| match rng.u32(..10) {
            0 => {
                map.clear();
                plain_map.clear();
            }
            1 => {
                map.retain(|field, value| field.len() as u64 > *value);
                plain_map.retain(|field, value| field.len() as u64 > *value);
            }
            2 | 3 => assert_eq!(map.remove(&field), plain_map.remove(&field)),
            4 => {
                *map.or_default(&field) += 1;
                *plain_map.entry(field).or_default() += 1;
            }
            5 => assert_eq!(map.get_mut(&field), plain_map.get_mut(&field)),
            6 => {
                if let Some(found) = map.get_mut(&field) {
                    *found += 1;
                    *plain_map.get_mut(&field).unwrap() += 1;
                }
            }
            7 => {
                assert!(map.iter().eq(plain_map.iter()));
                assert!(map.iter().rev().eq(plain_map.iter().rev()));
                assert_eq!(
                    (map.len(), map.is_empty()),
                    (plain_map.len(), plain_map.is_empty())
                );
            }
            _ => assert_eq!(map.insert(&field, value), plain_map.insert(field, value)),
        });
        plain.retain(|_, map| !map.is_empty());
    }

    fn read(element: &Self::Element) -> Self::Plain {
        let maps = (0..KEYS).map(|key| (key, BTreeMap::from_iter(element.entries(&key))));
        let maps: Self::Plain = maps.filter(|(_, map)| !map.is_empty()).collect();
        for (key, map) in &maps {
            for (field, value) in map {
                assert_eq!(element.get(key, field), Some(*value));
            }
        }
        maps
    }

    fn join(plain: &mut Self::Plain, other: Self::Plain) {
        plain.extend(other);
    }
}

#[test]
fn maps_equal_plain_maps_through_checkpoints_and_crashes() {
    check_random_runs::<MapSubject>();
}

struct SetSubject;

impl Subject for SetSubject {
    type Key = u64;
    type Element = Sets<u64, (u64, bool)>;
    type Plain = BTreeMap<u64, BTreeSet<(u64, bool)>>;

    fn element(place: &Place) -> Self::Element {
        Sets::new(place)
    }

    fn state(element: &Self::Element) -> &dyn State {
        &element.maps.values
    }

    fn change(element: &Self::Element, plain: &mut Self::Plain, rng: &mut Rng) {
        let key = rng.u64(..KEYS);
        let member = (rng.u64(..FIELDS), rng.bool());
        let plain_set = plain.entry(key).or_default();
        change(element, key, |mut set| match rng.u32(..8) {
            0 => {
                set.clear();
                plain_set.clear();
            }
            1 => {
                set.retain(|(number, _)| number % 2 == 0);
                plain_set.retain(|(number, _)| number % 2 == 0);
            }
            2 | 3 => assert_eq!(set.remove(&member), plain_set.remove(&member)),
            4 => {
                assert!(set.iter().eq(plain_set.iter()));
                assert_eq!(
                    (set.len(), set.is_empty()),
                    (plain_set.len(), plain_set.is_empty())
                );
            }
            5 => assert_eq!(set.contains(&member), plain_set.contains(&member)),
            _ => assert_eq!(set.insert(&member), plain_set.insert(member)),
        });
        plain.retain(|_, set| !set.is_empty());
    }

    fn read(element: &Self::Element) -> Self::Plain {
        let sets = (0..KEYS).map(|key| (key, BTreeSet::from_iter(element.elements(&key))));
        sets.filter(|(_, set)| !set.is_empty()).collect()
    }

    fn join(plain: &mut Self::Plain, other: Self::Plain) {
        plain.extend(other);
    }
}

#[test]
fn sets_equal_plain_sets_through_checkpoints_and_crashes() {
    check_random_runs::<SetSubject>();
}

struct CounterSubject;

impl Subject for CounterSubject {
    type Key = u64;
    type Element = Counters<u64>;
    type Plain = BTreeMap<u64, i64>;

    fn element(place: &Place) -> Self::Element {
        Counters::new(place)
    }

    fn state(element: &Self::Element) -> &dyn State {
        &element.values
    }

    fn change(element: &Self::Element, plain: &mut Self::Plain, rng: &mut Rng) {
        let key = rng.u64(..KEYS);
        let by = *rng.choice(&[-1, 1, 2, i64::MIN, i64::MAX]).unwrap();
        let count = plain.entry(key).or_default();
        change(element, key, |mut counter| match rng.u32(..6) {
            0 => {
                assert_eq!(counter.checked_add(by), count.checked_add(by));
                *count = count.checked_add(by).unwrap_or(*count);
            }
            1 => {
                *count = count.saturating_sub(by);
                assert_eq!(counter.sub(by), *count);
            }
            2 => {
                *count = 0;
                counter.set(0);
            }
            _ => {
                *count = count.saturating_add(by);
                assert_eq!(counter.add(by), *count);
            }
        });
        plain.retain(|_, count| *count != 0);
    }

    fn read(element: &Self::Element) -> Self::Plain {
        let counts = (0..KEYS).map(|key| (key, element.get(&key)));
        counts.filter(|(_, count)| *count != 0).collect()
    }

    fn join(plain: &mut Self::Plain, other: Self::Plain) {
        plain.extend(other);
    }
}

#[test]
fn counters_equal_plain_numbers_through_checkpoints_and_crashes() {
    check_random_runs::<CounterSubject>();
}

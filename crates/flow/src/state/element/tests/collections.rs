//! Ordered maps and lists beside plain ones.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};

use fastrand::Rng;
use millstream_base::KeyRange;
use serde::{Deserialize, Serialize};

use super::{FIELDS, KEYS, State, Subject, change, check_random_runs, place};
use crate::state::lists::Lists;
use crate::state::ordered::{OrderedState, ReadLevel};
use crate::state::ordered_maps::OrderedMaps;
use crate::state::values::Place;

struct OrderedMapSubject;

impl Subject for OrderedMapSubject {
    type Key = u64;
    type Element = OrderedMaps<u64, i64, u64>;
    type Plain = BTreeMap<u64, BTreeMap<i64, u64>>;

    fn element(place: &Place) -> Self::Element {
        OrderedMaps::new(place)
    }

    fn state(element: &Self::Element) -> &dyn State {
        &element.maps.values
    }

    fn change(element: &Self::Element, plain: &mut Self::Plain, rng: &mut Rng) {
        let fields = FIELDS as i64;
        let (key, field, value) = (rng.u64(..KEYS), rng.i64(-fields..fields), rng.u64(..3));
        let until = rng.i64(field..=fields);
        let plain_map = plain.entry(key).or_default();
        change(element, key, |mut map| match rng.u32(..10) {
            0 => {
                map.clear();
                plain_map.clear();
            }
            1 => assert_eq!(map.pop_first(), plain_map.pop_first()),
            2 => assert_eq!(map.pop_last(), plain_map.pop_last()),
            3 => assert_eq!(map.remove(&field), plain_map.remove(&field)),
            4 => {
                assert!(map.range(field..until).eq(plain_map.range(field..until)));
                assert!(
                    map.range(field..=until)
                        .rev()
                        .eq(plain_map.range(field..=until).rev())
                );
            }
            5 => {
                assert!(map.range(field..).eq(plain_map.range(field..)));
                assert!(map.range(..field).eq(plain_map.range(..field)));
                assert!(map.range(..).eq(plain_map.range(..)));
            }
            6 => {
                assert_eq!(map.first(), plain_map.first_key_value());
                assert_eq!(map.last(), plain_map.last_key_value());
            }
            _ => assert_eq!(map.insert(&field, value), plain_map.insert(field, value)),
        });
        plain.retain(|_, map| !map.is_empty());
    }

    fn read(element: &Self::Element) -> Self::Plain {
        let maps = (0..KEYS).map(|key| (key, BTreeMap::from_iter(element.entries(&key))));
        maps.filter(|(_, map)| !map.is_empty()).collect()
    }

    fn join(plain: &mut Self::Plain, other: Self::Plain) {
        plain.extend(other);
    }
}

#[test]
fn ordered_maps_equal_plain_ones_through_checkpoints_and_crashes() {
    check_random_runs::<OrderedMapSubject>();
}

thread_local! {
    /// The number of fields that this thread has hashed.
    static HASHED: Cell<u64> = const { Cell::new(0) };
}

/// A field that counts the look-ups of entries: each hashes the field once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CountedField(u64);

impl Hash for CountedField {
    fn hash<H: Hasher>(&self, state: &mut H) {
        HASHED.set(HASHED.get() + 1);
        self.0.hash(state);
    }
}

#[test]
fn the_first_entry_is_found_by_few_look_ups_however_many_were_removed_before_it() {
    const ENTRIES: u64 = 2_000;
    let maps = OrderedMaps::<u64, CountedField, u64>::new(&place(0, 1, 1));
    let state: &dyn State = &maps.maps.values;
    state.note_changes();
    change(&maps, 7, |mut map| {
        for number in 0..ENTRIES {
            map.insert(&CountedField(number), number);
        }
    });
    for checkpoint in 1..3 {
        state.cut(checkpoint);
        state.complete(checkpoint);
    }
    state.sweep();
    let before = HASHED.get();
    change(&maps, 7, |mut map| {
        for number in 0..ENTRIES {
            assert_eq!(map.pop_first(), Some((CountedField(number), number)));
        }
        assert!(map.is_empty());
    });
    let hashed = HASHED.get() - before;
    assert!(hashed < 20 * ENTRIES, "{hashed} look-ups");
    // The last complete checkpoint still has them.
    let count = |level| {
        let page = maps.maps.values.scan(&KeyRange::all(), 10_000, level);
        page.entries.len() as u64
    };
    assert_eq!(count(ReadLevel::Committed), ENTRIES);
    assert_eq!(count(ReadLevel::Live), 0);
}

struct ListSubject;

impl Subject for ListSubject {
    type Key = u64;
    type Element = Lists<u64, u64>;
    type Plain = BTreeMap<u64, VecDeque<u64>>;

    fn element(place: &Place) -> Self::Element {
        Lists::new(place)
    }

    fn state(element: &Self::Element) -> &dyn State {
        &element.values
    }

    fn change(element: &Self::Element, plain: &mut Self::Plain, rng: &mut Rng) {
        let (key, index, item) = (rng.u64(..KEYS), rng.usize(..6), rng.u64(..100));
        let plain_list = plain.entry(key).or_default();
        change(element, key, |mut list| match rng.u32(..12) {
            0 => {
                list.clear();
                plain_list.clear();
            }
            1 | 2 => assert_eq!(list.pop_front(), plain_list.pop_front()),
            3 | 4 => assert_eq!(list.pop_back(), plain_list.pop_back()),
            5 => {
                let former = plain_list.get_mut(index);
                let former = former.map(|present| std::mem::replace(present, item));
                assert_eq!(list.set(index, item), former);
            }
            6 => {
                assert_eq!(list.get(index), plain_list.get(index));
                assert_eq!(list.get_mut(index), plain_list.get_mut(index));
                assert_eq!(
                    (list.front(), list.back()),
                    (plain_list.front(), plain_list.back())
                );
            }
            7 => {
                assert!(list.iter().eq(plain_list.iter()));
                assert!(list.iter().rev().eq(plain_list.iter().rev()));
                assert_eq!(
                    (list.len(), list.is_empty()),
                    (plain_list.len(), plain_list.is_empty())
                );
            }
            8 => {
                list.push_front(item);
                plain_list.push_front(item);
            }
            9 => {
                list.extend([item, item + 1]);
                plain_list.extend([item, item + 1]);
            }
            _ => {
                list.push_back(item);
                plain_list.push_back(item);
            }
        });
        plain.retain(|_, list| !list.is_empty());
    }

    fn read(element: &Self::Element) -> Self::Plain {
        let lists = (0..KEYS).map(|key| (key, VecDeque::from(element.items(&key))));
        lists.filter(|(_, list)| !list.is_empty()).collect()
    }

    fn join(plain: &mut Self::Plain, other: Self::Plain) {
        plain.extend(other);
    }
}

#[test]
fn lists_equal_plain_ones_through_checkpoints_and_crashes() {
    check_random_runs::<ListSubject>();
}

#[test]
fn one_changed_item_of_a_long_list_is_one_change() {
    let lists = Lists::<u64, u64>::new(&place(0, 1, 1));
    let state = ListSubject::state(&lists);
    state.note_changes();
    let changes_of = |checkpoint| {
        state.cut(checkpoint);
        let mut count = 0;
        let mut write = |changes: crate::state::logged::Changes<'_>| {
            count = changes.count();
            Ok(())
        };
        state.write(checkpoint, &mut write).unwrap();
        state.written(checkpoint);
        count
    };
    change(&lists, 7, |mut list| list.extend(0..1000));
    assert_eq!(changes_of(1), 1000 + 1);
    change(&lists, 7, |mut list| list.set(500, 1));
    assert_eq!(changes_of(2), 1);
    change(&lists, 7, |mut list| list.push_back(1));
    assert_eq!(changes_of(3), 1 + 1);
    change(&lists, 7, |mut list| list.pop_front());
    assert_eq!(changes_of(4), 1 + 1);
}

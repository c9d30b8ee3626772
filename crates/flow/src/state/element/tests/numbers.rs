//! Vectors, matrices and the highest scores beside plain collections.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::{FIELDS, KEYS, State, Subject, change, check_random_runs, place};
use crate::state::matrices::Matrices;
use crate::state::tops::Tops;
use crate::state::values::Place;
use crate::state::vectors::Vectors;

/// Small whole numbers, whose sums are exact.
fn number(rng: &mut Rng) -> f64 {
    f64::from(rng.i32(-2..3))
}

struct VectorSubject;

impl Subject for VectorSubject {
    type Key = u64;
    type Element = Vectors<u64>;
    type Plain = BTreeMap<u64, Vec<f64>>;

    fn element(place: &Place) -> Self::Element {
        Vectors::new(place)
    }

    fn state(element: &Self::Element) -> &dyn State {
        &element.values
    }

    fn change(element: &Self::Element, plain: &mut Self::Plain, rng: &mut Rng) {
        let (key, index) = (rng.u64(..KEYS), rng.usize(..6));
        let numbers: Vec<f64> = (0..rng.usize(..5)).map(|_| number(rng)).collect();
        let by = number(rng);
        let plain_vector = plain.entry(key).or_default();
        let grow = |vector: &mut Vec<f64>, len| vector.resize(vector.len().max(len), 0.0);
        change(element, key, |mut vector| match rng.u32(..9) {
            0 => {
                vector.clear();
                plain_vector.clear();
            }
            1 => {
                vector.assign(&numbers);
                plain_vector.clone_from(&numbers);
            }
            2 => {
                vector.set(index, by);
                grow(plain_vector, index + 1);
                plain_vector[index] = by;
            }
            3 => {
                grow(plain_vector, index + 1);
                plain_vector[index] += by;
                assert_eq!(vector.add(index, by), plain_vector[index]);
            }
            4 => {
                vector.add_scaled(by, &numbers);
                grow(plain_vector, numbers.len());
                for (index, number) in numbers.iter().enumerate() {
                    plain_vector[index] += by * number;
                }
            }
            // Other factors would let the numbers grow without bounds.
            5 => {
                vector.scale(-1.0);
                plain_vector.iter_mut().for_each(|it| *it *= -1.0);
            }
            6 => {
                let products = plain_vector.iter().zip(&numbers).map(|(a, b)| a * b);
                assert_eq!(vector.dot(&numbers), products.sum::<f64>());
            }
            7 => {
                vector.as_mut_slice().reverse();
                plain_vector.reverse();
            }
            _ => {
                assert_eq!(vector.as_slice(), plain_vector.as_slice());
                assert_eq!(
                    (vector.len(), vector.is_empty()),
                    (plain_vector.len(), plain_vector.is_empty())
                );
                assert_eq!(
                    vector.get(index),
                    plain_vector.get(index).copied().unwrap_or(0.0)
                );
            }
        });
        plain.retain(|_, vector| !vector.is_empty());
    }

    fn read(element: &Self::Element) -> Self::Plain {
        let vectors = (0..KEYS).map(|key| (key, element.get(&key)));
        vectors.filter(|(_, vector)| !vector.is_empty()).collect()
    }

    fn join(plain: &mut Self::Plain, other: Self::Plain) {
        plain.extend(other);
    }
}

#[test]
fn vectors_equal_plain_ones_through_checkpoints_and_crashes() {
    check_random_runs::<VectorSubject>();
}

struct MatrixSubject;

impl Subject for MatrixSubject {
    type Key = u64;
    type Element = Matrices<u64, u64>;
    type Plain = BTreeMap<(u64, u64), f64>;

    fn element(place: &Place) -> Self::Element {
        Matrices::new(place)
    }

    fn state(element: &Self::Element) -> &dyn State {
        &element.maps.values
    }

    fn change(element: &Self::Element, plain: &mut Self::Plain, rng: &mut Rng) {
        let (row, column, by) = (rng.u64(..KEYS), rng.u64(..FIELDS), number(rng));
        let present = plain.get(&(row, column)).copied().unwrap_or(0.0);
        let plain_row = plain.range((row, 0)..(row + 1, 0));
        let plain_row: Vec<(u64, f64)> = plain_row
            .map(|((_, column), number)| (*column, *number))
            .collect();
        change(element, row, |mut numbers| match rng.u32(..8) {
            0 => {
                numbers.clear();
                plain.retain(|(of, _), _| *of != row);
            }
            1 => assert_eq!(numbers.get(&column), present),
            2 => {
                assert!(
                    numbers
                        .iter()
                        .map(|(column, number)| (*column, number))
                        .eq(plain_row.iter().copied())
                );
                assert_eq!(
                    (numbers.len(), numbers.is_empty()),
                    (plain_row.len(), plain_row.is_empty())
                );
            }
            3 => {
                let vector = BTreeMap::from([(0, 2.0), (3, by), (9, 1.0)]);
                let products = plain_row
                    .iter()
                    .map(|(column, number)| number * vector.get(column).unwrap_or(&0.0));
                let product =
                    numbers.multiply(vector.iter().map(|(column, number)| (column, *number)));
                assert_eq!(product, products.sum::<f64>());
            }
            4 => {
                numbers.set(&column, by);
                plain.insert((row, column), by);
            }
            _ => {
                assert_eq!(numbers.add(&column, by), present + by);
                plain.insert((row, column), present + by);
            }
        });
        plain.retain(|_, number| *number != 0.0);
    }

    fn read(element: &Self::Element) -> Self::Plain {
        let rows = (0..KEYS).flat_map(|row| {
            let numbers = element.row(&row).into_iter();
            numbers.map(move |(column, number)| ((row, column), number))
        });
        let numbers: Self::Plain = rows.collect();
        for ((row, column), number) in &numbers {
            assert_eq!(element.get(row, column), *number);
        }
        numbers
    }

    fn join(plain: &mut Self::Plain, other: Self::Plain) {
        plain.extend(other);
    }
}

#[test]
fn a_matrix_equals_a_plain_one_through_checkpoints_and_crashes() {
    check_random_runs::<MatrixSubject>();
}

struct TopSubject;

const COUNT: usize = 3;

impl Subject for TopSubject {
    type Key = u64;
    type Element = Tops<u64, u64, String>;
    type Plain = BTreeMap<u64, Vec<(u64, String)>>;

    fn element(place: &Place) -> Self::Element {
        Tops::new(COUNT, place)
    }

    fn state(element: &Self::Element) -> &dyn State {
        &element.values
    }

    fn change(element: &Self::Element, plain: &mut Self::Plain, rng: &mut Rng) {
        let (key, score, item) = (rng.u64(..KEYS), rng.u64(..6), rng.u64(..8).to_string());
        let plain_top = plain.entry(key).or_default();
        change(element, key, |mut top| match rng.u32(..12) {
            0 => {
                top.clear();
                plain_top.clear();
            }
            1 | 2 => {
                let score = plain_top.iter().find(|(_, other)| *other == item);
                assert_eq!(top.remove(&item), score.map(|(score, _)| *score));
                plain_top.retain(|(_, other)| *other != item);
            }
            3 => {
                let pairs = |(score, item): &(u64, String)| (*score, item.clone());
                let found = top.iter().map(|(score, item)| (*score, item.clone()));
                assert!(found.eq(plain_top.iter().map(pairs)));
                let ends = [top.highest(), top.lowest()];
                let plain_ends = [plain_top.first(), plain_top.last()];
                let plain_ends = plain_ends.map(|end| end.map(|(score, item)| (score, item)));
                assert_eq!(ends, plain_ends);
                assert_eq!(
                    (top.len(), top.is_empty()),
                    (plain_top.len(), plain_top.is_empty())
                );
            }
            _ => {
                plain_top.retain(|(_, other)| *other != item);
                plain_top.push((score, item.clone()));
                plain_top.sort_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
                plain_top.truncate(COUNT);
                let is_there = plain_top.iter().any(|(_, other)| *other == item);
                assert_eq!(top.put(&score, &item), is_there);
            }
        });
        plain.retain(|_, top| !top.is_empty());
    }

    fn read(element: &Self::Element) -> Self::Plain {
        let tops = (0..KEYS).map(|key| (key, element.get(&key)));
        tops.filter(|(_, top)| !top.is_empty()).collect()
    }

    fn join(plain: &mut Self::Plain, other: Self::Plain) {
        plain.extend(other);
    }
}

#[test]
fn the_highest_scores_equal_those_of_a_sorted_list_through_checkpoints_and_crashes() {
    check_random_runs::<TopSubject>();
}

#[test]
fn a_score_that_cannot_be_compared_is_left_out_and_fewer_items_may_be_wanted() {
    let tops = Tops::<u64, f64, u64>::new(2, &place(0, 1, 1));
    change(&tops, 1, |mut top| {
        assert!(!top.put(&f64::NAN, &1));
        assert!(top.is_empty());
        assert!(top.put(&1.0, &1) && top.put(&2.0, &2) && !top.put(&0.5, &3));
    });
    let smaller = Tops::<u64, f64, u64>::new(1, &place(0, 1, 1));
    let saved = crate::state::partial::StateReader::save(&tops.values).unwrap();
    crate::state::partial::StateReader::restore(&smaller.values, &saved).unwrap();
    change(&smaller, 1, |mut top| {
        assert_eq!((top.len(), top.lowest()), (1, Some((&2.0, &2))));
        assert!(!top.put(&1.5, &4));
        assert!(top.put(&3.0, &5));
        assert_eq!(top.highest(), Some((&3.0, &5)));
    });
}

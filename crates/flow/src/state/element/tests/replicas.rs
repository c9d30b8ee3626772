//! Partial elements beside plain maps.

use std::collections::{BTreeMap, HashMap};

use fastrand::Rng;

use super::{FIELDS, State, Subject, check_random_runs};
use crate::ranks::owners::KeyOwners;
use crate::state::element::Element;
use crate::state::lockable::Lockable;
use crate::state::partial_map::PartialMap;
use crate::state::partial_matrix::PartialMatrix;
use crate::state::values::Place;

/// More than the partitions of an element, so that some share a table.
const REPLICAS: u32 = 6;

/// Changes a replica as an instance does.
fn change<E: Element<u32>, R>(
    element: &E,
    replica: u32,
    change: impl FnOnce(E::Content<'_>) -> R,
) -> R {
    let partitions = element.partitions().unwrap();
    let owner = KeyOwners::new(1, partitions).of_replica(replica);
    let partition = element.partition(owner.partition);
    let changed = element.change(&mut partition.lock_all(), &replica, change);
    changed.expect("it is in memory")
}

struct PartialMapSubject;

impl Subject for PartialMapSubject {
    type Key = u32;
    type Element = PartialMap<u64, u64>;
    /// The sums of all replicas, which are not 0.
    type Plain = BTreeMap<u64, u64>;

    fn element(place: &Place) -> Self::Element {
        PartialMap::new("partial map", place, |sum, other| *sum += other)
    }

    fn state(element: &Self::Element) -> &dyn State {
        &element.values
    }

    fn change(element: &Self::Element, plain: &mut Self::Plain, rng: &mut Rng) {
        let (replica, field, by) = (rng.u32(..REPLICAS), rng.u64(..FIELDS), rng.u64(1..5));
        let sum = plain.entry(field).or_default();
        assert_eq!(element.get(&field).unwrap_or(0), *sum);
        change(element, replica, |mut map| match rng.u32(..4) {
            0 => *sum -= map.remove(&field).unwrap_or(0),
            _ => {
                *map.or_default(&field) += by;
                *sum += by;
            }
        });
        plain.retain(|_, sum| *sum > 0);
    }

    fn read(element: &Self::Element) -> Self::Plain {
        BTreeMap::from_iter(element.merged())
    }

    fn join(plain: &mut Self::Plain, other: Self::Plain) {
        for (field, sum) in other {
            *plain.entry(field).or_default() += sum;
        }
    }
}

#[test]
fn the_merged_replicas_of_a_map_equal_a_plain_map_through_checkpoints_and_crashes() {
    check_random_runs::<PartialMapSubject>();
}

struct PartialMatrixSubject;

impl Subject for PartialMatrixSubject {
    type Key = u32;
    type Element = PartialMatrix<u64, String>;
    type Plain = BTreeMap<(u64, String), i64>;

    fn element(place: &Place) -> Self::Element {
        PartialMatrix::new(place)
    }

    fn state(element: &Self::Element) -> &dyn State {
        &element.map.values
    }

    fn change(element: &Self::Element, plain: &mut Self::Plain, rng: &mut Rng) {
        let (replica, row) = (rng.u32(..REPLICAS), rng.u64(..FIELDS));
        let column = "x".repeat(rng.usize(..FIELDS as usize));
        let by = rng.i64(-3..4);
        let sum = plain.entry((row, column.clone())).or_default();
        assert_eq!(element.get(&row, &column), *sum as f64);
        change(element, replica, |mut matrix| match rng.u32(..5) {
            0 => {
                *sum += by - matrix.get(&row, &column) as i64;
                matrix.set(&row, &column, by as f64);
            }
            1 => {
                let number = matrix.row(&row).find(|(other, _)| **other == column);
                let number = number.map_or(0.0, |(_, number)| number);
                assert_eq!(number, matrix.get(&row, &column));
                let product = matrix.multiply([(&row, 2.0), (&99, 5.0)]);
                assert_eq!(product.get(&column).copied().unwrap_or(0.0), 2.0 * number);
            }
            _ => {
                *sum += by;
                matrix.add(&row, &column, by as f64);
            }
        });
        plain.retain(|_, sum| *sum != 0);
    }

    fn read(element: &Self::Element) -> Self::Plain {
        let mut read = BTreeMap::new();
        for row in 0..FIELDS {
            let numbers = element.row(&row).into_iter();
            let numbers = numbers.map(|(column, number)| ((row, column), number as i64));
            read.extend(numbers.filter(|(_, number)| *number != 0));
        }
        let product = element.multiply([(&0, 1.0), (&1, -2.0)]);
        let mut expected: HashMap<String, f64> = HashMap::new();
        for ((row, column), number) in &read {
            let factor = [1.0, -2.0].get(*row as usize).unwrap_or(&0.0);
            *expected.entry(column.clone()).or_default() += factor * *number as f64;
        }
        for (column, number) in expected {
            assert_eq!(product.get(&column).copied().unwrap_or(0.0), number);
        }
        read
    }

    fn join(plain: &mut Self::Plain, other: Self::Plain) {
        for (cell, sum) in other {
            *plain.entry(cell).or_default() += sum;
        }
        plain.retain(|_, sum| *sum != 0);
    }
}

#[test]
fn the_sum_of_a_matrix_equals_a_plain_one_through_checkpoints_and_crashes() {
    check_random_runs::<PartialMatrixSubject>();
}

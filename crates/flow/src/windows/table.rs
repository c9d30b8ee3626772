//! A map that is fast for small numbers: keys that are small numbers have a place, all others are found by their
//! hash.

use std::any::Any;
use std::hash::Hash;

use super::key::All;
use super::map::Map;

/// Memory of the places at most.
const PLACES_BYTES_MAX: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Table<K, V> {
    /// By number; as many as the largest one asks for.
    places: Vec<Option<V>>,
    /// The numbers that have something, in the order in which they came.
    taken: Vec<usize>,
    others: Map<K, V>,
    /// Numbers below this have a place.
    places_max: usize,
}

impl<K: Hash + Eq + Clone + 'static, V> Table<K, V> {
    /// An empty table, with places or without. Those take memory however few keys there are, so not every one
    /// of many tables can have some.
    pub fn new(has_places: bool) -> Self {
        let places_max = PLACES_BYTES_MAX / size_of::<Option<V>>();
        Self {
            places: Vec::new(),
            taken: Vec::new(),
            others: Map::default(),
            places_max: if has_places { places_max } else { 0 },
        }
    }

    pub fn len(&self) -> usize {
        self.taken.len() + self.others.len()
    }

    /// Returns the value of `key` in its place, if it has one with a value in it.
    #[inline(always)]
    pub fn at_place(&mut self, key: &K) -> Option<&mut V> {
        self.places.get_mut(number_of(key)?)?.as_mut()
    }

    /// Returns the value of `key`, made by `make` if there is none, where the key has a place; else returns `make`.
    pub fn in_place<F: FnOnce() -> V>(&mut self, key: &K, make: F) -> Result<&mut V, F> {
        match number_of(key) {
            Some(number) if number < self.places_max => {
                if number >= self.places.len() {
                    self.make_places(number);
                }
                let place = &mut self.places[number];
                if place.is_none() {
                    self.taken.push(number);
                }
                Ok(place.get_or_insert_with(make))
            }
            _ => Err(make),
        }
    }

    /// Returns the values of keys without a place.
    pub fn others(&mut self) -> &mut Map<K, V> {
        &mut self.others
    }

    #[cold]
    fn make_places(&mut self, number: usize) {
        let count = (number + 1).next_power_of_two().min(self.places_max);
        self.places.resize_with(count, || None);
    }

    /// Takes out up to `max` entries.
    pub fn take_some(&mut self, max: usize, mut out: impl FnMut(K, V)) {
        let places = self.taken.len().min(max);
        for number in self.taken.drain(..places) {
            if let (Some(key), Some(value)) = (of_number(number), self.places[number].take()) {
                out(key, value);
            }
        }
        if places < max {
            self.others.take_some(max - places, out);
        }
    }
}

/// Does the same with each type whose values may be small numbers.
macro_rules! numbers {
    ($($number:ty),*) => {
        /// The number that a key is. Which type it has is known when this is compiled: nothing is left of
        /// the question.
        #[inline(always)]
        fn number_of<K: 'static>(key: &K) -> Option<usize> {
            let key: &dyn Any = key;
            $(if let Some(number) = key.downcast_ref::<$number>() {
                return usize::try_from(*number).ok();
            })*
            key.is::<All>().then_some(0)
        }

        /// Returns the key for which [`number_of`] gives this number.
        fn of_number<K: Clone + 'static>(number: usize) -> Option<K> {
            $(if let Ok(number) = <$number>::try_from(number)
                && let Some(key) = (&number as &dyn Any).downcast_ref::<K>()
            {
                return Some(key.clone());
            })*
            (&All as &dyn Any).downcast_ref::<K>().cloned()
        }
    };
}

numbers!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;

    fn get_or_make<'t, K>(table: &'t mut Table<K, u64>, key: &K) -> &'t mut u64
    where
        K: Hash + Eq + Clone + 'static,
    {
        if number_of(key).is_some_and(|number| number < table.places_max) {
            return table.in_place(key, || 0).unwrap_or_else(|_| unreachable!());
        }
        assert!(table.in_place(key, || 0).is_err());
        table.others().get_or_make(key, || 0)
    }

    /// Counts keys, some of them twice, and returns the final counts in the table.
    fn count<K: Hash + Ord + Clone + Debug + 'static>(keys: &[K]) -> Vec<(K, u64)> {
        let mut table = Table::new(true);
        for _ in 0..2 {
            for (times, key) in keys.iter().enumerate() {
                for _ in 0..=times {
                    *get_or_make(&mut table, key) += 1;
                }
            }
            assert_eq!(table.len(), keys.len());
            let mut counts = Vec::new();
            while table.len() > 0 {
                let before = table.len();
                table.take_some(2, |key, count| counts.push((key, count)));
                assert_eq!(table.len(), before - before.min(2));
            }
            counts.sort();
            let mut expected: Vec<_> = keys.iter().cloned().zip(1..).collect();
            expected.sort();
            assert_eq!(counts, expected);
        }
        let mut counts = Vec::new();
        table.take_some(usize::MAX, |key, count: u64| counts.push((key, count)));
        counts
    }

    #[test]
    fn small_large_and_negative_window_numbers_are_distinct() {
        count(&[0_u8, 1, 255]);
        count(&[7_u32, 0, u32::MAX, 4_000, 70_000]);
        count(&[-1_i64, 0, 1, i64::MIN, i64::MAX, 8_191, 8_192]);
        count(&[u64::MAX, 3]);
        count(&["3", "", "three"]);
        count(&[(1_u32, 2_u32), (2, 1)]);
        count(&[All]);
    }

    #[test]
    fn the_memory_of_a_table_does_not_depend_on_the_size_of_its_numbers() {
        let mut table = Table::<u64, u64>::new(true);
        for bits in 0..64 {
            get_or_make(&mut table, &(1 << bits));
        }
        assert!(table.places.len() * size_of::<Option<u64>>() <= PLACES_BYTES_MAX);
    }
}

//! Partial results of the keys in one pane.

use std::hash::Hash;
use std::mem;

use super::aggregate::Aggregate;
use super::cell::Cell;
use super::map::Map;
use super::table::Table;

/// From this number of keys on, the map is larger than a core's own caches.
const KEYS_MANY: usize = 32 << 10;

/// Items that come together before they are added to a large map: enough for a loop in which the processor waits for
/// many of their entries at once.
const BATCH_ITEMS: usize = 256;

/// Memory of a state that may be merged item by item.
const SMALL_BYTES: usize = 32;

/// An item whose key is in a large map waits in a batch, as a partial result of its own. Adding it at once would stall
/// everything that follows it until its entry has come from memory.
#[derive(Debug)]
pub(super) struct PaneTable<K, S> {
    table: Table<K, Cell<S>>,
    batch: Vec<(K, Cell<S>)>,
}

impl<K: Hash + Eq + Clone + 'static, S> PaneTable<K, S> {
    /// Whether a partial result for each item costs little: it takes no memory of its own.
    const CAN_BATCH: bool =
        !mem::needs_drop::<S>() && !mem::needs_drop::<K>() && size_of::<S>() <= SMALL_BYTES;

    /// An empty table, with places for keys that are small numbers or without.
    pub fn new(has_places: bool) -> Self {
        Self {
            table: Table::new(has_places),
            batch: Vec::new(),
        }
    }

    /// Returns the number of partial results.
    pub fn len(&self) -> usize {
        self.table.len() + self.batch.len()
    }

    /// Adds an item, and to `len` how many partial results that makes more.
    #[inline(always)]
    pub fn add<T, A>(&mut self, aggregate: &A, key: K, time: i64, item: &T, len: &mut usize)
    where
        T: ?Sized,
        A: Aggregate<T, State = S>,
    {
        match self.table.at_place(&key) {
            Some(cell) => cell.add(aggregate, time, item),
            None => {
                let more = self.add_elsewhere(aggregate, key, time, item);
                *len = len.wrapping_add_signed(more);
            }
        }
    }

    /// The same where nothing lies in the place of the key; returns how many partial results the item makes more.
    #[inline(never)]
    fn add_elsewhere<T, A>(&mut self, aggregate: &A, key: K, time: i64, item: &T) -> isize
    where
        T: ?Sized,
        A: Aggregate<T, State = S>,
    {
        if let Ok(cell) = self.table.in_place(&key, || Cell::empty(aggregate)) {
            cell.add(aggregate, time, item);
            return 1;
        }
        let others = self.table.others();
        if Self::CAN_BATCH && others.len() >= KEYS_MANY {
            let mut cell = Cell::empty(aggregate);
            cell.add(aggregate, time, item);
            self.batch.push((key, cell));
            return match self.batch.len() {
                BATCH_ITEMS => 1 + self.add_batch(aggregate),
                _ => 1,
            };
        }
        let before = others.len();
        others
            .get_or_make(&key, || Cell::empty(aggregate))
            .add(aggregate, time, item);
        others.len() as isize - before as isize
    }

    /// Merges the batch into the map; returns how many partial results that makes more.
    #[inline(never)]
    fn add_batch<T, A>(&mut self, aggregate: &A) -> isize
    where
        T: ?Sized,
        A: Aggregate<T, State = S>,
    {
        let before = self.len() as isize;
        let others: &mut Map<_, _> = self.table.others();
        for (key, cell) in self.batch.drain(..) {
            others
                .get_or_make(&key, || Cell::empty(aggregate))
                .merge(aggregate, &cell);
        }
        self.len() as isize - before
    }

    /// Takes out up to `max` partial results. Keys of the batch may also be in the table.
    pub fn take_some(&mut self, max: usize, mut out: impl FnMut(K, Cell<S>)) {
        let waiting = self.batch.len().min(max);
        self.batch
            .drain(self.batch.len() - waiting..)
            .for_each(|(key, cell)| out(key, cell));
        self.table.take_some(max - waiting, out);
    }
}

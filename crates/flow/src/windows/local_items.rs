//! Items that are not added up where they arise, since their key's window counts them.

use super::aggregate::Aggregate;
use super::cell::Cell;
use super::local::{Arrival, Partial};

#[derive(Debug)]
pub(super) struct LocalItems<K, S> {
    /// A partial result for each item, in order.
    partials: Vec<Partial<K, S>>,
}

impl<K, S> Default for LocalItems<K, S> {
    fn default() -> Self {
        Self {
            partials: Vec::new(),
        }
    }
}

impl<K, S> LocalItems<K, S> {
    pub fn len(&self) -> usize {
        self.partials.len()
    }

    /// They never come late.
    #[inline(never)]
    pub fn add<T, A>(&mut self, aggregate: &A, key: K, time: i64, item: &T) -> Arrival
    where
        T: ?Sized,
        A: Aggregate<T, State = S>,
    {
        let mut cell = Cell::empty(aggregate);
        cell.add(aggregate, time, item);
        self.partials.push(Partial::new(key, time, 0, cell));
        Arrival::OnTime
    }

    pub fn flush(&mut self, out: &mut impl FnMut(Partial<K, S>)) {
        self.partials.drain(..).for_each(out);
    }
}

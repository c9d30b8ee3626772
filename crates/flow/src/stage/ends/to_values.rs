//! Items that change the values of their keys.

use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::error::Failure;
use crate::stage::attempt::Attempt;
use crate::stage::chain::Emit;
use crate::stage::ends::keyed_item::KeyedItem;
use crate::stage::ends::outbox::Outbox;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::stage::user_code::Label;
use crate::state::value_table::ValueTable;
use crate::state::values::{SharedTable, Value};
use crate::time::control_event::ControlEvent;
use crate::windows::Key;

/// The end in the values of one partition, which may give results to the next stage.
pub struct ToValues<K, V, O, F> {
    pub table: SharedTable<K, V>,
    pub function: Arc<F>,
    pub label: Label,
    /// `None` if there are no results.
    pub outbox: Option<Outbox<O>>,
}

impl<K, V, O, F> End for ToValues<K, V, O, F>
where
    K: Key,
    V: Value,
    O: Send + 'static,
    F: Send + Sync + 'static,
{
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(match &mut self.outbox {
            Some(outbox) => outbox.reserve(results),
            None => Some(results),
        })
    }

    fn cancel(&mut self) {
        self.outbox.iter_mut().for_each(Outbox::cancel);
    }

    fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> Result<usize, Failure> {
        let outbox = self.outbox.as_mut();
        Ok(outbox.map_or(0, |outbox| outbox.commit(stamp, event)))
    }

    fn take_progress(&mut self) -> bool {
        self.outbox.as_mut().is_some_and(Outbox::take_progress)
    }

    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        let outbox = self.outbox.as_mut();
        Ok(outbox.is_none_or(|outbox| outbox.finish(end)).then_some(0))
    }
}

impl<K, V, T, O, F> Terminal<KeyedItem<K, T>> for ToValues<K, V, O, F>
where
    K: Key,
    V: Value,
    O: Clone + Send + 'static,
    F: Fn(&K, &mut Option<V>, &T, &mut Emit<'_, O>) + Send + Sync + 'static,
{
    type Slice<'a> = ValueSlice<'a, K, V, O, F>;

    fn begin(&mut self) -> ValueSlice<'_, K, V, O, F> {
        ValueSlice {
            table: self.table.lock(),
            function: &self.function,
            label: &self.label,
            outbox: self.outbox.as_mut(),
        }
    }
}

/// Holds the partition's lock for the time of one slice.
pub struct ValueSlice<'a, K, V, O, F> {
    table: MutexGuard<'a, ValueTable<K, V>>,
    function: &'a F,
    label: &'a Label,
    outbox: Option<&'a mut Outbox<O>>,
}

impl<K, V, T, O, F> Slice<KeyedItem<K, T>> for ValueSlice<'_, K, V, O, F>
where
    K: Key,
    V: Value,
    O: Clone,
    F: Fn(&K, &mut Option<V>, &T, &mut Emit<'_, O>),
{
    #[inline]
    fn take<A: Attempt>(&mut self, attempt: &A, item: &KeyedItem<K, T>) {
        let KeyedItem { key, content } = item;
        let (table, outbox) = (&mut self.table, &mut self.outbox);
        attempt.change(self.label, || {
            table.update(key, |value| {
                (self.function)(key, value, content, &mut |result| {
                    if let Some(outbox) = outbox {
                        outbox.put(0, result.clone());
                    }
                });
            });
        });
    }
}

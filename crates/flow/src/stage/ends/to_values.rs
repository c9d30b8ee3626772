//! Items that change the content of their keys in a state element.

use std::sync::Arc;

use crate::error::Failure;
use crate::stage::attempt::Attempt;
use crate::stage::chain::Emit;
use crate::stage::ends::keyed_item::KeyedItem;
use crate::stage::ends::outbox::Outbox;
use crate::stage::ends::steps::Steps;
use crate::stage::ends::wanted::{Wanted, is_at_hand};
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::stage::user_code::Label;
use crate::state::element::Element;
use crate::state::lockable::{Lockable, Locked};
use crate::time::control_event::ControlEvent;
use crate::windows::Key;

/// The end in one partition of a state element, or of several, which may give results to the next stage.
pub struct ToValues<K, E: Element<K>, O, P, F> {
    pub element: E,
    pub tables: E::Partition,
    pub function: Arc<F>,
    pub label: Label,
    /// `None` if there are no results.
    pub outbox: Option<Outbox<O>>,
    /// The key at which the last slice stopped, since its value was not in memory.
    pub missing: Option<K>,
    pub steps: Steps<P>,
}

impl<K, E, O, P, F> End for ToValues<K, E, O, P, F>
where
    K: Key,
    E: Element<K>,
    O: Send + 'static,
    P: Send + 'static,
    F: Send + Sync + 'static,
{
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(match &mut self.outbox {
            Some(outbox) => self.steps.reserve(outbox, results),
            None => Some(results),
        })
    }

    fn can_go_on(&self) -> bool {
        is_at_hand::<K, E>(self.missing.as_ref(), &self.tables)
    }

    fn waits_outside(&self) -> bool {
        !self.can_go_on()
    }

    fn cancel(&mut self) {
        self.outbox.iter_mut().for_each(Outbox::cancel);
    }

    fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> Result<usize, Failure> {
        let outbox = self.outbox.as_mut();
        Ok(outbox.map_or(0, |outbox| outbox.commit(stamp, event)))
    }

    fn has_more(&self) -> bool {
        self.steps.rest.is_some()
    }

    fn take_progress(&mut self) -> bool {
        self.outbox.as_mut().is_some_and(Outbox::take_progress)
    }

    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        let outbox = self.outbox.as_mut();
        Ok(outbox.is_none_or(|outbox| outbox.finish(end)).then_some(0))
    }
}

impl<K, E, T, O, P, F> Terminal<KeyedItem<K, T>> for ToValues<K, E, O, P, F>
where
    K: Key,
    E: Element<K>,
    O: Clone + Send + 'static,
    P: Send + 'static,
    F: Fn(&K, E::Content<'_>, &T, &mut Steps<P>, &mut Emit<'_, O>) + Send + Sync + 'static,
{
    type Slice<'a> = ValueSlice<'a, K, E, O, P, F>;

    fn begin(&mut self) -> ValueSlice<'_, K, E, O, P, F> {
        ValueSlice {
            element: &self.element,
            tables: self.tables.lock_all(),
            function: &self.function,
            label: &self.label,
            outbox: self.outbox.as_mut(),
            is_stopped: false,
            wanted: Wanted::begin(&mut self.missing),
            steps: &mut self.steps,
        }
    }
}

/// Holds the partition's locks for the time of one slice.
pub struct ValueSlice<'a, K, E: Element<K>, O, P, F> {
    element: &'a E,
    tables: Locked<'a, E::Partition>,
    function: &'a F,
    label: &'a Label,
    outbox: Option<&'a mut Outbox<O>>,
    is_stopped: bool,
    wanted: Wanted<'a, K>,
    steps: &'a mut Steps<P>,
}

impl<K, E, T, O, P, F> Slice<KeyedItem<K, T>> for ValueSlice<'_, K, E, O, P, F>
where
    K: Key,
    E: Element<K>,
    O: Clone,
    F: Fn(&K, E::Content<'_>, &T, &mut Steps<P>, &mut Emit<'_, O>),
{
    #[inline]
    fn take<A: Attempt>(&mut self, attempt: &A, item: &KeyedItem<K, T>) {
        let KeyedItem { key, content } = item;
        if self.is_stopped {
            return self.wanted.add::<E>(attempt, self.label, &self.tables, key);
        }
        let (tables, outbox, steps) = (&mut self.tables, &mut self.outbox, &mut *self.steps);
        let updated = attempt.change(self.label, || {
            self.element.change(tables, key, |present| {
                (self.function)(key, present, content, steps, &mut |result| {
                    if let Some(outbox) = outbox {
                        outbox.put(0, result.clone());
                    }
                });
            })
        });
        if updated.is_none() {
            self.wanted.add::<E>(attempt, self.label, &self.tables, key);
        }
        // Otherwise the item comes again.
        self.is_stopped = updated.is_none() || self.steps.rest.is_some();
    }

    #[inline(always)]
    fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    fn end<A: Attempt>(&mut self, _: &A) {
        self.wanted.load::<E>(&mut self.tables);
    }
}

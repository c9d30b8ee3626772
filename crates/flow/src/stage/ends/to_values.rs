//! Items that change the content of their keys in a state element.

use std::mem;
use std::sync::Arc;

use crate::error::Failure;
use crate::stage::attempt::Attempt;
use crate::stage::chain::Emit;
use crate::stage::ends::keyed_item::KeyedItem;
use crate::stage::ends::outbox::Outbox;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::stage::user_code::Label;
use crate::state::element::Element;
use crate::state::lockable::{Lockable, Locked};
use crate::time::control_event::ControlEvent;
use crate::windows::Key;

/// The end in one partition of a state element, or of several, which may give results to the next stage.
pub struct ToValues<K, E: Element<K>, O, F> {
    pub element: E,
    pub tables: E::Partition,
    pub function: Arc<F>,
    pub label: Label,
    /// `None` if there are no results.
    pub outbox: Option<Outbox<O>>,
    /// The key at which the last slice stopped, since its value was not in memory.
    pub missing: Option<K>,
}

/// The most keys that a stopped slice wants at once: its first missing one, and some of the items behind it.
const WANTED_MAX: usize = 1024;

impl<K, E, O, F> End for ToValues<K, E, O, F>
where
    K: Key,
    E: Element<K>,
    O: Send + 'static,
    F: Send + Sync + 'static,
{
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(match &mut self.outbox {
            Some(outbox) => outbox.reserve(results),
            None => Some(results),
        })
    }

    fn can_go_on(&self) -> bool {
        let Some(key) = &self.missing else {
            return true;
        };
        let mut tables = self.tables.lock_all();
        let is_known = E::is_known(&tables, key);
        if !is_known {
            // It may have been loaded, and evicted again.
            E::want(&mut tables, vec![key.clone()]);
        }
        is_known
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

    fn take_progress(&mut self) -> bool {
        self.outbox.as_mut().is_some_and(Outbox::take_progress)
    }

    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        let outbox = self.outbox.as_mut();
        Ok(outbox.is_none_or(|outbox| outbox.finish(end)).then_some(0))
    }
}

impl<K, E, T, O, F> Terminal<KeyedItem<K, T>> for ToValues<K, E, O, F>
where
    K: Key,
    E: Element<K>,
    O: Clone + Send + 'static,
    F: Fn(&K, E::Content<'_>, &T, &mut Emit<'_, O>) + Send + Sync + 'static,
{
    type Slice<'a> = ValueSlice<'a, K, E, O, F>;

    fn begin(&mut self) -> ValueSlice<'_, K, E, O, F> {
        self.missing = None;
        ValueSlice {
            element: &self.element,
            tables: self.tables.lock_all(),
            function: &self.function,
            label: &self.label,
            outbox: self.outbox.as_mut(),
            is_stopped: false,
            missing: &mut self.missing,
            wanted: Vec::new(),
        }
    }
}

/// Holds the partition's locks for the time of one slice.
pub struct ValueSlice<'a, K, E: Element<K>, O, F> {
    element: &'a E,
    tables: Locked<'a, E::Partition>,
    function: &'a F,
    label: &'a Label,
    outbox: Option<&'a mut Outbox<O>>,
    is_stopped: bool,
    missing: &'a mut Option<K>,
    /// Keys that the loader has to read.
    wanted: Vec<K>,
}

impl<K, E, T, O, F> Slice<KeyedItem<K, T>> for ValueSlice<'_, K, E, O, F>
where
    K: Key,
    E: Element<K>,
    O: Clone,
    F: Fn(&K, E::Content<'_>, &T, &mut Emit<'_, O>),
{
    #[inline]
    fn take<A: Attempt>(&mut self, attempt: &A, item: &KeyedItem<K, T>) {
        let KeyedItem { key, content } = item;
        if self.is_stopped {
            return self.want(attempt, key);
        }
        let (tables, outbox) = (&mut self.tables, &mut self.outbox);
        let updated = attempt.change(self.label, || {
            self.element.change(tables, key, |present| {
                (self.function)(key, present, content, &mut |result| {
                    if let Some(outbox) = outbox {
                        outbox.put(0, result.clone());
                    }
                });
            })
        });
        if updated.is_none() {
            self.is_stopped = true;
            self.want(attempt, key);
        }
    }

    #[inline(always)]
    fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    fn end<A: Attempt>(&mut self, _: &A) {
        if self.is_stopped {
            E::want(&mut self.tables, mem::take(&mut self.wanted));
        }
    }
}

impl<K: Key, E: Element<K>, O, F> ValueSlice<'_, K, E, O, F> {
    /// Notes that a key has to be read, if it is not known.
    #[cold]
    fn want<A: Attempt>(&mut self, attempt: &A, key: &K) {
        // A panic of the key's code must not look like one of an item.
        attempt.change(self.label, || {
            if self.wanted.len() < WANTED_MAX && !E::is_known(&self.tables, key) {
                self.missing.get_or_insert_with(|| key.clone());
                self.wanted.push(key.clone());
            }
        });
    }
}

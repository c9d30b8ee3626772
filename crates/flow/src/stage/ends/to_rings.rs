//! Items that go into rings of later stages.

use std::fmt::Debug;
use std::sync::Arc;

use crate::error::Failure;
use crate::stage::attempt::Attempt;
use crate::stage::ends::outbox::Outbox;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::stage::user_code::Label;
use crate::time::control_event::ControlEvent;

/// The end in rings, as the partitioner `W` chooses.
pub struct ToRings<T, W> {
    pub outbox: Outbox<T>,
    pub partitioner: W,
}

/// Chooses the rings of an outbox for an item.
pub trait Partitioner<T>: Send + 'static {
    /// Whether each item goes to all of them, or else to one.
    const TO_ALL: bool = false;

    fn put<A: Attempt>(&mut self, attempt: &A, item: &T, outbox: &mut Outbox<T>);
}

/// The only one, which all instances of the next stage read.
pub struct ToOne;

/// Each of them.
pub struct ToAll {
    pub label: Label,
}

/// The one whose index `function` gives.
pub struct Route<F> {
    pub function: Arc<F>,
    pub label: Label,
}

impl<T: Clone> Partitioner<T> for ToOne {
    #[inline]
    fn put<A: Attempt>(&mut self, _: &A, item: &T, outbox: &mut Outbox<T>) {
        outbox.put(0, item.clone());
    }
}

impl<T: Clone> Partitioner<T> for ToAll {
    const TO_ALL: bool = true;

    #[inline]
    fn put<A: Attempt>(&mut self, attempt: &A, item: &T, outbox: &mut Outbox<T>) {
        if outbox.len() > 0 {
            outbox.put(0, item.clone());
        }
        // When copying fails from here on, some have the item and others do not.
        attempt.change(&self.label, || {
            for ring in 1..outbox.len() {
                outbox.put(ring, item.clone());
            }
        });
    }
}

impl<F> Route<F> {
    /// Returns the output of an item, of `outputs` outputs.
    #[inline]
    pub fn output<T, A>(&self, attempt: &A, item: &T, outputs: usize) -> Option<usize>
    where
        T: Debug,
        A: Attempt,
        F: Fn(&T) -> usize,
    {
        attempt.call(&self.label, item, || {
            let output = (self.function)(item);
            assert!(
                output < outputs,
                "there are {outputs} outputs, numbered from 0; the item is sent to number {output}"
            );
            output
        })
    }
}

impl<T, F> Partitioner<T> for Route<F>
where
    T: Clone + Debug,
    F: Fn(&T) -> usize + Send + Sync + 'static,
{
    #[inline]
    fn put<A: Attempt>(&mut self, attempt: &A, item: &T, outbox: &mut Outbox<T>) {
        if let Some(output) = self.output(attempt, item, outbox.len()) {
            outbox.put(output, item.clone());
        }
    }
}

impl<T: Send + 'static, W: Partitioner<T>> ToRings<T, W> {
    /// Returns the number of items that one becomes.
    fn copies(&self) -> usize {
        if W::TO_ALL { self.outbox.len() } else { 1 }
    }
}

impl<T: Send + 'static, W: Partitioner<T>> End for ToRings<T, W> {
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        let copies = self.copies();
        let room = self.outbox.reserve(results.saturating_mul(copies));
        Ok(room.map(|room| room / copies))
    }

    fn cancel(&mut self) {
        self.outbox.cancel();
    }

    fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> Result<usize, Failure> {
        Ok(self.outbox.commit(stamp, event) / self.copies())
    }

    fn take_progress(&mut self) -> bool {
        self.outbox.take_progress()
    }

    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        Ok(self.outbox.finish(end).then_some(0))
    }
}

impl<T: Send + 'static, W: Partitioner<T>> Terminal<T> for ToRings<T, W> {
    type Slice<'a> = &'a mut Self;

    fn begin(&mut self) -> &mut Self {
        self
    }
}

impl<T, W: Partitioner<T>> Slice<T> for &mut ToRings<T, W> {
    #[inline]
    fn take<A: Attempt>(&mut self, attempt: &A, item: &T) {
        self.partitioner.put(attempt, item, &mut self.outbox);
    }
}

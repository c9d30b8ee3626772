//! Items that change the instance's replica of a partial state element.

use std::fmt::Debug;
use std::sync::Arc;

use crate::error::Failure;
use crate::stage::attempt::Attempt;
use crate::stage::chain::Emit;
use crate::stage::ends::outbox::Outbox;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::stage::user_code::Label;
use crate::state::element::PartialElement;
use crate::state::lockable::{Lockable, Locked};
use crate::time::control_event::ControlEvent;

/// The end in a replica, which gives results to the next stage.
pub struct ToReplica<E: PartialElement, O, F> {
    pub element: E,
    pub replica: u32,
    pub table: E::Partition,
    pub function: Arc<F>,
    pub label: Label,
    pub outbox: Outbox<O>,
}

impl<E, O, F> End for ToReplica<E, O, F>
where
    E: PartialElement,
    O: Send + 'static,
    F: Send + Sync + 'static,
{
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(self.outbox.reserve(results))
    }

    fn cancel(&mut self) {
        self.outbox.cancel();
    }

    fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> Result<usize, Failure> {
        Ok(self.outbox.commit(stamp, event))
    }

    fn take_progress(&mut self) -> bool {
        self.outbox.take_progress()
    }

    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        Ok(self.outbox.finish(end).then_some(0))
    }
}

impl<T, E, O, F> Terminal<T> for ToReplica<E, O, F>
where
    T: Debug + ?Sized,
    E: PartialElement,
    O: Clone + Send + 'static,
    F: Fn(E::Content<'_>, &T, &mut Emit<'_, O>) + Send + Sync + 'static,
{
    type Slice<'a> = ReplicaSlice<'a, E, O, F>;

    fn begin(&mut self) -> ReplicaSlice<'_, E, O, F> {
        ReplicaSlice {
            element: &self.element,
            replica: self.replica,
            table: self.table.lock_all(),
            function: &self.function,
            label: &self.label,
            outbox: &mut self.outbox,
        }
    }
}

/// Holds the lock of the replica's table for the time of one slice.
pub struct ReplicaSlice<'a, E: PartialElement, O, F> {
    element: &'a E,
    replica: u32,
    table: Locked<'a, E::Partition>,
    function: &'a F,
    label: &'a Label,
    outbox: &'a mut Outbox<O>,
}

impl<T, E, O, F> Slice<T> for ReplicaSlice<'_, E, O, F>
where
    T: Debug + ?Sized,
    E: PartialElement,
    O: Clone,
    F: Fn(E::Content<'_>, &T, &mut Emit<'_, O>),
{
    #[inline]
    fn take<A: Attempt>(&mut self, attempt: &A, item: &T) {
        let (table, outbox) = (&mut self.table, &mut self.outbox);
        let changed = attempt.change(self.label, || {
            self.element.change(table, &self.replica, |replica| {
                (self.function)(replica, item, &mut |result| outbox.put(0, result.clone()));
            })
        });
        changed.expect("all replicas are in memory");
    }
}

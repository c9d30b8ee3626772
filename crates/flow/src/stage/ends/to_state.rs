//! Items that end in state.

use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::error::Failure;
use crate::stage::attempt::Attempt;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::stage::user_code::Label;
use crate::time::control_event::ControlEvent;

/// The end in a partial state, in this instance's share.
pub struct ToState<S, F> {
    pub part: Arc<Mutex<S>>,
    pub step: Arc<F>,
    pub label: Label,
}

impl<S: Send + 'static, F: Send + Sync + 'static> End for ToState<S, F> {
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(Some(results))
    }

    fn cancel(&mut self) {}

    fn commit(&mut self, _: u64, _: Option<ControlEvent>) -> Result<usize, Failure> {
        Ok(0)
    }

    fn finish(&mut self, _: InputEnd) -> Result<Option<usize>, Failure> {
        Ok(Some(0))
    }
}

impl<T, S, F> Terminal<T> for ToState<S, F>
where
    T: Debug + ?Sized,
    S: Send + 'static,
    F: Fn(&mut S, &T) + Send + Sync + 'static,
{
    type Slice<'a> = StateSlice<'a, S, F>;

    fn begin(&mut self) -> StateSlice<'_, S, F> {
        StateSlice {
            part: self.part.lock(),
            step: &*self.step,
            label: &self.label,
        }
    }
}

/// Holds the share's lock for the time of one slice.
pub struct StateSlice<'a, S, F> {
    part: MutexGuard<'a, S>,
    step: &'a F,
    label: &'a Label,
}

impl<T: Debug + ?Sized, S, F: Fn(&mut S, &T)> Slice<T> for StateSlice<'_, S, F> {
    #[inline]
    fn take<A: Attempt>(&mut self, attempt: &A, item: &T) {
        attempt.change(self.label, || (self.step)(&mut self.part, item));
    }
}

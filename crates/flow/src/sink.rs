//! Where items go.

use std::task::Waker;

use crate::error::BoxError;

/// Takes the items of a flow. One worker at a time uses it.
pub trait Sink<T>: Send + 'static {
    /// Takes items from the front of `items`, as many as there is room for, and returns how many;
    /// never waits. A sink that takes fewer than all keeps a clone of `waker` and wakes it when
    /// there is room.
    ///
    /// # Errors
    /// Ends the flow.
    fn push(&mut self, items: &[T], waker: &Waker) -> Result<usize, BoxError>;

    /// Sends on whatever was taken and is still held back; never waits. Called when no more items
    /// are in sight. Returns whether everything has arrived for good; if not, the sink wakes
    /// `waker` when it may have.
    ///
    /// # Errors
    /// Ends the flow.
    fn flush(&mut self, waker: &Waker) -> Result<bool, BoxError>;

    /// What the sink needs to take back what comes after this moment, when the flow goes on from the
    /// checkpoint of which this is a part. A sink that saves nothing gets that twice.
    ///
    /// # Errors
    /// Ends the flow.
    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(Vec::new())
    }

    /// Takes back what came after [`save`](Sink::save). Called before it gets anything.
    ///
    /// # Errors
    /// When it cannot: the flow does not begin.
    fn restore(&mut self, _saved: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<T, S: Sink<T> + ?Sized> Sink<T> for Box<S> {
    fn push(&mut self, items: &[T], waker: &Waker) -> Result<usize, BoxError> {
        (**self).push(items, waker)
    }

    fn flush(&mut self, waker: &Waker) -> Result<bool, BoxError> {
        (**self).flush(waker)
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        (**self).save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        (**self).restore(saved)
    }
}

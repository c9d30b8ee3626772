//! The contract of sinks, which take the items of a flow.

use std::task::Waker;

use crate::error::BoxError;

/// Takes the items of a flow. One worker at a time uses it.
///
/// # Exactly once
///
/// A sink takes part in checkpoints in three steps, which are the same for each kind of sink:
///
/// 1. [`prepare`](Sink::prepare) separates the results of a checkpoint from those that come after it, and names them.
///    All of them are [flushed](Sink::flush), and their name is saved in the checkpoint.
/// 2. [`commit`](Sink::commit) follows when a checkpoint is complete on all ranks: these results count now. The flow
///    will never resume from an older checkpoint.
/// 3. [`recover`](Sink::recover) decides, when a flow begins, the results of an earlier run: those that the
///    checkpoint names count, and newer ones do not, since they come again.
///
/// A sink that can remove results that it has written, such as a file, needs only steps 1 and 3.
pub trait Sink<T>: Send + 'static {
    /// Takes items from the front of `items`, as many as there is room for, and returns how many; never waits. A sink
    /// that takes fewer than all holds a clone of `waker` and wakes it when there is room.
    ///
    /// # Errors
    /// Ends the flow.
    fn push(&mut self, items: &[T], waker: &Waker) -> Result<usize, BoxError>;

    /// Sends on the items that it holds back; never waits. Called when no more items are in sight. Returns whether
    /// everything has arrived for good; if not, the sink wakes `waker` when it may have.
    ///
    /// # Errors
    /// Ends the flow.
    fn flush(&mut self, waker: &Waker) -> Result<bool, BoxError>;

    /// Whether results count only when they are [committed](Sink::commit), if the flow takes checkpoints. Then the
    /// flow takes one more at its end. The same on all ranks.
    fn waits_for_commit(&self) -> bool {
        false
    }

    /// Begins: decides the results that an earlier run of the flow has left, and continues from there. Called once,
    /// before the sink gets anything, on all ranks before it gets anything on one. It may wait.
    ///
    /// # Errors
    /// When it cannot: the flow does not begin.
    fn recover(&mut self, _start: &SinkStart<'_>) -> Result<(), BoxError> {
        Ok(())
    }

    /// Ends the results that belong to a checkpoint; all of them are flushed. Returns bytes that name them, and those
    /// of earlier checkpoints that are not committed yet. Never waits.
    ///
    /// # Errors
    /// Ends the flow.
    fn prepare(&mut self, _checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        Ok(Vec::new())
    }

    /// A checkpoint is complete on all ranks: commits the results that were prepared for it and for those before it.
    /// Never waits; returns whether it is done. If not, the sink wakes `waker` when it may be, and is called again.
    ///
    /// # Errors
    /// Ends the flow.
    fn commit(&mut self, _checkpoint: u64, _waker: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}

/// The position of a sink when the flow begins.
#[derive(Debug, Clone, Copy)]
pub struct SinkStart<'a> {
    /// The name of the flow.
    pub flow: &'a str,
    /// The name of the sink, which no other one of the flow has. A [changelog](crate::Changelog)'s name is `state.`
    /// followed by the name of the state element.
    pub sink: &'a str,
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// Whether the flow takes checkpoints.
    pub takes_checkpoints: bool,
    /// The bytes that the sink has [prepared](Sink::prepare) for the checkpoint that the flow resumes from; `None` if
    /// it begins anew.
    pub prepared: Option<&'a [u8]>,
}

impl<T, S: Sink<T> + ?Sized> Sink<T> for Box<S> {
    fn push(&mut self, items: &[T], waker: &Waker) -> Result<usize, BoxError> {
        (**self).push(items, waker)
    }

    fn flush(&mut self, waker: &Waker) -> Result<bool, BoxError> {
        (**self).flush(waker)
    }

    fn waits_for_commit(&self) -> bool {
        (**self).waits_for_commit()
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        (**self).recover(start)
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        (**self).prepare(checkpoint)
    }

    fn commit(&mut self, checkpoint: u64, waker: &Waker) -> Result<bool, BoxError> {
        (**self).commit(checkpoint, waker)
    }
}

//! The destinations of a stage's results: rings of later stages, state, sinks.

use std::sync::Arc;

use millstream_base::Timestamp;

use crate::error::Failure;
use crate::ranks::outlets::Outlets;
use crate::stage::attempt::Attempt;
use crate::stage::channel::ChannelState;
use crate::time::control_event::{ControlEvent, WriterId};

/// The way in which the input of a stage ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InputEnd {
    /// All of a bounded input was read.
    Complete,
    /// The flow was stopped; there would have been more.
    Stopped,
}

/// The end of a stage, for results of any type, of one slice of input at a time: `reserve`, then
/// [`begin`](Terminal::begin) (again after a panic, or by another worker), then `commit`.
pub trait End: Send + 'static {
    /// Whether it has results that come only when event time has come so far, or its input has ended.
    fn closes_by_time(&self) -> bool {
        false
    }

    /// Whether all sources that lead there have to emit watermarks.
    fn needs_watermarks(&self) -> bool {
        self.closes_by_time()
    }

    /// Returns the watermark that it has come to, if a flow that resumes has to continue there.
    fn watermark(&self) -> Option<Timestamp> {
        None
    }

    /// Continues at the watermark of a checkpoint. Called before anything is taken.
    fn resume_at(&mut self, _watermark: Timestamp) {}

    /// Whether it gets each control event of its input behind the items before it and before those behind it. Otherwise a
    /// slice of items may be on both sides of an event, which comes behind the slice then.
    fn takes_events_in_turn(&self) -> bool {
        false
    }

    /// Makes room for about `results` results, and passes on the rest of former slices. `None` when that has to wait;
    /// otherwise for how many results there is room. More results find a place, too: `results` is only the expected
    /// number.
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure>;

    /// Whether it takes any number of results, however much room was made: it holds them until they are due.
    fn takes_any(&self) -> bool {
        false
    }

    /// Whether it can take the items that the last slice has [left](Slice::is_stopped). Until then it waits for a thread
    /// outside of the flow, which rings the bell.
    fn can_go_on(&self) -> bool {
        true
    }

    /// Gives back the room.
    fn cancel(&mut self);

    /// Passes the results of the slice on; returns how many there were. `stamp` is when they entered the flow, and
    /// `event` is emitted behind them.
    fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> Result<usize, Failure>;

    /// There is nothing to read just now. Passes on the rest of former slices; `false` when that has to wait.
    fn pause(&mut self) -> Result<bool, Failure> {
        Ok(true)
    }

    /// Returns how many results it has passed on that neither [`commit`](End::commit) nor [`finish`](End::finish) has
    /// counted: those that `reserve` and `pause` have passed on.
    fn take_sent(&mut self) -> usize {
        0
    }

    /// Whether it could pass on more results of former slices, once there is room.
    fn has_more(&self) -> bool {
        false
    }

    /// Whether it has passed on some of its held results, or let a ring grow, since the last call. So an activation that
    /// takes no item, but passes on results of earlier slices, counts as work: this stage or a later one may have more work
    /// now.
    fn take_progress(&mut self) -> bool {
        false
    }

    /// Whether it waits for a sink or another rank, which ring the bell when they are ready.
    fn waits_outside(&self) -> bool {
        false
    }

    /// Whether all results of earlier slices are passed on, and have arrived durably.
    fn is_at_rest(&self) -> bool {
        true
    }

    /// The ways to other ranks, if it leads there.
    fn outlets(&self) -> Vec<Arc<Outlets>> {
        Vec::new()
    }

    /// There will never be anything to read again; `None` when something is still on its way, or
    /// else how many results that gave.
    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure>;
}

/// An [`End`] that takes results of one type.
pub trait Terminal<T: ?Sized>: End {
    type Slice<'a>: Slice<T>
    where
        Self: 'a;

    /// Goes on taking in the results of the slice.
    fn begin(&mut self) -> Self::Slice<'_>;
}

/// The results of one slice of input.
pub trait Slice<T: ?Sized> {
    fn take<A: Attempt>(&mut self, attempt: &A, item: &T);

    /// Whether the last item, and those since, were not taken: they come again in another slice, when the end
    /// [can go on](End::can_go_on). The slice still sees the items behind it. An end that stops has no operators before it.
    #[inline(always)]
    fn is_stopped(&self) -> bool {
        false
    }

    /// The slice has no more results. An implementation that puts results off processes them now.
    fn end<A: Attempt>(&mut self, _attempt: &A) {}
}

/// An instance of a stage that is about to get its terminal.
#[derive(Clone, Copy)]
pub struct WritingInstance<'a> {
    /// The channel that the stage reads; none for a source.
    pub input: Option<&'a Arc<ChannelState>>,
    /// The writer as which the instance emits control events.
    pub writer: WriterId,
}

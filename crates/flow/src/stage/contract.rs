//! A stage, as its four readers see it: the graph, the workers, event time, and the checkpoint.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{BoxError, Failure};
use crate::ranks::outlets::Outlets;
use crate::sources::positions::Position;
use crate::stage::activation::{Activation, Context};
use crate::stage::channel::ChannelState;
use crate::stage::metrics::Counters;
use crate::stage::saved::Saved;
use crate::state::ordered::WouldWait;
use crate::time::alignment::Aligned;
use crate::time::gauge::{LateByPartition, SourceTime};

/// The unit that workers activate: an input, a row of fused operators, and their end.
pub trait Stage: Node + Activate + Progress + Snapshot {}

impl<S: Node + Activate + Progress + Snapshot> Stage for S {}

/// A stage as a node of the graph. All of it stands before the flow runs.
pub trait Node: Send + Sync {
    fn name(&self) -> &str;

    /// Describes the stage: the same text on each rank that runs the same program.
    fn describe(&self) -> String;

    /// The channel that it reads; `None` for a source and for an input from other ranks.
    fn input(&self) -> Option<&Arc<ChannelState>>;

    fn outputs(&self) -> &[Arc<ChannelState>];

    /// The ways to other ranks, if it leads there.
    fn outlets(&self) -> Vec<Arc<Outlets>>;

    /// If it reads messages of other ranks: the outlets through which this rank sends the same to them.
    fn inlet(&self) -> Option<Arc<Outlets>>;

    fn instances(&self) -> usize;

    /// Whether some of its results come only when event time has come so far, or its input has ended.
    fn closes_by_time(&self) -> bool;

    /// Whether all sources that lead to it have to emit watermarks.
    fn needs_watermarks(&self) -> bool;

    /// Whether it emits watermarks as its source's items come.
    fn emits_watermarks(&self) -> bool;
}

/// A stage as workers and their scheduler see it.
pub trait Activate: Send + Sync {
    /// Called once, before anything is activated: a stage without instances has ended by then.
    fn begin(&self);

    /// Processes some items. Never waits. Several workers may do so at once. Unwinds only when the
    /// worker is killed, or when a source, a sink or code that changes state panics.
    fn activate(&self, context: &Context<'_>) -> Result<Activation, Failure>;

    /// Returns the number of items that wait for it, as far as is known.
    fn readable(&self, rings: u64) -> usize;

    /// Returns how long a worker could work on the waiting items, as far as is known at `now_ns` of the flow's clock.
    fn waiting_ns(&self, rings: u64, now_ns: u64) -> f64;

    /// Whether another worker could come to help, as far as is known.
    fn has_free_instance(&self) -> bool;

    /// Whether it has input and room, while no worker is in it: an activation would not be blocked or idle. `false`
    /// where only an activation shows that.
    fn could_work(&self) -> bool;

    /// Whether workers are in it.
    fn is_busy(&self) -> bool;

    fn has_ended(&self) -> bool;

    /// The flow is over.
    fn close(&self);

    fn counters(&self) -> &Counters;
}

/// The progress of a stage: its event time, and the positions of its sources.
pub trait Progress: Send + Sync {
    /// The event time of each instance that has not ended, and the silence after which later stages do not wait for a
    /// source; `None` for stages that emit no watermarks of their own.
    fn source_times(&self) -> Option<(Vec<SourceTime>, Duration)>;

    /// The items of its sources that came too late for their windows, by partition, as far as they were found in this
    /// stage.
    fn late(&self) -> LateByPartition;

    /// The positions of its sources in their inputs; `None` for stages that read a ring, and if no source knows its position.
    fn positions(&self) -> Option<Vec<Position>>;

    /// The same, unless it would have to wait for a lock.
    fn try_positions(&self) -> Result<Option<Vec<Position>>, WouldWait>;

    /// How far ahead of others its sources may be; `None` if they are never held.
    fn skew_max_ms(&self) -> Option<i64>;

    /// Gives each of its instances a place among the inputs that are aligned.
    fn align(&self, places: &mut dyn Iterator<Item = Aligned>);
}

/// A stage as a checkpoint sees it.
pub trait Snapshot: Send + Sync {
    /// Keeps all workers out of the stage if none is in it; or else returns why it cannot.
    fn hold(&self) -> Result<Box<dyn Held + '_>, Rest>;

    /// Adds the data that the stage needs to resume from here. All stages are at rest.
    fn save(&self, saved: &mut Saved) -> Result<(), Failure>;

    /// Whether it saves anything: it has sources on this rank.
    fn is_saved(&self) -> bool;

    /// Checks that as many sources were saved as will resume. Changes nothing.
    fn check(&self, saved: &Saved) -> Result<(), BoxError>;

    /// Resumes from saved data, at `now` of the flow's monotonic clock. Called before it is activated.
    fn restore(&self, saved: &Saved, now: Duration) -> Result<(), BoxError>;

    /// Whether its sources want [`commit`](Self::commit) to be called.
    fn wants_commits(&self) -> bool;

    /// All items that it has read have arrived durably at their destination.
    fn commit(&self) -> Result<(), Failure>;
}

/// A stage that no worker can come into.
pub trait Held {
    /// Whether the stage has nothing in hand and nothing left to do that is part of the snapshot `number`. If all stages
    /// that lead to it are held and at rest, too, nothing of it changes before that snapshot is taken, also when it is
    /// let go.
    fn is_at_rest(&self, number: u64) -> bool;

    /// Lets the stage go; returns whether another worker came meanwhile and left.
    fn let_go(self: Box<Self>) -> bool;
}

/// Whether something is under way in stages, or is left to do there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    Quiet,
    Busy,
    /// Meanwhile another worker came, perhaps with something to do, and left.
    Missed,
}

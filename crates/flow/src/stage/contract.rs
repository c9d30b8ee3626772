//! The unit that workers activate: an input, a chain of fused operators, and where its results go.

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millstream_base::Clock;

use crate::checkpoint::shard::Saved;
use crate::error::{BoxError, Failure};
use crate::ranks::outlets::Outlets;
use crate::sources::positions::Position;
use crate::stage::channel::ChannelState;
use crate::stage::dead_letter::DeadLetters;
use crate::stage::metrics::Counters;
use crate::time::alignment::Aligned;
use crate::time::gauge::SourceTime;

/// What an activation achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// It processed so many items, or came to its end.
    Done(usize),
    /// There is no room downstream.
    Blocked,
    /// There is nothing to read.
    Idle,
    /// There will never be anything to read again.
    Ended,
}

/// Whether something is under way in stages, or is left to do there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    Quiet,
    Busy,
    /// While this was looked at, another worker came with something to do, perhaps, and left.
    Missed,
}

/// A stage that no worker can come into.
pub trait Held {
    /// Whether the stage has nothing in hand and nothing left to do that is part of the cut `number`. If all stages that lead
    /// to it are held and at rest, too, nothing of it changes before that cut is taken, also when it is let go.
    fn is_at_rest(&self, number: u64) -> bool;

    /// Lets the stage go; returns whether another worker came meanwhile and left.
    fn let_go(self: Box<Self>) -> bool;
}

/// What a worker brings along to an activation.
pub struct Context<'a> {
    pub clock: &'a dyn Clock,
    /// Items to process, instead of as many as take a slice's time.
    pub items: Option<usize>,
    /// How often the doorbell had been rung before the worker looked for work.
    pub rings: u64,
    /// Workers that are to die; see [`Running::kill_workers`](crate::Running::kill_workers).
    pub condemned: &'a AtomicUsize,
    pub dead_letters: Option<&'a dyn DeadLetters>,
}

/// What a worker dies of.
pub struct Killed;

impl Context<'_> {
    pub fn die_if_condemned(&self) {
        if self.condemned.load(Ordering::Relaxed) > 0 {
            self.die();
        }
    }

    #[cold]
    fn die(&self) {
        let take_one = |count: usize| count.checked_sub(1);
        let condemned = self.condemned;
        if condemned
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take_one)
            .is_ok()
        {
            panic::resume_unwind(Box::new(Killed));
        }
    }

    pub fn now_ns(&self) -> u64 {
        self.clock.monotonic().as_nanos() as u64
    }
}

pub trait Stage: Send + Sync {
    fn name(&self) -> &str;

    /// Processes some items. Never waits. Several workers may do so at once. Unwinds only when the
    /// worker is killed, or when a source, a sink or code that changes state panics.
    fn activate(&self, context: &Context<'_>) -> Result<Activation, Failure>;

    /// How many items wait for it, as far as is known.
    fn readable(&self, rings: u64) -> usize;

    /// How long a worker could work on what waits for it, as far as is known at `now_ns` of the flow's
    /// clock.
    fn waiting_ns(&self, rings: u64, now_ns: u64) -> f64;

    /// Whether another worker could come to help, as far as is known.
    fn has_free_instance(&self) -> bool;

    /// Whether workers are in it.
    fn is_busy(&self) -> bool;

    /// Whether some of its results come only when event time has come so far, or its input has ended.
    fn goes_by_time(&self) -> bool;

    /// Whether it tells event time as its source's items come.
    fn tells_time(&self) -> bool;

    /// How far event time is at each instance, that has not ended, of a stage that tells it, and after which silence later stages do not
    /// wait for its source; `None` for other stages.
    fn source_times(&self) -> Option<(Vec<SourceTime>, Duration)>;

    /// How far its sources are with what they read; `None` for stages that read a ring, and where a source cannot
    /// say.
    fn positions(&self) -> Option<Vec<Position>>;

    /// What it is made of, the same on each rank that runs the same program.
    fn describe(&self) -> String;

    fn has_ended(&self) -> bool;

    /// Called once, before anything is activated: a stage without instances has ended by then.
    fn begin(&self);

    /// The flow is over.
    fn close(&self);

    /// Keeps all workers out of it, if none is in it; or else says why it cannot.
    fn hold(&self) -> Result<Box<dyn Held + '_>, Rest>;

    /// Adds what it needs to go on from here, all being at rest.
    fn save(&self, saved: &mut Saved) -> Result<(), Failure>;

    /// Goes on from what was saved. Called before it is activated.
    fn restore(&self, saved: &Saved) -> Result<(), BoxError>;

    /// The ways to other ranks, if it leads there.
    fn outlets(&self) -> Vec<Arc<Outlets>>;

    /// If it reads what comes from other ranks: the way on which this one sends the same to them.
    fn inlet(&self) -> Option<Arc<Outlets>>;

    fn instances(&self) -> usize;

    /// How far ahead of others its sources may be; `None` if they are never held.
    fn skew_max_ms(&self) -> Option<i64>;

    /// Gives each of its instances a place among the inputs that are aligned.
    fn align(&self, places: &mut dyn Iterator<Item = Aligned>);

    fn wants_commits(&self) -> bool;

    /// Everything that it has read has arrived for good.
    fn commit(&self) -> Result<(), Failure>;

    fn input(&self) -> Option<&Arc<ChannelState>>;

    fn outputs(&self) -> &[Arc<ChannelState>];

    fn counters(&self) -> &Counters;
}

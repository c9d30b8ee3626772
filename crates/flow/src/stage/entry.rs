//! Where operators in a row begin: with an input of their own, or within the stage of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use parking_lot::Mutex;

use crate::build::flow::Flow;
use crate::stage::chain::Chain;
use crate::stage::channel::ChannelState;
use crate::stage::fused::stage::{FusedStage, Instance, Slot, WatchedSource};
use crate::stage::input::Input;
use crate::stage::metrics::Counters;
use crate::stage::terminal::Terminal;
use crate::time::stage_time::{StageTime, Watermarks};

/// What operators in a row get their items from, once for each instance of them.
pub trait Entry: Give + EndRow<<Self as Give>::Item> {}

impl<E: Give + EndRow<<E as Give>::Item>> Entry for E {}

/// What an [`Entry`] gives.
pub trait Give: Send + Sized + 'static {
    type Item: Send + 'static;

    /// Whether the instances share one ring, and have to keep the order of its items.
    const IS_SHARED: bool;

    /// Whether nothing of the stage lies before it.
    const BEGINS_STAGE: bool = true;
}

/// An [`Entry`] that gives `In`.
pub trait EndRow<In>: Sized {
    /// Adds operators that have come to their end to the flow.
    fn end<C: Chain<In>, T: Terminal<C::Out>>(flow: &mut Flow, row: Row<Self, C, T>);
}

/// Operators in a row, from what they read to where their results go.
pub struct Row<E, C, T> {
    pub name: String,
    /// The channel that the entries are rings of; none for a source.
    pub channel: Option<Arc<ChannelState>>,
    pub chain: C,
    /// Both ends of each instance.
    pub instances: Vec<(E, T)>,
    pub keeps_order: bool,
    pub watermarks: Option<Watermarks>,
    pub tells_time: bool,
    pub outputs: Vec<Arc<ChannelState>>,
}

/// Adds what has an input of its own: a stage.
pub fn add_stage<I, C, T>(flow: &mut Flow, row: Row<I, C, T>)
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    let mut watched = WatchedSource::default();
    let instances = row.instances.into_iter();
    let instances: Vec<_> = instances
        .map(|(input, terminal)| {
            let time = StageTime::new(row.watermarks, input.lanes());
            watched.add(&input, &time);
            Slot::new(Instance::new(input, terminal, time))
        })
        .collect();
    flow.stages.push(Arc::new(FusedStage {
        name: row.name,
        chain: row.chain,
        live: AtomicUsize::new(instances.len()),
        order: (row.keeps_order && instances.len() > 1).then(Mutex::default),
        instances,
        turn: AtomicUsize::new(0),
        busy: AtomicUsize::new(0),
        giving_since_ns: AtomicU64::new(0),
        having_more: AtomicUsize::new(0),
        is_blocked: AtomicBool::new(false),
        idle_since: AtomicU64::new(0),
        tells_time: row.tells_time,
        watched,
        input: row.channel,
        outputs: row.outputs,
        stopping: Arc::clone(&flow.stopping),
        counters: Counters::default(),
    }));
}

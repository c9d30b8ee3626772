//! A stage of operators that are compiled into one loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use parking_lot::Mutex;

use crate::stage::channel::ChannelState;
use crate::stage::fused::instance::Slot;
use crate::stage::fused::watched::WatchedSource;
use crate::stage::metrics::Counters;

/// A stage has several instances, so that several workers can be in it at once; each instance has
/// one worker at a time.
pub struct FusedStage<I, C, T> {
    pub name: String,
    pub chain: C,
    pub instances: Vec<Slot<I, T>>,
    /// The instance with which the next activation begins to look for a free one.
    pub turn: AtomicUsize,
    /// Instances that workers are in.
    pub busy: AtomicUsize,
    /// Since when the source has always had something to give, in nanoseconds of the flow's clock; 0 if
    /// it was idle when it was last asked, and for stages that read a ring.
    pub giving_since_ns: AtomicU64,
    /// Instances that could pass on more results of former slices. Written by their workers after each activation.
    pub having_more: AtomicUsize,
    /// Whether its last activation found no room for its results.
    pub is_blocked: AtomicBool,
    /// Instances that have not ended. Each is counted down once, by the worker that ends it.
    pub live: AtomicUsize,
    /// Held while a slice is read and room for its results reserved, so that results come in the
    /// order of the items. Only where the instances share a ring whose order counts.
    pub order: Option<Mutex<()>>,
    /// 1 + how often the doorbell had been rung when the source was last found idle.
    pub idle_since: AtomicU64,
    pub emits_watermarks: bool,
    pub watched: WatchedSource,
    pub input: Option<Arc<ChannelState>>,
    pub outputs: Vec<Arc<ChannelState>>,
    pub stopping: Arc<AtomicBool>,
    pub counters: Counters,
}

impl<I, C, T> FusedStage<I, C, T> {
    /// Tells the channels that it writes that this writer has ended.
    pub fn end_outputs(&self) {
        self.outputs.iter().for_each(|channel| channel.end_writer());
    }
}

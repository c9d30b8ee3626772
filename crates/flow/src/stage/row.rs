//! A row of operators, and its start: an input of its own, or a place within the stage of others.

use std::sync::Arc;

use crate::stage::channel::ChannelState;
use crate::time::watermarks::Watermarks;

/// The type of the items that an [`Entry`](crate::Entry) gives, and their order.
pub trait RowStart: Send + Sized + 'static {
    /// The type of the items.
    type Item: Send + 'static;

    /// Whether the instances share one ring, and have to keep the order of its items.
    const IS_SHARED: bool;

    /// Whether nothing of the stage lies before it.
    const BEGINS_STAGE: bool = true;
}

/// Operators in a row, from their input to their end.
pub struct Row<E, C, T> {
    pub name: String,
    /// The channel that the entries are rings of; none for a source.
    pub channel: Option<Arc<ChannelState>>,
    pub chain: C,
    /// Both ends of each instance.
    pub instances: Vec<(E, T)>,
    pub keeps_order: bool,
    pub watermarks: Option<Watermarks>,
    pub emits_watermarks: bool,
    pub outputs: Vec<Arc<ChannelState>>,
}

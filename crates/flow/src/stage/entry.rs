//! The start of a row of operators: an input of its own, or a place within the stage of others.

use std::sync::Arc;

use crate::graph::Graph;
use crate::stage::chain::Chain;
use crate::stage::channel::ChannelState;
use crate::stage::terminal::Terminal;
use crate::time::watermarks::Watermarks;

/// The origin of the items of a row of operators, one for each instance of the row.
pub trait Entry: RowStart + RegisterRow<<Self as RowStart>::Item> {}

impl<E: RowStart + RegisterRow<<E as RowStart>::Item>> Entry for E {}

/// The type of the items that an [`Entry`] gives, and their order.
pub trait RowStart: Send + Sized + 'static {
    /// The type of the items.
    type Item: Send + 'static;

    /// Whether the instances share one ring, and have to keep the order of its items.
    const IS_SHARED: bool;

    /// Whether nothing of the stage lies before it.
    const BEGINS_STAGE: bool = true;
}

/// An [`Entry`] that gives `In`.
pub trait RegisterRow<In>: Sized {
    /// Registers operators that have an end in the graph.
    fn end<C: Chain<In>, T: Terminal<C::Out>>(graph: &mut Graph, row: Row<Self, C, T>);
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

//! The registration of rows of operators: a row with an input of its own becomes a stage, others join one.

use std::sync::Arc;

use crate::build::plan::Plan;
use crate::stage::chain::Chain;
use crate::stage::fused::compile::compile;
use crate::stage::input::Input;
use crate::stage::row::{Row, RowStart};
use crate::stage::terminal::Terminal;

/// The origin of the items of a row of operators, one for each instance of the row.
pub trait Entry: RowStart + RegisterRow<<Self as RowStart>::Item> {}

impl<E: RowStart + RegisterRow<<E as RowStart>::Item>> Entry for E {}

/// An [`Entry`] that gives `In`.
pub trait RegisterRow<In>: Sized {
    /// Registers operators with their end in the plan.
    fn end<C: Chain<In>, T: Terminal<C::Out>>(plan: &mut Plan, row: Row<Self, C, T>);
}

impl<I: Input> RegisterRow<I::Item> for I {
    fn end<C: Chain<I::Item>, T: Terminal<C::Out>>(plan: &mut Plan, row: Row<Self, C, T>) {
        let stage = compile(row, &plan.graph.stopping);
        plan.graph.stages.push(Arc::new(stage));
    }
}

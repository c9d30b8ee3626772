//! The builder: [`Flow`](flow::Flow) and the operators that programs chain onto it.
//!
//! A method of the builder ends one row of operators, makes the stage, and registers it in the flow's graph. Nothing
//! here runs while a flow is at work. Only this folder and `serving` know `Flow`; every other folder works on stages, channels
//! and state elements.

pub mod at_owner;
pub mod boxed;
pub mod changes;
pub mod clocked;
pub mod collecting;
pub mod connected;
pub mod counted;
pub mod elements;
pub mod ends;
pub mod entry;
pub mod flow;
pub mod fork;
pub mod gathered;
pub mod inputs;
pub mod interval_join;
pub mod keyed;
pub mod keyed_rows;
pub mod operators;
pub mod plan;
pub mod process;
pub mod rank_channel;
pub mod row_join;
pub mod states;
pub mod temporal_join;
pub mod top_windows;
pub mod values;
pub mod window_join;

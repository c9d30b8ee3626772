//! The ends of stages: rings of later stages, sinks, state elements, windows, and branches within the stage.
//!
//! Each end reserves room before a slice of input is taken, takes the slice's results, and commits them with the control
//! event behind them. An end never waits: without room it refuses the slice.

pub mod flush_policy;
pub mod fork;
pub mod outbox;
pub mod to_collected;
pub mod to_panes;
pub mod to_rings;
pub mod to_sink;
pub mod to_state;
pub mod to_values;
pub mod to_windows;

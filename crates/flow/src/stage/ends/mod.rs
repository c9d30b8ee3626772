//! The ends of stages: rings of later stages, other ranks, sinks, state elements, windows, and branches of the stage.
//!
//! Each end reserves room before a slice of input is taken, takes the slice's results, and commits them with the control
//! event behind them. An end never waits: without room it refuses the slice.

pub mod exchange;
pub mod flush_policy;
pub mod fork;
pub mod keyed_item;
pub mod outbox;
pub mod remote;
pub mod steps;
pub mod to_collected;
pub mod to_owner;
pub mod to_panes;
pub mod to_process;
pub mod to_rank;
pub mod to_ranks;
pub mod to_replica;
pub mod to_rings;
pub mod to_sink;
pub mod to_state;
pub mod to_values;
pub mod to_windows;
pub mod wanted;

//! Settings of the log and of streams.

pub mod config;
pub mod defaults;
pub mod intake;
pub mod limits;

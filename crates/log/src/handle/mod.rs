//! Handles.

pub mod lane_reads;
pub mod transactions;
pub mod watch;

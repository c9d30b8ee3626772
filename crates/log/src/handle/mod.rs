//! Handles.

pub mod transactions;
pub mod watch;

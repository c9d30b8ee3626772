//! Handles.

pub mod watch;

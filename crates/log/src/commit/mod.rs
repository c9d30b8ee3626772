//! Commits.

pub mod written;

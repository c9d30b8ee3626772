//! The contracts of sinks and of the keeper of dead letters, and sinks that need nothing but a disk.

pub(crate) mod dead_letter;
mod lines;
pub(crate) mod sink;

pub use lines::{LinesFile, LinesFileError};

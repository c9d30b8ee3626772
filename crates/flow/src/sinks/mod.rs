//! The contract of sinks, and sinks that need nothing but a disk.

mod lines;
pub(crate) mod sink;

pub use lines::{LinesFile, LinesFileError};

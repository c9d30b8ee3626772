//! Sinks that need nothing but a disk.

mod lines;

pub use lines::{LinesFile, LinesFileError};

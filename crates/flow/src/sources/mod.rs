//! The contract of sources, and sources that need nothing but a clock or a disk.

mod generator;
mod lines;
pub(crate) mod positions;
pub(crate) mod source;

pub use generator::Generator;
pub use lines::{LineBlock, LineError, LineFiles, LineLimits};

//! Sources that need nothing but a clock or a disk.

mod generator;
mod lines;

pub use generator::Generator;
pub use lines::{LineBlock, LineError, LineFiles, LineLimits};

//! Starts processes that end with the test or benchmark that starts them, also by `kill -9`.

mod group;
mod process;

pub use group::{Lifeline, group};
pub use process::{ENDS_WITH_PARENT, command, start};

//! Starts processes that end with the test or benchmark that starts them, also by `kill -9`; and checks that the operations
//! of their clients are linearizable.

mod group;
pub mod linearizable;
mod process;

pub use group::{Lifeline, group};
pub use process::{ENDS_WITH_PARENT, command, start};

//! Starts processes that end with the test or benchmark that starts them, also by `kill -9`; and checks that the operations
//! of their clients are linearizable. Damages data directories as a loss of power does.

mod group;
pub mod linearizable;
mod power;
mod process;

pub use group::{Lifeline, group};
pub use power::lose_power;
pub use process::{ENDS_WITH_PARENT, command, start};

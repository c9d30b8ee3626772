//! What the tests of all transports have in common.

mod alarm;
mod traffic;

pub use alarm::Alarm;
pub use traffic::{Plan, Tally, run};

//! What the tests of all transports have in common.

pub mod alarm;
pub mod traffic;

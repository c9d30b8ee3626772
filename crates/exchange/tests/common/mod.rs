//! Shared helpers of the tests of all transports.

pub mod alarm;
pub mod traffic;

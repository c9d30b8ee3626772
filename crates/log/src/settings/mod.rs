//! Settings: of the log and of its streams, and the limits and checks that follow from them.
//!
//! Settings are checked before they count, and the durability and number of virtual logs of a stream never change. Appends read
//! [`limits`] without a lock. Settings know neither streams nor where they are stored.

pub mod compaction;
pub mod config;
pub mod defaults;
pub mod intake;
pub mod limits;
pub mod memory;

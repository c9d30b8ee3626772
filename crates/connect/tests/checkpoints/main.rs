//! Flows keep checkpoints in directories and logs, and go on from them.

mod crashes;
mod directory;
mod full_disk;
mod large_state;
#[path = "../numbers/mod.rs"]
mod numbers;
mod places;
mod sinks;
mod sources;
mod support;

//! A flow at work: its workers, the scheduler that chooses the next stage, and the view of its owner.
//!
//! - An activation never waits, and before a worker sleeps it has tried every stage.
//! - A scheduler affects only speed: no stage starves, even if it is never picked.
//! - The first failure ends the flow on all ranks.
//!
//! This folder does not know the code of stages or how a graph was built.

pub mod align;
pub mod begin;
pub mod crew;
pub mod elements;
pub mod failures;
pub mod fit;
pub mod load;
pub mod pick;
pub mod running;
pub mod scheduler;
pub mod settings;
pub mod state_reads;
pub mod state_request;
pub mod waits;
pub mod worker;
pub mod workers;

//! The one implementation of a stage: operators that are compiled into one loop over the items in hand.

pub mod activate;
pub mod claim;
pub mod compile;
pub mod instance;
pub mod node;
pub mod progress;
pub mod snapshot;
pub mod stage;
pub mod turn;
pub mod watched;

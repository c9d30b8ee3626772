//! The one implementation of a stage: operators that are compiled into one loop over the items in hand.

pub mod register;
pub mod stage;

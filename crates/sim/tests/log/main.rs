//! The log on the simulated disk, beside a model that never crashes.

mod corruption;
mod crash;
mod misplaced;
mod model;
mod regressions;
mod salvage;
mod table;
mod threads;
mod world;
mod written;

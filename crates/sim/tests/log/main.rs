//! The log on the simulated disk, beside a model that never crashes.

mod corruption;
mod crash;
mod model;
mod regressions;
mod threads;
mod world;

//! Runs the log on the simulated disk, and compares it with a model that never crashes.

mod clean_stop;
mod corruption;
mod crash;
mod epochs;
mod journal_files;
mod misplaced;
mod model;
mod regressions;
mod salvage;
mod table;
mod threads;
mod upgrade;
mod world;
mod written;

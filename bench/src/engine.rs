//! The engine: the log parser beside a loop by hand, schedulers beside each other, rings beside
//! other queues, and other programs that do the same.

mod by_hand;
mod equilibrium;
mod kills;
mod ours;
mod peers;
mod rings;
mod schedulers;
mod seda;
mod staging;
mod swings;

use crate::benchmark::Benchmark;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "engine",
    measures: "Measures the dataflow engine: a word count against a loop by hand and other programs, schedulers against each other, runs whose workers are killed, and rings against other queues.",
    cases: &[
        (staging::FUSED, staging::fused),
        (staging::SEPARATE, staging::separate),
        (schedulers::REGULAR, schedulers::regular),
        (swings::SWINGS, swings::swings),
        (equilibrium::EQUILIBRIUM, equilibrium::equilibrium),
        (kills::KILLS, kills::kills),
        (rings::RINGS, rings::rings),
        (peers::PEERS, peers::peers),
    ],
};

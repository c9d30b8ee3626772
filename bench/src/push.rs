//! Push beside pull: consumers that share the log's memory, and consumers that ask for copies.

mod broker;
mod consumer;
mod count;
mod data;
mod feed;
mod figure;
mod filter;
mod grid;
mod host;
mod idle;
mod interference;
mod latency;
mod limit;
mod order;
mod producers;
mod run;
mod windowed;
mod words;
mod work;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::benchmark::Benchmark;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "push",
    measures: "Delivery by push, in shared memory and over TCP, beside pull: count, filter, word count and windowed word count, latency, and the cost to producers.",
    cases: &[
        (limit::LIMIT, limit::limit),
        (count::COUNT, count::count),
        (filter::FILTER, filter::filter),
        (words::WORDS, words::words),
        (count::ONE_CORE, count::one_core),
        (latency::LATENCY, latency::latency),
        (interference::PRODUCERS, interference::producers),
        (idle::IDLE, idle::idle),
    ],
};

/// What a child does.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    Host(host::Task),
    Consume(consumer::Task),
}

/// The child's part.
pub fn run_child(task: Task) -> Result<()> {
    match task {
        Task::Host(task) => host::run(&task),
        Task::Consume(task) => consumer::run(&task),
    }
}

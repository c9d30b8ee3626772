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

use crate::benchmark::Benchmark;
use crate::child::Entry;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "push",
    measures: "Measures delivery by push, in shared memory and over TCP, against pull: counts, filters, word counts, latency, and the cost to producers.",
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

/// The work of child processes.
pub const TASKS: [Entry; 2] = [Entry::of::<host::Task>(), Entry::of::<consumer::Task>()];

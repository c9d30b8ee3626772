//! Keyed streams: tables whose records are found by key.

mod beside;
mod by_hand;
mod compaction;
mod data;
mod durable;
mod growth;
mod in_process;
mod larger;
pub mod load;
mod network;
mod ours;
mod produce;
mod queue;
mod scan;
mod start;
mod table;
pub mod valkey;

use crate::benchmark::Benchmark;
use crate::child::Entry;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "keys",
    measures: "Measures keyed streams (gets, puts, scans, compaction, growth, and a start), queues by key, and work on old data beside the head, against maps behind a lock, bare writes and RocksDB in the process, and against Valkey over the network.",
    cases: &[
        (in_process::GET, in_process::get),
        (in_process::PUT, in_process::put),
        (in_process::PUT_AND_GET, in_process::put_and_get),
        (durable::DURABLE_PUT, durable::durable_put),
        (scan::SCAN, scan::scan),
        (larger::LARGER, larger::larger),
        (compaction::COMPACTION, compaction::compaction),
        (growth::GROWTH, growth::growth),
        (network::NETWORK, network::network),
        (produce::PRODUCE, produce::produce),
        (queue::QUEUE, queue::queue),
        (start::START, start::start),
        (beside::BESIDE, beside::beside),
    ],
};

/// The work of child processes.
pub const TASKS: [Entry; 3] = [
    Entry::of::<start::Fill>(),
    Entry::of::<start::FirstGet>(),
    Entry::of::<larger::Get>(),
];

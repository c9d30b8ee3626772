//! Ranks: the applications on more and more of them (figures 10 and 11 of "AIR", Venugopal et al.), the cost of the
//! exchange of events, a word count, and the transports beside their limits.

mod launch;
mod pipelining;
mod scaling;
mod transports;
mod words;

use millstream_ads::benchmark::App;

use crate::benchmark::Benchmark;
use crate::child::Entry;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "ranks",
    measures: "Measures applications on several ranks, the cost to hand events between stages and ranks, a word count, and the transports between ranks against the same transports by hand.",
    cases: &[
        ("swa", |bench| scaling::scaling(bench, App::Swa)),
        ("ysb", |bench| scaling::scaling(bench, App::Ysb)),
        ("ysb-star", |bench| scaling::scaling(bench, App::YsbStar)),
        (pipelining::PIPELINING, pipelining::pipelining),
        (words::WORDS, words::words),
        (transports::TRANSPORTS, transports::transports),
    ],
};

/// The work of child processes.
pub const TASKS: [Entry; 1] = [Entry::of::<transports::Task>()];

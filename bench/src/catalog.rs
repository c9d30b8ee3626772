//! All benchmarks.

use crate::benchmark::Benchmark;
use crate::{
    ads, broker, engine, keys, librdkafka, log, nexmark, push, ranks, soak, state, torture, windows,
};

/// All benchmarks, in the order in which they run.
pub const BENCHMARKS: [Benchmark; 15] = [
    log::BENCHMARK,
    keys::BENCHMARK,
    engine::BENCHMARK,
    broker::BENCHMARK,
    push::BENCHMARK,
    ads::SWA,
    ads::YSB,
    ads::YSB_STAR,
    windows::BENCHMARK,
    state::BENCHMARK,
    nexmark::BENCHMARK,
    ranks::BENCHMARK,
    soak::BENCHMARK,
    torture::BENCHMARK,
    librdkafka::BENCHMARK,
];

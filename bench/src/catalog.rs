//! All benchmarks.

use crate::benchmark::Benchmark;
use crate::{
    ads, broker, engine, keys, librdkafka, log, nexmark, push, ranks, slo, soak, state, torture,
    windows,
};

/// All benchmarks, in the order in which they run.
pub const BENCHMARKS: [Benchmark; 16] = [
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
    slo::BENCHMARK,
    soak::BENCHMARK,
    torture::BENCHMARK,
    librdkafka::BENCHMARK,
];

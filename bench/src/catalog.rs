//! All benchmarks.

use crate::benchmark::Benchmark;
use crate::{
    ads, broker, engine, keys, librdkafka, log, nexmark, push, ranks, serving, slo, soak, state,
    torture, windows,
};

/// All benchmarks, in the order in which they run.
pub const BENCHMARKS: [Benchmark; 17] = [
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
    serving::BENCHMARK,
    slo::BENCHMARK,
    soak::BENCHMARK,
    torture::BENCHMARK,
    librdkafka::BENCHMARK,
];

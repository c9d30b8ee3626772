//! All benchmarks.

use crate::benchmark::Benchmark;
use crate::{ads, broker, engine, keys, librdkafka, log, push, ranks, soak, torture, windows};

/// All benchmarks, in the order in which they run.
pub const BENCHMARKS: [Benchmark; 13] = [
    log::BENCHMARK,
    keys::BENCHMARK,
    engine::BENCHMARK,
    broker::BENCHMARK,
    push::BENCHMARK,
    ads::SWA,
    ads::YSB,
    ads::YSB_STAR,
    windows::BENCHMARK,
    ranks::BENCHMARK,
    soak::BENCHMARK,
    torture::BENCHMARK,
    librdkafka::BENCHMARK,
];

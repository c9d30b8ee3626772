//! An objective of latency beside analytics: figures 5.9 and 5.10 of "In-Memory Web Objects".

mod cases;
mod load;
mod run;
mod tasks;

use crate::benchmark::Benchmark;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "slo",
    measures: "Measures a serving flow with an objective of 30 ms beside analytics without end, under tasks whose rate is a sine with its peak at 90 % and at 150 % of the capacity (figures 5.9 and 5.10 of \"In-Memory Web Objects\").",
    cases: &[
        (cases::PEAK_90, cases::peak_90),
        (cases::PEAK_150, cases::peak_150),
    ],
};

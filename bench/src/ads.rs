//! SWA, YSB and YSB*, the benchmarks of section 5.1 of "AIR" (Venugopal et al.): how many events each second can be
//! counted in windows without end, by us, by hand, and by other systems.

mod by_hand;
mod contender;
mod ours;
mod peer;
mod report;
mod search;

use millstream_ads::benchmark::App;

use self::report::sustainable;
use crate::benchmark::Benchmark;

const SUSTAINABLE: &str = "sustainable";

pub const SWA: Benchmark = Benchmark {
    name: "swa",
    measures: "Measures the highest sustained rate of a windowed count by ad over generated events (SWA of \"AIR\"), against two loops by hand, Flink, Spark and timely dataflow.",
    cases: &[(SUSTAINABLE, |bench| sustainable(bench, App::Swa))],
};

pub const YSB: Benchmark = Benchmark {
    name: "ysb",
    measures: "Measures the highest sustained rate of the Yahoo streaming benchmark (views, joined with a table, counted by campaign in windows), against two loops by hand, Flink, Spark and timely dataflow.",
    cases: &[(SUSTAINABLE, |bench| sustainable(bench, App::Ysb))],
};

pub const YSB_STAR: Benchmark = Benchmark {
    name: "ysb-star",
    measures: "Measures the highest sustained rate of YSB* of \"AIR\" (views and clicks, each counted by campaign in windows, then joined), against two loops by hand, Flink, Spark and timely dataflow.",
    cases: &[(SUSTAINABLE, |bench| sustainable(bench, App::YsbStar))],
};

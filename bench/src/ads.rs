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
    measures: "The highest rate that a count by ad over windows of events made in memory sustains (SWA of \"AIR\"), beside two loops by hand, Flink, Spark and timely dataflow.",
    cases: &[(SUSTAINABLE, |bench| sustainable(bench, App::Swa))],
};

pub const YSB: Benchmark = Benchmark {
    name: "ysb",
    measures: "The highest rate that the Yahoo streaming benchmark sustains: views, joined with a table, counted by campaign over windows, beside two loops by hand, Flink, Spark and timely dataflow.",
    cases: &[(SUSTAINABLE, |bench| sustainable(bench, App::Ysb))],
};

pub const YSB_STAR: Benchmark = Benchmark {
    name: "ysb-star",
    measures: "The highest rate that YSB* of \"AIR\" sustains: views and clicks counted by campaign over windows and joined, beside two loops by hand, Flink, Spark and timely dataflow.",
    cases: &[(SUSTAINABLE, |bench| sustainable(bench, App::YsbStar))],
};

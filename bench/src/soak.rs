//! A soak test: very many clients of all kinds at once, among them some that do not behave, and a server that is killed
//! in the middle. Invariants are checked all the time; the first violation ends the run.

mod books;
mod cutters;
mod members;
mod misfits;
mod options;
mod plan;
mod probe;
mod readers;
mod report;
mod run;
mod stages;
mod watch;
mod writers;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};

pub use self::options::Options;
use self::plan::{POOL_MIB, Plan};
use self::report::MIX;
use self::run::Run;
use self::stages::Soak;
use crate::benchmark::Benchmark;
use crate::measure::Bench;
use crate::report::Case;
use crate::server::Server;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "soak",
    measures: "Checks every record of a server while a thousand clients of all kinds come, go, misbehave and are killed.",
    cases: &[(MIX, mix)],
};

/// The highest p99 of the probe that is no fault; a quick run shares the machine with other tests.
const PROBE_MS_MAX: f64 = 1_000.0;
const PROBE_MS_MAX_QUICK: f64 = 10_000.0;

/// All kinds of clients together.
fn mix(bench: &Bench) -> Result<Vec<Case>> {
    let options = &bench.soak;
    let plan = Plan::of(options.connections.unwrap_or(bench.size(1000, 60)));
    plan.raise_open_files()?;
    let quick = Duration::from_secs(4);
    let lasts = bench
        .lasts
        .unwrap_or(bench.size(Duration::from_secs(60), quick));
    let data = bench.folder("soak", stages::bytes_max(&plan))?;
    let log = bench.out().join("server.log");
    let settings = vec![("MILLSTREAM_POOL", format!("{POOL_MIB}MiB"))];
    let server = Server::start(data.path(), &log, settings)?;
    let run = Arc::new(Run::new(server.address(), plan, lasts));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let probe_ms_max = bench.size(PROBE_MS_MAX, PROBE_MS_MAX_QUICK);
    let soak = Soak::new(run, server, !options.spares_server, probe_ms_max);
    let result = runtime.block_on(soak.go());
    if result.is_err() {
        // The data is needed to find the reason.
        eprintln!(
            "bench: the data stays in {} until the next run",
            data.path().display()
        );
        data.keep();
    }
    result.with_context(|| format!("the server's log is {}", log.display()))
}

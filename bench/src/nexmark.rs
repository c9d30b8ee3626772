//! The queries of the Nexmark benchmark, beside the same queries in Flink's SQL.

mod flink;
mod ours;
mod rows;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use millstream_nexmark::{EventGenerator, START, write_events};

use crate::benchmark::Benchmark;
use crate::child::Entry;
use crate::folder::Folder;
use crate::measure::{Bench, median};
use crate::report::{Better, Case};
use flink::Flink;
use ours::{RunQuery, Work};
use rows::Rows;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "nexmark",
    measures: "Measures the queries of Nexmark, with a checkpoint every second and results that are dropped, against the same queries in Flink's SQL.",
    cases: &[
        ("q0", query::<0>),
        ("q1", query::<1>),
        ("q2", query::<2>),
        ("q3", query::<3>),
        ("q4", query::<4>),
        ("q5", query::<5>),
        ("q7", query::<7>),
        ("q8", query::<8>),
        ("q9", query::<9>),
        ("q10", query::<10>),
        ("q11", query::<11>),
        ("q12", query::<12>),
        ("q13", query::<13>),
        ("q14", query::<14>),
        ("q15", query::<15>),
        ("q16", query::<16>),
        ("q17", query::<17>),
        ("q18", query::<18>),
        ("q19", query::<19>),
        ("q20", query::<20>),
        ("q21", query::<21>),
        ("q22", query::<22>),
        ("median", of_all),
    ],
};

/// The work of child processes.
pub const TASKS: [Entry; 1] = [Entry::of::<RunQuery>()];

/// The least ratio to Flink of each query, and of the median of all queries.
const RATIO_MIN: f64 = 3.3;
const RATIO_MEDIAN: f64 = 8.0;

/// Events per second of event time.
const RATE: u64 = 10_000;

/// The runs of Flink before the rounds, beside the one that each side has: Java compiles code while it runs.
const WARM_UPS: usize = 3;

/// The query whose windows are those of the wall clock: its results differ from run to run.
const OF_CLOCK: &str = "q12";

/// The costs of a run.
#[derive(Debug, Clone, Copy)]
struct Ran {
    events_per_cpu_second: f64,
    events_per_second: f64,
    peak_mib: f64,
    checkpoints: f64,
}

fn query<const NUMBER: u32>(bench: &Bench) -> Result<Vec<Case>> {
    let name = format!("q{NUMBER}");
    let folder = bench.folder(BENCHMARK.name, 8 << 30)?;
    let count = bench.size(1_000_000, 20_000);
    let events = write(&folder, "events", count)?;
    let flink = Flink::start(bench)?;
    let Some(mut flink) = flink else {
        let rounds = bench.turns(1, |_| run_ours(&name, &folder, &events, count))?;
        return Ok(cases(&name, &rounds[0]).into());
    };
    if name != OF_CLOCK {
        let few = write(&folder, "few-events", bench.size(200_000, 20_000))?;
        let expected = flink.check(&name, &few)?;
        let found = rows_of(&name, &folder, &few)?;
        ensure!(
            found == expected,
            "{name} leaves {found:?}, and Flink's query {expected:?}"
        );
    }
    (0..WARM_UPS).try_for_each(|_| flink.run(&name, &events, count).map(drop))?;
    let rounds = bench.turns(2, |side| match side {
        0 => run_ours(&name, &folder, &events, count),
        _ => flink.run(&name, &events, count),
    })?;
    let theirs = |pick: fn(&Ran) -> f64| rounds[1].iter().map(pick).collect::<Vec<_>>();
    let [cpu, memory] = cases(&name, &rounds[0]);
    let cpu = cpu
        .by_hand(theirs(|ran| ran.events_per_cpu_second))
        .target(RATIO_MIN)
        .detail(
            "flink_events_per_second",
            median(&theirs(|ran| ran.events_per_second)),
        )
        .detail("flink_checkpoints", median(&theirs(|ran| ran.checkpoints)));
    let memory = memory.by_hand(theirs(|ran| ran.peak_mib));
    Ok(vec![cpu, memory])
}

/// The figures of ours.
fn cases(name: &str, rounds: &[Ran]) -> [Case; 2] {
    let ours = |pick: fn(&Ran) -> f64| rounds.iter().map(pick).collect::<Vec<_>>();
    let cpu = ours(|ran| ran.events_per_cpu_second);
    let cpu = Case::new(name, "events/CPU-s", Better::Higher, cpu)
        .detail(
            "events_per_second",
            median(&ours(|ran| ran.events_per_second)),
        )
        .detail("checkpoints", median(&ours(|ran| ran.checkpoints)));
    let memory = ours(|ran| ran.peak_mib);
    let memory = Case::new(format!("{name}/memory"), "MiB", Better::Lower, memory);
    [cpu, memory]
}

/// The median of the ratios of all queries to Flink, of the same run.
fn of_all(bench: &Bench) -> Result<Vec<Case>> {
    let ran = bench.ran.borrow();
    let ratios = |better: Better| {
        let cases = ran.iter().filter(|case| case.better == better);
        cases
            .filter_map(|case| case.ratio_to_limit)
            .collect::<Vec<f64>>()
    };
    let (cpu, memory) = (ratios(Better::Higher), ratios(Better::Lower));
    if cpu.is_empty() {
        return Ok(Vec::new());
    }
    let case =
        |name, ratios: &[f64]| Case::new(name, "times", Better::Higher, vec![median(ratios)]);
    Ok(vec![
        case("median", &cpu).bound(RATIO_MEDIAN),
        case("median/memory", &memory),
    ])
}

/// Writes a file with this number of events.
fn write(folder: &Folder, name: &str, count: u64) -> Result<PathBuf> {
    let generator = EventGenerator {
        seed: 1,
        start: START,
        rate: RATE.try_into()?,
    };
    let path = folder.path().join(name);
    write_events(&path, &generator, count).with_context(|| format!("cannot write {path:?}"))?;
    Ok(path)
}

fn run_ours(name: &str, folder: &Folder, events: &Path, count: u64) -> Result<Ran> {
    let ran: ours::Printed = RunQuery::new(name, folder, events, Work::Discard).answer()?;
    ensure!(ran.results > 0, "{name} has no results");
    Ok(Ran {
        events_per_cpu_second: count as f64 / ran.cpu_seconds,
        events_per_second: count as f64 / ran.seconds,
        peak_mib: ran.peak_mib,
        checkpoints: ran.checkpoints,
    })
}

/// The rows that the results of ours leave.
fn rows_of(name: &str, folder: &Folder, events: &Path) -> Result<Rows> {
    RunQuery::new(name, folder, events, Work::Check).answer()
}

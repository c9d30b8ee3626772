//! The queries of the Nexmark benchmark, beside the same queries in Flink's SQL and in dbsp's circuits.

mod dbsp;
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
use dbsp::Dbsp;
use flink::Flink;
use ours::{RunQuery, Work};
use rows::Rows;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "nexmark",
    measures: "Measures the queries of Nexmark, with a checkpoint every second and results that are dropped, against the same queries in Flink's SQL, and in dbsp without checkpoints.",
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

/// The name of dbsp in the figures, and the least median of the ratios to it.
const DBSP: &str = "dbsp";
const RATIO_TO_DBSP: f64 = 1.0;

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

/// A side of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Ours,
    Flink,
    Dbsp,
}

fn query<const NUMBER: u32>(bench: &Bench) -> Result<Vec<Case>> {
    let name = format!("q{NUMBER}");
    let folder = bench.folder(BENCHMARK.name, 8 << 30)?;
    let count = bench.size(1_000_000, 20_000);
    let events = write(&folder, "events", count)?;
    let mut flink = Flink::start(bench)?;
    let dbsp = Dbsp::of(bench, &name);
    if name != OF_CLOCK && (flink.is_some() || dbsp.is_some()) {
        let few = write(&folder, "few-events", bench.size(200_000, 20_000))?;
        check(&name, &folder, &few, flink.as_mut(), dbsp.as_ref())?;
    }
    let mut sides = vec![Side::Ours];
    if let Some(flink) = &mut flink {
        (0..WARM_UPS).try_for_each(|_| flink.run(&name, &events, count).map(drop))?;
        sides.push(Side::Flink);
    }
    if dbsp.is_some() {
        sides.push(Side::Dbsp);
    }
    let rounds = bench.turns(sides.len(), |turn| match (sides[turn], &mut flink, &dbsp) {
        (Side::Flink, Some(flink), _) => flink.run(&name, &events, count),
        (Side::Dbsp, _, Some(dbsp)) => dbsp.run(&events, count),
        _ => run_ours(&name, &folder, &events, count),
    })?;
    let mut cases = cases(&name, &rounds[0]);
    for (side, ran) in sides.iter().zip(&rounds) {
        cases = match side {
            Side::Ours => cases,
            Side::Flink => beside_flink(cases, ran),
            Side::Dbsp => beside_dbsp(cases, ran),
        };
    }
    Ok(cases.into())
}

/// Checks that the peers leave the same rows as ours.
fn check(
    name: &str,
    folder: &Folder,
    events: &Path,
    flink: Option<&mut Flink>,
    dbsp: Option<&Dbsp>,
) -> Result<()> {
    let found = rows_of(name, folder, events)?;
    if let Some(flink) = flink {
        let expected = flink.check(name, events)?;
        ensure!(
            found == expected,
            "{name} leaves {found:?}, and Flink's query {expected:?}"
        );
    }
    if let Some(dbsp) = dbsp {
        let expected = dbsp.check(events)?;
        ensure!(
            found == expected,
            "{name} leaves {found:?}, and dbsp's circuit {expected:?}"
        );
    }
    Ok(())
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

/// Adds the figures of Flink as the limit.
fn beside_flink([cpu, memory]: [Case; 2], rounds: &[Ran]) -> [Case; 2] {
    let theirs = |pick: fn(&Ran) -> f64| rounds.iter().map(pick).collect::<Vec<_>>();
    let cpu = cpu
        .by_hand(theirs(|ran| ran.events_per_cpu_second))
        .target(RATIO_MIN)
        .detail(
            "flink_events_per_second",
            median(&theirs(|ran| ran.events_per_second)),
        )
        .detail("flink_checkpoints", median(&theirs(|ran| ran.checkpoints)));
    [cpu, memory.by_hand(theirs(|ran| ran.peak_mib))]
}

/// Adds the figures of dbsp as those of another peer.
fn beside_dbsp([cpu, memory]: [Case; 2], rounds: &[Ran]) -> [Case; 2] {
    let theirs = |pick: fn(&Ran) -> f64| median(&rounds.iter().map(pick).collect::<Vec<_>>());
    let cpu = cpu
        .peer(DBSP, theirs(|ran| ran.events_per_cpu_second))
        .detail(
            "dbsp_events_per_second",
            theirs(|ran| ran.events_per_second),
        );
    [cpu, memory.peer(DBSP, theirs(|ran| ran.peak_mib))]
}

/// The medians of the ratios of all queries to each peer, of the same run.
fn of_all(bench: &Bench) -> Result<Vec<Case>> {
    let ran = bench.ran.borrow();
    let case = |name: &str, better: Better, ratio: &dyn Fn(&Case) -> Option<f64>| {
        let cases = ran.iter().filter(|case| case.better == better);
        let ratios: Vec<f64> = cases.filter_map(ratio).collect();
        let median = (!ratios.is_empty()).then(|| median(&ratios))?;
        Some(Case::new(name, "times", Better::Higher, vec![median]))
    };
    let to_flink = |case: &Case| case.ratio_to_limit;
    let to_dbsp = |case: &Case| case.ratio_to_peers.get(DBSP).copied();
    let cases = [
        case("median", Better::Higher, &to_flink).map(|case| case.bound(RATIO_MEDIAN)),
        case("median/memory", Better::Lower, &to_flink),
        case("median-to-dbsp", Better::Higher, &to_dbsp).map(|case| case.bound(RATIO_TO_DBSP)),
        case("median-to-dbsp/memory", Better::Lower, &to_dbsp),
    ];
    Ok(cases.into_iter().flatten().collect())
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

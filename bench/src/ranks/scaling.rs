//! SWA, YSB and YSB* on more and more ranks and instances, and on more of them than there are cores.

use anyhow::{Result, ensure};
use millstream_ads::benchmark::App;
use serde::Deserialize;

use super::launch::{Launcher, Setting};
use crate::measure::{Bench, ROUNDS, rounds_of};
use crate::plot::{self, Panel};
use crate::report::{Better, Case};

/// One rank with a worker for each core, beside which all others stand.
const ALONE: Setting = Setting::threads(1, 2);

/// Two processes with one worker each.
const PROCESSES: Setting = Setting::mpi(2, 1);

/// The target for two processes: their rate divided by that of one process with as many workers.
const PROCESSES_MIN: f64 = 0.9;

/// Ranks, and instances on each.
const OTHERS: [Setting; 8] = [
    PROCESSES,
    Setting::threads(1, 1),
    Setting::threads(2, 1),
    Setting::threads(4, 1),
    Setting::threads(2, 2),
    Setting::threads(4, 2),
    Setting::threads(1, 4),
    Setting::mpi(2, 2),
];

/// The number of other settings in a quick run: enough to see whether they work.
const OTHERS_QUICK: usize = 3;

/// The line that the program prints about a run.
#[derive(Debug, Deserialize)]
struct Printed {
    events_per_second: f64,
    /// Of windows.
    results: u64,
    missing: u64,
}

/// The throughput of an application in each setting, all in turn.
pub fn scaling(bench: &Bench, app: App) -> Result<Vec<Case>> {
    let Some(launcher) = Launcher::find(app.name()) else {
        return Ok(Vec::new());
    };
    let others = &OTHERS[..bench.size(OTHERS.len(), OTHERS_QUICK)];
    let settings = launcher.startable([&[ALONE], others].concat());
    let rates = rounds_of(bench.size(ROUNDS, 1), settings.len(), |place| {
        run(bench, &launcher, app, settings[place])
    })?;
    let case = |(setting, ours): (&Setting, &Vec<f64>)| {
        let name = format!("{}/{}", app.name(), setting.name());
        let case = Case::new(name, "M events/s", Better::Higher, ours.clone());
        match *setting {
            ALONE => case,
            PROCESSES => case.by_hand(rates[0].clone()).target(PROCESSES_MIN),
            _ => case.by_hand(rates[0].clone()),
        }
    };
    let cases: Vec<Case> = settings.iter().zip(&rates).map(case).collect();
    draw(bench, app, &cases)?;
    Ok(cases)
}

/// Runs an application for a fixed time, as fast as it can; returns how many million events it counted in a second.
fn run(bench: &Bench, launcher: &Launcher, app: App, setting: Setting) -> Result<f64> {
    let times = [
        "--for",
        bench.size("2s", "300ms"),
        "--window",
        bench.size("1s", "100ms"),
    ];
    let words = [&[app.name()], &times[..]].concat();
    let printed: Printed = launcher.run(setting, &words)?;
    ensure!(
        printed.missing == 0 && printed.results > 0,
        "{} on {}: {} results, {} missing",
        app.name(),
        setting.name(),
        printed.results,
        printed.missing
    );
    Ok(printed.events_per_second / 1e6)
}

/// As figure 10 of "AIR": by the number of ranks, a line for each number of instances. Only settings of the same
/// kind make a line.
fn draw(bench: &Bench, app: App, cases: &[Case]) -> Result<()> {
    const RANKS: [u32; 3] = [1, 2, 4];
    let rate = |setting: Setting| {
        let name = format!("{}/{}", app.name(), setting.name());
        cases
            .iter()
            .find(|case| case.case == name)
            .map(|case| case.ours)
    };
    let by_ranks = |name: &str, setting: &dyn Fn(u32) -> Setting| {
        // Up to the first that was not measured.
        let rates = RANKS.iter().map_while(|ranks| rate(setting(*ranks)));
        (name.to_owned(), rates.collect::<Vec<f64>>())
    };
    let by_instances = RANKS
        .iter()
        .map_while(|count| rate(Setting::threads(1, *count)));
    let ranks = Panel {
        title: "by ranks".to_owned(),
        labels: RANKS.map(|ranks| ranks.to_string()).to_vec(),
        lines: vec![
            by_ranks("1 instance", &|ranks| Setting::threads(ranks, 1)),
            by_ranks("2 instances", &|ranks| Setting::threads(ranks, 2)),
        ],
    };
    let instances = Panel {
        title: "by instances".to_owned(),
        labels: RANKS.map(|ranks| ranks.to_string()).to_vec(),
        lines: vec![("1 rank".to_owned(), by_instances.collect())],
    };
    let path = bench.out().join(format!("{}-scaling.png", app.name()));
    let title = format!("{}: million events/s, ranks as threads", app.name());
    plot::panels(&path, &title, &[ranks, instances])?;
    let bars: Vec<(&str, f64)> = cases
        .iter()
        .map(|case| (&case.case[..], case.ours))
        .collect();
    let title = format!("{}: million events/s (ranks x instances)", app.name());
    plot::bars(
        &bench.out().join(format!("{}.png", app.name())),
        &title,
        &bars,
    )
}

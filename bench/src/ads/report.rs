//! All contenders, one after the other, and what comes of it.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};

use millstream_ads::benchmark::{App, Order, Probe, probe};

use super::by_hand::ByHand;
use super::contender::{Contender, INSTANCES};
use super::ours::Ours;
use super::peer::Peer;
use super::search::{Search, Sustained};
use crate::engine::build_peers;
use crate::measure::Bench;
use crate::plot;
use crate::project;
use crate::report::{Better, Case};

const OURS: &str = "ours";
const BY_HAND: &str = "by hand";

struct Target {
    name: &'static str,
    /// What it leaves behind when it is built, in the folder of the peers.
    built: &'static str,
    takes_long_to_start: bool,
    /// How many times its throughput ours must be.
    faster: f64,
}

/// What must be reached: which part of the loop by hand, and how many times each peer.
fn targets(app: App) -> (f64, [Target; 3]) {
    let (of_loop, flink, spark) = match app {
        App::Swa => (0.5, 4.5, 4.5),
        App::Ysb => (0.5, 10.0, 15.0),
        App::YsbStar => (0.4, 9.0, 12.0),
    };
    let target = |name, built, faster| Target {
        name,
        built,
        takes_long_to_start: name != "timely",
        faster,
    };
    let peers = [
        target("flink", "flink/built", flink),
        target("spark", "spark/built", spark),
        target("timely", "timely/release/timely-ads", 1.0),
    ];
    (of_loop, peers)
}

/// The sustainable throughput of an application, and the latency there.
pub fn sustainable(bench: &Bench, app: App) -> Result<Vec<Case>> {
    let (of_loop, peers) = targets(app);
    if !bench.is_quick() {
        build_peers();
    }
    let ours = search(bench, app, OURS, &mut Ours::new(app))?;
    let by_hand = search(bench, app, BY_HAND, &mut ByHand::new(app))?;
    let mut all = vec![(OURS, ours.clone()), (BY_HAND, by_hand.clone())];
    let throughput = beside("throughput", &ours, &by_hand).target(of_loop);
    let mut cases = vec![throughput];
    for peer in &peers {
        let name = peer.name;
        match search_peer(bench, app, peer) {
            Ok(Some(theirs)) => {
                cases.push(
                    beside(&format!("throughput/{name}"), &ours, &theirs).target(peer.faster),
                );
                cases.push(latency_beside(&format!("latency/{name}"), &ours, &theirs));
                all.push((name, theirs));
            }
            Ok(None) => eprintln!("bench: {name} left out: not built, or too slow to start"),
            Err(error) => eprintln!("bench: {name} left out: {error:#}"),
        }
    }
    write_rates(bench, &all)?;
    draw(bench, app, &all)?;
    Ok(cases)
}

fn search_peer(bench: &Bench, app: App, peer: &Target) -> Result<Option<Found>> {
    let is_built = project().join("target/peers").join(peer.built).exists();
    if !is_built || bench.is_quick() && peer.takes_long_to_start {
        return Ok(None);
    }
    let mut process = Peer::start(peer.name, app)?;
    // What is compiled while it runs is compiled then.
    process.run(&order(bench, 0))?;
    search(bench, app, peer.name, &mut process).map(Some)
}

/// What was found of a contender, and the time of all processors in each run: without a rate, then with one.
#[derive(Clone)]
struct Found {
    sustained: Sustained,
    cpu_seconds: Vec<f64>,
}

fn search(bench: &Bench, app: App, name: &str, contender: &mut dyn Contender) -> Result<Found> {
    let search = Search {
        precision: 1.06,
        probes_max: bench.size(6, 3),
    };
    let mut cpu_seconds = Vec::new();
    let run = |rate| {
        let order = order(bench, rate);
        let counted = contender.run(&order)?;
        cpu_seconds.push(counted.cpu_seconds);
        let probe = probe(app, &order, &counted.outcome);
        eprintln!("bench: {} {name}: {}", app.name(), line(&probe));
        Ok(probe)
    };
    let sustained = search.run(run).context(name.to_owned())?;
    Ok(Found {
        sustained,
        cpu_seconds,
    })
}

/// Without a rate, nobody waits for the end of a whole window.
fn order(bench: &Bench, rate: u64) -> Order {
    let window_ms = bench.size(10_000, 500);
    let window_ms = if rate == 0 { window_ms / 2 } else { window_ms };
    Order::of_window(window_ms, rate, INSTANCES)
}

fn line(probe: &Probe) -> String {
    let asked = match probe.rate {
        0 => "no rate".to_owned(),
        rate => format!("{:.2} M/s asked for", rate as f64 / 1e6),
    };
    format!(
        "{asked}, {:.2} M/s made, {} missing, latency {:.0} ms",
        probe.achieved / 1e6,
        probe.missing,
        probe.latency.mean
    )
}

fn million_per_s(found: &Found) -> f64 {
    found.sustained.best.rate as f64 / 1e6
}

fn beside(name: &str, ours: &Found, theirs: &Found) -> Case {
    let (mine, other) = (million_per_s(ours), million_per_s(theirs));
    Case::new(name, "M events/s", Better::Higher, vec![mine])
        .by_hand(vec![other])
        .detail("unlimited_m_per_s", ours.sustained.unlimited.achieved / 1e6)
        .detail(
            "unlimited_of_the_other_m_per_s",
            theirs.sustained.unlimited.achieved / 1e6,
        )
}

/// Each at the highest rate that it sustains.
fn latency_beside(name: &str, ours: &Found, theirs: &Found) -> Case {
    let (mine, other) = (ours.sustained.best.latency, theirs.sustained.best.latency);
    Case::new(name, "ms", Better::Lower, vec![mine.mean])
        .by_hand(vec![other.mean])
        .target(1.0)
        .detail("p50_ms", mine.p50)
        .detail("p99_ms", mine.p99)
        .detail("p50_of_the_other_ms", other.p50)
        .detail("p99_of_the_other_ms", other.p99)
}

/// Every run.
fn write_rates(bench: &Bench, all: &[(&str, Found)]) -> Result<()> {
    let mut csv = String::from(
        "contender,rate_per_s,made_per_s,is_on_time,missing,mean_ms,p50_ms,p99_ms,cpu_s,is_sustained\n",
    );
    for (name, found) in all {
        let unlimited = std::iter::once((&found.sustained.unlimited, false));
        let probes = found.sustained.probes.iter();
        let runs = unlimited.chain(probes.map(|(probe, is)| (probe, *is)));
        for ((probe, is_sustained), cpu_seconds) in runs.zip(&found.cpu_seconds) {
            let latency = probe.latency;
            // Writing into a string does not fail.
            let _ = writeln!(
                csv,
                "{name},{},{:.0},{},{},{:.1},{:.1},{:.1},{:.2},{is_sustained}",
                probe.rate,
                probe.achieved,
                probe.is_on_time,
                probe.missing,
                latency.mean,
                latency.p50,
                latency.p99,
                cpu_seconds,
            );
        }
    }
    let path = bench.out().join("rates.csv");
    fs::write(&path, csv).with_context(|| format!("cannot write {path:?}"))
}

fn draw(bench: &Bench, app: App, all: &[(&str, Found)]) -> Result<()> {
    let bars: Vec<(&str, f64)> = all
        .iter()
        .map(|(name, found)| (*name, million_per_s(found)))
        .collect();
    let title = format!("{}: sustainable throughput, million events/s", app.name());
    plot::bars(&bench.out().join("sustainable.png"), &title, &bars)?;
    let line = |(name, found): &(&str, Found)| {
        let mut points: Vec<(f64, f64)> = found
            .sustained
            .probes
            .iter()
            .map(|(probe, _)| (probe.rate as f64 / 1e6, probe.latency.mean))
            .filter(|(_, mean)| mean.is_finite())
            .collect();
        points.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        ((*name).to_owned(), points)
    };
    let lines: Vec<_> = all.iter().map(line).collect();
    let title = format!(
        "{}: mean latency of windows (ms) by rate (million events/s)",
        app.name()
    );
    plot::by_rate(&bench.out().join("latency-by-rate.png"), &title, &lines)
}

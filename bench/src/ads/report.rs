//! All contenders in turn, and the cases that come of it.

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use millstream_ads::benchmark::{App, Latency, Order, Probe, probe};
use millstream_base::EnergyMeter;

use super::by_hand::ByHand;
use super::contender::{Contender, INSTANCES};
use super::ours::Ours;
use super::peer::Peer;
use super::search::{Base, Run, Search, Sustained};
use crate::measure::{Bench, ROUNDS, energy_meter, energy_suffix, median, order_of_turns};
use crate::plot;
use crate::project::{self, build_peers};
use crate::report::{Better, Case};

const OURS: &str = "ours";
const BY_HAND: &str = "by hand";

/// How long the search of one application may take, unless `--budget` sets another time.
const BUDGET: Duration = Duration::from_secs(16 * 60);

/// The least budget for windows as long as those of the paper; with less they are half as long, so that all rounds fit.
const BUDGET_OF_LONG_WINDOWS: Duration = Duration::from_secs(20 * 60);

/// How close a search comes: the lowest unsustained rate divided by the highest sustained one.
const PRECISION: f64 = 1.05;

/// Runs of one search at most.
const RUNS_MAX: usize = 12;

/// One search may take at most this many times its even share of the remaining time, so that a search that does not
/// converge leaves time to the others.
const PARTS_OF_TURN: f64 = 1.5;

/// How long Flink's buffers may wait to be full, in milliseconds: its default is 100.
const BUFFERS_WAIT_MS: [u64; 4] = [1, 5, 20, 100];

/// Runs without a rate with each of them.
const RUNS_OF_BUFFERS: usize = 3;

struct Target {
    name: &'static str,
    /// A file in the folder of the peers that exists once the peer is built.
    built: &'static str,
    takes_long_to_start: bool,
    /// The least ratio of our throughput to the peer's.
    faster: f64,
}

/// The targets: the ratio to the loop by hand, at the sustainable rate and without a rate, and the ratio to each peer.
struct Targets {
    of_loop: f64,
    of_loop_unlimited: f64,
    peers: [Target; 3],
}

fn targets(app: App) -> Targets {
    let (of_loop, of_loop_unlimited, flink, spark) = match app {
        App::Swa => (0.5, 0.9, 4.5, 4.5),
        App::Ysb => (0.5, 0.8, 10.0, 15.0),
        App::YsbStar => (0.4, 0.7, 9.0, 12.0),
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
    Targets {
        of_loop,
        of_loop_unlimited,
        peers,
    }
}

/// The sustainable throughput of an application, and the latency there.
pub fn sustainable(bench: &Bench, app: App) -> Result<Vec<Case>> {
    let Targets {
        of_loop,
        of_loop_unlimited,
        peers,
    } = targets(app);
    if !bench.is_quick() {
        build_peers(peers.iter().map(|peer| peer.name));
    }
    let budget = bench.budget.unwrap_or(BUDGET);
    let mut all = vec![
        Searched::of(OURS, Box::new(Ours::new(app))),
        Searched::of(BY_HAND, Box::new(ByHand::new(app))),
    ];
    let mut buffers_wait_ms = None;
    for peer in &peers {
        match start(bench, app, peer) {
            Ok(Some(started)) => {
                buffers_wait_ms = buffers_wait_ms.or(started.buffers_wait_ms);
                all.push(Searched::of(peer.name, Box::new(started.process)));
            }
            Ok(None) => eprintln!(
                "bench: {} left out: not built, or too slow to start",
                peer.name
            ),
            Err(error) => eprintln!("bench: {} left out: {error:#}", peer.name),
        }
    }
    let until = Instant::now() + budget;
    run_unlimited(bench, app, &mut all)?;
    let rounds = search_all(bench, app, until, &mut all)?;
    if rounds < bench.size(ROUNDS, 2) {
        eprintln!(
            "bench: {}: the budget of {budget:?} ends after {rounds} rounds",
            app.name()
        );
    }
    write_runs(bench, &all)?;
    draw(bench, app, &all)?;

    let [ours, by_hand, others @ ..] = &mut all[..] else {
        bail!("ours and the loop by hand are missing");
    };
    let mut at_same_rate = Vec::new();
    for theirs in others.iter_mut() {
        if theirs.name == "timely" && theirs.rounds.iter().any(Option::is_some) {
            at_same_rate.push(latency_at_same_rate(bench, app, ours, theirs)?);
        }
    }
    let window_s = window_ms(bench) as f64 / 1e3;
    let throughput = beside("throughput", ours, by_hand)?
        .target(of_loop)
        .detail("rounds_asked_for", bench.size(ROUNDS, 2) as f64)
        .detail("rounds_within_the_budget", rounds as f64)
        .detail("budget_s", budget.as_secs_f64())
        .detail("window_s", window_s);
    let unlimited = unlimited_beside("unlimited", ours, by_hand)?.target(of_loop_unlimited);
    let mut cases = vec![throughput, unlimited];
    for theirs in others {
        let name = theirs.name;
        if theirs.rounds.iter().all(Option::is_none) {
            continue;
        }
        let target = peers.iter().find(|peer| peer.name == name);
        let faster = target.map_or(1.0, |peer| peer.faster);
        let throughput = beside(&format!("throughput/{name}"), ours, theirs)?.target(faster);
        cases.push(match (name, buffers_wait_ms) {
            ("flink", Some(ms)) => throughput.detail("buffers_wait_ms", ms as f64),
            _ => throughput,
        });
        let unlimited = unlimited_beside(&format!("unlimited/{name}"), ours, theirs)?;
        cases.push(match name {
            "timely" => unlimited.target(1.0),
            _ => unlimited,
        });
        cases.push(latency_beside(&format!("latency/{name}"), ours, theirs)?);
    }
    cases.extend(at_same_rate);
    Ok(cases)
}

/// A peer that has run once.
struct Started {
    process: Peer,
    /// The setting of Flink.
    buffers_wait_ms: Option<u64>,
}

fn start(bench: &Bench, app: App, peer: &Target) -> Result<Option<Started>> {
    let is_built = project::peer(peer.built).exists();
    if !is_built || bench.is_quick() && peer.takes_long_to_start {
        return Ok(None);
    }
    if peer.name != "flink" {
        let process = start_process(bench, app, peer.name, None)?;
        return Ok(Some(Started {
            process,
            buffers_wait_ms: None,
        }));
    }
    let mut tried = Vec::new();
    for ms in BUFFERS_WAIT_MS {
        let mut process = start_process(bench, app, peer.name, Some(ms))?;
        let name = format!("{}, buffers wait {ms} ms", peer.name);
        let rates = (0..RUNS_OF_BUFFERS)
            .map(|_| Ok(run(bench, app, &name, &mut process, 0)?.probe.achieved));
        let rate = median(&rates.collect::<Result<Vec<_>>>()?);
        tried.push((rate, ms));
    }
    let fastest = tried.iter().max_by(|one, other| one.0.total_cmp(&other.0));
    let (_, ms) = fastest.context("there are times to try")?;
    Ok(Some(Started {
        process: start_process(bench, app, peer.name, Some(*ms))?,
        buffers_wait_ms: Some(*ms),
    }))
}

fn start_process(
    bench: &Bench,
    app: App,
    name: &str,
    buffers_wait_ms: Option<u64>,
) -> Result<Peer> {
    let mut process = Peer::start(name, buffers_wait_ms, app)?;
    // Systems that compile while they run do so now.
    process.run(&order(bench, 0))?;
    Ok(process)
}

/// A contender, and its searches.
struct Searched {
    name: &'static str,
    contender: Box<dyn Contender>,
    base: Option<Base>,
    /// One search of each round; none where no rate was sustained, or the contender has failed.
    rounds: Vec<Option<Sustained>>,
    /// Runs without a rate, one of each round.
    unlimited: Vec<Run>,
    has_failed: bool,
}

impl Searched {
    fn of(name: &'static str, contender: Box<dyn Contender>) -> Searched {
        Searched {
            name,
            contender,
            base: None,
            rounds: Vec::new(),
            unlimited: Vec::new(),
            has_failed: false,
        }
    }

    fn is_peer(&self) -> bool {
        ![OURS, BY_HAND].contains(&self.name)
    }

    /// Searches once more, from where the last search ended.
    fn search(&mut self, bench: &Bench, app: App, search: Search) -> Result<Sustained> {
        let (name, contender) = (self.name, &mut self.contender);
        let mut run = |rate| run(bench, app, name, contender.as_mut(), rate);
        let last = self.rounds.iter().flatten().last();
        match (&self.base, last) {
            (Some(base), Some(last)) => search.again(base, last.rate(), run),
            (Some(base), None) => search.first(base, run),
            (None, _) => {
                let unlimited = self
                    .unlimited
                    .last()
                    .context("it has not run without a rate")?;
                let base = Base::find(*unlimited, &mut run)?;
                let found = search.first(&base, run);
                self.base = Some(base);
                found
            }
        }
    }

    fn million_per_s(&self) -> Vec<f64> {
        let found = self.rounds.iter().flatten();
        found.map(|found| found.rate() / 1e6).collect()
    }
}

/// One run of a contender, with a rate or with 0 for none.
fn run(
    bench: &Bench,
    app: App,
    name: &str,
    contender: &mut dyn Contender,
    rate: u64,
) -> Result<Run> {
    let order = order(bench, rate);
    let mut meter = energy_meter();
    let counted = contender.run(&order)?;
    let joules = meter.as_mut().and_then(EnergyMeter::joules);
    let made = counted.outcome.made.iter().flatten();
    let events: u64 = made.map(|made| made.events).sum();
    let probe = probe(app, &order, &counted.outcome);
    eprintln!("bench: {} {name}: {}", app.name(), line(&probe));
    Ok(Run {
        probe,
        energy_per_million: joules.unwrap_or(counted.cpu_seconds) * 1e6 / events as f64,
    })
}

/// Lets all contenders run without a rate, one right after the other, round by round in an order that changes: searches in
/// between would compare minutes in which a shared machine is not equally fast. A peer that fails is left out.
fn run_unlimited(bench: &Bench, app: App, all: &mut [Searched]) -> Result<()> {
    for round in 0..bench.size(ROUNDS, 2) {
        for place in order_of_turns(round, all.len()) {
            let searched = &mut all[place];
            if searched.has_failed {
                continue;
            }
            match run(bench, app, searched.name, searched.contender.as_mut(), 0) {
                Ok(run) => searched.unlimited.push(run),
                Err(error) if searched.is_peer() => {
                    let (app, name) = (app.name(), searched.name);
                    eprintln!("bench: {app} {name} left out: {error:#}");
                    searched.has_failed = true;
                }
                Err(error) => return Err(error).context(searched.name),
            }
        }
    }
    Ok(())
}

/// Lets all contenders search in turn, round by round, in an order that changes; returns how many rounds there were
/// `until` then. A peer that fails is left out from then on; ours, or the loop by hand, fails the benchmark.
fn search_all(bench: &Bench, app: App, until: Instant, all: &mut [Searched]) -> Result<usize> {
    let rounds = bench.size(ROUNDS, 2);
    let mut longest_round = Duration::ZERO;
    for round in 0..rounds {
        let started_at = Instant::now();
        if round > 0 && started_at + longest_round > until {
            return Ok(round);
        }
        let order = order_of_turns(round, all.len());
        for (turn, place) in order.iter().enumerate() {
            let searched = &mut all[*place];
            if searched.has_failed {
                searched.rounds.push(None);
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            let turns_left = (order.len() - turn) as f64;
            let part = (PARTS_OF_TURN / turns_left).min(1.0);
            let search = Search {
                precision: PRECISION,
                runs_max: bench.size(RUNS_MAX, 3),
                until: Instant::now() + left.mul_f64(part),
            };
            let found = searched.search(bench, app, search);
            match found {
                Ok(found) => {
                    eprintln!(
                        "bench: {} {}, round {}: {:.2} M/s, within {:.1} %",
                        app.name(),
                        searched.name,
                        round + 1,
                        found.rate() / 1e6,
                        found.resolution() * 100.0
                    );
                    searched.rounds.push(Some(found));
                }
                Err(error) if !searched.is_peer() && round == 0 => {
                    return Err(error).context(searched.name);
                }
                Err(error) => {
                    eprintln!(
                        "bench: {} {}, round {} left out: {error:#}",
                        app.name(),
                        searched.name,
                        round + 1
                    );
                    searched.rounds.push(None);
                    // Without its low rates there is nothing to compare with, and a process that has ended stays so.
                    searched.has_failed = searched.base.is_none() || !searched.contender.is_alive();
                }
            }
        }
        // The first round is longer than those behind it.
        longest_round = match round {
            0 => Duration::ZERO,
            _ => longest_round.max(started_at.elapsed()),
        };
    }
    Ok(rounds)
}

fn window_ms(bench: &Bench) -> i64 {
    let is_long = bench.budget.unwrap_or(BUDGET) >= BUDGET_OF_LONG_WINDOWS;
    bench.size(if is_long { 10_000 } else { 5_000 }, 500)
}

/// Without a rate, the end of a whole window is of no use.
fn order(bench: &Bench, rate: u64) -> Order {
    let window_ms = window_ms(bench);
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

/// Returns a value of both contenders for each round in which both have found a rate.
fn pairs(
    ours: &Searched,
    theirs: &Searched,
    pick: fn(&Sustained) -> f64,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let rounds = ours.rounds.iter().zip(&theirs.rounds);
    let both =
        rounds.filter_map(|(mine, other)| Some((pick(mine.as_ref()?), pick(other.as_ref()?))));
    let (mine, other): (Vec<f64>, Vec<f64>) = both.unzip();
    match mine.is_empty() {
        true => bail!(
            "no round has rates of both {} and {}",
            ours.name,
            theirs.name
        ),
        false => Ok((mine, other)),
    }
}

fn beside(name: &str, ours: &Searched, theirs: &Searched) -> Result<Case> {
    let (mine, other) = pairs(ours, theirs, |found| found.rate() / 1e6)?;
    let middle = |of: &Searched, pick: fn(&Sustained) -> f64| {
        let found = of.rounds.iter().flatten();
        median(&found.map(pick).collect::<Vec<f64>>())
    };
    let suffix = energy_suffix();
    let mut case = Case::new(name, "M events/s", Better::Higher, mine).by_hand(other);
    for (of, whose) in [(ours, ""), (theirs, "of_the_other_")] {
        let resolutions = of.rounds.iter().flatten().map(Sustained::resolution);
        let is_wide = |resolution: &f64| *resolution > PRECISION - 1.0 + f64::EPSILON;
        let wide = resolutions.clone().filter(is_wide).count();
        let widest = resolutions.fold(0.0, f64::max);
        case = case
            .detail(
                &format!("{whose}rounds_not_converged_to_5_percent"),
                wide as f64,
            )
            .detail(
                &format!("{whose}per_million_events_{suffix}"),
                middle(of, |found| found.best.energy_per_million),
            );
        if widest.is_finite() {
            case = case.detail(&format!("{whose}resolution_percent"), widest * 100.0);
        }
    }
    Ok(case)
}

/// Each as fast as it can, in the rounds of both.
fn unlimited_beside(name: &str, ours: &Searched, theirs: &Searched) -> Result<Case> {
    let millions = |runs: &[Run]| -> Vec<f64> {
        let made = runs.iter().map(|run| run.probe.achieved);
        made.map(|rate| rate / 1e6).collect()
    };
    let (mut mine, mut other) = (millions(&ours.unlimited), millions(&theirs.unlimited));
    let rounds = mine.len().min(other.len());
    ensure!(rounds > 0, "{} has not run without a rate", theirs.name);
    mine.truncate(rounds);
    other.truncate(rounds);
    Ok(Case::new(name, "M events/s", Better::Higher, mine).by_hand(other))
}

/// Each at the highest rate that it sustains.
fn latency_beside(name: &str, ours: &Searched, theirs: &Searched) -> Result<Case> {
    let (mine, other) = pairs(ours, theirs, |found| found.best.probe.latency.mean)?;
    let (p50, p50_of_the_other) = pairs(ours, theirs, |found| found.best.probe.latency.p50)?;
    let (p99, p99_of_the_other) = pairs(ours, theirs, |found| found.best.probe.latency.p99)?;
    Ok(Case::new(name, "ms", Better::Lower, mine)
        .by_hand(other)
        .target(1.0)
        .detail("p50_ms", median(&p50))
        .detail("p99_ms", median(&p99))
        .detail("p50_of_the_other_ms", median(&p50_of_the_other))
        .detail("p99_of_the_other_ms", median(&p99_of_the_other)))
}

/// Both at the lower of the rates that they sustain, in turn.
fn latency_at_same_rate(
    bench: &Bench,
    app: App,
    ours: &mut Searched,
    theirs: &mut Searched,
) -> Result<Case> {
    let million_per_s = median(&ours.million_per_s()).min(median(&theirs.million_per_s()));
    let rate = (million_per_s * 1e6) as u64;
    let name = format!("latency-at-same-rate/{}", theirs.name);
    let mut both = [ours, theirs];
    let rounds = bench.warm_turns(both.len(), |place| {
        let searched = &mut both[place];
        let run = run(bench, app, searched.name, searched.contender.as_mut(), rate)?;
        Ok(run.probe.latency)
    })?;
    let [mine, other] = &rounds[..] else {
        bail!("a contender is missing");
    };
    let all = |of: &[Latency], pick: fn(&Latency) -> f64| of.iter().map(pick).collect::<Vec<_>>();
    Ok(
        Case::new(name, "ms", Better::Lower, all(mine, |it| it.mean))
            .by_hand(all(other, |it| it.mean))
            .target(1.0)
            .detail("million_events_per_s", million_per_s)
            .detail("p50_ms", median(&all(mine, |it| it.p50)))
            .detail("p99_ms", median(&all(mine, |it| it.p99)))
            .detail("p50_of_the_other_ms", median(&all(other, |it| it.p50)))
            .detail("p99_of_the_other_ms", median(&all(other, |it| it.p99))),
    )
}

/// Every run.
fn write_runs(bench: &Bench, all: &[Searched]) -> Result<()> {
    let mut csv = format!(
        "contender,round,rate_per_s,made_per_s,is_on_time,missing,mean_ms,p50_ms,p99_ms,per_million_events_{},\
         is_sustained\n",
        energy_suffix()
    );
    for searched in all {
        let base = searched.base.iter().flat_map(|base| &base.runs);
        let unlimited = searched.unlimited.iter().zip(1..);
        let rounds = searched
            .rounds
            .iter()
            .zip(1..)
            .filter_map(|(found, round)| {
                let runs = &found.as_ref()?.runs;
                Some(runs.iter().map(move |(run, is)| (round, run, *is)))
            });
        let runs = base.map(|(run, is)| (0, run, *is)).chain(rounds.flatten());
        let runs = runs.chain(unlimited.map(|(run, round)| (round, run, false)));
        for (round, run, is_sustained) in runs {
            let Probe {
                rate,
                achieved,
                is_on_time,
                missing,
                latency,
            } = run.probe;
            // Writing into a string does not fail.
            let _ = writeln!(
                csv,
                "{},{round},{rate},{achieved:.0},{is_on_time},{missing},{:.1},{:.1},{:.1},{:.4},{is_sustained}",
                searched.name, latency.mean, latency.p50, latency.p99, run.energy_per_million,
            );
        }
    }
    let path = bench.out().join("rates.csv");
    fs::write(&path, csv).with_context(|| format!("cannot write {path:?}"))
}

fn draw(bench: &Bench, app: App, all: &[Searched]) -> Result<()> {
    let found = all
        .iter()
        .filter(|of| of.rounds.iter().any(Option::is_some));
    let bars: Vec<(&str, f64)> = found
        .clone()
        .map(|searched| (searched.name, median(&searched.million_per_s())))
        .collect();
    let title = format!("{}: sustainable throughput, million events/s", app.name());
    plot::bars(&bench.out().join("sustainable.png"), &title, &bars)?;
    let line = |searched: &Searched| {
        let runs = searched
            .rounds
            .iter()
            .flatten()
            .flat_map(|found| &found.runs);
        let low = searched.base.iter().map(|base| &base.low);
        let mut points: Vec<(f64, f64)> = low
            .chain(runs.map(|(run, _)| run))
            .map(|run| (run.probe.rate as f64 / 1e6, run.probe.latency.mean))
            .filter(|(_, mean)| mean.is_finite())
            .collect();
        points.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        (searched.name.to_owned(), points)
    };
    let lines: Vec<_> = found.map(line).collect();
    let title = format!(
        "{}: mean latency of windows (ms) by rate (million events/s)",
        app.name()
    );
    plot::by_rate(&bench.out().join("latency-by-rate.png"), &title, &lines)
}

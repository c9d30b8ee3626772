//! Hazelcast with the work of `freshness`: a Jet job keeps the number of the last event of each key in a map, and a client
//! asks for one of them.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::measure::{Bench, median};
use crate::project::{self, build_peers, is_built};
use crate::report::Case;

/// The rates to try, in events per second: the peer runs at the highest one that it sustains.
const RATES: [u64; 4] = [100_000, 50_000, 25_000, 10_000];

/// The longest time of a run, without the events that count: Java's start, the warm-up, and the wait for the last events.
const BESIDE_MAX: Duration = Duration::from_secs(180);

/// The peer and its rounds.
pub struct Hazelcast {
    /// The rates that the peer has not missed yet, from the highest one down.
    rates: &'static [u64],
    /// The rounds at the first of these rates.
    ran: Vec<Ran>,
}

/// The line that the peer prints after a run.
#[derive(Debug, Deserialize)]
struct Ran {
    /// Whether the map has accepted events at the rate, and the job has kept up with them.
    is_reached: bool,
    /// Events that the map has accepted in a second.
    events_per_s: f64,
    /// Snapshots of the job that are complete.
    snapshots_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    p99_9_ms: f64,
    p99_99_ms: f64,
}

impl Hazelcast {
    /// Returns the peer, if it is built. A quick run goes without it.
    pub fn built(bench: &Bench) -> Option<Hazelcast> {
        if bench.is_quick() {
            return None;
        }
        build_peers(["hazelcast"]);
        is_built("hazelcast/built", "Hazelcast").then(|| Hazelcast {
            rates: &RATES,
            ran: Vec::new(),
        })
    }

    /// Measures a round. If the peer misses the rate, it drops its earlier rounds and tries the next lower rate.
    pub fn round(&mut self, lasts: Duration) -> Result<()> {
        while let Some((rate, lower)) = self.rates.split_first() {
            let ran = run(*rate, lasts)?;
            if ran.is_reached {
                self.ran.push(ran);
                return Ok(());
            }
            eprintln!("bench: Hazelcast does not sustain {rate} events/s: {ran:?}");
            self.rates = lower;
            self.ran.clear();
        }
        Ok(())
    }

    /// Repeats the rounds that the peer dropped, and adds its figures to the case. A peer that sustains no rate is left
    /// out.
    pub fn beside(mut self, case: Case, rounds: usize, lasts: Duration) -> Result<Case> {
        while self.ran.len() < rounds && !self.rates.is_empty() {
            self.round(lasts)?;
        }
        if self.ran.is_empty() {
            eprintln!("bench: Hazelcast left out: it sustains none of {RATES:?} events/s");
            return Ok(case);
        }
        let of = |figure: fn(&Ran) -> f64| {
            let figures: Vec<f64> = self.ran.iter().map(figure).collect();
            median(&figures)
        };
        Ok(case
            .peer("Hazelcast", of(|ran| ran.p99_ms))
            .detail("hazelcast_p50_ms", of(|ran| ran.p50_ms))
            .detail("hazelcast_p99_9_ms", of(|ran| ran.p99_9_ms))
            .detail("hazelcast_p99_99_ms", of(|ran| ran.p99_99_ms))
            .detail("hazelcast_events_per_s", of(|ran| ran.events_per_s))
            .detail("hazelcast_snapshots_per_s", of(|ran| ran.snapshots_per_s)))
    }
}

/// Runs the peer in a process of its own.
fn run(rate: u64, lasts: Duration) -> Result<Ran> {
    let mut command =
        millstream_testing::command(project::root().join("bench/peers/hazelcast/run.sh"));
    command
        .arg(rate.to_string())
        .arg(lasts.as_secs_f64().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let started = millstream_testing::start(&mut command, lasts + BESIDE_MAX);
    let output = started
        .context("cannot start Hazelcast")?
        .wait_with_output()?;
    let status = output.status;
    ensure!(
        status.success(),
        "Hazelcast has failed: {status} (see above)"
    );
    serde_json::from_slice(&output.stdout).context("Hazelcast printed something else")
}

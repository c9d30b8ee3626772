//! `millstream flow run swa`, `ysb` and `ysb-star`: generate ad events and count them in windows, on any number of
//! ranks.

use std::io::Write;

use anyhow::bail;
use millstream_ads::benchmark::{App, BenchmarkFlow, Latency, Order as Asked, probe};
use millstream_flow::{FlowSettings, Order};
use serde::Serialize;

use super::checkpoints::CheckpointWatch;
use super::flow_settings;
use super::ranks::{join, on_ranks};
use crate::args::AdsArgs;
use crate::console::{Align, Table, count_of, grouped, print, print_json};
use crate::http::serve_flow;
use crate::settings::Settings;
use crate::stop::Stop;

/// The event time at the start. Any time would do that starts a window of every length.
const EPOCH_MS: i64 = 1_700_000_000_000;

/// The document that `--json` prints.
#[derive(Serialize)]
struct Report {
    application: &'static str,
    ranks: u32,
    /// Events of the generator, of all ranks together.
    instances: u32,
    events: u64,
    seconds: f64,
    events_per_second: f64,
    /// Results of windows.
    results: usize,
    /// Results that are missing or wrong, compared with the generated events.
    missing: u64,
    /// Whether the generator reached the requested rate.
    is_on_time: bool,
    /// Latency from the last event of a window to its result, in milliseconds.
    latency_ms: Latency,
}

pub fn run(
    app: App,
    args: &AdsArgs,
    settings: &Settings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    let of_rank = flow_settings(&args.run, settings, Order::Kept);
    let report = on_ranks(&args.ranks, &args.run.checkpoints, &of_rank, |of_rank| {
        count(app, args, settings, of_rank, is_json, stop)
    })?;
    let Some(report) = report else {
        // The process of the gathering rank prints the result.
        return Ok(());
    };
    match is_json {
        true => print_json(&report)?,
        false => report.print()?,
    }
    if report.missing > 0 {
        bail!("{} missing or wrong", count_of(report.missing, "result"));
    }
    Ok(())
}

fn count(
    app: App,
    args: &AdsArgs,
    settings: &Settings,
    of_rank: FlowSettings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<Report> {
    let ranks = of_rank.ranks.count();
    let watch = CheckpointWatch::new(&of_rank.ranks);
    let is_gathering = of_rank.ranks.rank() == args.ranks.gather_at;
    let millis = |duration: std::time::Duration| duration.as_millis() as u64;
    let asked = Asked {
        instances: ranks * of_rank.workers.get() as u32,
        rate: args.rate.unwrap_or(0),
        duration_ms: millis(args.duration),
        window_ms: millis(args.window) as i64,
        start_ms: EPOCH_MS,
    };
    let flow = BenchmarkFlow::start(app, asked, of_rank, args.ranks.gather_at)?;
    let server = serve_flow(settings, flow.running(), is_gathering, is_json)?;
    let summary = join(flow.running(), stop, watch)?;
    drop(server);
    if summary.is_stopped {
        bail!("stopped before the end: the counts so far are unknown");
    }
    let outcome = flow.gather()?;
    let probe = probe(app, &asked, &outcome);
    let made = outcome.made.iter().flatten();
    Ok(Report {
        application: app.name(),
        ranks,
        instances: asked.instances,
        events: made.map(|made| made.events).sum(),
        seconds: outcome.seconds,
        events_per_second: probe.achieved,
        results: outcome.released.len(),
        missing: probe.missing,
        is_on_time: probe.is_on_time,
        latency_ms: probe.latency,
    })
}

impl Report {
    fn print(&self) -> anyhow::Result<()> {
        let mut table = Table::new(&[(self.application, Align::Left), ("", Align::Right)]);
        let millis = |ms: f64| match ms.is_finite() {
            true => format!("{ms:.1} ms"),
            false => "-".to_owned(),
        };
        for (name, value) in [
            ("events", grouped(self.events)),
            ("events per second", grouped(self.events_per_second as u64)),
            ("results of windows", grouped(self.results as u64)),
            ("latency of results, mean", millis(self.latency_ms.mean)),
            ("half of them within", millis(self.latency_ms.p50)),
            ("99 % within", millis(self.latency_ms.p99)),
        ] {
            table.row([name.to_owned(), value]);
        }
        print(|out| {
            table.write(out)?;
            let late = match self.is_on_time {
                true => "",
                false => "; fewer events were made than asked for",
            };
            writeln!(
                out,
                "on {} with {} of the generator; {:.2} s{late}",
                count_of(u64::from(self.ranks), "rank"),
                count_of(u64::from(self.instances), "instance"),
                self.seconds,
            )
        })
    }
}

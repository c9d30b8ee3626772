//! The cases, their pictures and their files.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::load::Sine;
use super::run::{self, PERCENTILE, Ran, WITHIN};
use super::tasks::Sent;
use crate::measure::{Bench, median, percentile};
use crate::plot;
use crate::report::{Better, Case};

pub const PEAK_90: &str = "peak-90";
pub const PEAK_150: &str = "peak-150";

/// How often tasks of each peak are run.
const ROUNDS: usize = 3;

/// A picture has the latencies of the tasks that were due in one of these.
const INTERVAL: Duration = Duration::from_secs(1);

pub fn peak_90(bench: &Bench) -> Result<Vec<Case>> {
    cases(bench, PEAK_90, 0.9)
}

pub fn peak_150(bench: &Bench) -> Result<Vec<Case>> {
    cases(bench, PEAK_150, 1.5)
}

/// A run, and the load in it.
struct Round {
    capacity: f64,
    sine: Sine,
    ran: Ran,
}

type Pick = fn(&Round) -> f64;

/// The tasks of one interval.
struct Interval {
    /// Its end, in seconds.
    at_s: f64,
    /// In a second.
    due: f64,
    refused: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// The analytics' part of all processors, in percent.
    analytics: f64,
}

fn cases(bench: &Bench, name: &str, peak: f64) -> Result<Vec<Case>> {
    let lasts = Duration::from_secs(bench.size(120, 2));
    let interval = bench.size(INTERVAL, INTERVAL / 10);
    let round = || {
        let capacity = run::capacity(Duration::from_millis(bench.size(5_000, 500)))?;
        let sine = Sine {
            peak: peak * capacity,
            half_wave_s: bench.size(30.0, 1.0),
        };
        let ran = run::run(sine, lasts, interval)?;
        ensure!(
            ran.sent.iter().any(|task| task.took_s.is_some()),
            "no task was answered"
        );
        Ok(Round {
            capacity,
            sine,
            ran,
        })
    };
    let rounds = (0..bench.size(ROUNDS, 1)).map(|_| round());
    let rounds: Vec<Round> = rounds.collect::<Result<_>>()?;
    write_csv(bench, name, &rounds, interval)?;
    draw(bench, name, &rounds[0], interval)?;
    let all = |pick: Pick| rounds.iter().map(pick).collect::<Vec<f64>>();
    let within = format!("{name}/within-{}-ms", WITHIN.as_millis());
    let mut within =
        Case::new(within, "% of admitted", Better::Higher, all(Round::within)).bound(PERCENTILE);
    let details: [(&str, Pick); 9] = [
        ("capacity_tasks_per_s", |round| round.capacity),
        ("refused_percent", Round::refused),
        ("p50_ms", |round| round.took_ms(50.0)),
        ("p99_ms", |round| round.took_ms(99.0)),
        ("p99_9_ms", |round| round.took_ms(99.9)),
        ("most_ms", |round| round.took_ms(100.0)),
        ("generator_late_p99_ms", Round::generator_late_ms),
        ("changes_of_level", |round| {
            round.ran.changes_of_level as f64
        }),
        ("tasks", |round| round.ran.sent.len() as f64),
    ];
    for (detail, pick) in details {
        within = within.detail(detail, median(&all(pick)));
    }
    let analytics = Case::new(
        format!("{name}/analytics"),
        "% of the time left",
        Better::Higher,
        all(|round| round.ran.analytics_of_rest),
    );
    Ok(vec![within, analytics])
}

impl Round {
    fn answered(&self) -> impl Iterator<Item = f64> {
        self.ran.sent.iter().filter_map(|task| task.took_s)
    }

    /// The admitted tasks that were answered in time, in percent.
    fn within(&self) -> f64 {
        let within_s = WITHIN.as_secs_f64();
        let in_time = self.answered().filter(|took_s| *took_s <= within_s);
        100.0 * in_time.count() as f64 / self.answered().count() as f64
    }

    /// Of all tasks, in percent.
    fn refused(&self) -> f64 {
        let refused = self.ran.sent.iter().filter(|task| task.took_s.is_none());
        100.0 * refused.count() as f64 / self.ran.sent.len() as f64
    }

    fn took_ms(&self, percent: f64) -> f64 {
        1e3 * percentile(self.answered().collect(), percent)
    }

    fn generator_late_ms(&self) -> f64 {
        let late = self.ran.sent.iter().map(|task| task.late_s);
        1e3 * percentile(late.collect(), 99.0)
    }

    fn intervals(&self, interval: Duration) -> Vec<Interval> {
        let interval_s = interval.as_secs_f64();
        let ends = self.ran.analytics.iter();
        let mut due: Vec<Vec<&Sent>> = ends.map(|_| Vec::new()).collect();
        for task in &self.ran.sent {
            if let Some(due) = due.get_mut((task.due_s / interval_s) as usize) {
                due.push(task);
            }
        }
        let ends = self.ran.analytics.iter().zip(due);
        ends.map(|((at_s, analytics), due)| {
            let took: Vec<f64> = due.iter().filter_map(|task| task.took_s).collect();
            Interval {
                at_s: *at_s,
                due: due.len() as f64 / interval_s,
                refused: (due.len() - took.len()) as f64 / interval_s,
                p50_ms: 1e3 * percentile(took.clone(), 50.0),
                p99_ms: 1e3 * percentile(took, 99.0),
                analytics: *analytics,
            }
        })
        .collect()
    }
}

/// Draws the latencies as figure 5.9, and the load as figure 5.10 with the analytics beside it.
fn draw(bench: &Bench, name: &str, round: &Round, interval: Duration) -> Result<()> {
    let intervals = round.intervals(interval);
    let line = |pick: &dyn Fn(&Interval) -> f64| -> Vec<(f64, f64)> {
        let points = intervals.iter().map(|it| (it.at_s, pick(it)));
        // An interval without answers has no latency.
        points.filter(|(_, value)| value.is_finite()).collect()
    };
    plot::over_time(
        &bench.out().join(format!("{name}-latency.png")),
        "latency of admitted tasks (ms), and the objective",
        [
            ("99th percentile", &line(&|it| it.p99_ms)),
            ("median", &line(&|it| it.p50_ms)),
        ],
        &(0.0..WITHIN.as_secs_f64() * 1e3),
    )?;
    plot::over_time(
        &bench.out().join(format!("{name}-load.png")),
        "tasks (% of the capacity), and the analytics (% of all processors)",
        [
            ("tasks", &line(&|it| 100.0 * it.due / round.capacity)),
            ("analytics", &line(&|it| it.analytics)),
        ],
        &(0.0..100.0),
    )
}

fn write_csv(bench: &Bench, name: &str, rounds: &[Round], interval: Duration) -> Result<()> {
    let mut csv =
        "round,seconds,rate_per_s,due_per_s,refused_per_s,p50_ms,p99_ms,analytics_percent\n"
            .to_owned();
    for (number, round) in (1..).zip(rounds) {
        for it in round.intervals(interval) {
            csv += &format!(
                "{number},{:.2},{:.0},{:.0},{:.0},{:.3},{:.3},{:.2}\n",
                it.at_s,
                round.sine.rate(it.at_s - interval.as_secs_f64() / 2.0),
                it.due,
                it.refused,
                it.p50_ms,
                it.p99_ms,
                it.analytics
            );
        }
    }
    let path = bench.out().join(format!("{name}.csv"));
    fs::write(&path, csv).with_context(|| format!("cannot write {path:?}"))
}

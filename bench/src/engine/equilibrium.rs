//! Whether throughput is steady, once it is.

use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use millstream_logparser::Staging;

use super::by_hand;
use super::ours::{self, WORKERS};
use crate::measure::{Bench, ROUNDS, ended, median, rounds_of};
use crate::plot;
use crate::report::{Better, Case};
use crate::text::Text;

pub const EQUILIBRIUM: &str = "equilibrium";

/// How far an interval's throughput may differ from the mean, in percent of the mean.
const OFF_PERCENT_MAX: f64 = 10.0;

/// Throughput over time: at the end of each interval, in seconds since the start, that of the
/// interval, in MB/s.
type Rates = Vec<(f64, f64)>;

/// Separate stages, and beside them the loop by hand: it shows how steady the machine is.
pub fn equilibrium(bench: &Bench) -> Result<Vec<Case>> {
    let text = bench.text()?;
    let interval = Duration::from_millis(bench.size(100, 2));
    let steady_from = bench.size(1.5, 0.004);
    let seconds = bench.size(6.0, 0.1);
    let passes = ours::passes_in(text, seconds)?;
    let by_hand_passes = by_hand_passes_in(text, seconds)?;
    let turns = rounds_of(bench.size(ROUNDS, 1), 2, |contender| match contender {
        0 => rates_of_ours(text, passes, interval),
        _ => rates_by_hand(text, by_hand_passes, interval),
    })?;
    let rounds: Vec<[Rates; 2]> = turns[0]
        .iter()
        .cloned()
        .zip(turns[1].iter().cloned())
        .map(|(ours, by_hand)| [ours, by_hand])
        .collect();
    write_csv(bench, &rounds)?;
    for rates in rounds.iter().flatten() {
        ensure!(
            rates.last().is_some_and(|(at, _)| *at > steady_from),
            "a run ended before {steady_from} s"
        );
    }
    let [ours, by_hand] = &rounds[0];
    let of_ours = Steady::of(ours, steady_from);
    let name = "throughput per interval, separate stages (MB/s)";
    plot::over_time(
        &bench.out().join("equilibrium-throughput.png"),
        name,
        [("ours", ours), ("by hand", by_hand)],
        &of_ours.band(),
    )?;

    let steady = |n: usize| {
        rounds
            .iter()
            .map(move |round| Steady::of(&round[n], steady_from))
    };
    let all = |n: usize, pick: fn(&Steady) -> f64| {
        steady(n).map(|steady| pick(&steady)).collect::<Vec<f64>>()
    };
    Ok(vec![
        Case::new(
            EQUILIBRIUM,
            "% off the mean",
            Better::Lower,
            all(0, |steady| steady.off_percent_max),
        )
        .bound(OFF_PERCENT_MAX)
        .peer("by hand", median(&all(1, |steady| steady.off_percent_max)))
        .detail(
            "within_10_percent_of_intervals",
            median(&all(0, |s| s.within_percent)),
        )
        .detail(
            "by_hand_within_10_percent_of_intervals",
            median(&all(1, |s| s.within_percent)),
        )
        .detail(
            "by_hand_off_percent",
            median(&all(1, |s| s.off_percent_max)),
        )
        .detail("mean_mb_per_s", median(&all(0, |s| s.mean)))
        .detail("by_hand_mean_mb_per_s", median(&all(1, |s| s.mean)))
        .detail(
            "intervals",
            steady(0).map(|s| s.intervals).sum::<usize>() as f64,
        ),
    ])
}

/// How steady throughput was from some time on.
struct Steady {
    intervals: usize,
    mean: f64,
    /// The largest difference from the mean, in percent of it.
    off_percent_max: f64,
    /// Intervals that differ by 10 % or less, in percent of all.
    within_percent: f64,
}

impl Steady {
    fn of(rates: &Rates, from: f64) -> Steady {
        let rates = rates.iter().filter(|(at, _)| *at > from);
        let rates: Vec<f64> = rates.map(|(_, rate)| *rate).collect();
        let count = rates.len() as f64;
        let mean = rates.iter().sum::<f64>() / count;
        let off = rates.iter().map(|rate| (rate / mean - 1.0).abs() * 100.0);
        let within = off.clone().filter(|off| *off <= OFF_PERCENT_MAX).count() as f64;
        Steady {
            intervals: rates.len(),
            mean,
            off_percent_max: off.fold(0.0, f64::max),
            within_percent: within / count * 100.0,
        }
    }

    /// Returns the band that the throughput should stay in.
    fn band(&self) -> Range<f64> {
        let off = self.mean * OFF_PERCENT_MAX / 100.0;
        self.mean - off..self.mean + off
    }
}

fn rates_of_ours(text: &Text, passes: usize, interval: Duration) -> Result<Rates> {
    let parser = ours::start(
        text.paths(passes),
        Staging::Separate,
        ours::settings(WORKERS),
    )?;
    let running = parser.running();
    let rates = watch(interval, || running.is_finished(), || parser.bytes());
    ended(running)?;
    text.check(ours::counted(&parser), passes)?;
    Ok(rates)
}

fn rates_by_hand(text: &Text, passes: usize, interval: Duration) -> Result<Rates> {
    let progress = AtomicU64::new(0);
    thread::scope(|scope| {
        let paths = text.paths(passes);
        let count = scope.spawn(|| by_hand::count(paths, WORKERS, &progress));
        let bytes = || progress.load(Ordering::Relaxed);
        let rates = watch(interval, || count.is_finished(), bytes);
        let counted = count.join();
        let counted = counted.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        text.check(counted, passes)?;
        Ok(rates)
    })
}

fn by_hand_passes_in(text: &Text, seconds: f64) -> Result<usize> {
    let took = by_hand::run(text, WORKERS)?;
    Ok((seconds / took.seconds).ceil() as usize)
}

/// Looks at something at the end of each interval, but for the one in which it finishes.
fn watch(interval: Duration, is_finished: impl Fn() -> bool, bytes: impl Fn() -> u64) -> Rates {
    let started_at = Instant::now();
    let mut rates = Vec::new();
    let (mut at_before, mut bytes_before) = (0.0, bytes());
    loop {
        let due = interval * (rates.len() as u32 + 1);
        thread::sleep(due.saturating_sub(started_at.elapsed()));
        let (at, bytes) = (started_at.elapsed().as_secs_f64(), bytes());
        if is_finished() {
            return rates;
        }
        rates.push((at, (bytes - bytes_before) as f64 / 1e6 / (at - at_before)));
        (at_before, bytes_before) = (at, bytes);
    }
}

fn write_csv(bench: &Bench, rounds: &[[Rates; 2]]) -> Result<()> {
    let mut csv = "round,contender,seconds,mb_per_s\n".to_owned();
    for (number, round) in rounds.iter().enumerate() {
        for (name, rates) in ["ours", "by hand"].iter().zip(round) {
            for (at, rate) in rates {
                csv += &format!("{},{name},{at:.4},{rate:.2}\n", number + 1);
            }
        }
    }
    let path = bench.out().join("equilibrium-throughput.csv");
    fs::write(&path, csv).with_context(|| format!("cannot write {path:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steady_rate_ignores_the_start() {
        let rates = [500.0, 100.0, 109.0, 91.0, 100.0, 100.0, 80.0, 120.0];
        let rates = (1..).map(f64::from).zip(rates).collect();
        let steady = Steady::of(&rates, 1.0);
        assert_eq!((steady.intervals, steady.mean), (7, 100.0));
        assert_eq!(steady.off_percent_max.round(), 20.0);
        assert_eq!(steady.within_percent.round(), 71.0);
        assert_eq!(steady.band(), 90.0..110.0);
    }
}

//! The order of a benchmark run, its outcome, and the check of the outcome.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::app::{App, Counts};
use crate::workload::{Expected, Made, Schedule};

/// The largest part of its events that an on-time generator may be missing at the end.
const BEHIND: f64 = 0.01;

/// The settings of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Instances of the generator, on all ranks together.
    pub instances: u32,
    /// Events per second of all instances together; 0 for the highest possible rate.
    pub rate: u64,
    /// The duration of the generator's run.
    pub duration_ms: u64,
    /// Length of the windows.
    pub window_ms: i64,
    /// The time of events at the start.
    pub start_ms: i64,
}

impl Order {
    /// Returns a run over one whole window, with a tenth of a window before it and after it.
    pub fn of_window(window_ms: i64, rate: u64, instances: u32) -> Order {
        /// Any time would do; it is the start of a window of each length.
        const EPOCH_MS: i64 = 1_700_000_000_000;
        let before_ms = window_ms / 10;
        Order {
            instances,
            rate,
            duration_ms: (window_ms + 2 * before_ms).unsigned_abs(),
            window_ms,
            start_ms: EPOCH_MS - before_ms,
        }
    }

    /// Returns the schedule of one instance.
    pub fn schedule(&self) -> Schedule {
        Schedule {
            start_ms: self.start_ms,
            window_ms: self.window_ms,
            rate: self.rate / u64::from(self.instances),
            duration_ms: self.duration_ms,
        }
    }

    /// Returns the number of events at the end, where there is a rate.
    fn events(&self) -> u64 {
        self.rate * self.duration_ms / 1000
    }
}

/// The result of a window for a key.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Released {
    /// The start of the window.
    pub window_ms: i64,
    /// The ad or the campaign.
    pub key: u32,
    /// Events, or views.
    pub count: u64,
    /// 0 where clicks are not counted.
    pub clicks: u64,
    /// Clicks for each view, where clicks are counted.
    pub ratio: f64,
    /// The largest time of its events.
    pub time_ms: i64,
    /// By the clock that gave events their times.
    pub released_ms: f64,
}

/// The outcome of a finished run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// From the start until the last event was generated.
    pub seconds: f64,
    /// By instance.
    pub made: Vec<Vec<Made>>,
    /// The results of all windows.
    pub released: Vec<Released>,
}

/// The measurements of a run at its rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Probe {
    /// The ordered events per second; 0 for the highest possible rate.
    pub rate: u64,
    /// The generated events per second.
    pub achieved: f64,
    /// Whether the generator reached the ordered rate.
    pub is_on_time: bool,
    /// The number of missing results, and of wrong ones because of dropped events.
    pub missing: u64,
    /// The time from the last event of a result to its release.
    pub latency: Latency,
}

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    /// The mean of all.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// Compares a run's results with the counts of its generator.
pub fn probe(app: App, order: &Order, outcome: &Outcome) -> Probe {
    let expected = Expected::of(&outcome.made);
    let mut found: HashMap<(i64, u32), Vec<&Released>> = HashMap::new();
    for released in &outcome.released {
        let place = (released.window_ms, released.key);
        found.entry(place).or_default().push(released);
    }
    let mut missing = 0;
    let mut latencies = Vec::new();
    for (window_ms, counts) in expected.windows() {
        let is_complete = window_ms + order.window_ms <= expected.complete_until_ms();
        for key in 0..app.keys() {
            let released = found.remove(&(*window_ms, key)).unwrap_or_default();
            let is_right = match (&released[..], app.expected(counts, key)) {
                ([], None) => true,
                ([], Some(_)) => !is_complete,
                ([one], Some(counts)) => agrees(one, counts, app),
                _ => false,
            };
            missing += u64::from(!is_right);
            if is_complete && let [one] = &released[..] {
                latencies.push(one.released_ms - one.time_ms as f64);
            }
        }
    }
    let events: u64 = outcome.made.iter().flatten().map(|made| made.events).sum();
    Probe {
        rate: order.rate,
        achieved: events as f64 / outcome.seconds,
        is_on_time: events as f64 >= order.events() as f64 * (1.0 - BEHIND),
        // The remaining results match no generated event.
        missing: missing + found.len() as u64,
        latency: Latency::of(latencies),
    }
}

fn agrees(released: &Released, counts: Counts, app: App) -> bool {
    let has_ratio = match app {
        App::YsbStar => {
            let ratio = counts.clicks as f64 / counts.count as f64;
            (released.ratio - ratio).abs() <= 1e-6 * ratio
        }
        App::Swa | App::Ysb => true,
    };
    has_ratio && (released.count, released.clicks) == (counts.count, counts.clicks)
}

impl Latency {
    /// Returns the latencies of these values.
    pub fn of(mut values: Vec<f64>) -> Latency {
        values.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| {
            let place = (values.len() as f64 * part).ceil() as usize;
            values
                .get(place.saturating_sub(1))
                .copied()
                .unwrap_or(f64::NAN)
        };
        Latency {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: at(0.5),
            p99: at(0.99),
        }
    }
}

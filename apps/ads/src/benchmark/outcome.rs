//! What is asked for, what was done, and whether that was right.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::app::{App, Counts};
use crate::workload::{Expected, Made, Schedule};

/// How late a generator may be at the end: this part of its events is missing.
const BEHIND: f64 = 0.01;

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Instances of the generator, on all ranks together.
    pub instances: u32,
    /// Events in a second, of all instances together; 0: as many as can be.
    pub rate: u64,
    /// How long events are made.
    pub duration_ms: u64,
    /// Length of the windows.
    pub window_ms: i64,
    /// The time of events at the start.
    pub start_ms: i64,
}

impl Order {
    /// A window of 10 seconds, and what of a window lies before.
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

    /// What one instance has to make.
    pub fn schedule(&self) -> Schedule {
        Schedule {
            start_ms: self.start_ms,
            window_ms: self.window_ms,
            rate: self.rate / u64::from(self.instances),
            duration_ms: self.duration_ms,
        }
    }

    /// How many events there must be at the end, where there is a rate.
    fn events(&self) -> u64 {
        self.rate * self.duration_ms / 1000
    }
}

/// What a window said of a key.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Released {
    /// The start of the window.
    pub window_ms: i64,
    /// The ad or the campaign.
    pub key: u32,
    /// Events, or views.
    pub count: u64,
    /// 0 where none are counted.
    pub clicks: u64,
    /// Clicks for each view, where clicks are counted.
    pub ratio: f64,
    /// The largest time of its events.
    pub time_ms: i64,
    /// By the clock that gave events their times.
    pub released_ms: f64,
}

/// A run that is over.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// From the start until the last event was made.
    pub seconds: f64,
    /// By instance.
    pub made: Vec<Vec<Made>>,
    /// What windows said.
    pub released: Vec<Released>,
}

/// What a run tells of its rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Probe {
    /// Events in a second that were asked for; 0: as many as could be.
    pub rate: u64,
    /// Events in a second that were made.
    pub achieved: f64,
    /// Whether the generator made what was asked for.
    pub is_on_time: bool,
    /// Results that did not come, or were wrong since events were dropped.
    pub missing: u64,
    /// From the time of the last event of a result until it was released.
    pub latency: Latency,
}

/// In milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Of all.
    pub mean: f64,
    /// Half of them are no longer.
    pub p50: f64,
    /// 99 % of them are no longer.
    pub p99: f64,
}

/// Holds a run against what its generator made.
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
                ([one], Some(counts)) => says(one, counts, app),
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
        // What is left was made by nobody.
        missing: missing + found.len() as u64,
        latency: Latency::of(latencies),
    }
}

fn says(released: &Released, counts: Counts, app: App) -> bool {
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
    /// Of these values.
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

//! Counts by key over windows of more and more sizes and slides, beside tumbling windows.

use anyhow::Result;
use millstream_flow::windows::Windows;

use super::load::{INSTANCES, Load};
use crate::measure::{Bench, Took, cpu_median, energy_median, energy_suffix};
use crate::report::{Better, Case};

pub const SLIDING: &str = "sliding";

/// Size and slide in milliseconds. The first is tumbling, and the limit of all others.
const GRID: [(i64, i64); 9] = [
    (1000, 1000),
    (1000, 500),
    (1000, 200),
    (1000, 100),
    (1000, 20),
    (1000, 10),
    (100, 100),
    (5000, 100),
    (10_000, 100),
];

const KEYS: u64 = 1000;

/// Events of an instance in a millisecond of event time.
const EVENTS_PER_MS: u64 = 500;

pub fn sliding(bench: &Bench) -> Result<Vec<Case>> {
    // Of each instance: 20 seconds of event time.
    let load = Load {
        keys: KEYS,
        events_per_ms: EVENTS_PER_MS,
        events: bench.size(20_000, 400) * EVENTS_PER_MS,
    };
    let rounds = bench.turns(GRID.len(), |place| {
        let (size_ms, slide_ms) = GRID[place];
        let windows = match size_ms == slide_ms {
            true => Windows::tumbling(size_ms),
            false => Windows::sliding(size_ms, slide_ms),
        };
        load.count(windows, (size_ms / slide_ms).unsigned_abs())
    })?;
    let rates = |place: usize| -> Vec<f64> {
        let all = (load.events * INSTANCES) as f64 / 1e6;
        rounds[place]
            .iter()
            .map(|took: &Took| all / took.seconds)
            .collect()
    };
    let cases = GRID.iter().enumerate().map(|(place, (size, slide))| {
        let name = format!("{SLIDING}/{size}-by-{slide}-ms");
        let case = Case::new(name, "M events/s", Better::Higher, rates(place));
        let case = match place {
            0 => case,
            _ => case.by_hand(rates(0)),
        };
        case.detail("windows_of_an_event", (size / slide) as f64)
            .detail("cpu_s", cpu_median(&rounds[place]))
            .detail(
                &format!("energy_{}", energy_suffix()),
                energy_median(&rounds[place]),
            )
    });
    Ok(cases.collect())
}

//! Counts by key over windows of more and more sizes and slides, beside tumbling windows.

use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Result, ensure};
use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{Flow, FlowSettings, PartialState, Watermarks};
use serde_json::Value;

use crate::measure::{Bench, Took, cpu_median, energy_median, energy_suffix, time};
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

/// Instances of the source, and workers.
const INSTANCES: u64 = 2;

/// An event: its key, and its time.
type Event = (u32, Timestamp);

pub fn sliding(bench: &Bench) -> Result<Vec<Case>> {
    // Of each instance: 20 seconds of event time.
    let events = bench.size(20_000, 400) * EVENTS_PER_MS;
    let rounds = bench.turns(GRID.len(), |place| run(GRID[place], events))?;
    let rates = |place: usize| -> Vec<f64> {
        let all = (events * INSTANCES) as f64 / 1e6;
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

/// Counts so many events of each instance. Each must be counted in each of its windows.
fn run((size_ms, slide_ms): (i64, i64), events: u64) -> Result<Took> {
    let windows = match size_ms == slide_ms {
        true => Windows::tumbling(size_ms),
        false => Windows::sliding(size_ms, slide_ms),
    };
    let settings = FlowSettings {
        workers: NonZeroUsize::new(INSTANCES as usize).expect("there are instances"),
        ..FlowSettings::default()
    };
    time(|| {
        let mut flow = Flow::with_settings(SLIDING, settings);
        let counts = flow.windowed::<u32, _>("counts", windows, Count);
        let sums = flow.partial::<Sums>("sums");
        let source = |_| Generator::new(event).limit(events);
        let sources: Vec<_> = (0..INSTANCES).map(source).collect();
        flow.sources("events", sources)
            .watermarks(
                |(_, time): &Event| *time,
                Watermarks::bounded(Duration::ZERO),
            )
            .key_by(|(key, _): &Event| *key)
            .aggregate("count", &counts, |(_, time)| *time)
            .fold_local(&sums, Sums::add);
        flow.run()?.join()?;
        let sums = sums.merged();
        let expected = events * INSTANCES * (size_ms / slide_ms) as u64;
        ensure!(
            sums.counted == expected && counts.late_events() == 0,
            "{} events were counted of {expected}, {} came too late",
            sums.counted,
            counts.late_events()
        );
        Ok(())
    })
}

/// Its key is scattered, its time follows from its number.
fn event(number: u64) -> Event {
    let key = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % KEYS;
    (key as u32, Timestamp((number / EVENTS_PER_MS) as i64))
}

/// What all windows say together.
#[derive(Default)]
struct Sums {
    counted: u64,
}

impl Sums {
    fn add(&mut self, result: &WindowResult<u32, u64>) {
        self.counted += result.value;
    }
}

impl PartialState for Sums {
    fn merge(&mut self, part: &Self) {
        self.counted += part.counted;
    }

    fn get(_: &[&Self], _: &str) -> Option<Value> {
        None
    }

    fn keys(_: &[&Self], _: usize) -> Vec<String> {
        Vec::new()
    }
}

//! Counts by key over windows of events that are made in memory.

use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Result, ensure};
use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{Flow, FlowSettings, PartialState, Watermarks};
use serde_json::Value;

use crate::measure::{Took, ended, time};

/// Instances of the source, and workers.
pub const INSTANCES: u64 = 2;

/// An event: its key, and its time.
pub type Event = (u32, Timestamp);

/// The events of an instance.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// How many keys there are.
    pub keys: u64,
    /// Events in a millisecond of event time.
    pub events_per_ms: u64,
    /// Events in all.
    pub events: u64,
}

impl Load {
    /// The event of this number: its key is scattered, its time follows from its number.
    pub fn event(&self, number: u64) -> Event {
        let key = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % self.keys;
        (key as u32, Timestamp((number / self.events_per_ms) as i64))
    }

    /// Counts the events of all instances with a flow. Each must be counted in `windows_each` windows.
    pub fn count(&self, windows: Windows, windows_each: u64) -> Result<Took> {
        let load = *self;
        let settings = FlowSettings {
            workers: NonZeroUsize::new(INSTANCES as usize).expect("there are instances"),
            ..FlowSettings::default()
        };
        time(|| {
            let flow = Flow::with_settings("counts", settings);
            let counts = flow.windowed::<u32, _>("counts", windows, Count);
            let sums = flow.partial::<Sums>("sums");
            let source = |_| Generator::new(move |number| load.event(number)).limit(load.events);
            let sources: Vec<_> = (0..INSTANCES).map(source).collect();
            flow.sources("events", sources)
                .watermarks(
                    |(_, time): &Event| *time,
                    Watermarks::bounded(Duration::ZERO),
                )
                .key_by(|(key, _): &Event| *key)
                .aggregate("count", &counts, |(_, time)| *time)
                .fold_local(&sums, Sums::add);
            ended(&flow.run()?)?;
            let sums = sums.merged();
            self.check(sums.counted, windows_each)?;
            ensure!(
                counts.late_events() == 0,
                "{} events came too late",
                counts.late_events()
            );
            Ok(())
        })
    }

    /// Refuses a count that is not that of all events.
    pub fn check(&self, counted: u64, windows_each: u64) -> Result<()> {
        let expected = self.events * INSTANCES * windows_each;
        ensure!(
            counted == expected,
            "{counted} events were counted of {expected}"
        );
        Ok(())
    }
}

/// The sum of all windows' results.
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

//! A flow that counts generated events by key.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use millstream_connect::LogCheckpoints;
use millstream_flow::sources::Generator;
use millstream_flow::{Checkpointing, Flow, FlowSettings, Resume, Running, Values};
use millstream_log::{Log, LogConfig};

use crate::folder::Folder;
use crate::measure::{Bench, Took, ended, time};

/// Instances of the source, and workers.
pub const INSTANCES: u64 = 2;

/// The interval of checkpoints, unless a case has another.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// The state element.
pub const COUNTS: &str = "counts";

pub const FLOW: &str = "clicks";

/// Scatters numbers: 2^64 divided by the golden ratio.
pub const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The events of a flow.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub keys: u64,
    pub order: Order,
    /// Events of all instances together.
    pub events: u64,
    /// Of all instances together; `None` for as many as possible.
    pub events_per_second: Option<f64>,
}

/// The order of the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Scattered,
    /// One after the other, so that neighbouring events have different keys.
    Round,
}

/// The figures of a run.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    pub took: Took,
    /// Checkpoints that were stored, and changed keys in them.
    pub checkpoints: f64,
    pub changed_keys: f64,
    /// The time to write the last checkpoint.
    pub last_s: f64,
}

impl Load {
    fn key(&self, number: u64) -> u64 {
        match self.order {
            Order::Scattered => (number.wrapping_mul(SPREAD) >> 32) % self.keys,
            Order::Round => number % self.keys,
        }
    }

    /// Starts the flow. With `checkpoints` it keeps its state in their log, or else in memory only.
    pub fn start(
        &self,
        checkpoints: Option<Checkpointing>,
        on_event: impl Fn() + Clone + Send + 'static,
    ) -> Result<(Running, Values<u64, u64>)> {
        let settings = FlowSettings {
            workers: NonZeroUsize::new(INSTANCES as usize).expect("there are instances"),
            checkpoints,
            ..FlowSettings::default()
        };
        let clock = Arc::clone(&settings.clock);
        let load = *self;
        let flow = Flow::with_settings(FLOW, settings);
        let counts = flow.values::<u64, u64>(COUNTS);
        let source = |instance| {
            let on_event = on_event.clone();
            let make = move |number| {
                on_event();
                load.key(number * INSTANCES + instance)
            };
            let source = Generator::new(make).limit(load.events / INSTANCES);
            match load.events_per_second {
                Some(rate) => source.rate(rate / INSTANCES as f64, Arc::clone(&clock)),
                None => source,
            }
        };
        flow.sources("events", (0..INSTANCES).map(source).collect::<Vec<_>>())
            .key_by(|key| *key)
            .count("count", &counts);
        Ok((flow.run()?, counts))
    }

    /// Runs the flow with its state in a new log.
    pub fn run_kept(&self, bench: &Bench, folder: &Folder, interval: Duration) -> Result<Ran> {
        folder.empty()?;
        let log = Log::open(LogConfig::new(folder.path().join("log")))?;
        bench.settle_disk();
        let mut ran = None;
        let took = time(|| {
            let checkpoints = checkpoints(&log, interval, Resume::Never);
            let (running, counts) = self.start(Some(checkpoints), || {})?;
            ended(&running)?;
            ran = Some((running, counts));
            Ok(())
        })?;
        let (running, counts) = ran.expect("it ran");
        self.check(&counts)?;
        let stored = running.checkpoints().unwrap_or_default();
        ensure!(
            stored.failed == 0,
            "a checkpoint failed: {:?}",
            stored.error
        );
        let last = stored.last.and_then(|last| last.seconds);
        let changed_keys = changed_keys(&log)?;
        drop((running, counts));
        log.close()?;
        Ok(Ran {
            took,
            checkpoints: stored.kept as f64,
            changed_keys,
            last_s: last.unwrap_or(f64::NAN),
        })
    }

    /// Runs the flow with its state in memory only.
    pub fn run_unkept(&self) -> Result<Ran> {
        let mut counted = None;
        let took = time(|| {
            let (running, counts) = self.start(None, || {})?;
            ended(&running)?;
            counted = Some(counts);
            Ok(())
        })?;
        self.check(&counted.expect("it ran"))?;
        Ok(Ran {
            took,
            checkpoints: 0.0,
            changed_keys: 0.0,
            last_s: 0.0,
        })
    }

    /// Checks that each event was counted.
    fn check(&self, counts: &Values<u64, u64>) -> Result<()> {
        let counted: u64 = (0..self.keys).filter_map(|key| counts.get(&key)).sum();
        ensure!(
            counted == self.events,
            "{counted} events were counted of {}",
            self.events
        );
        Ok(())
    }

    pub fn million_per_second(&self, rounds: &[Ran]) -> Vec<f64> {
        let rate = |ran: &Ran| self.events as f64 / 1e6 / ran.took.seconds;
        rounds.iter().map(rate).collect()
    }
}

/// Checkpoints in a log.
pub fn checkpoints(log: &Log, interval: Duration, resume: Resume) -> Checkpointing {
    Checkpointing {
        store: Arc::new(LogCheckpoints::new(log, FLOW)),
        interval: Some(interval),
        resume,
    }
}

/// The name of the stream with the changes of the state.
pub fn changelog() -> String {
    format!("{FLOW}.state.{COUNTS}")
}

/// How many changed keys are stored. The marker of each transaction in a partition counts, too.
fn changed_keys(log: &Log) -> Result<f64> {
    let stream = log.stream(&changelog())?;
    let mut changed = 0;
    for partition in 0..stream.partition_count() {
        changed += stream.partition(partition)?.next_offset().0;
    }
    Ok(changed as f64)
}

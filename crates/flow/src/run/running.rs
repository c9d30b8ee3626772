//! A flow at work, as its owner sees it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millstream_base::Timestamp;
use serde::Serialize;

use crate::checkpoint::coordinator::Purpose;
use crate::checkpoint::counts::CheckpointCounts;
use crate::checkpoint::trail::CheckpointView;
use crate::error::FlowError;
use crate::graph::Graph;
use crate::ranks::asking::{Asking, Lines};
use crate::run::elements::StateElement;
use crate::run::scheduler::room;
use crate::run::settings::FlowSettings;
use crate::run::state_reads;
use crate::run::waits::{self, Wait};
use crate::run::workers::Workers;
use crate::sources::positions::Position;
use crate::stage::contract::Stage;
use crate::stage::metrics::{Latency, StageMetrics, new_histogram};
use crate::state::late::LateTo;
use crate::state::partial::StateReader;
use crate::state::watched::{NotWatched, WatchedElement};
use crate::time::partitions::PartitionId;
use crate::topology::watermark::watermark;

/// A flow at work. Share it in an `Arc`: every method takes `&self`. Dropped, the flow ends where
/// it stands.
pub struct Running {
    pub(super) workers: Arc<Workers>,
    /// Access to the state of other ranks, if there are several.
    pub(super) asking: Option<Asking>,
}

/// The summary of a flow that has ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The flow.
    pub flow: String,
    /// Whether it was stopped before its input ended.
    pub is_stopped: bool,
    /// From the start to the end of the last worker.
    pub duration: Duration,
    /// Workers that died.
    pub workers_died: u64,
    /// Workers that died and were replaced.
    pub workers_replaced: u64,
    /// See [`Running::lost_wakeups`].
    pub lost_wakeups: u64,
    /// Its stages, in the order of the graph.
    pub stages: Vec<StageMetrics>,
}

/// Items that came too late for their window, since the flow began. If the flow resumed from a checkpoint, items of earlier
/// runs are counted, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LateEvents {
    /// The state element with the windows.
    pub state: String,
    /// How many.
    pub late_events: u64,
    /// Their destination.
    pub to: LateTo,
}

/// Items of a source that came too late for their window since the run began, as far as they were found in the source's
/// stage: behind a queue or a fork, the source is not known any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LateSource {
    /// The source's stage.
    pub stage: String,
    /// The partition's number; absent for a source that has but one.
    pub partition: Option<u64>,
    /// How many.
    pub late_events: u64,
}

/// Returns since when all sources of a stage that emits watermarks have given nothing.
fn silent_since(stage: &dyn Stage) -> Option<Duration> {
    let (times, _) = stage.source_times()?;
    let since: Option<Vec<Duration>> = times.iter().map(|time| time.silent_since).collect();
    since?.into_iter().max()
}

impl Running {
    pub(crate) fn start(
        graph: Graph,
        settings: FlowSettings,
        purpose: Purpose,
        lines: Option<Lines>,
    ) -> Result<Running, FlowError> {
        let workers = Workers::start(graph, settings, purpose)?;
        let asking = lines.map(|lines| state_reads::start(lines, &workers));
        let asking = asking.transpose().map_err(|error| FlowError::Worker {
            flow: workers.name.clone(),
            error: Arc::new(error),
        });
        let asking = asking.inspect_err(|_| workers.abandon())?;
        Ok(Running { workers, asking })
    }

    /// The name of the flow.
    pub fn name(&self) -> &str {
        &self.workers.name
    }

    /// Reads no more from the sources. Their items so far are processed; windows stay open.
    pub fn stop(&self) {
        self.workers.stopping.store(true, Ordering::Relaxed);
        self.workers.coordinator.stopped();
        self.workers.doorbell.ring_all();
    }

    /// Whether all workers have left: the input has ended, or the flow was stopped or has failed.
    pub fn is_finished(&self) -> bool {
        self.workers.is_finished()
    }

    /// Waits for the end of the flow.
    ///
    /// # Errors
    /// Why the flow failed.
    pub fn join(&self) -> Result<Summary, FlowError> {
        let duration = self.workers.join()?;
        Ok(Summary {
            flow: self.name().to_owned(),
            is_stopped: self.workers.stopping.load(Ordering::Relaxed),
            duration,
            workers_died: self.workers.died(),
            workers_replaced: self.workers.replaced(),
            lost_wakeups: self.workers.lost_wakeups(),
            stages: self.metrics(),
        })
    }

    /// Returns the error that has ended the flow; `None` if it works, or has ended without one.
    pub fn failure(&self) -> Option<FlowError> {
        self.workers.error.lock().clone()
    }

    /// Returns a function that returns the same, and does not keep the flow.
    pub(crate) fn failure_watch(&self) -> impl Fn() -> Option<FlowError> + Send + Sync + use<> {
        let workers = Arc::downgrade(&self.workers);
        move || workers.upgrade()?.error.lock().clone()
    }

    /// Returns the figures of each stage, in the order of the graph.
    pub fn metrics(&self) -> Vec<StageMetrics> {
        let rings = self.workers.doorbell.rings();
        let clock = &self.workers.clock;
        let (now, now_ms) = (clock.monotonic(), clock.now().0);
        let metrics = |stage: &Arc<dyn Stage>| {
            let watermark_ms = watermark(&**stage).map(|Timestamp(ms)| ms);
            let lag_ms = watermark_ms.map(|ms| now_ms.saturating_sub(ms));
            let positions = stage.positions();
            let lag = |positions: Vec<Position>| positions.iter().map(Position::lag_records).sum();
            StageMetrics {
                readable: stage.readable(rings),
                room: room(&**stage),
                capacity: stage.input().map(|input| input.capacity()),
                watermark_ms,
                watermark_lag_seconds: lag_ms.map(|ms| ms as f64 / 1e3),
                silent_seconds: silent_since(&**stage)
                    .map(|since| now.saturating_sub(since).as_secs_f64()),
                lag_records: positions.map(lag),
                ..stage.counters().read(stage.name())
            }
        };
        self.workers.stages.iter().map(metrics).collect()
    }

    /// Returns the flow's position in each partition of the streams that it reads, as far as its sources know.
    pub fn positions(&self) -> Vec<Position> {
        self.workers.positions()
    }

    /// Offsets of the streams that it reads which the flow could read and has not, of records and of markers of transactions;
    /// `None` where no source knows.
    pub fn lag_records(&self) -> Option<u64> {
        let stages = self.workers.stages.iter();
        let mut positions = stages.filter_map(|stage| stage.positions()).peekable();
        positions.peek()?;
        Some(
            positions
                .flatten()
                .map(|position| position.lag_records())
                .sum(),
        )
    }

    /// By state element with windows: the items that came too late for theirs.
    pub fn late_events(&self) -> Vec<LateEvents> {
        let states = self.workers.states.iter();
        states
            .filter_map(|(name, state)| {
                Some(LateEvents {
                    state: name.clone(),
                    late_events: state.late_events()?,
                    to: state.late_to(),
                })
            })
            .collect()
    }

    /// By source and partition: the items that came too late for their windows; nothing for those without any.
    pub fn late_sources(&self) -> Vec<LateSource> {
        let stages = self.workers.stages.iter();
        let late = stages.flat_map(|stage| {
            let late = stage.late().into_iter();
            late.map(|(partition, late_events)| LateSource {
                stage: stage.name().to_owned(),
                partition: partition.map(|PartitionId(partition)| partition),
                late_events,
            })
        });
        late.collect()
    }

    /// Returns the sources that hold back event time, and so the windows that wait for it; nothing for a flow without
    /// windows. Idleness of all sources is reported by a flow on one rank: on several, sources of other ranks may
    /// emit watermarks.
    pub fn waits(&self) -> Vec<Wait> {
        match self.workers.closes_by_time && !self.is_finished() {
            true => {
                let now = self.workers.clock.monotonic();
                waits::of(&self.workers.stages, now, self.workers.is_alone())
            }
            false => Vec::new(),
        }
    }

    /// Returns the latency from the source to the end of the items that have arrived so far.
    pub fn latency(&self) -> Latency {
        let mut sum = new_histogram();
        for stage in &self.workers.stages {
            // The bounds are the same.
            let _ = sum.add(&*stage.counters().latency().lock());
        }
        Latency::of(&sum)
    }

    /// Workers that exist now, asleep or not.
    pub fn workers(&self) -> usize {
        self.workers.count()
    }

    /// Workers that have died so far, and were replaced.
    pub fn workers_replaced(&self) -> u64 {
        self.workers.replaced()
    }

    /// Returns how often all workers slept although a stage had input and room, until a timer woke one of them. It stays 0: any
    /// other number is a fault of the engine.
    pub fn lost_wakeups(&self) -> u64 {
        self.workers.lost_wakeups()
    }

    /// Kills `count` workers in the middle of their work, as a demonstration: others take their place, unless the
    /// flow [does not replace workers](crate::FlowSettings::replaces_workers), and continue with the items in hand.
    pub fn kill_workers(&self, count: usize) {
        self.workers.condemn(count);
    }

    /// The rank that this is, of those that run the flow together.
    pub fn rank(&self) -> u32 {
        self.workers.ranks.rank()
    }

    /// The number of ranks that run the flow together.
    pub fn ranks(&self) -> u32 {
        self.workers.ranks.count()
    }

    /// Returns the last checkpoint of this run that is complete on all ranks; `None` before the first one.
    pub fn complete_checkpoint(&self) -> Option<CheckpointView> {
        self.workers.trail.complete()
    }

    /// Returns the number of that checkpoint; 0 before the first one.
    pub fn last_complete_checkpoint(&self) -> u64 {
        self.workers.trail.last_complete()
    }

    /// Lets the next checkpoint be taken at its time although nothing was processed since the last one.
    pub fn want_checkpoint(&self) {
        self.workers.coordinator.worked();
        self.workers.doorbell.ring_all();
    }

    /// Returns the statistics of its checkpoints; `None` if it takes none.
    pub fn checkpoints(&self) -> Option<CheckpointCounts> {
        self.workers.checkpoints()
    }

    /// The state element of this name.
    pub fn state(&self, name: &str) -> Option<Arc<dyn StateReader>> {
        self.workers.state(name).cloned()
    }

    /// Returns the changes of a state element on all ranks, for readers that watch it.
    ///
    /// # Errors
    /// When the element has no changes that can be watched.
    pub fn watched(&self, name: &str) -> Result<WatchedElement, NotWatched> {
        if self.checkpoints().is_none() {
            return Err(NotWatched::NoCheckpoints);
        }
        let mut logged = self.workers.logged.iter();
        let logged = logged.find(|logged| logged.name() == name);
        logged.ok_or(NotWatched::SavedWhole)?.watched()
    }

    /// Returns all state elements as this rank has them, in the order of the program.
    pub fn elements(&self) -> Vec<StateElement> {
        self.workers.elements_of_state()
    }

    /// The names of all state elements.
    pub fn state_names(&self) -> impl Iterator<Item = &str> {
        self.workers.states.iter().map(|(name, _)| name.as_str())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.asking = None;
        self.workers.abandon();
    }
}

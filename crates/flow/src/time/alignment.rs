//! Sources that are further ahead in event time than others are held back, so that the windows between
//! them are few.
//!
//! Sources are aligned that lead to the same windows, on whatever rank: they are a *group*. Each notes how
//! far it has come; one that is further ahead of the least of the others than it may be is not asked for
//! more. What other ranks have come to is what they say in between the items that they send.
//!
//! None waits for ever: the one that is furthest behind is ahead of nobody, so it is never held. Others
//! move on as it does, or when it is idle or has ended. A worker that has moved it tries every stage
//! before it sleeps, and so finds a source that is held no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use millstream_base::Timestamp;

use crate::build::validate::all_before;
use crate::ranks::remote::Outlets;
use crate::stage::contract::Stage;

/// An input that holds nobody back: it is idle, or has ended.
const OVER: i64 = i64::MAX;

/// An input that has said nothing yet.
const UNKNOWN: i64 = i64::MIN;

/// A step is this part of how far sources may be ahead: so much less than that may be known of others.
const STEPS: i64 = 4;

/// How far event time goes on before windows say so to other ranks, though it changes none of them. A clone is
/// another handle of the same.
#[derive(Clone)]
pub struct Step(Arc<AtomicI64>);

impl Default for Step {
    fn default() -> Self {
        Step(Arc::new(AtomicI64::new(i64::MAX)))
    }
}

impl Step {
    /// Whether others are to be told of `to` who know of `from`.
    pub fn is_reached(&self, from: Timestamp, to: Timestamp) -> bool {
        to.0.saturating_sub(from.0) >= self.0.load(Ordering::Relaxed)
    }

    fn lessen(&self, ahead_max_ms: i64) {
        let step_ms = (ahead_max_ms / STEPS).max(1);
        self.0.fetch_min(step_ms, Ordering::Relaxed);
    }
}

/// Inputs that lead to the same windows.
struct Group {
    /// How far each has come, [`OVER`] or [`UNKNOWN`]. Each is written by the worker that is in the input.
    times: Vec<AtomicI64>,
    /// The least time that any has said: one that has said nothing is taken to be there.
    beginning: AtomicI64,
}

/// An input's place in its group.
#[derive(Clone)]
pub struct Aligned {
    group: Arc<Group>,
    place: usize,
}

impl Aligned {
    /// The input has come so far.
    pub fn reach(&self, Timestamp(time): Timestamp) {
        if time == UNKNOWN {
            return;
        }
        let time = time.min(OVER - 1);
        self.group.beginning.fetch_min(time, Ordering::Relaxed);
        self.group.times[self.place].store(time, Ordering::Relaxed);
    }

    /// The input is idle, or has ended.
    pub fn leave(&self) {
        self.group.times[self.place].store(OVER, Ordering::Relaxed);
    }

    /// Whether the input is more than so much ahead of another.
    pub fn is_ahead(&self, ahead_max_ms: i64) -> bool {
        let own = self.group.times[self.place].load(Ordering::Relaxed);
        if own == OVER || own == UNKNOWN {
            return false;
        }
        let beginning = self.group.beginning.load(Ordering::Relaxed);
        let times = self.group.times.iter();
        let times = times.map(|time| time.load(Ordering::Relaxed));
        let least = times.fold(own, |least, time| match time {
            UNKNOWN => least.min(beginning),
            time => least.min(time),
        });
        own.saturating_sub(least) > ahead_max_ms
    }
}

/// Finds the groups, and gives each input its place, also one that is alone: its lanes are aligned.
pub fn align(stages: &[Arc<dyn Stage>], step: &Step) {
    let is_source = |stage: &Arc<dyn Stage>| {
        stage.tells_time() && stage.input().is_none() && stage.inlet().is_none()
    };
    let windows = stages.iter().filter(|stage| stage.goes_by_time());
    // The indices of the sources of each group.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for windows in windows {
        let mut group = indices(stages, &all_before(stages, windows));
        group.retain(|index| is_source(&stages[*index]));
        let (joined, others): (Vec<_>, Vec<_>) = groups
            .into_iter()
            .partition(|other| other.iter().any(|source| group.contains(source)));
        group.extend(joined.into_iter().flatten());
        group.sort_unstable();
        group.dedup();
        groups = others;
        groups.push(group);
    }
    for sources in groups {
        let remote = remote_inputs(stages, &sources);
        let local = sources.iter().map(|index| &stages[*index]);
        if !remote.is_empty() {
            let ahead_max_ms = local.clone().filter_map(|stage| stage.skew_max_ms());
            ahead_max_ms.for_each(|ahead_max_ms| step.lessen(ahead_max_ms));
        }
        let inputs: Vec<_> = local.chain(remote).collect();
        let count: usize = inputs.iter().map(|stage| stage.instances()).sum();
        let group = Arc::new(Group {
            times: (0..count).map(|_| AtomicI64::new(UNKNOWN)).collect(),
            beginning: AtomicI64::new(OVER),
        });
        let mut places = (0..count).map(|place| Aligned {
            group: Arc::clone(&group),
            place,
        });
        for stage in inputs {
            stage.align(&mut places);
        }
    }
}

/// What comes from the same sources on other ranks, without windows in between.
fn remote_inputs<'a>(stages: &'a [Arc<dyn Stage>], sources: &[usize]) -> Vec<&'a Arc<dyn Stage>> {
    let is_from = |inlet: &Arc<Outlets>| {
        let is_exit = |stage: &&Arc<dyn Stage>| {
            let mut outlets = stage.outlets().into_iter();
            outlets.any(|outlets| Arc::ptr_eq(&outlets, inlet))
        };
        stages.iter().find(is_exit).is_some_and(|exit| {
            let mut before = all_before(stages, exit);
            before.push(exit);
            let is_first = before.iter().all(|stage| stage.inlet().is_none());
            is_first
                && indices(stages, &before)
                    .iter()
                    .any(|stage| sources.contains(stage))
        })
    };
    let is_remote = |stage: &&Arc<dyn Stage>| stage.inlet().is_some_and(|inlet| is_from(&inlet));
    stages.iter().filter(is_remote).collect()
}

fn indices(stages: &[Arc<dyn Stage>], some: &[&Arc<dyn Stage>]) -> Vec<usize> {
    let is_some = |stage: &Arc<dyn Stage>| some.iter().any(|other| Arc::ptr_eq(other, stage));
    let stages = stages.iter().enumerate();
    stages
        .filter(|(_, stage)| is_some(stage))
        .map(|(index, _)| index)
        .collect()
}

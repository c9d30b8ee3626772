//! Schedulers, which choose the next stage of a worker.
//!
//! A [`Scheduler`] sees the live figures of all stages and picks. It affects only speed; no stage is
//! forgotten: one that no worker has tried for 2 ms has its turn, one with little to do after 100 µs, and a worker
//! for which nothing is picked looks at every stage before it sleeps.

use std::sync::Arc;

use crate::stage::contract::Stage;
use crate::stage::metrics::Counters;

/// Chooses the next activation of a worker. Shared by all of them.
///
/// ```
/// use millstream_flow::{Pick, Scheduler, Stages};
///
/// /// The longest queue first.
/// struct LongestQueue;
///
/// impl Scheduler for LongestQueue {
///     fn pick(&self, stages: &Stages<'_>) -> Option<Pick> {
///         let longest = stages.ready().max_by_key(|stage| stage.readable())?;
///         Some(longest.pick())
///     }
/// }
/// ```
pub trait Scheduler: Send + Sync + 'static {
    /// The stage that a worker activates next, out of [`Stages::ready`]; `None` when none is worth
    /// it. Called before every activation: it should take no more than a microsecond.
    fn pick(&self, stages: &Stages<'_>) -> Option<Pick>;

    /// Called by one of the workers once per [interval](crate::FlowSettings::interval).
    fn adjust(&self, _stages: &Stages<'_>) {}
}

/// The next activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// The stage's [index](StageView::index).
    pub stage: usize,
    /// How many items to process. `None` leaves that to the engine: as many as take 50 µs, as
    /// measured, or less where an objective of latency is short.
    pub items: Option<usize>,
}

/// The stages of a flow, as a worker sees them at this moment. Stages are numbered from the sources
/// on, in the order in which the graph was built.
pub struct Stages<'a> {
    pub(crate) stages: &'a [Arc<dyn Stage>],
    /// The stages that had no work when this worker last tried them, since it last did any work.
    pub(crate) tried: &'a [bool],
    /// How often the doorbell had been rung when the worker began to look.
    pub(crate) rings: u64,
    /// Activations by this worker so far.
    pub(crate) turn: usize,
}

/// The live figures of a stage.
#[derive(Clone, Copy)]
pub struct StageView<'a> {
    index: usize,
    readable: usize,
    stages: &'a [Arc<dyn Stage>],
}

impl<'a> Stages<'a> {
    /// The stages that have something to read and are not known to be blocked.
    pub fn ready(&self) -> impl Iterator<Item = StageView<'a>> {
        let tried = self.tried;
        self.all()
            .filter(|stage| !tried[stage.index] && stage.readable > 0)
    }

    /// All stages.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = StageView<'a>> + ExactSizeIterator {
        let (stages, rings) = (self.stages, self.rings);
        (0..stages.len()).map(move |index| StageView {
            index,
            readable: stages[index].readable(rings),
            stages,
        })
    }

    /// How often this worker has activated a stage.
    pub fn turn(&self) -> usize {
        self.turn
    }
}

impl<'a> StageView<'a> {
    /// Picks this stage, for as many items as take a slice's time.
    pub fn pick(&self) -> Pick {
        Pick {
            stage: self.index,
            items: None,
        }
    }

    /// Its number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its name.
    pub fn name(&self) -> &'a str {
        self.stage().name()
    }

    /// Items that wait for it; for a source that may have some: as many as it could process in a slice's time.
    pub fn readable(&self) -> usize {
        self.readable
    }

    /// As [`readable`](StageView::readable), but where each worker has lanes of its own, items of other workers count
    /// a quarter: they lie in those workers' caches, and mostly those workers come for them.
    pub fn at_hand(&self) -> usize {
        let Some(input) = self.stage().input() else {
            return self.readable;
        };
        let own = input.own_readable().min(self.readable);
        own + (self.readable - own).div_ceil(4)
    }

    /// Free room in the rings that it writes to; `None` at the end of a flow.
    pub fn room(&self) -> Option<usize> {
        room(&**self.stage())
    }

    /// Items for which the rings that it reads have memory; `None` for a source.
    pub fn capacity(&self) -> Option<usize> {
        Some(self.stage().input()?.capacity())
    }

    /// Results per item, averaged over the last slices.
    pub fn selectivity(&self) -> f64 {
        self.counters().selectivity()
    }

    /// Nanoseconds per item, averaged over the last slices; 0 before the first.
    pub fn item_ns(&self) -> f64 {
        self.counters().item_ns()
    }

    /// Items read per second, over the last interval.
    pub fn throughput(&self) -> f64 {
        self.counters().throughput.get()
    }

    /// The target that [`set_target`](StageView::set_target) set last; 1 at first.
    pub fn target(&self) -> f64 {
        self.counters().target.get()
    }

    /// Notes how many results are wanted from the stage.
    pub fn set_target(&self, target: f64) {
        self.counters().target.set(target);
    }

    /// Notes how urgent it is, for readers of the metrics.
    pub fn set_priority(&self, priority: f64) {
        self.counters().priority.set(priority);
    }

    /// Returns the stages that read this one's output.
    pub fn downstream(&self) -> impl Iterator<Item = usize> {
        let outputs = self.stage().outputs();
        let readers = self.stages.iter().enumerate().filter(move |(_, stage)| {
            let input = stage.input();
            input.is_some_and(|input| outputs.iter().any(|output| Arc::ptr_eq(output, input)))
        });
        readers.map(|(index, _)| index)
    }

    fn stage(&self) -> &'a Arc<dyn Stage> {
        &self.stages[self.index]
    }

    fn counters(&self) -> &'a Counters {
        self.stage().counters()
    }
}

pub fn room(stage: &dyn Stage) -> Option<usize> {
    stage.outputs().iter().map(|output| output.room()).min()
}

/// All stages in turn, each for a fixed number of items: a scheduler that looks at no figures.
#[derive(Debug, Clone, Default)]
pub struct RoundRobin {
    /// Items per activation, by stage; 256 for stages that it does not name.
    pub items: Vec<usize>,
}

impl RoundRobin {
    const ITEMS: usize = 256;
}

impl Scheduler for RoundRobin {
    fn pick(&self, stages: &Stages<'_>) -> Option<Pick> {
        let count = stages.stages.len();
        let first = stages.turn % count;
        let stage = (0..count)
            .map(|index| (first + index) % count)
            .find(|stage| !stages.tried[*stage])?;
        Some(Pick {
            stage,
            items: Some(self.items.get(stage).copied().unwrap_or(Self::ITEMS)),
        })
    }
}

/// The highest priority first: readable × (target + number), where the readable items are those [at
/// hand](StageView::at_hand), and the target of a stage is how many results the stages behind it need to keep the
/// last queue filled (Ordo, section 3.2.3).
///
/// Targets are computed from the last stage back once per interval: the stage before a queue should give the items
/// that the queue lacks; divided by that stage's selectivity, that many should wait in that stage's own queue, and so
/// on to the source. The number, counted from 1 at the source, decides between stages without a target: later ones
/// first, so that items leave the flow.
#[derive(Debug, Clone)]
pub struct Priority {
    /// The share of the last queue that should be full; half by default.
    pub last_queue_fill: f64,
}

impl Default for Priority {
    fn default() -> Self {
        Priority {
            last_queue_fill: 0.5,
        }
    }
}

impl Scheduler for Priority {
    fn pick(&self, stages: &Stages<'_>) -> Option<Pick> {
        let priority = |stage: &StageView<'_>| {
            let number = stage.index() + 1;
            let priority = stage.at_hand() as f64 * (stage.target() + number as f64);
            stage.set_priority(priority);
            priority
        };
        let ranked = stages.ready().map(|stage| (priority(&stage), stage));
        let (_, first) = ranked.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
        Some(first.pick())
    }

    fn adjust(&self, stages: &Stages<'_>) {
        // Items that a stage lacks in its queue; 0 for stages not visited yet: in a
        // cycle, an output may lead back to an earlier stage.
        let mut lacking = vec![0.0; stages.all().len()];
        for stage in stages.all().rev() {
            let behind = stage.downstream().map(|index| lacking[index]);
            let target = behind.reduce(f64::max);
            let wanted = match target {
                Some(target) => target / stage.selectivity().max(f64::EPSILON),
                None => self.last_queue_fill * stage.capacity().unwrap_or(0) as f64,
            };
            stage.set_target(target.unwrap_or(0.0));
            let capacity = stage.capacity().unwrap_or(0) as f64;
            lacking[stage.index()] = (wanted.min(capacity) - stage.readable() as f64).max(0.0);
        }
    }
}

//! The settings of a flow.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_base::{Clock, SystemClock};
use millstream_exchange::Ranks;
use millstream_pool::{Class, Pool};

use crate::checkpoint::store::Checkpointing;
use crate::run::scheduler::{Priority, Scheduler};
use crate::sinks::dead_letter::DeadLetters;
use crate::state::memory::StateMemory;

/// The settings of a flow. The defaults are right for most.
#[derive(Clone)]
pub struct FlowSettings {
    /// Worker threads at most; as many as there are cores by default. There are fewer while they are
    /// enough for the load.
    pub workers: NonZeroUsize,
    /// The slots that the workers share with other flows and other work; those of the process by default. A worker
    /// computes only while it has a slot. More workers than slots are of use where code of the flow waits.
    pub pool: Arc<Pool>,
    /// The class of the flow's work; best effort by default.
    pub class: Class,
    /// The flow's share of the slots, beside others of its class that have work; 1 by default.
    pub share: NonZeroUsize,
    /// Whether another worker replaces one that has died; it does by default. Without it the flow continues with the
    /// workers that are left; the last one is replaced all the same, so that the flow ends.
    pub replaces_workers: bool,
    /// Whether the order of items counts; it does by default.
    pub order: Order,
    /// Chooses the stage that is activated next; [`Priority`] by default.
    pub scheduler: Arc<dyn Scheduler>,
    /// How often throughput is measured and the scheduler adjusts; every 500 ms by default.
    pub interval: Duration,
    /// The interval at which sources commit their positions; a second by default.
    pub commit_interval: Duration,
    /// Room of a ring between stages at most, in items. Rings size themselves: they grow while a
    /// larger one is used, and shrink when they are idle.
    pub ring_items_max: NonZeroUsize,
    /// Takes items that make user code panic twice, or for which it returns an error, and items that come too late for
    /// their windows. Without it, the former fail the flow, and the latter are left out.
    pub dead_letters: Option<Arc<dyn DeadLetters>>,
    /// The clock of the flow.
    pub clock: Arc<dyn Clock>,
    /// Takes checkpoints from time to time, from which a later run resumes; off by default.
    pub checkpoints: Option<Checkpointing>,
    /// The memory for values of state. Where it is short, values that were not used for long stay in their changelogs alone
    /// until they are needed. All flows of the process share a quarter of its memory beyond 128 MiB by default.
    pub state_memory: Arc<StateMemory>,
    /// Anything else that must be the same on all ranks, such as the program's version and arguments.
    pub program: String,
    /// This rank among the ranks on which the same graph runs; by default it is the only one.
    pub ranks: Ranks,
}

/// Whether a flow keeps the order of its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The items of one source arrive everywhere in the order in which the source gave them, even where several
    /// workers process them at once.
    #[default]
    Kept,
    /// Items may overtake each other, so that no worker's results wait for another's.
    Free,
}

impl Default for FlowSettings {
    fn default() -> Self {
        const RING_ITEMS_MAX: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();
        FlowSettings {
            workers: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            pool: Pool::of_process(),
            class: Class::default(),
            share: NonZeroUsize::MIN,
            replaces_workers: true,
            order: Order::default(),
            scheduler: Arc::new(Priority::default()),
            interval: Duration::from_millis(500),
            commit_interval: Duration::from_secs(1),
            ring_items_max: RING_ITEMS_MAX,
            dead_letters: None,
            clock: Arc::new(SystemClock::default()),
            checkpoints: None,
            state_memory: StateMemory::of_process(),
            program: String::new(),
            ranks: Ranks::alone(),
        }
    }
}

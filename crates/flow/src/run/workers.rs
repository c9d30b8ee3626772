//! The workers of a running flow: as many threads as its load needs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use millstream_base::Clock;
use millstream_exchange::Ranks;
use millstream_pool::Member;
use parking_lot::{Condvar, Mutex};

use crate::checkpoint::coordinator::{Coordinator, Purpose};
use crate::checkpoint::counts::CheckpointCounts;
use crate::checkpoint::logged_element::LoggedElement;
use crate::checkpoint::participants::Participant;
use crate::checkpoint::snapshot::Elements;
use crate::checkpoint::trail::Trail;
use crate::doorbell::Doorbell;
use crate::error::FlowError;
use crate::graph::Graph;
use crate::run::align::align;
use crate::run::load::Adjusted;
use crate::run::scheduler::Scheduler;
use crate::run::settings::FlowSettings;
use crate::sinks::dead_letter::DeadLetters;
use crate::sources::positions::Position;
use crate::stage::contract::Stage;
use crate::state::lookups::LookupElement;
use crate::state::ordered::WouldWait;
use crate::state::partial::StateReader;
use crate::topology::cycles::{self, Cycle};
use crate::topology::upstream::want_events;

pub struct Workers {
    pub name: String,
    pub clock: Arc<dyn Clock>,
    pub doorbell: Arc<Doorbell>,
    pub stages: Vec<Arc<dyn Stage>>,
    /// Sources are not read any more; their items so far are still processed.
    pub stopping: Arc<AtomicBool>,
    pub(super) cycles: Vec<Cycle>,
    pub(super) coordinator: Coordinator,
    pub ranks: Ranks,
    pub states: Vec<(String, Arc<dyn StateReader>)>,
    /// Windows wait for event time.
    pub closes_by_time: bool,
    pub(super) sinks: Vec<Arc<dyn Participant>>,
    pub(super) logged: Vec<Arc<LoggedElement>>,
    pub(super) lookups: Vec<LookupElement>,
    pub trail: Arc<Trail>,
    pub(super) scheduler: Arc<dyn Scheduler>,
    pub(super) dead_letters: Option<Arc<dyn DeadLetters>>,
    /// Workers leave at the next chance.
    pub(super) leaving: AtomicBool,
    /// The flow was dropped: nothing is waited for any more.
    pub(super) is_dropped: AtomicBool,
    /// The first error counts.
    pub(super) error: Mutex<Option<FlowError>>,
    pub(super) started_at: Duration,
    /// When the last worker left.
    pub(super) ended_at: Mutex<Option<Duration>>,
    pub(super) ended: Condvar,
    /// The flow as a member of its pool.
    pub(super) member: Arc<Member>,
    /// Workers that have not left, and at most how many there may be.
    pub(super) count: AtomicUsize,
    pub(super) count_max: AtomicUsize,
    /// See [`FlowSettings`](crate::FlowSettings::replaces_workers).
    pub(super) replaces_workers: bool,
    /// The numbers of workers to come. A number decides which lane of a ring is the worker's own.
    pub(super) numbers: Mutex<BinaryHeap<Reverse<usize>>>,
    /// The number of workers that must die, and the number of dead ones.
    pub(super) condemned: AtomicUsize,
    pub(super) died: AtomicU64,
    pub(super) replaced: AtomicU64,
    pub(super) interval: Duration,
    /// Time of the next adjustment, in nanoseconds of the clock.
    pub(super) adjust_at_ns: AtomicU64,
    /// Nothing has happened since the last adjustment, and there is nothing left to adjust.
    pub(super) settled: AtomicBool,
    pub(super) adjusted: Mutex<Adjusted>,
}

impl Workers {
    /// Starts the first worker, which calls for more when there is more to do.
    pub fn start(
        graph: Graph,
        settings: FlowSettings,
        purpose: Purpose,
    ) -> Result<Arc<Workers>, FlowError> {
        let exits = graph.exits;
        let now = settings.clock.monotonic();
        let cycles = cycles::find(&graph.stages);
        if let Some(operator) = cycles.iter().find_map(Cycle::windows) {
            return Err(FlowError::WindowsInCycle {
                operator: operator.to_owned(),
                flow: graph.name,
            });
        }
        if let Some(operator) = cycles.iter().find_map(Cycle::exit) {
            return Err(FlowError::RanksInCycle {
                operator: operator.to_owned(),
                flow: graph.name,
            });
        }
        want_events(&graph.stages);
        align(&graph.stages, &graph.step);
        let member = settings
            .pool
            .join(&graph.name, settings.class, settings.share);
        let workers = Arc::new(Workers {
            name: graph.name,
            member,
            cycles,
            coordinator: Coordinator::new(
                &graph.stages,
                !exits.is_empty(),
                purpose,
                graph.pause,
                Arc::clone(&graph.stopping),
                settings.commit_interval,
                now,
            ),
            ranks: settings.ranks,
            states: graph.states,
            closes_by_time: graph.stages.iter().any(|stage| stage.closes_by_time()),
            sinks: graph.sinks,
            logged: graph.logged,
            lookups: graph.lookups,
            trail: graph.trail,
            adjusted: Mutex::new(Adjusted {
                at: now,
                items_in: vec![0; graph.stages.len()],
            }),
            adjust_at_ns: AtomicU64::new((now + settings.interval).as_nanos() as u64),
            interval: settings.interval,
            started_at: now,
            clock: settings.clock,
            doorbell: graph.doorbell,
            stages: graph.stages,
            stopping: graph.stopping,
            scheduler: settings.scheduler,
            dead_letters: settings.dead_letters,
            leaving: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            error: Mutex::new(None),
            ended_at: Mutex::new(None),
            ended: Condvar::new(),
            count: AtomicUsize::new(1),
            count_max: AtomicUsize::new(settings.workers.get()),
            replaces_workers: settings.replaces_workers,
            numbers: Mutex::new((0..settings.workers.get()).map(Reverse).collect()),
            condemned: AtomicUsize::new(0),
            died: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            settled: AtomicBool::new(false),
        });
        if workers.ranks.count() > 1 {
            let doorbell = Arc::clone(&workers.doorbell);
            workers.ranks.on_failure(Waker::from(doorbell));
        }
        workers.stages.iter().for_each(|stage| stage.begin());
        let waker = Waker::from(Arc::clone(&workers.doorbell));
        let begun = workers.lookups.iter().try_for_each(|it| it.begin(&waker));
        begun.map_err(|error| workers.no_thread(error))?;
        let ended = exits.iter().try_for_each(|exit| exit.end_if_unused());
        ended.map_err(|failure| workers.error(failure))?;
        let spawned = workers.spawn_new();
        spawned.map_err(|error| workers.no_thread(error))?;
        Ok(workers)
    }

    fn no_thread(&self, error: io::Error) -> FlowError {
        FlowError::Worker {
            flow: self.name.clone(),
            error: Arc::new(error),
        }
    }

    pub fn is_finished(&self) -> bool {
        self.ended_at.lock().is_some()
    }

    /// Waits for the last worker; returns how long the flow ran.
    pub fn join(&self) -> Result<Duration, FlowError> {
        let mut ended_at = self.ended_at.lock();
        let at = loop {
            match *ended_at {
                Some(at) => break at,
                None => self.ended.wait(&mut ended_at),
            }
        };
        match &*self.error.lock() {
            Some(error) => Err(error.clone()),
            None => Ok(at.saturating_sub(self.started_at)),
        }
    }

    /// Ends the flow at its present state.
    pub fn abandon(&self) {
        if self.ranks.count() > 1 && !self.is_finished() {
            self.ranks.fail(&format!(
                "flow \"{}\" was dropped before its end",
                self.name
            ));
        }
        self.is_dropped.store(true, Ordering::SeqCst);
        self.leaving.store(true, Ordering::Relaxed);
        // Also in the middle of many items.
        self.condemned.store(usize::MAX, Ordering::Relaxed);
        self.coordinator.cancel();
        self.doorbell.ring_all();
        let _ = self.join();
    }

    /// Returns the flow's position in each partition of the streams that it reads, as far as its sources know.
    pub fn positions(&self) -> Vec<Position> {
        let stages = self.stages.iter();
        stages
            .filter_map(|stage| stage.positions())
            .flatten()
            .collect()
    }

    /// Returns the same, unless it would have to wait for a lock.
    pub fn try_positions(&self) -> Result<Vec<Position>, WouldWait> {
        let mut positions = Vec::new();
        for stage in &self.stages {
            positions.extend(stage.try_positions()?.into_iter().flatten());
        }
        Ok(positions)
    }

    /// Returns the state element of this name.
    pub fn state(&self, name: &str) -> Option<&Arc<dyn StateReader>> {
        let mut states = self.states.iter();
        let (_, state) = states.find(|(state, _)| state == name)?;
        Some(state)
    }

    /// Whether there is no other rank.
    pub fn is_alone(&self) -> bool {
        self.ranks.count() == 1
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub fn condemn(&self, count: usize) {
        self.condemned
            .store(count.min(self.count()), Ordering::Relaxed);
    }

    pub fn died(&self) -> u64 {
        self.died.load(Ordering::Relaxed)
    }

    pub fn lost_wakeups(&self) -> u64 {
        self.doorbell.lost_wakeups()
    }

    pub fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    pub(super) fn elements(&self) -> Elements<'_> {
        Elements {
            stages: &self.stages,
            cycles: &self.cycles,
            states: &self.states,
            sinks: &self.sinks,
            logged: &self.logged,
            trail: &self.trail,
        }
    }

    pub fn checkpoints(&self) -> Option<CheckpointCounts> {
        match self.coordinator.purpose() {
            Purpose::Checkpoints(shards, _) => Some(shards.counts()),
            Purpose::None | Purpose::Commits => None,
        }
    }
}

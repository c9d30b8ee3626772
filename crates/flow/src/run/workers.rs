//! The workers of a running flow: as many threads as its load needs.

use std::any::Any;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use millstream_base::Clock;
use millstream_exchange::{ExchangeError, Ranks};
use parking_lot::{Condvar, Mutex};

use crate::checkpoint::coordinator::{Cuts, Purpose};
use crate::checkpoint::counts::CheckpointCounts;
use crate::checkpoint::decisions::Decisions;
use crate::checkpoint::participants::AnySink;
use crate::checkpoint::snapshot::Elements;
use crate::error::{Failure, FlowError};
use crate::graph::Graph;
use crate::run::align::align;
use crate::run::cycles::{self, Cycle};
use crate::run::doorbell::{Doorbell, Woken};
use crate::run::scheduler::{Pick, Scheduler, Stages};
use crate::settings::FlowSettings;
use crate::stage::activation::{Activation, Context, Killed};
use crate::stage::contract::Stage;
use crate::stage::dead_letter::DeadLetters;
use crate::stage::metrics::SLICE_NS;
use crate::stage::upstream::want_marks;
use crate::stage::user_code::{Label, panic_message};
use crate::state::partial::StateReader;

/// Work for others that makes a worker call for help: enough to be worth waking a thread for.
const HELP_NS: f64 = 100_000.0;

/// A stage that no worker has tried for so long has its turn, whatever the scheduler finds.
const STARVING_NS: u64 = 2_000_000;

/// A stage with little to do has its turn after so long: schedulers go by how much there is, so that the results
/// of a window would wait for the sources at each stage on their way. Two slices: then such turns take a few
/// percent of a worker's time at most.
const WAITING_NS: u64 = 2 * SLICE_NS;

pub struct Workers {
    pub name: String,
    pub clock: Arc<dyn Clock>,
    pub doorbell: Arc<Doorbell>,
    pub stages: Vec<Arc<dyn Stage>>,
    /// Sources are not read any more; what they gave is still worked off.
    pub stopping: Arc<AtomicBool>,
    cycles: Vec<Cycle>,
    cuts: Cuts,
    ranks: Ranks,
    pub states: Vec<(String, Arc<dyn StateReader>)>,
    /// Windows wait for event time.
    pub goes_by_time: bool,
    sinks: Vec<Arc<dyn AnySink>>,
    scheduler: Arc<dyn Scheduler>,
    dead_letters: Option<Arc<dyn DeadLetters>>,
    /// Workers leave at the next chance.
    leaving: AtomicBool,
    /// The flow was dropped: nothing is waited for any more.
    is_dropped: AtomicBool,
    /// The first one is what counts.
    error: Mutex<Option<FlowError>>,
    started_at: Duration,
    /// When the last worker left.
    ended_at: Mutex<Option<Duration>>,
    ended: Condvar,
    /// Workers that have not left, and at most how many there may be.
    count: AtomicUsize,
    count_max: AtomicUsize,
    /// See [`FlowSettings`](crate::FlowSettings::replaces_workers).
    replaces_workers: bool,
    /// What those who come next are numbered. A number decides which lane of a ring is the worker's own.
    numbers: Mutex<BinaryHeap<Reverse<usize>>>,
    /// Workers that are to die, and how many have.
    condemned: AtomicUsize,
    died: AtomicU64,
    replaced: AtomicU64,
    interval: Duration,
    /// Time of the next adjustment, in nanoseconds of the clock.
    adjust_at_ns: AtomicU64,
    /// Nothing has happened since the last adjustment, and there is nothing left to adjust.
    settled: AtomicBool,
    adjusted: Mutex<Adjusted>,
}

/// How a worker goes on.
enum Next {
    /// It has done something: what had nothing to do before may have now.
    Worked,
    /// Somebody else may have done something.
    LookAgain,
    /// Nothing has changed.
    Same,
}

/// How a worker's life ends, if nothing goes wrong.
enum Leaving {
    /// The flow has ended, or is to end.
    Ended,
    /// There is too little to do; it is not counted any more.
    Retired,
}

/// What was seen at the last adjustment.
struct Adjusted {
    at: Duration,
    /// By stage.
    items_in: Vec<u64>,
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
        want_marks(&graph.stages);
        align(&graph.stages, &graph.step);
        let cut_interval = match &settings.checkpoints {
            Some(checkpoints) => checkpoints.interval,
            None => settings.commit_interval,
        };
        let workers = Arc::new(Workers {
            name: graph.name,
            cycles,
            cuts: Cuts::new(&graph.stages, purpose, graph.pause, cut_interval, now),
            ranks: settings.ranks,
            states: graph.states,
            goes_by_time: graph.stages.iter().any(|stage| stage.goes_by_time()),
            sinks: graph.sinks,
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
        let ended = exits.iter().try_for_each(|exit| exit.end_if_unused());
        ended.map_err(|failure| workers.error(failure))?;
        workers.spawn_new().map_err(|error| FlowError::Worker {
            flow: workers.name.clone(),
            error: Arc::new(error),
        })?;
        Ok(workers)
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

    /// Ends the flow where it stands.
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
        self.doorbell.ring_all();
        let _ = self.join();
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

    pub fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Starts a worker that is counted already.
    fn spawn_new(self: &Arc<Self>) -> std::io::Result<()> {
        let number = self.numbers.lock().pop();
        let Reverse(number) = number.expect("there is a number for each worker that is counted");
        self.spawn(number)
            .inspect_err(|_| self.numbers.lock().push(Reverse(number)))
    }

    fn spawn(self: &Arc<Self>, number: usize) -> std::io::Result<()> {
        let workers = Arc::clone(self);
        thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || workers.live(number))?;
        Ok(())
    }

    /// The life of a worker's thread.
    fn live(self: Arc<Self>, number: usize) {
        millstream_ring::set_thread_number(number);
        match panic::catch_unwind(AssertUnwindSafe(|| self.work(number))) {
            Ok(Leaving::Retired) => return,
            Ok(Leaving::Ended) => {}
            Err(panic) if panic.is::<Killed>() && self.leaving.load(Ordering::Relaxed) => {}
            Err(panic) if panic.is::<Killed>() => {
                self.died.fetch_add(1, Ordering::Relaxed);
                if self.stays_dead(number) {
                    return;
                }
                self.replaced.fetch_add(1, Ordering::Relaxed);
                // The place of the dead is taken at once, and what they left in a stage is found
                // there by whoever comes next.
                match self.spawn(number) {
                    Ok(()) => return,
                    Err(error) => self.fail(FlowError::Worker {
                        flow: self.name.clone(),
                        error: Arc::new(error),
                    }),
                }
            }
            Err(panic) => self.fail(self.panicked("the scheduler", &*panic)),
        }
        self.leave(number);
    }

    /// Takes a worker that has died off the count, and its place with it, if dead workers are not replaced and another
    /// worker is left.
    fn stays_dead(&self, number: usize) -> bool {
        if self.replaces_workers {
            return false;
        }
        // The place goes first, so that no worker that calls for help fills it again.
        let others = |count: usize| (count > 1).then(|| count - 1);
        let has_others = self
            .count_max
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, others)
            .is_ok();
        let stays_dead = has_others && self.retire(number);
        if stays_dead {
            // The others may all be asleep, and the dead worker's item waits in its stage.
            self.doorbell.ring_all();
        }
        stays_dead
    }

    fn leave(&self, number: usize) {
        // First: whoever sees the count and takes the place finds the number.
        self.numbers.lock().push(Reverse(number));
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Sources are the user's, too: whatever they do, those who wait for the end are told.
            let closed = panic::catch_unwind(AssertUnwindSafe(|| self.close_sources()));
            if let Err(panic) = closed {
                self.fail(self.panicked("the end of the flow", &*panic));
            }
            *self.ended_at.lock() = Some(self.clock.monotonic());
            self.ended.notify_all();
        }
    }

    /// For the last worker, when nobody else is at work any more.
    fn close_sources(&self) {
        let is_whole =
            self.error.lock().is_none() && self.stages.iter().all(|stage| stage.has_ended());
        let ended = is_whole.then(|| self.cuts.end(&self.elements(), |it| self.wait_for(it)));
        if let Some(Err(failure)) = ended {
            self.fail(self.error(failure));
        }
        if let Purpose::Checkpoints(keeper, _) = self.cuts.purpose() {
            keeper.end();
        }
        self.stages.iter().for_each(|stage| stage.close());
    }

    /// Does what the scheduler picks until the flow has ended.
    fn work(self: &Arc<Self>, number: usize) -> Leaving {
        let mut tried = vec![false; self.stages.len()];
        let mut turn = 0;
        // Noted before the stages are looked at: what rings from then on ends the sleep at once.
        let mut rings = self.doorbell.rings();
        let mut is_blocked = false;
        let mut now = self.clock.monotonic();
        while !self.leaving.load(Ordering::Relaxed) {
            if let Some(decisions) = self.cuts.decisions_due()
                && let Err(failure) = decisions.decide()
            {
                self.fail(self.error(failure));
                return Leaving::Ended;
            }
            let next = match self.pick(&tried, rings, turn, now) {
                Some(pick) => {
                    turn = turn.wrapping_add(1);
                    match self.activate(pick, rings, now) {
                        Ok(Activation::Done(_)) => Next::Worked,
                        Ok(activation) => {
                            is_blocked |= activation == Activation::Blocked;
                            tried[pick.stage] = true;
                            Next::Same
                        }
                        Err(error) => {
                            self.fail(error);
                            return Leaving::Ended;
                        }
                    }
                }
                None if self.stages.iter().all(|stage| stage.has_ended()) => {
                    // Sleeping workers have not seen the end.
                    self.leaving.store(true, Ordering::Relaxed);
                    self.doorbell.ring_all();
                    return Leaving::Ended;
                }
                None if self.move_cycles(is_blocked) => Next::LookAgain,
                None if self.cut_if_at_rest(now) => Next::LookAgain,
                None => match self.sleep(rings) {
                    Woken::Forgotten if self.retire(number) => return Leaving::Retired,
                    Woken::Rung | Woken::Forgotten => Next::LookAgain,
                },
            };
            if let Next::Same = next {
                continue;
            }
            tried.fill(false);
            is_blocked = false;
            rings = self.doorbell.rings();
            now = self.clock.monotonic();
            if let Some(error) = self.failure_elsewhere() {
                self.fail(error);
                return Leaving::Ended;
            }
            if let Next::Worked = next {
                self.unsettle();
                self.cuts.worked();
                self.call_for_help(rings, now);
            }
            self.adjust_if_due(now);
            self.cuts.pause_if_due(now);
        }
        Leaving::Ended
    }

    /// What to do next, of what this worker has not tried since something changed.
    fn pick(&self, tried: &[bool], rings: u64, turn: usize, now: Duration) -> Option<Pick> {
        let stages = Stages {
            stages: &self.stages,
            tried,
            rings,
            turn,
        };
        let untried = || (0..tried.len()).filter(|stage| !tried[*stage]);
        let whole = |stage| Pick { stage, items: None };
        let tried_at_ns = |stage: &usize| {
            let counters = self.stages[*stage].counters();
            counters.tried_at_ns.load(Ordering::Relaxed)
        };
        let now_ns = now.as_nanos() as u64;
        let starving = untried().filter(|stage| {
            let untried_ns = now_ns.saturating_sub(tried_at_ns(stage));
            let stage = &self.stages[*stage];
            let has_little = || {
                let readable = stage.input().map_or(0, |_| stage.readable(rings));
                // Nothing is known of a stage that has not worked yet: one slice tells.
                readable > 0 && readable as f64 * stage.counters().item_ns() <= WAITING_NS as f64
            };
            untried_ns > WAITING_NS
                && !stage.has_ended()
                && (untried_ns > STARVING_NS || has_little())
        });
        // The one that waits longest, so that each has its turn.
        if let Some(starving) = starving.min_by_key(tried_at_ns) {
            return Some(whole(starving));
        }
        let picked = self.scheduler.pick(&stages);
        // A scheduler is the user's, too.
        let picked = picked.filter(|pick| tried.get(pick.stage) == Some(&false));
        // What nobody finds worth it has its turn before the worker sleeps.
        picked.or_else(|| untried().next().map(whole))
    }

    fn activate(&self, pick: Pick, rings: u64, now: Duration) -> Result<Activation, FlowError> {
        let stage = &*self.stages[pick.stage];
        let tried_at_ns = &stage.counters().tried_at_ns;
        tried_at_ns.store(now.as_nanos() as u64, Ordering::Relaxed);
        let context = Context {
            clock: &*self.clock,
            items: pick.items,
            rings,
            condemned: &self.condemned,
            dead_letters: self.dead_letters.as_deref(),
        };
        let activation = match panic::catch_unwind(AssertUnwindSafe(|| stage.activate(&context))) {
            Ok(activation) => activation,
            Err(panic) if panic.is::<Killed>() => panic::resume_unwind(panic),
            // What a source or a sink left half done is not touched again: the flow fails.
            Err(panic) => return Err(self.panicked(stage.name(), &*panic)),
        };
        activation.map_err(|failure| self.error(failure))
    }

    fn error(&self, failure: Failure) -> FlowError {
        let flow = self.name.clone();
        match failure {
            Failure::Error { operator, error } => FlowError::Operator {
                flow,
                operator: operator.to_string(),
                error: error.into(),
            },
            Failure::Panicked { operator, message } => FlowError::Panicked {
                flow,
                operator: operator.to_string(),
                message,
            },
        }
    }

    fn panicked(&self, place: &str, panic: &(dyn Any + Send)) -> FlowError {
        FlowError::Panicked {
            flow: self.name.clone(),
            operator: Label::take_panicked().map_or(place.to_owned(), |label| label.to_string()),
            message: panic_message(panic),
        }
    }

    fn elements(&self) -> Elements<'_> {
        Elements {
            stages: &self.stages,
            cycles: &self.cycles,
            states: &self.states,
            sinks: &self.sinks,
        }
    }

    pub fn checkpoints(&self) -> Option<CheckpointCounts> {
        match self.cuts.purpose() {
            Purpose::Checkpoints(keeper, _) => Some(keeper.counts()),
            Purpose::None | Purpose::Commits => None,
        }
    }

    fn fail(&self, error: FlowError) {
        // What comes of a failure is not worth telling: neither of one elsewhere, nor what other
        // workers find once the ranks know of this one.
        let error = self.failure_elsewhere().unwrap_or(error);
        let message = error.to_string();
        let mut first = self.error.lock();
        let is_first = first.is_none();
        first.get_or_insert(error);
        drop(first);
        if is_first && self.ranks.count() > 1 {
            self.ranks.fail(&message);
        }
        self.leaving.store(true, Ordering::Relaxed);
        self.doorbell.ring_all();
    }

    /// What has ended all ranks, if it was another one.
    fn failure_elsewhere(&self) -> Option<FlowError> {
        let (rank, message) = self.ranks.failure()?;
        (rank != self.ranks.rank()).then(|| FlowError::Ranks {
            flow: self.name.clone(),
            error: ExchangeError::Failed { rank, message },
        })
    }

    /// Ends cycles that are at rest, and makes room in those that hold themselves up.
    fn move_cycles(&self, is_blocked: bool) -> bool {
        let mut has_moved = false;
        for cycle in &self.cycles {
            has_moved |= cycle.close_if_at_rest();
            has_moved |= is_blocked && cycle.grow_full_rings();
        }
        has_moved
    }

    /// Takes a cut, if it is time to and everything has arrived.
    fn cut_if_at_rest(&self, now: Duration) -> bool {
        match self.cuts.take_if_at_rest(&self.elements(), now) {
            Ok(true) => {
                // The sources go on, whoever found them idle.
                self.doorbell.ring_all();
                true
            }
            Ok(false) => false,
            Err(failure) => {
                self.fail(self.error(failure));
                true
            }
        }
    }

    /// Waits until there may be something to decide; `false` when the flow was dropped.
    fn wait_for(&self, decisions: &Decisions) -> bool {
        loop {
            let rings = self.doorbell.rings();
            if self.is_dropped.load(Ordering::SeqCst) {
                return false;
            }
            if decisions.are_due() {
                return true;
            }
            self.doorbell.wait(rings);
        }
    }

    fn sleep(&self, rings: u64) -> Woken {
        if let Some(at) = self.cuts.alarm() {
            self.doorbell.ring_at(at);
        }
        if !self.settled.load(Ordering::Relaxed) {
            let at_ns = self.adjust_at_ns.load(Ordering::Relaxed);
            self.doorbell.ring_at(Duration::from_nanos(at_ns));
        }
        self.doorbell.wait(rings)
    }

    /// Takes this worker off the count, unless it is the last.
    fn retire(&self, number: usize) -> bool {
        // Locked first: whoever sees the count and takes the place finds the number.
        let mut numbers = self.numbers.lock();
        let others = |count: usize| (count > 1).then(|| count - 1);
        let has_retired = self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, others)
            .is_ok();
        if has_retired {
            numbers.push(Reverse(number));
        }
        has_retired
    }

    /// Wakes or starts another worker if there is enough for it to do.
    fn call_for_help(self: &Arc<Self>, rings: u64, now: Duration) {
        let has_sleepers = self.doorbell.has_sleepers();
        let count = self.count();
        let count_max = self.count_max.load(Ordering::Acquire);
        if !has_sleepers && count >= count_max {
            return;
        }
        let free = self.stages.iter().filter(|stage| stage.has_free_instance());
        let now_ns = now.as_nanos() as u64;
        let waiting_ns = free.map(|stage| stage.waiting_ns(rings, now_ns));
        // This worker takes a slice itself.
        if waiting_ns.sum::<f64>() < HELP_NS + SLICE_NS as f64 {
            return;
        }
        if has_sleepers {
            self.doorbell.wake_by_ref();
        } else if self
            .count
            .compare_exchange(count, count + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
            && self.spawn_new().is_err()
        {
            // The machine gives no more threads; those that there are do the work.
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn adjust_if_due(&self, now: Duration) {
        self.doorbell.ring_if_due(now);
        let due_ns = self.adjust_at_ns.load(Ordering::Relaxed);
        let next_ns = (now + self.interval).as_nanos() as u64;
        if now.as_nanos() as u64 >= due_ns
            && self
                .adjust_at_ns
                .compare_exchange(due_ns, next_ns, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.adjust(now);
        }
    }

    /// Something has happened. Looking for work is nothing: workers that wake each other to look would
    /// never settle.
    fn unsettle(&self) {
        if self.settled.load(Ordering::Relaxed) {
            self.settled.store(false, Ordering::Relaxed);
        }
    }

    /// Measures throughput, gives back the memory of idle rings, and lets the scheduler adjust.
    fn adjust(&self, now: Duration) {
        let mut adjusted = self.adjusted.lock();
        let seconds = now.saturating_sub(adjusted.at).as_secs_f64();
        adjusted.at = now;
        // Whatever happens from here on unsettles again.
        self.settled.store(true, Ordering::Relaxed);
        let mut is_settled = true;
        for (stage, before) in self.stages.iter().zip(&mut adjusted.items_in) {
            let counters = stage.counters();
            let items_in = counters.items_in();
            let items = items_in - std::mem::replace(before, items_in);
            counters.throughput.set(items as f64 / seconds.max(1e-9));
            is_settled &= items == 0;
            if let (0, Some(channel)) = (items, stage.input()) {
                for ring in &channel.rings {
                    is_settled &= !ring.shrink();
                }
            }
        }
        drop(adjusted);
        let rings = self.doorbell.rings();
        self.scheduler.adjust(&Stages {
            stages: &self.stages,
            tried: &vec![false; self.stages.len()],
            rings,
            turn: 0,
        });
        if !is_settled {
            self.unsettle();
        }
    }
}

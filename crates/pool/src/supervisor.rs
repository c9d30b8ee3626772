//! The thread that watches over objectives, and the decisions that it takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;

use crate::admission::Admission;
use crate::controller::{Controller, FULL, Level, Reason, Standing};
use crate::objective::{Latencies, Objective};
use crate::pool::Pool;

/// The interval at which standings are looked at, while requests come.
const TICK: Duration = Duration::from_millis(10);

/// An activation of a stage takes about this long without an objective, and this part of the shortest objective with one: a request
/// waits for a few of them at most.
pub const ACTIVATION_MAX: Duration = Duration::from_micros(50);
const ACTIVATION_MIN: Duration = Duration::from_micros(10);
const ACTIVATION_PART: u32 = 200;

/// The last decisions that are kept for people.
const DECISIONS_MAX: usize = 200;

/// A change of the level of best-effort work, or a miss without it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// When, since the pool was created, in seconds.
    pub at_seconds: f64,
    /// The part of all slots that best-effort work may have from then on, in percent.
    pub level: Level,
    /// Why.
    pub reason: Reason,
    /// The objective that was worst off; `None` if no request came.
    pub objective: Option<String>,
}

/// The standing of an objective, for people.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectiveView {
    /// The name of the work that has it.
    pub name: String,
    /// The objective.
    #[serde(flatten)]
    pub objective: Objective,
    /// The latency at its percentile, of the last requests, in seconds; `None` without any.
    pub latency_seconds: Option<f64>,
    /// Requests that were answered.
    pub answered: u64,
    /// Those that were answered too late.
    pub late: u64,
    /// Those that were refused at once, since they would have been.
    pub refused: u64,
    /// How often a client was held before its next request, since that would have been.
    pub held: u64,
    /// Requests that wait or are worked on.
    pub waiting: usize,
    /// Whether the objective was last missed although best-effort work had no slots: it cannot be held even alone.
    pub missed_alone: bool,
}

/// Work with an objective. It measures each request from its beginning to its end.
pub struct Meter {
    name: String,
    objective: Objective,
    supervisor: Arc<Supervisor>,
    /// Set by each request, cleared at each tick.
    has_requests: AtomicBool,
    state: Mutex<MeterState>,
}

#[derive(Default)]
struct MeterState {
    latencies: Latencies,
    admission: Admission,
    waiting: usize,
    answered: u64,
    late: u64,
    refused: u64,
    held: u64,
    missed_alone: bool,
    /// When the requests that wait came, the oldest first; answered ones at the front are removed.
    arrivals: VecDeque<Option<Duration>>,
    /// The number of the first arrival.
    first: u64,
}

/// A request that was begun: see [`Meter::begin`]. Dropped, it has ended.
pub struct Measured {
    meter: Arc<Meter>,
    number: u64,
    begun_at: Duration,
    /// The latency that was predicted when it came.
    predicted: Duration,
    /// Whether the request was none: it does not count.
    is_taken_back: bool,
}

impl Measured {
    /// Takes the request back: it does not count. One that waits for an event is no request before the event.
    pub fn take_back(mut self) {
        self.is_taken_back = true;
    }
}

impl MeterState {
    /// The request of this number waits no longer.
    fn remove(&mut self, number: u64) {
        let index = usize::try_from(number - self.first).expect("it is in memory");
        self.arrivals[index] = None;
        while self.arrivals.pop_front_if(|it| it.is_none()).is_some() {
            self.first += 1;
        }
    }
}

impl Meter {
    fn new(name: &str, objective: Objective, supervisor: &Arc<Supervisor>) -> Meter {
        Meter {
            name: name.to_owned(),
            objective,
            supervisor: Arc::clone(supervisor),
            has_requests: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Whether requests have come or were answered since the last call, or wait.
    fn is_busy(&self) -> bool {
        self.has_requests.swap(false, Ordering::SeqCst) || self.state.lock().waiting > 0
    }

    /// A request has come. Measures it until the result is dropped.
    ///
    /// # Errors
    /// If it would be answered too late, by the pace of the last answers: it should be refused at once, to come again after
    /// this time.
    pub fn begin(self: &Arc<Self>) -> Result<Measured, Duration> {
        let mut state = self.state.lock();
        let waiting = state.waiting;
        if let Some(excess) = state.admission.excess(&self.objective, waiting) {
            state.refused += 1;
            return Err(excess);
        }
        let now = self.supervisor.now();
        Ok(self.add(state, now, now))
    }

    /// Measures a request that has come at `since`, late or not, until the result is dropped.
    pub fn begin_at(self: &Arc<Self>, since: Instant) -> Measured {
        let begun_at = since.saturating_duration_since(self.supervisor.started_at);
        self.add(self.state.lock(), begun_at, self.supervisor.now())
    }

    /// Returns for how long a client is to wait before its next request, if a request that came now would be answered too
    /// late, by the pace of the last answers. For protocols that refuse no requests.
    pub fn hold(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        let waiting = state.waiting;
        let excess = state.admission.excess(&self.objective, waiting)?;
        state.held += 1;
        Some(excess)
    }

    fn add(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, MeterState>,
        begun_at: Duration,
        now: Duration,
    ) -> Measured {
        let waited = now.saturating_sub(begun_at);
        let predicted = waited + state.admission.time_behind(state.waiting);
        if state.waiting == 0 {
            state.admission.begin(begun_at);
        }
        state.arrivals.push_back(Some(begun_at));
        state.waiting += 1;
        let number = state.first + state.arrivals.len() as u64 - 1;
        drop(state);
        if !self.has_requests.swap(true, Ordering::SeqCst) {
            self.supervisor.wake_if_parked();
        }
        Measured {
            meter: Arc::clone(self),
            number,
            begun_at,
            predicted,
            is_taken_back: false,
        }
    }

    fn standing(&self, now: Duration) -> Standing {
        let within = self.objective.within.as_secs_f64();
        let state = &mut *self.state.lock();
        state.admission.look(&self.objective, now);
        let latency = state.latencies.at(self.objective.percentile, now);
        let oldest = state.arrivals.front().copied().flatten();
        Standing {
            latency: latency.map(|latency| latency.as_secs_f64() / within),
            oldest: oldest.map_or(0.0, |at| now.saturating_sub(at).as_secs_f64() / within),
        }
    }

    fn view(&self, now: Duration) -> ObjectiveView {
        let state = &mut *self.state.lock();
        let latency = state.latencies.at(self.objective.percentile, now);
        ObjectiveView {
            name: self.name.clone(),
            objective: self.objective,
            latency_seconds: latency.map(|latency| latency.as_secs_f64()),
            answered: state.answered,
            late: state.late,
            refused: state.refused,
            held: state.held,
            waiting: state.waiting,
            missed_alone: state.missed_alone,
        }
    }

    /// The objective was missed without best-effort work.
    fn miss_alone(&self, latency: f64) {
        let state = &mut *self.state.lock();
        if !mem::replace(&mut state.missed_alone, true) {
            tracing::warn!(
                "the objective of {} ({}) cannot be held even alone: its latency is {:?} although best-effort work has no slots; \
                 raise the objective, spare work per request, or use more processors",
                self.name,
                self.objective,
                self.objective.within.mul_f64(latency),
            );
        }
    }

    /// Takes in that the objective is held.
    fn hold_alone(&self) {
        self.state.lock().missed_alone = false;
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // The first request of the others lets their objectives be looked at.
        let activation_ns = ACTIVATION_MAX.as_nanos() as u64;
        self.supervisor
            .activation_ns
            .store(activation_ns, Ordering::Relaxed);
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let meter = &self.meter;
        let now = meter.supervisor.now();
        let latency = now.saturating_sub(self.begun_at);
        let state = &mut *meter.state.lock();
        state.waiting -= 1;
        state.remove(self.number);
        let others_wait = state.waiting > 0;
        if self.is_taken_back {
            state.admission.taken_back(others_wait);
            return;
        }
        state.answered += 1;
        state.late += u64::from(latency > meter.objective.within);
        state.latencies.record(latency, now);
        state
            .admission
            .answered(self.predicted, latency, others_wait, now);
        meter.has_requests.store(true, Ordering::SeqCst);
    }
}

/// Looks at the standings of all objectives of a pool, and limits best-effort work.
pub struct Supervisor {
    pool: Weak<Pool>,
    started_at: Instant,
    state: Mutex<SupervisorState>,
    bell: Condvar,
    /// The thread sleeps until a request comes. It sets this before it looks for requests a last time, and a request looks here
    /// after it has said that it came, all SeqCst: one of them sees the other.
    is_parked: AtomicBool,
    /// See [`Pool::activation_ns`].
    activation_ns: AtomicU64,
}

#[derive(Default)]
struct SupervisorState {
    meters: Vec<Weak<Meter>>,
    controller: Controller,
    decisions: VecDeque<Decision>,
    has_thread: bool,
    is_closed: bool,
}

impl Supervisor {
    pub fn new(pool: &Weak<Pool>, started_at: Instant) -> Arc<Supervisor> {
        Arc::new(Supervisor {
            pool: Weak::clone(pool),
            started_at,
            state: Mutex::default(),
            bell: Condvar::new(),
            is_parked: AtomicBool::new(false),
            activation_ns: AtomicU64::new(ACTIVATION_MAX.as_nanos() as u64),
        })
    }

    /// Adds work with an objective.
    ///
    /// # Errors
    /// If the first one finds that the machine gives no thread.
    pub fn add(self: &Arc<Self>, name: &str, objective: Objective) -> io::Result<Arc<Meter>> {
        let mut state = self.state.lock();
        if !state.has_thread {
            let supervisor = Arc::clone(self);
            thread::Builder::new()
                .name("millstream-slo".to_owned())
                .spawn(move || supervisor.run())?;
            state.has_thread = true;
        }
        let meter = Arc::new(Meter::new(name, objective, self));
        state.meters.push(Arc::downgrade(&meter));
        self.cut_activations(&state.meters());
        Ok(meter)
    }

    /// See [`Pool::activation_ns`].
    pub fn activation_ns(&self) -> u64 {
        self.activation_ns.load(Ordering::Relaxed)
    }

    /// Cuts activations to the shortest objective.
    fn cut_activations(&self, meters: &[Arc<Meter>]) {
        let parts = meters
            .iter()
            .map(|meter| meter.objective.within / ACTIVATION_PART);
        let shortest = parts.min().unwrap_or(ACTIVATION_MAX);
        let activation = shortest.clamp(ACTIVATION_MIN, ACTIVATION_MAX);
        self.activation_ns
            .store(activation.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The pool is gone.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.bell.notify_one();
    }

    /// Returns the objectives.
    pub fn objectives(&self) -> Vec<ObjectiveView> {
        let meters = self.state.lock().meters();
        meters.iter().map(|meter| meter.view(self.now())).collect()
    }

    /// Returns the last decisions, the newest last.
    pub fn decisions(&self) -> Vec<Decision> {
        self.state.lock().decisions.iter().cloned().collect()
    }

    fn now(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// A request has come.
    fn wake_if_parked(&self) {
        if self.is_parked.load(Ordering::SeqCst) {
            // Under the lock: the thread sleeps, or has yet to look.
            let _state = self.state.lock();
            self.bell.notify_one();
        }
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while !state.is_closed {
            let meters = state.meters();
            self.cut_activations(&meters);
            // Cleared before the standings are read: a request that comes meanwhile is seen by the next look.
            let are_busy = meters.iter().filter(|meter| meter.is_busy()).count() > 0;
            let decision = state.decide(&meters, are_busy, self.now());
            // Dropped before the sleep, so that their owners can end them.
            drop(meters);
            if let Some(level) = decision
                && let Some(pool) = self.pool.upgrade()
            {
                pool.limit_best_effort(level);
                // The last owner of the pool would close this supervisor, which is locked.
                MutexGuard::unlocked(&mut state, || drop(pool));
            }
            if are_busy || state.controller.level() < FULL {
                self.bell.wait_for(&mut state, TICK);
            } else {
                self.is_parked.store(true, Ordering::SeqCst);
                let mut meters = state.meters().into_iter();
                if !meters.any(|meter| meter.has_requests.load(Ordering::SeqCst)) {
                    self.bell.wait(&mut state);
                }
                self.is_parked.store(false, Ordering::SeqCst);
            }
        }
    }
}

impl SupervisorState {
    /// Returns the work with objectives.
    fn meters(&mut self) -> Vec<Arc<Meter>> {
        self.meters.retain(|meter| meter.strong_count() > 0);
        self.meters.iter().filter_map(Weak::upgrade).collect()
    }

    /// Decides about the level by the objective that is worst off. Returns the level if there is something to say about it.
    fn decide(&mut self, meters: &[Arc<Meter>], are_busy: bool, now: Duration) -> Option<Level> {
        let standings = meters.iter().map(|meter| (meter, meter.standing(now)));
        let standings = standings.inspect(|(meter, standing)| {
            if standing.latency.is_some_and(|latency| latency <= 1.0) {
                meter.hold_alone();
            }
        });
        let worst = standings.max_by(|(_, one), (_, other)| one.worse().total_cmp(&other.worse()));
        let worst = worst.filter(|_| are_busy);
        let standing = worst.as_ref().map(|(_, standing)| *standing);
        let (level, reason) = self.controller.observe(standing, now)?;
        if let (Reason::MissedAlone, Some((meter, standing))) = (reason, &worst) {
            meter.miss_alone(standing.worse());
        }
        for meter in meters {
            meter.state.lock().latencies.clear(now);
        }
        if self.decisions.len() == DECISIONS_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Decision {
            at_seconds: now.as_secs_f64(),
            level,
            reason,
            objective: worst.map(|(meter, _)| format!("{}: {}", meter.name, meter.objective)),
        });
        Some(level)
    }
}
